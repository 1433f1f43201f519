"""Why a task is not running."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, and_, func, literal, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .._support.engines import has_one_connection, separate_session
from .._support.errors import Claim
from .._support.texts import ahead_text, error_text, key_text
from ..dialects.base import Adapter
from ..lifecycle.kind import Cause, Reason, SeenTask, kinds_of, moment_text
from ..model.companions import WorkerState, history_of, worker_table
from ..model.declaration import COLUMNS, QueueMixin
from ..queue.options import EXPIRED, FINAL, AttemptOutcome, Status
from ..queue.spec import Criterion, Identity, Ordering, QueueSpec, spec_of
from ..sql import (
    COUNTED,
    REACH,
    REACTIVATED,
    Pick,
    UTCDateTime,
    before,
    capped_count,
    counts_before,
    ended,
    follower,
    is_token_of_worker,
    picks,
    present,
    representable,
    state,
    utcnow,
)
from ..transaction import AnySession, ledger_of, open_, row_of, scope_of, session_of, within
from .control import pauses_of
from .flows import waited_text
from .latches import NOT_RUN, SKIPPED, shown_state
from .paging import finds_finished
from .recording import attempt_text, brief, reported, spoken, was_set_aside
from .workers import holder_of, workers

_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The reasons why a task is not running, or its current state."""

    entity: type[QueueMixin]
    """The model of the task."""
    identity: Identity
    """Its primary key."""
    status: Status | str | None
    """Its state, or another text that is stored instead; ``None`` if there is no such row."""
    reasons: tuple[Reason, ...]
    """At least one reason. All of them must be resolved before the task can run; the decisive one comes first."""
    at: datetime
    """The time for which this holds, by the database's clock."""

    def __str__(self) -> str:
        name = f"{spec_of(self.entity).name} {key_text(self.identity)}"
        return f"{name}: {'; '.join(reason.text for reason in self.reasons)}."


def why(session: AnySession, task: QueueMixin | Claim) -> Explanation:
    """Return why ``task`` is not running now: every state has an answer.

    ``task``: an instance that has been stored, or a claim of it.  The explanation is about the row as this transaction
    sees it, not about the instance.

    Reads a bounded number of rows, however many tasks the queue has, and locks nothing in this transaction.  Only on
    SQLite, for a task of a limited key, it reads all tasks that are available since the same moment.

    To find out whether another transaction holds the row's lock, a separate connection tries to lock the row and
    releases it at once: a claim at the same moment skips the task.  This is not done if the session is bound to a
    ``Connection`` or to an in-memory database, nor if the account or the database can only read.  The session's
    ``after_begin`` listeners prepare that connection, too.

    Tasks that come first are counted in the order of the whole queue, up to 1,000.  The estimate is their number
    divided by the number of attempts that ended within the last minute, read from the history; without a
    :class:`.HistoryMixin`, by how many tasks finished, which needs ``retention``: it gives the model an index of them.
    """
    spec, identity = row_of(task)
    session = session_of(session)
    adapter = open_(session, spec)
    seen = _read(session, adapter, spec, identity)
    if seen is None:
        now = present(session, spec)
        gone = Reason(cause=Cause.MISSING, text="there is no such row: it was deleted, or is not committed yet")
        return Explanation(entity=spec.entity, identity=identity, status=None, reasons=(gone,), at=now)
    return Explanation(
        entity=spec.entity,
        identity=identity,
        status=_status(seen),
        reasons=tuple(_reasons(session, adapter, seen)),
        at=seen.now,
    )


def _read(session: Session, adapter: Adapter, spec: QueueSpec, identity: Identity) -> SeenTask | None:
    share = [column for column in (spec.fair, spec.sequence) if column is not None]
    order = (term.column for term in spec.ready_order)
    columns = dict.fromkeys([*spec.columns.values(), *spec.primary_key, *order, *share])
    read = (representable(each) if isinstance(each.type, UTCDateTime) else each for each in columns)
    found = adapter.rows.values(session, spec, within(session, spec, (spec.key(identity),)), [utcnow(), *read])
    if found is None:
        return None
    now, *values = found
    shown: Iterable[tuple[Any, Any]] = zip(columns, values, strict=True)
    return SeenTask(spec=spec, identity=identity, now=now, columns=dict(shown), scope=scope_of(session, spec))


