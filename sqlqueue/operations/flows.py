"""Reads batches and workflows: how far they are, the tasks that come before others, and their graphs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Select, and_, func, select

from .._support.checks import count
from .._support.errors import ArgumentError, Claim
from .._support.texts import key_text
from ..lifecycle.kind import moment_text
from ..model.companions import OUTCOMES, latches_of
from ..model.declaration import QueueMixin
from ..queue.spec import Criterion, QueueSpec, Where
from ..sql import COUNTED, OfFound, capped_count, only, utcnow
from ..transaction import Access, AnySession, is_restricted, refuse_if_restricted, row_of, running, session_of, within
from .bulk import cancel_where
from .latches import COMPLETED, EVENT, FAILED, SEALED, SKIPPED, Latches, has_failed, shown_state
from .placing import PART, check_key, flow_spec

T = TypeVar("T", bound=QueueMixin)
Children = Mapping[str, Sequence[str]]
"""Latches by the one that depends on them."""
_AT_ONCE = 500
"""The number of predecessors that are loaded by one statement."""


def member_of(entity: type[QueueMixin], key: str) -> Criterion:
    """Return the criterion of tasks that are members of the batch with this key, or of one that is nested in it:
    ``session.retry(Page, member_of(Page, "import 7"))``.  Its callbacks are no members."""
    spec, key = flow_spec(entity), check_key(key)
    latch: Any = latches_of(spec)
    part = latch.table.alias("part").c

    def find(*, nesting: bool) -> Select[tuple[str]]:
        whole = select(latch.table.c.id).where(latch.table.c.id == key)
        found = whole.cte("batch", recursive=True, nesting=nesting)
        return select(found.union_all(select(part.id).join(found, part.reports_to == found.c.id)).c.id)

    return OfFound(spec["reports_to"], find)


def cancel_batch(session: AnySession, entity: type[QueueMixin], key: str, *, limit: int | None = None) -> int:
    """Cancel the members of a batch, of all models, that are not final, as :func:`cancel` does with criteria, and
    return how many.  Its callbacks then start, or are cancelled, as after other failures.

    ``entity``: a model of the queues with which the batch shares the table of latches.  ``limit``: the most tasks to
    cancel in this transaction; fewer are cancelled only when no more are left.
    """
    session, spec = session_of(session), flow_spec(entity)
    if limit is not None:
        count("limit", limit)
    latches = Latches.of(session, spec, Access.CHANGE)
    ids, cancelled = [*below(latches, [check_key(key)])], 0
    for each in latches.flows.values():
        left = None if limit is None else limit - cancelled
        if left != 0:
            members = latches.adapter.rows.one_of(each, each["reports_to"], ids)
            cancelled += cancel_where(session, each, (members,), left)
    return cancelled


def below(latches: Latches, starts: Iterable[str], *, through: bool = True) -> dict[str, list[str]]:
    """Return these latches, and those whose members they wait for, with the latches that each depends on; ``through``:
    also those of batches in them."""
    c, rows = latches.c, latches.adapter.rows
    found: dict[str, list[str]] = {}
    todo = list(dict.fromkeys(starts))
    while todo:
        parts = defaultdict[str, list[str]](list)
        asked = select(c.reports_to, c.id, c.waits_for).where(rows.one_of(latches.spec, c.reports_to, todo))
        for parent, child, source in latches.read(latches.spec, asked.order_by(c.id)):
            parts[parent].append(source or child)
        found.update((key, parts[key]) for key in todo)
        reached = dict.fromkeys(each for key in todo for each in parts[key])
        todo = [each for each in reached if each not in found and (through or PART in each)]
    return found


def sources(parts: Children, latch: str) -> Collection[str]:
    """Return a latch and those on which it depends, according to what :func:`below` has returned."""
    found, todo = dict[str, None](), [latch]
    while todo:
        each = todo.pop()
        found[each] = None
        todo += [part for part in parts.get(each, ()) if part not in found]
    return found


# -- results of predecessors ------------------------------------------------------------------------------------------


def predecessors(
    session: AnySession, entity: type[T], *where: Where, of: QueueMixin | Claim | None = None
) -> Iterator[T]:
    """Return the tasks of a model for which a task has waited, for example to read their results:

    >>> @worker.task(Job)
    ... def summarize(session: QueueSession) -> int:
    ...     return sum(job.result for job in session.predecessors(Job))

    Those of a callback are all members of its batch.  ``of``: the task, or a claim of it; by default the one whose
    handler calls this.  ``where``: further criteria, such as ``Job.status == "completed"`` for a task that waits until
    all are final, whatever happened.

    Their primary keys are read at once, and the tasks, in the order of these, a few hundred at a time as they are asked
    for.  With an ``AsyncQueueSession``, write ``async for job in session.predecessors(Job)``.
    """
    session, spec = session_of(session), flow_spec(entity)
    if of is None:
        job = running.get(None)
        if job is None:
            raise ArgumentError("predecessors() is called outside of a handler: give the task, of=task")
        of = job.claim
    own, identity = row_of(of)
    latches = Latches.of(session, flow_spec(own.entity))
    rows = latches.adapter.rows
    (awaited,) = rows.values(session, own, [own.key(identity)], [own["waits_for"]]) or [None]
    if awaited is None:
        return iter(())
    chosen = rows.one_of(spec, spec["reports_to"], [*below(latches, [awaited])])
    asked = select(*spec.primary_key).select_from(spec.mapper.persist_selectable)
    asked = asked.where(only(spec, *within(session, spec, (chosen, *where)))).order_by(*spec.primary_key)
    keys = rows.keys(session, spec, asked)
    parts = (keys[start : start + _AT_ONCE] for start in range(0, len(keys), _AT_ONCE))
    return (task for some in parts for task in rows.load(session, spec, some))


# -- progress ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    key: str
    """Its key, given or made."""
    created_at: datetime
    """When it was enqueued."""
    opened_at: datetime | None
    """When it was seen that all members had ended; ``None`` before."""
    broken_at: datetime | None
    """When it was seen that a member had failed."""
    sealed: bool
    """Whether it takes no further members, except from its own."""
    unfinished: int
    """How many members are not final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress(_Batch):
    """How far a batch is."""

    completed: int
    """How many members were completed."""
    discarded: int
    """How many members were discarded, as after their last attempt."""
    cancelled: int
    """How many members were cancelled."""
    skipped: int
    """How many members were not needed: they wait for a failure, and there was none."""

    @property
    def total(self) -> int:
        """The number of all members."""
        return self.unfinished + self.completed + self.failed + self.skipped

    @property
    def failed(self) -> int:
        """The number of members that were discarded or cancelled."""
        return self.discarded + self.cancelled


