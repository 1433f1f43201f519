"""What workers do for all tasks: extend leases, promote, rescue, count crashes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, func, literal_column, null, select, union_all
from sqlalchemy.orm import Session

from .._support.checks import count
from .._support.errors import Claim, WorkerTokens
from ..dialects.base import Adapter
from ..dialects.statements import LANES
from ..kinds.limits import Slots, next_start, slots_of
from ..lifecycle.transitions import Fence, FencedClaims, error_assignments
from ..model.declaration import QueueMixin
from ..queue.options import Status
from ..queue.spec import Identity, QueueSpec, Where, spec_of
from ..sql import (
    Pick,
    exhausted_picks,
    has_attempts,
    is_available,
    is_due,
    is_early,
    is_final,
    lane_picks,
    picks,
    present_status,
    representable,
    state,
    utcnow,
    write,
)
from ..transaction import Access, AnySession, open_, session_of, within
from .recording import last_claims
from .settling import (
    CLEARED,
    RELEASED_AFTER_LEASE,
    RETURNED,
    Settlement,
    discarded_after_crashes,
    extended,
    released_after_crash,
    settle_some,
)

# -- handles the tasks of a worker whose process died -----------------------------------------------------------------


class Started(NamedTuple):
    """A task that a process was running."""

    table: str
    identity: Identity
    token: int | None
    """The token of its claim; ``None`` if the claim only locked its row."""
    counted: bool
    """Whether the task is a suspect whose crash was counted in advance, instead of a task that this process ran."""


class Crash(NamedTuple):
    """The death of a worker's process."""

    worker: int
    """The number in the tokens of its claims."""
    how: str
    """How it ended, as in "exited with status 7"."""
    started: tuple[Started, ...]
    complete: bool
    """Whether ``started`` contains all tasks that were running."""


class Recovered(NamedTuple):
    """The tasks of a process that died."""

    returned: int
    """How many were released because they had not been started, or had already ended."""
    suspects: list[Claim]
    discarded: list[Claim]
    """Suspects that have crashed as many processes as ``max_crashes`` allows."""
    functions: Mapping[Claim, str | None]
    """The functions that they call (``JobMixin``), as far as they are known."""
    text: str
    """Their error."""


def crash_text(how: str, running: int) -> str:
    """Return the error of tasks whose process died while ``running`` tasks ran in it."""
    others = "alone" if running == 1 else f"with {running - 1} other tasks"
    return f"its process {how} while it ran {others}"


def too_many_crashes(crashes: int, reason: str | None) -> str:
    """Return the error of a task that has crashed ``crashes`` processes, the last for this ``reason`` if it is
    known."""
    return f"crashed {crashes} processes" + (f": {reason}" if reason and reason.startswith("its process ") else "")


def recover(session: Session, spec: QueueSpec, crash: Crash) -> Recovered:
    """Release the tasks that a dead process held, in the session's transaction.  None of their attempts count.

    The tasks that ran in it become suspects; those that have now crashed ``max_crashes`` processes are discarded.
    """
    adapter = open_(session, spec, Access.CHANGE)
    mine = [each for each in crash.started if each.table == spec.table.fullname]
    running, counted = ({(m.identity, m.token) for m in mine if m.counted is each} for each in (False, True))
    text = crash_text(crash.how, sum(not each.counted for each in crash.started) or 1)
    suspected = released_after_crash(text)
    discarded = cache(lambda crashes: discarded_after_crashes(too_many_crashes(crashes, text)))
    alike = defaultdict[Settlement, list[Claim]](list)
    functions: dict[Claim, str | None] = {}
    for claim, crashes, functions[claim] in held_by(session, spec, WorkerTokens(crash.worker)):
        one = claim.identity, claim.token
        if crash.complete and one not in running:
            settlement = CLEARED if one in counted else RETURNED
        elif crashes >= spec.options.max_crashes:
            settlement = discarded(crashes)
        else:
            settlement = suspected
        alike[settlement].append(claim)
    given_up: list[Claim] = []
    for settlement, claims in alike.items():
        lost = set(settle_some(session, claims, settlement))
        alike[settlement] = [claim for claim in claims if claim not in lost]
        if settlement.status is Status.DISCARDED:
            given_up += alike[settlement]
    locked = _suspect_locked(adapter, session, spec, [each for each in mine if each.token is None], text)
    functions |= locked
    return Recovered(
        returned=len(alike[CLEARED]) + len(alike[RETURNED]),
        suspects=[*alike[suspected], *locked],
        discarded=given_up,
        functions=functions,
        text=text,
    )