def _status(seen: SeenTask) -> Status | str:
    stored = str(seen.values["status"])
    return Status(stored) if stored in tuple(Status) else stored


def _damage(seen: SeenTask) -> Iterator[Reason]:
    """Yield the reasons why the queue cannot work with the row at all."""
    for role, value in seen.values.items():
        if isinstance(value, Exception) and role in COLUMNS:
            text = f"its {role} cannot be read: {brief(error_text(value))}"
            yield Reason(cause=Cause.UNREADABLE, text=text)
    if not isinstance(status := _status(seen), Status):
        states = ", ".join(Status)
        text = f"its status is {status!r}, which is none of the states: {states}"
        yield Reason(cause=Cause.UNKNOWN_STATUS, text=text)


def _reasons(session: Session, adapter: Adapter, seen: SeenTask) -> Iterable[Reason]:
    if damage := list(_damage(seen)):
        return damage
    state = _state(seen)
    if state is not None and state.cause is Cause.WAITS:
        what, missing = waited_text(session, seen.spec, seen.values["waits_for"], seen.values["waits_when"])
        until = "" if state.until is None else f", or until {moment_text(state.until)}"
        return [replace(state, text=f"it waits for {what}{until}: {missing}")]
    if state is not None and state.cause is Cause.NOT_DUE:
        return [state, *_obstacles(session, seen)]
    if state is not None and state.cause is not Cause.LEASE_EXPIRED:
        return [state, *(_trouble(session, seen) if state.cause is Cause.RUNNING else ())]
    told = [] if state is None else [state]
    if locked := _locked(session, adapter, seen):
        return [*told, locked]
    obstacles = [
        *_obstacles(session, seen),
        *(reason for kind in kinds_of(seen.spec) for reason in kind.hindrances(adapter, session, seen)),
        *_sequence(session, adapter, seen),
        *_order(session, adapter, seen),
    ]
    return [
        *told,
        *(obstacles or [Reason(cause=Cause.READY, text="nothing prevents it from running: the next claim takes it")]),
    ]


def _state(seen: SeenTask) -> Reason | None:
    """Return the reason in the row itself, or ``None`` if the row itself does not prevent a claim."""
    values = seen.values
    status, moment, tries = Status(values["status"]), values["available_at"], values["attempt"]
    if status in FINAL:
        return _finished(status, values)
    if status is Status.RUNNING and moment > seen.now:
        since = values["claimed_at"]
        text = f"it has been running on {values['claimed_by']} since {moment_text(since)}"
        text = f"{text}, and is leased until {moment_text(moment)}"
        told = reported(values.get("progress"))
        if told is not None and told.text and told.attempt == tries:
            text = f"{text}; its handler reports {told.text}"
        return Reason(cause=Cause.RUNNING, text=text, since=since, until=moment, by=values["claimed_by"])
    if moment > seen.now:
        return _not_due(status, values, seen.now)
    is_used_up = tries >= values["max_attempts"] and not is_token_of_worker(values["claim_token"])
    if status is not Status.AVAILABLE and is_used_up:
        text = f"attempt {tries} was the last one, and ended without a result: rescue() discards it, as workers do"
        return Reason(cause=Cause.EXHAUSTED, text=text, since=moment, by=values["claimed_by"])
    if status is Status.RUNNING:
        text = f"the lease of {values['claimed_by']} expired at {moment_text(moment)}: the next claim takes it over"
        return Reason(cause=Cause.LEASE_EXPIRED, text=text, since=moment, by=values["claimed_by"])
    return None


_FAR = REACH / 2
"""A time that nobody sets as a deadline."""


def _not_due(status: Status, values: Any, now: datetime) -> Reason:
    moment, tries = values["available_at"], values["attempt"]
    if status is Status.WAITING:
        is_far = moment - now > _FAR  # it was the latest time, which was made representable
        return Reason(cause=Cause.WAITS, text="it waits", until=None if is_far else moment)
    counted = attempt_text(tries, values["max_attempts"])
    failed = f"attempt {counted} failed, and " if status is Status.RETRYABLE else ""
    if was_set_aside(values["error"]):
        failed = f"it {values['error']}, and "
    return Reason(cause=Cause.NOT_DUE, text=f"{failed}it is not due before {moment_text(moment)}", until=moment)