def progress(session: AnySession, entity: type[QueueMixin], key: str) -> BatchProgress | None:
    """Return how far a batch is, or ``None`` if there is none with this key.

    ``entity``: a model of the queues with which it shares the table of latches.  Of a batch that has ended, the figures
    were stored then.  Before, an index finds the members, which are counted.  A session with criteria or row-level
    security always counts, only the members that it sees, and finds no batch without one.
    """
    session, spec = session_of(session), flow_spec(entity)
    latches = Latches.of(session, spec)
    row = batch_row(latches, key)
    if row is None:
        return None
    sees_all = not any(is_restricted(session, latches.adapter, each) for each in latches.flows.values())
    if row.opened_at is not None and sees_all:
        return _progress(row, {name: getattr(row, name) for name in OUTCOMES})
    counts = Counter[str]()
    for _, states in groups_of(latches, [*below(latches, [key])]):
        for name, number in states.items():
            counts[name if name in OUTCOMES else "unfinished"] += number
    return _progress(row, counts) if sees_all or counts else None


def refuse_unknown_batch(session: AnySession, entity: type[QueueMixin], key: str) -> None:
    """Raise :class:`.ArgumentError` if no batch has this key."""
    if batch_row(Latches.of(session_of(session), flow_spec(entity)), key) is None:
        raise ArgumentError(no_batch_text(session, entity, key))