def held_by(session: Session, spec: QueueSpec, tokens: WorkerTokens) -> list[tuple[Claim, int, str | None]]:
    """Return the claims of a worker that still hold their rows, with how often each task has crashed and the function
    that it calls."""
    adapter = open_(session, spec)
    _, due = picks(spec, within(session, spec))
    mine = (is_due(spec), spec["claim_token"].between(*tokens.bounds))
    pick = replace(due(1), state=mine, exact=False).of(Status.RUNNING)
    roles = ("attempt", "claim_token", "claimed_by", "claimed_at")
    read = pick.select(spec["crashes"], _function(spec), *spec.primary_key, *(spec[role] for role in roles))
    rows: Any = adapter.rows.execute(session, spec, read)
    width = len(spec.primary_key)
    return [
        (Claim(spec.entity, tuple(row[:width]), *row[width:]), crashes, function) for crashes, function, *row in rows
    ]


def _function(spec: QueueSpec) -> ColumnElement[Any]:
    return spec.columns.get("task", null())


def _suspect_locked(
    adapter: Adapter, session: Session, spec: QueueSpec, started: Sequence[Started], text: str
) -> dict[Claim, str | None]:
    """Count the crash of tasks that were claimed by locks alone, whose rows do not show the claim.

    Return them, with the functions that they call.
    """
    values = [(spec["crashes"], spec["crashes"] + literal_column("1")), *error_assignments(spec, text)]
    found: dict[Claim, str | None] = {}
    for some in adapter.rows.batches(spec, [each.identity for each in started]):
        unfinished = adapter.rows.key_in(spec, some) & ~is_final(spec)
        changed = adapter.rows.change(session, spec, write(spec, unfinished, values), some)
        found |= dict.fromkeys(Claim(spec.entity, identity, 0) for identity in changed)
        if changed and "task" in spec.columns:
            read = select(*spec.primary_key, spec["task"]).where(adapter.rows.key_in(spec, list(changed)))
            rows: Any = adapter.rows.execute(session, spec, adapter.rows.by_key(spec, read))
            found |= {Claim(spec.entity, tuple(key), 0): function for *key, function in rows}
    return found


# -- operations of a worker between claims and settlements: poll for due tasks, promote, postpone, and extend
#    leases


class Poll(NamedTuple):
    """The result of :func:`poll`."""

    due: timedelta | None
    """The time until a claim may find a task: zero if it may now, ``None`` if no task is waiting."""
    early: bool
    """Whether tasks are ``available`` with a later time, see :func:`postpone`.  Unknown if a task can be claimed."""
    later: timedelta | None
    """How long it takes until a task that is not ``available`` comes due, or may start by the rate of its key; ``None``
    if there is none."""
    of_rate: bool = False
    """Whether ``due`` is when a rate allows a start, so that the task is ``available`` already."""


def poll(session: AnySession, entity: type[QueueMixin], *where: Where, used_up: Sequence[str] = ()) -> Poll:
    """Return when a claim may find a task, and whether there are tasks to postpone.

    Uses the database's clock, and runs one statement, which locks nothing.  Tasks that others are about to claim count
    too.  ``used_up``: the keys whose rates allowed no start when a claim last looked; if they are few, and no others
    have available tasks, these count only when the first of the rates allows its next start.
    """
    spec = spec_of(entity)
    session = session_of(session)
    adapter, criteria = open_(session, spec), within(session, spec, where)
    ready, due = (step(1) for step in picks(spec, criteria, ()))
    waiting = replace(due, state=(is_due(spec), has_attempts(spec)))
    try:
        # beside rates that are used up, tasks of other keys are searched for, which are not at the front of the queue
        if ready.divided is not None and not used_up and (seen := _poll_whole(session, adapter, ready, waiting)):
            return seen
        asked = select(*_moments(adapter, ready, waiting), utcnow(), *_of_rates(adapter, spec, criteria, used_up))
        row: Any = adapter.rows.execute(session, spec, asked).one()
    except Exception as error:
        if not adapter.connections.is_of_row(error):
            raise
        return Poll(timedelta(0), early=False, later=None)  # a time that cannot be read, such as text or February 30
    first, later, now, *starts = row
    of_rate = False
    if starts:
        start, *others = starts
        if start is not None and {None, *used_up}.issuperset(others) and first is not None and first <= now:
            first, of_rate = None, later is None or start < later
        later = min((each for each in (later, start) if each is not None), default=None)
    return _result(first, later, now)._replace(of_rate=of_rate)