def _finished(status: Status, values: Any) -> Reason:
    moment, error = values["finished_at"], values["error"]
    when = f"at {moment_text(moment)}" if moment else "before its table became a queue"
    is_why = error and (status is Status.DISCARDED or error == EXPIRED or error.startswith(NOT_RUN))
    because = f": {error.partition(chr(10))[0]}" if is_why else ""
    if shown_state(status, values.get("waits_when")) == SKIPPED:
        because = ": it was not needed, as nothing that it waited for has failed"
    text = f"it was {status.value} {when}{because}"
    return Reason(cause=Cause.FINISHED, text=text, since=moment, by=values["claimed_by"])


def _obstacles(session: Session, seen: SeenTask) -> Iterator[Reason]:
    yield from _pauses(session, seen)
    yield from _unserved(session, seen)
    yield from _suspicion(seen)
    moment = seen.values.get("expires_at")
    if moment is not None and moment <= seen.now:
        text = f"it expired at {moment_text(moment)}: the claim that finds it cancels it"
        yield Reason(cause=Cause.EXPIRED, text=text, since=moment)


def _trouble(session: Session, seen: SeenTask) -> Iterator[Reason]:
    """Yield the reasons why a running task may not end."""
    holder = holder_of(session, seen.spec, seen.values["claim_token"])
    if holder is not None and holder.state is WorkerState.SILENT:
        remedy = f"sqlqueue workers release {holder.name}, or release_workers(), releases its tasks at once"
        text = f"its worker has been silent for {spoken(holder.unheard)}: {remedy}"
        yield Reason(cause=Cause.SILENT, text=text, since=holder.seen_at, by=holder.name)
    if holder is not None and holder.stalled_at is not None:
        text = f"the event loop of its worker has been standing still since {moment_text(holder.stalled_at)}"
        yield Reason(cause=Cause.STALLED, text=text, since=holder.stalled_at, by=holder.name)
    yield from _suspicion(seen)


def _suspicion(seen: SeenTask) -> Iterator[Reason]:
    """Yield a reason if the task may have crashed a process, so that workers do not run it alongside others."""
    crashes, most = seen.values["crashes"], seen.spec.options.max_crashes
    if not crashes or not seen.spec.isolates_suspects:
        return
    is_running = seen.values["status"] == Status.RUNNING and seen.values["available_at"] > seen.now
    if is_running:
        then = "it runs in a child process, or alone once all other tasks of its worker have ended"
    elif crashes < most:
        then = "a worker runs it in a child process, or alone once all its other tasks have ended"
    else:
        then = "a worker that claims it discards it"
    # for a running suspect, workers have counted the crash in advance
    times = "a process" if crashes == 1 or is_running else f"{crashes:,} processes"
    yield Reason(cause=Cause.SUSPECT, text=f"it may have crashed {times}: {then}")


def _unserved(session: Session, seen: SeenTask) -> Iterator[Reason]:
    """Yield a reason if workers are registered, and according to their handlers no live one claims such tasks."""
    if worker_table(seen.spec.table.metadata) is None:
        return
    live = (each for each in workers(session, seen.spec.entity) if each.is_live)
    handlers = [handler for each in live for handler in each.handlers if handler.queue == seen.spec.table.fullname]
    function = seen.values.get("task")
    if not handlers:
        yield Reason(cause=Cause.UNSERVED, text="no live worker serves the queue")
    elif function is not None and all(handler.functions and function not in handler.functions for handler in handlers):
        yield Reason(cause=Cause.UNSERVED, text=f"no live worker has registered the function {function!r}")


def _pauses(session: Session, seen: SeenTask) -> Iterator[Reason]:
    topic, column = seen.values.get("topic"), seen.spec.keyed_by
    for pause in pauses_of(session, seen.spec, topic, None if column is None else seen.columns[column]):
        what = pause.part or "the queue"
        because = f": {pause.reason}" if pause.reason else ""
        text = f"{what} was paused by {pause.paused_by} at {moment_text(pause.paused_at)}{because}"
        yield Reason(cause=Cause.PAUSED, text=text, since=pause.paused_at, by=pause.paused_by)