def no_batch_text(session: AnySession, entity: type[QueueMixin], key: str) -> str:
    """Return what is told of a key that no batch has, or of whose batch a session may see nothing."""
    session, spec = session_of(session), flow_spec(entity)
    latches = Latches.of(session, spec)
    asked = select(latches.c.opened_at).where(latches.c.id == check_key(key), latches.c.sealed == EVENT)
    sees_all = not any(is_restricted(session, latches.adapter, each) for each in latches.flows.values())
    for (opened,) in latches.read(spec, asked) if sees_all else ():
        state = "it is not open yet" if opened is None else f"it was opened at {moment_text(opened)}"
        return f"{key!r} is an event, not a batch: {state}"
    return f"there is no batch {key!r}: it was forgotten some time after its end, or never existed"


def batch_row(latches: Latches, key: str) -> Any:
    c = latches.c
    names = ("id", "created_at", "opened_at", "broken_at", "sealed", *OUTCOMES)
    asked = select(*(c[name] for name in names)).where(c.id == check_key(key), c.sealed != EVENT)
    return latches.adapter.rows.execute(latches.session, latches.spec, asked).one_or_none()


def _progress(row: Any, counts: Mapping[str, int]) -> BatchProgress:
    return BatchProgress(**_facts(row, **{name: counts.get(name) or 0 for name in ("unfinished", *OUTCOMES)}))


def _facts(row: Any, **numbers: int) -> dict[str, Any]:
    moments = {name: getattr(row, name) for name in ("created_at", "opened_at", "broken_at")}
    return {"key": row.id, "sealed": row.sealed == SEALED, **moments, **numbers}


class TaskKin(NamedTuple):
    """Tasks of one queue that report to the same latch, and wait for the same one."""

    spec: QueueSpec
    reports_to: str | None
    waits_for: str | None
    when: str | None
    function: str | None


def groups_of(
    latches: Latches, ids: Collection[str], of: QueueSpec | None = None, chosen: Criterion | None = None
) -> list[tuple[TaskKin, Counter[str]]]:
    """Return the tasks that report to these latches, in groups, with their number in each state; or else the ``chosen``
    ones of one queue."""
    found = defaultdict[TaskKin, Counter[str]](Counter)
    for spec in latches.flows.values() if of is None else [of]:
        columns = [spec[role] for role in ("reports_to", "waits_for", "waits_when", "status")]
        function = [spec["task"]] if "task" in spec.columns else []
        where = latches.adapter.rows.one_of(spec, spec["reports_to"], list(ids)) if chosen is None else chosen
        asked = select(func.count(), *columns, *function).select_from(spec.mapper.persist_selectable)
        asked = asked.where(only(spec, *within(latches.session, spec, (where,)))).group_by(*columns, *function)
        for number, latch, awaited, when, status, *named in latches.read(spec, asked) if ids else ():
            group = TaskKin(spec, latch, awaited, condition(awaited, when), *(named or [None]))
            found[group][shown_state(status, when)] += number
    return list(found.items())


def condition(awaited: str | None, when: str | None) -> str | None:
    """Return what a task has waited for, whatever became of it."""
    return None if awaited is None else FAILED if when == SKIPPED else when or COMPLETED


# -- lists of batches -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInfo(_Batch):
    """A batch in a list."""

    failed: int
    """How many members were discarded or cancelled, as far as it has been seen that one was."""


def batches(session: AnySession, entity: type[QueueMixin], *, ended: bool = False, limit: int = 100) -> list[BatchInfo]:
    """Return batches: those that have not ended, the oldest first, then if ``ended`` the others, the last to end first.

    ``entity``: a model of the queues with which they share the table of latches.  Counts the unfinished members by an
    index.  Refused in sessions with criteria or row-level security.
    """
    session, spec = session_of(session), flow_spec(entity)
    latches = Latches.of(session, spec)
    refuse_if_restricted(session, latches.adapter, spec, "batches()")
    c = latches.c
    names = ("id", "created_at", "opened_at", "broken_at", "sealed", "discarded", "cancelled")
    asked = select(*(c[name] for name in names))
    asked = asked.where(_is_batch(latches)).limit(count("limit", limit))
    closed = latches.read(spec, asked.where(c.opened_at.is_(None)).order_by(c.created_at))
    opened: Sequence[Any] = ()
    if ended and len(closed) < limit:
        last = asked.where(c.opened_at.is_not(None)).order_by(c.opened_at.desc())
        opened = latches.read(spec, last.limit(limit - len(closed)))
    unfinished = _ends(latches, [row.id for row in closed], lambda each: each["finished_at"].is_(None))
    failed = _ends(latches, [row.id for row in closed if row.broken_at is not None], has_failed)
    failed.update({row.id: (row.discarded or 0) + (row.cancelled or 0) for row in opened})
    every = (*closed, *opened)
    return [BatchInfo(**_facts(row, unfinished=unfinished[row.id], failed=failed[row.id])) for row in every]