def _of_rates(
    adapter: Adapter, spec: QueueSpec, where: Sequence[Where], used_up: Sequence[str]
) -> list[ColumnElement[Any]]:
    """Return when the first of these rates allows its next start, and, of all keys with available tasks, the first one
    and those that follow ``used_up``."""
    if not used_up:
        return []
    slots, look = slots_of(spec), adapter.rows.select_candidates
    start = next_start(slots, adapter.rows.one_of(slots, slots["slot_key"], used_up)).scalar_subquery()
    ready, _ = lane_picks(spec, where)
    pick = ready(1)
    one: ColumnElement[Any] = literal_column("1")
    column: Any = pick.lanes and pick.lanes.column
    if pick.divided is not None or len(used_up) > LANES:
        return [start, one]
    after = [column.is_not(None), *(column > key for key in used_up)]
    unkeyed = look(pick.keys(column.is_(None), 1), one.label("unkeyed"))
    searches = [unkeyed, *(look(pick.keys(each, 1), column) for each in after)]
    return [start, *(each.scalar_subquery() for each in searches)]


def _poll_whole(session: Session, adapter: Adapter, ready: Pick, waiting: Pick) -> Poll | None:
    """Poll the whole queue; return ``None`` if the first task in it belongs to none of the requested parts.

    Polling one part after another takes much longer.
    """
    (every_ready, column, values), (every_waiting, *_) = ready.undivided(), waiting.undivided()
    look = adapter.rows.select_candidates
    parts = (look(each, column).scalar_subquery() for each in (every_ready, every_waiting))
    asked = select(*_moments(adapter, every_ready, every_waiting), utcnow(), *parts)
    row: Any = adapter.rows.execute(session, ready.spec, asked).one()
    *moments, first, next_ = row
    seen = _result(*moments)
    value = next_ if moments[0] is None else first
    return seen if not seen.early and (seen.due is None or value in values) else None


def _moments(adapter: Adapter, ready: Pick, waiting: Pick) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    moment = ready.spec["available_at"]
    shown = representable(moment).label("moment")
    first, waits = (adapter.rows.select_candidates(each, shown).scalar_subquery() for each in (ready, waiting))
    # evaluated only if no task is ready: there can be a great many ready tasks, with early ones among them
    each = [select(func.min(moment)).where(is_early(ready.spec), *part.where) for part in ready.parts]
    early = each[0] if len(each) == 1 else select(func.min(union_all(*each).subquery("every_early").c[0]))
    least = select(representable(early.subquery("early").c[0])).scalar_subquery()
    return func.coalesce(first, least, type_=moment.type), waits


def _result(available: datetime | None, scheduled: datetime | None, now: datetime) -> Poll:
    first, later = (None if each is None else max(each - now, timedelta(0)) for each in (available, scheduled))
    waits = [each for each in (first, later) if each is not None]
    return Poll(min(waits, default=None), early=available is not None and available > now, later=later)


def promote(session: AnySession, entity: type[QueueMixin], *where: Where, limit: int = 1_000) -> int:
    """Make up to ``limit`` due tasks that satisfy ``where`` ``available``: scheduled and retryable tasks whose time has
    come, and tasks whose claimer has crashed, so that their lease has ended.  Return how many.

    Claims take due tasks only if there are not enough available ones.  While there always are, due tasks wait until
    they are promoted, which gives them the position of their priority.  Those that came due keep their time, which
    orders them; those of crashed claimers come first, as they did when they were claimed.

    Workers promote once a second.  A loop that claims without a worker does so from time to time, in a transaction of
    its own.  Skips locked rows.
    """
    spec = spec_of(entity)
    session = session_of(session)
    count("limit", limit)
    adapter = open_(session, spec, Access.SKIP)
    _, due = picks(spec, within(session, spec, where), ())
    pick = due(limit)
    keys = adapter.rows.lock(session, pick)
    return sum(_promote(session, adapter, pick, some) for some in adapter.rows.batches(spec, keys))


def _promote(session: Session, adapter: Adapter, pick: Pick, keys: Sequence[Identity]) -> int:
    """Promote the tasks of ``keys``, whose rows ``pick`` has locked; return how many."""
    spec = pick.spec
    waiting = replace(pick, state=(*pick.state, present_status(spec) != state(Status.RUNNING)))
    changed = _become(Status.AVAILABLE, session, adapter, waiting, keys)
    held = [key for key in keys if key not in changed]
    claims = last_claims(adapter, session, spec, adapter.rows.key_in(spec, held)) if held else []
    lost = settle_some(session, claims, RELEASED_AFTER_LEASE, waits=False)
    return len(changed) + len(claims) - len(lost)