def _locked(session: Session, adapter: Adapter, seen: SeenTask) -> Reason | None:
    spec, identity = seen.spec, seen.identity
    if identity in ledger_of(session).locked(spec.table):
        return Reason(cause=Cause.LOCKED, text="this transaction itself holds its lock", by="this transaction")
    bind = session.get_bind(**spec.bind_arguments)
    if isinstance(bind, Connection) or has_one_connection(bind):
        return None
    named = spec.key(identity)
    pick = Pick(spec=spec, state=(), where=(named,), order=(), limit=1, index=None, exact=True)
    with separate_session(session, spec.bind_arguments) as own:
        if not adapter.rows.exists(own, spec, named):
            if adapter.inspection.hides_rows(own.connection(spec.bind_arguments), spec):
                return None  # a setting that only this transaction has may show the row
            return Reason(cause=Cause.UNCOMMITTED, text="it is not committed: only this transaction sees it")
        own.rollback()
        try:
            free = adapter.rows.is_free(own, pick)
        except DBAPIError as error:
            if not (adapter.connections.is_denied(error) or adapter.connections.is_read_only(error)):
                raise
            free = True  # it cannot be known
        finally:
            own.rollback()
    if free:
        return None
    owner = adapter.inspection.lock_owner(session.connection(spec.bind_arguments), spec, identity)
    whose = f"a transaction of {owner}" if owner else "a transaction that has not ended"
    return Reason(cause=Cause.LOCKED, text=f"its row is locked by {whose}", by=owner)


def _sequence(session: Session, adapter: Adapter, seen: SeenTask) -> Iterator[Reason]:
    """Yield the reasons why a task of a queue whose keys keep their order is not the first of its key."""
    spec = seen.spec
    if spec.sequence is None or (key := seen.columns[spec.sequence]) is None:
        return
    order = [Ordering(column) for column in spec.primary_key if column is not spec.sequence]
    same = spec.sequence == key
    earlier = and_(same, or_(*before(order, seen.columns)))
    first = Pick(
        spec=spec,
        state=(spec["finished_at"].is_(None),),
        where=(earlier,),
        order=spec.sequence_order,
        limit=1,
        index=spec.index_name("order"),
        exact=True,
    )
    look = adapter.rows.select_candidates
    shown = (spec["status"], spec["claimed_by"], representable(spec["available_at"]))
    found = adapter.rows.execute(session, spec, look(first, *shown, *spec.primary_key)).first()
    number, letter = next(n for n, each in enumerate(spec.primary_key) if each is not spec.sequence), None
    if spec.discarded_hold:
        discarded, error = (spec["status"] == state(Status.DISCARDED),), spec["error"]
        held = replace(first, state=discarded, order=tuple(order), index=spec.index_name("held"))
        since = representable(spec["finished_at"])
        letter = adapter.rows.execute(session, spec, look(held, *spec.primary_key, since, error)).first()
    if letter is not None:
        *holder, moment, said = tuple[Any, ...](letter)
        when = f" at {moment_text(moment)}" if moment else ""
        because = f": {said.partition(chr(10))[0]}" if said else ""
        text = f"task {key_text(tuple(holder))} with its key {key!r} was discarded{when}{because}"
        yield Reason(cause=Cause.KEY_HELD, text=f"{text}; it holds the key until it is retried", since=moment)
    if found is not None:
        status, holder, moment, *identity = tuple[Any, ...](found)
        counts = counts_before(spec, order, seen.columns, same, spec["finished_at"].is_(None))
        ahead = sum(adapter.rows.execute(session, spec, counts).one())
        others = f", and {ahead - 1:,} more before this one" if ahead > 1 else ""
        is_held = letter is not None and letter[number] < identity[number]
        doing = "" if is_held else f": {_doing(status, holder, moment, seen.now)}"
        text = f"task {key_text(tuple(identity))} with its key {key!r} comes first{doing}"
        yield Reason(cause=Cause.KEY_ORDER, text=f"{text}{others}", ahead=ahead)
    if seen.values["claim_token"] == REACTIVATED:
        yield from _overtaken(session, adapter, seen)


def _overtaken(session: Session, adapter: Adapter, seen: SeenTask) -> Iterator[Reason]:
    """Yield a reason if a later task of the key was started before this one was made available again."""
    spec, column = seen.spec, cast("ColumnElement[Any]", seen.spec.sequence)
    key = seen.columns[column]
    shown = (spec["status"], spec["claimed_by"], representable(spec["available_at"]), *spec.primary_key)
    look = adapter.rows.select_candidates(follower(spec, key, seen.identity), *shown)
    found: Any = adapter.rows.execute(session, spec, look).first()
    if found is not None and found[0] == Status.RUNNING and found[2] > seen.now:
        name = key_text(tuple(found[3:]))
        text = f"task {name} with its key {key!r} was started before this one: it is running on {found[1]}"
        yield Reason(cause=Cause.KEY_ORDER, text=text)