def unfinished_batches(
    session: AnySession, entity: type[QueueMixin], *, cap: int = 10_000
) -> tuple[int, timedelta | None]:
    """Return the number of batches that have not ended, ``cap`` at the most, and the age of the oldest of these."""
    session, spec = session_of(session), flow_spec(entity)
    latches = Latches.of(session, spec)
    some = select(latches.c.created_at).where(_is_batch(latches), latches.c.opened_at.is_(None)).limit(cap).subquery()
    found: Any = select(func.count(), func.min(some.c.created_at), utcnow()).select_from(some)
    ((number, since, now),) = latches.read(spec, found)
    return number, None if since is None else now - since


def _is_batch(latches: Latches) -> Criterion:
    return and_(latches.c.sealed != EVENT, latches.c.id.not_like(f"%{PART}%"))


def waited_text(session: AnySession, spec: QueueSpec, key: str, when: str) -> tuple[str, str]:
    """Return in words what a task waits for, and what is missing until then, as far as the session sees it, with
    examples."""
    latches = Latches.of(session_of(session), spec)
    ids, c, rows = [*below(latches, [key])], latches.c, latches.adapter.rows
    closed = (c.sealed == EVENT, c.opened_at.is_(None), rows.one_of(spec, c.id, ids))
    events = [each for (each,) in latches.read(spec, select(c.id).where(*closed).limit(3))]
    if events == [key]:
        return f"the event {key!r} to be opened", "it is not open yet"
    told = [f"the event {each!r} is not open" for each in events]
    left, total, examples = 0, 0, list[str]()
    for each in latches.flows.values():
        members = within(latches.session, each, (rows.one_of(each, each["reports_to"], ids),))
        unfinished = each["finished_at"].is_(None)
        counts: list[Any] = [capped_count(each, *members, unfinished), capped_count(each, *members)]
        ((some, every),) = latches.read(each, select(*(number.label(None) for number in counts)))
        left, total = left + some, total + every
        asked = select(each["status"], *each.primary_key).select_from(each.mapper.persist_selectable)
        for criterion in (unfinished, has_failed(each)) if every else ():
            for state, *identity in latches.read(each, asked.where(only(each, *members, criterion)).limit(1)):
                examples.append(f"{each.entity.__name__} {key_text(identity)} is {state}")
    if left:
        told.append(f"{_many(left)} of {_many(total)} tasks are unfinished")
    what = "other tasks" if PART in key else repr(key)
    end = {COMPLETED: "to be completed", FAILED: "to fail"}.get(when, "to be final")
    return f"{what} {end}", "; ".join([*told, *examples]) or "nothing of it is unfinished"


def _many(number: int) -> str:
    return f"{number:,}" if number < COUNTED else f"{number:,} or more"


def _ends(latches: Latches, keys: Sequence[str], criterion: Any) -> Counter[str]:
    """Return how many members of each batch satisfy a criterion."""
    found = Counter[str]()
    if not keys:
        return found
    parts, owners = below(latches, keys), defaultdict[str, list[str]](list)
    for key in keys:
        for each in sources(parts, key):
            owners[each].append(key)
    for spec in latches.flows.values():
        chosen = latches.adapter.rows.one_of(spec, spec["reports_to"], list(owners))
        asked = select(spec["reports_to"], func.count()).where(only(spec, chosen, criterion(spec)))
        for latch, number in latches.read(spec, asked.group_by(spec["reports_to"])):
            found.update(dict.fromkeys(owners[latch], number))
    return found