def postpone(session: AnySession, entity: type[QueueMixin], *where: Where, limit: int = 1_000) -> int:
    """Make tasks that are ``available`` for a later time, as other programs insert them, ``scheduled``. Return how
    many.

    Every claim reads and skips such a task until it is scheduled.  Only the first ``limit`` available tasks that
    satisfy ``where``, in claim order, are read, without a lock: rows behind claimable tasks delay no claim.  Skips
    locked rows.
    """
    spec = spec_of(entity)
    session = session_of(session)
    count("limit", limit)
    adapter = open_(session, spec, Access.SKIP)
    ready, _ = picks(spec, within(session, spec, where), ())
    keys = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
    available = replace(ready(limit), state=(is_available(spec),))
    first = adapter.rows.select_candidates(available, *keys, spec["available_at"].label("moment")).subquery(
        "first_available"
    )
    early = select(*(first.c[key.name] for key in keys)).where(first.c.moment > utcnow())
    postponed = 0
    for some in adapter.rows.batches(spec, adapter.rows.keys(session, spec, early)):
        named = (adapter.rows.key_in(spec, some),)
        pick = Pick(spec=spec, state=(is_early(spec),), where=named, order=(), limit=len(some), index=None, exact=True)
        locked = adapter.rows.lock(session, pick)
        postponed += len(_become(Status.SCHEDULED, session, adapter, pick, locked)) if locked else 0
    return postponed


def _become(status: Status, session: Session, adapter: Adapter, pick: Pick, keys: Sequence[Identity]) -> set[Identity]:
    """Give the rows of ``keys`` that ``pick`` has locked another status; return their keys."""
    # not by key alone: on a small table, MySQL would scan, and wait for, all rows
    named = and_(adapter.rows.key_in(pick.spec, keys), *pick.state)
    statement = write(pick.spec, named, [(pick.spec["status"], state(status))])
    return adapter.rows.change(session, pick.spec, statement, keys)


class Crashed(NamedTuple):
    """A task whose claimers crashed in every attempt."""

    claim: Claim
    recurs: bool
    """Whether it has a next run."""
    function: str | None
    """The function that it calls (``JobMixin``)."""


def exhausted(session: Session, entity: type[QueueMixin], *, limit: int) -> list[Crashed]:
    """Return up to ``limit`` tasks that :func:`.rescue` would discard or reschedule.  Locks nothing."""
    spec = spec_of(entity)
    adapter = open_(session, spec)
    pick = exhausted_picks(spec, within(session, spec))(limit)
    schedule = spec["schedule"] if spec.recurs else null()
    columns = (*spec.primary_key, spec["attempt"], schedule, _function(spec))
    read = adapter.rows.use_index(pick, pick.select(*columns).limit(limit))
    rows: Any = adapter.rows.execute(session, spec, read)
    return [
        Crashed(Claim(spec.entity, tuple(identity), attempt), text is not None, function)
        for *identity, attempt, text, function in rows
    ]


def still_held(session: Session, claims: Sequence[Claim]) -> set[Claim]:
    """Return the claims, all of one model, that still hold their rows according to a read without locks."""
    if not claims:
        return set()
    spec = spec_of(claims[0].entity)
    adapter, fence = open_(session, spec), Fence(spec=spec)
    found: set[tuple[Any, ...]] = set()
    for some in adapter.rows.batches(spec, claims):
        mine = FencedClaims(adapter, session, fence, some).criterion()
        read = select(*spec.primary_key, spec["attempt"], spec["claim_token"]).where(mine)
        found.update(tuple(row) for row in adapter.rows.execute(session, spec, adapter.rows.by_key(spec, read)))
    return {claim for claim in claims if (*claim.identity, claim.attempt, claim.token) in found}


def extend(session: Session, claims: Sequence[Claim], lease: timedelta) -> list[Claim]:
    """Extend the leases of claims of one model to ``lease`` from now.  Returns the lost claims.

    Skips locked rows: only their own handler can have locked them, and no other claim can take them meanwhile.  Waiting
    for them would let the other leases expire.
    """
    rest = settle_some(session, claims, extended(lease), waits=False)
    still = still_held(session, rest)
    spec = spec_of(claims[0].entity)
    if still and spec.is_limited:
        mine = [claim for claim in rest if claim in still]
        still -= set(Slots(session, open_(session, spec), spec).extend(mine, lease, waits=False))
    return [claim for claim in rest if claim not in still]