def _doing(status: str, holder: str | None, moment: datetime, now: datetime) -> str:
    """Return what the first task of a key is doing."""
    if status == Status.RUNNING:
        return f"it is running on {holder}" if moment > now else f"the lease of {holder} expired"
    failed = "it failed, and is" if status == Status.RETRYABLE else "it is"
    return f"{failed} due at {moment_text(moment)}" if moment > now else f"{failed} waiting to start"


def _order(session: Session, adapter: Adapter, seen: SeenTask) -> Iterator[Reason]:
    spec = seen.spec
    ranges = _before(seen) if spec.sequence is None else []
    if not ranges:
        return
    if spec.fair is not None and seen.values["status"] == Status.AVAILABLE:
        yield from _turns(session, adapter, seen, ranges)
        return
    lately = _lately(adapter, spec)
    counts = [each.label(None) for each in (*(capped_count(spec, *criteria) for criteria in ranges), *lately)]
    found = adapter.rows.execute(session, spec, select(*counts)).one()
    ahead = min(sum(found[: len(ranges)]), COUNTED)
    if ahead:
        done = found[-1] if lately else 0
        yield _behind(ahead, timedelta(seconds=round(60 * ahead / done)) if done else None)


def _turns(
    session: Session, adapter: Adapter, seen: SeenTask, ranges: Sequence[tuple[Criterion, ...]]
) -> Iterator[Reason]:
    spec: QueueSpec = seen.spec
    column: Any = spec.fair
    key = seen.columns[column]
    same = column.is_(None) if key is None else column == key
    given = literal(key, column.type)  # no operator takes a bare True
    others = [column.is_not(None)] if key is None else [column < given, column > given, column.is_(None)]
    ready = picks(spec)[0](1).state
    parts = [*((same, *criteria) for criteria in ranges), *((other, *ready) for other in others)]
    counts = (capped_count(spec, *part).label(None) for part in parts)
    found = adapter.rows.execute(session, spec, select(*counts)).one()
    ahead = min(sum(found[: len(ranges)]), COUNTED)
    if sum(found):
        first = "it comes first" if not ahead else ahead_text(ahead, COUNTED)
        text = f"{first} among those whose {spec.options.fair} is {key!r}, and each {spec.options.fair} has its turn"
        yield Reason(cause=Cause.SHARE, text=text, ahead=ahead)


def _lately(adapter: Adapter, spec: QueueSpec) -> list[ColumnElement[int]]:
    """Return the number of attempts, or else of tasks, that ended within the last minute, if an index finds them."""
    since, history = utcnow(-_MINUTE), None if spec.inherited is not None else history_of(spec.table.metadata)
    if history is not None:
        table, columns = history.table, {"one": history.table.c.id}
        # crashed attempts ended some time before they were detected
        ways = [each for each in AttemptOutcome if each is not AttemptOutcome.CRASHED]
        rows = ended(table, spec.table.fullname, ways, columns, table.c.finished_at >= since, cap=None).limit(COUNTED)
        return [select(func.count()).select_from(rows.subquery()).scalar_subquery()]
    return [capped_count(spec, spec["finished_at"] >= since)] if finds_finished(adapter, spec) else []


def _before(seen: SeenTask) -> list[tuple[Criterion, ...]]:
    """Return the ranges of tasks that are claimed before this one; none where they cannot be determined."""
    spec, values = seen.spec, seen.columns
    first, due = (step(1) for step in picks(spec))
    ready = first.state
    if seen.values["status"] != Status.AVAILABLE:  # all that are ready come first
        return [ready, *((*each.state, part) for each in due.parts for part in before(spec.due_order, values))]
    if any(values[term.column] is None for term in spec.ready_order):
        return []  # the position of NULL in an order depends on the engine
    return [(*ready, part) for part in before(spec.ready_order, values)]


def _behind(ahead: int, estimate: timedelta | None) -> Reason:
    takes = "" if estimate is None else f", which takes {estimate} at the rate of the last minute"
    return Reason(cause=Cause.ORDER, text=f"{ahead_text(ahead, COUNTED)}{takes}", ahead=ahead, estimate=estimate)
