"""Changes of many tasks by criteria, in batches: cancel, discard, rescue, prune."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Self

from sqlalchemy import (
    ColumnElement,
    ForeignKeyConstraint,
    Select,
    and_,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.exc import DBAPIError, NoReferenceError
from sqlalchemy.orm import Session
from sqlalchemy.schema import sort_tables

from .._support.checks import count, duration
from .._support.errors import ArgumentError
from .._support.texts import logger_of
from ..dialects.base import Adapter
from ..kinds.limits import Slots
from ..kinds.recurring import schedule_next_runs
from ..lifecycle.transitions import Fence, FencedClaims, end_assignments, error_assignments, finish_assignments
from ..model.companions import history_of
from ..model.declaration import QueueMixin
from ..queue.options import FINAL, AttemptOutcome, Status
from ..queue.spec import Criterion, Identity, QueueSpec, Where, conjuncts, spec_of
from ..sql import (
    Assignment,
    due_states,
    exhausted_picks,
    fixes,
    is_adopted,
    is_available,
    is_due_in,
    is_exhausted,
    is_final,
    is_held,
    only,
    remove,
    same_key,
    state,
    utcnow,
    write,
)
from ..transaction import Access, AnySession, announce, open_, reread, session_of, within
from .conflicts import translating
from .latches import announce_look, is_held_by_batch
from .recording import AttemptRecord, last_claims, record

# -- changes large sets of tasks in batches: up to a limit in one transaction, or all of them in many transactions ----

BATCH = 1_000
"""The number of rows that one transaction of a mass change changes."""
PAGE = 100_000
"""The number of keys read at a time, enough for many batches: finding them may scan the table."""


def limited(
    session: Session,
    spec: QueueSpec,
    criterion: Criterion,
    limit: int | None,
    change: Callable[[Criterion], int],
    *,
    among: Collection[Status],
    free: Criterion | None = None,
) -> int:
    """Call ``change`` for at most ``limit`` of the rows that satisfy ``criterion``; return how many it changed.

    Fewer than ``limit`` means that no more are left.  The rows are found in the order of the queue's indexes; ``among``
    names the states that they can be in.  ``free``: a further criterion, which an UPDATE cannot have on each engine, of
    the rows that ``change`` would not leave as they are.
    """
    if limit is None:
        return change(criterion)
    count("limit", limit)
    adapter = open_(session, spec, Access.CHANGE)
    wanted = criterion if free is None else and_(criterion, free)
    changed, before = 0, list[Identity]()
    while changed < limit:
        keys = _first(adapter, session, spec, wanted, min(limit - changed, adapter.rows.most(spec)), among=among)
        if not keys or keys == before:  # the same rows as in the last round: they cannot be changed
            break
        changed += change(and_(criterion, adapter.rows.key_in(spec, keys)))
        before = keys
    return changed


def _first(
    adapter: Adapter, session: Session, spec: QueueSpec, criterion: Criterion, number: int, *, among: Collection[Status]
) -> list[Identity]:
    """Return the keys of up to ``number`` rows: those that the two claim indexes find, then final ones; or, of an error
    group, those that its index finds.

    Without an ORDER BY that matches an index, planners scan the table from its beginning, where finished tasks are.
    """
    chosen, is_of_group = _chosen(adapter, spec, criterion)
    if is_of_group:
        return adapter.rows.keys(session, spec, chosen.limit(number))
    by_time = [term.expression for term in spec.due_order]
    steps: list[tuple[Collection[Status], Criterion, Sequence[ColumnElement[object]]]] = [
        ((Status.AVAILABLE,), is_available(spec), [term.expression for term in spec.ready_order]),
        *(((each,), is_due_in(spec, each), by_time) for each in due_states(spec)),
        (FINAL, is_final(spec), ()),
    ]
    found: list[Identity] = []
    for states, in_state, order in steps:
        if len(found) < number and not set(states).isdisjoint(among):
            statement = chosen.where(in_state).order_by(*order)
            if set(among) == {Status.RUNNING}:  # a planner may read and sort all running tasks, or all due ones
                statement = adapter.rows.prefer_index(spec, spec.index_name("due"), statement)
            found += adapter.rows.keys(session, spec, statement.limit(number - len(found)))
    return found


def _chosen(adapter: Adapter, spec: QueueSpec, criterion: Criterion) -> tuple[Select[Any], bool]:
    """Return the SELECT of the keys of rows that satisfy ``criterion``, and whether it is of an error group, in
    the order of their index."""
    chosen = select(*spec.primary_key).where(criterion)
    if not fixes(conjuncts([criterion]), spec["error_group"]):
        return chosen, False
    return adapter.rows.prefer_index(spec, spec.index_name("errors"), chosen.order_by(*spec.primary_key)), True


class Reactivated(int):
    """The result of :func:`.retry` and :func:`.rerun`: the number of tasks that they made available again."""

    taken: int
    """How many tasks they left as they are because another task has taken their ``unique_key``."""

    def __new__(cls, changed: int, taken: int = 0) -> Self:
        reactivated = super().__new__(cls, changed)
        reactivated.taken = taken
        return reactivated


class Batch(NamedTuple):
    """The result of one transaction."""

    changed: int
    taken: int = 0
    """How many rows are left unchanged because another task has taken their ``unique_key``."""
    protected: int = 0
    """How many rows, over the whole run, are not deleted because foreign keys refer to them."""


def in_batches(
    session: Session, spec: QueueSpec, criterion: Criterion, change: Callable[[Criterion], int], *, size: int
) -> Iterator[Batch]:
    """Call ``change`` for all rows that satisfy ``criterion``, in batches of ``size``, and commit after each batch.

    ``change`` receives a criterion that selects the batch's rows by key.  It must check their state again, because
    other transactions may have changed them in the meantime.  Each row is tried once: rows that cannot be changed do
    not block the others, and rows that are inserted meanwhile do not make it run forever.
    """
    tried, kept = set[Identity](), set[Identity]()
    while True:
        adapter = open_(session, spec, Access.CHANGE)
        most = PAGE + len(kept)  # rows that stay as they are would otherwise hide those behind them
        chosen, _ = _chosen(adapter, spec, criterion)
        found = adapter.rows.keys(session, spec, chosen.limit(most))
        session.commit()
        keys = [key for key in found if key not in tried]
        size = min(size, adapter.rows.most(spec))
        for start in range(0, len(keys), size):
            some = keys[start : start + size]
            changed = change(adapter.rows.key_in(spec, some))
            session.commit()
            if changed < len(some):
                kept.update(some)
            yield Batch(changed, taken=changed.taken if isinstance(changed, Reactivated) else 0)
        if not keys or len(found) < most:
            return
        tried = kept.union(found)


# -- operations on sets of tasks, without claims: cancel, discard and rescue ------------------------------------------

CRASHED = "crashed in every attempt: its lease expired each time without a settlement"


def cancel_where(session: Session, spec: QueueSpec, where: Sequence[Where], limit: int | None) -> int:
    """Cancel all tasks that satisfy ``where`` and are not final; return how many."""
    values = [*_leaving(spec), *end_assignments(spec, Status.CANCELLED)]
    cancel = partial(end_all, values=values, end=AttemptRecord(AttemptOutcome.CANCELLED))
    return _end_limited(session, spec, where, cancel, limit)


def discard_where(session: Session, spec: QueueSpec, where: Sequence[Where], text: str, limit: int | None) -> int:
    """Discard all tasks that satisfy ``where`` and are not final; return how many."""
    values = [*_leaving(spec), *end_assignments(spec, Status.DISCARDED), *error_assignments(spec, text)]
    discard = partial(end_all, values=values, end=AttemptRecord(AttemptOutcome.DISCARDED, text))
    return _end_limited(session, spec, where, discard, limit)


def _leaving(spec: QueueSpec) -> list[Assignment]:
    """Return the assignment by which a task that somebody ends does not wait again after a retry of what it awaits."""
    return [(spec["waits_when"], null())] if spec.has_latches else []


def _end_limited(
    session: Session, spec: QueueSpec, where: Sequence[Where], end: Callable[..., int], limit: int | None
) -> int:
    unfinished = only(spec, ~is_final(spec), *within(session, spec, where))
    among = [status for status in Status if status not in FINAL]
    ended = limited(session, spec, unfinished, limit, partial(end, session, spec), among=among)
    if ended:
        announce_look(session, spec)
    return ended


def end_all(
    session: Session, spec: QueueSpec, chosen: Criterion, values: Sequence[Assignment], end: AttemptRecord
) -> int:
    """End the chosen tasks, free the slots that they hold, and record the attempts that this ends."""
    if not spec.is_limited and history_of(spec.table.metadata) is None:
        ended = change(session, spec, chosen, values)
    else:
        ended = change(session, spec, and_(chosen, ~is_held(spec)), values)
        # some of these may have returned to waiting since
        ended += _end_running(session, spec, chosen, values, end)
    if ended and spec.sequence is not None:  # the next tasks of their keys were waiting
        announce(session, spec)
    return ended


def _end_running(
    session: Session, spec: QueueSpec, chosen: Criterion, values: Sequence[Assignment], end: AttemptRecord
) -> int:
    """Write ``values`` to the chosen tasks, free the slots that they hold, and record the attempts that this ends.

    The attempts, which identify the holder of a slot, are read after the rows are locked: until then, a task may be
    released and claimed again.
    """
    adapter, ended = open_(session, spec, Access.CHANGE), 0

    def write_to(some: Sequence[Identity], criterion: Criterion) -> list[Identity]:
        writing = write(spec, and_(adapter.rows.key_in(spec, some), criterion), values)
        return list(adapter.rows.change(session, spec, writing, some))

    for some in adapter.rows.batches(spec, adapter.rows.keys(session, spec, select(*spec.primary_key).where(chosen))):
        changed = write_to(some, and_(chosen, is_held(spec)))
        if changed:
            claims = last_claims(adapter, session, spec, adapter.rows.key_in(spec, changed))
            if spec.is_limited:
                Slots(session, adapter, spec).free(claims)
            record(adapter, session, claims, end)
        rest = set(some).difference(changed)  # these may have returned to waiting
        ended += len(changed) + (len(write_to(list(rest), chosen)) if rest else 0)
    if ended:
        announce(session, spec)
        reread(session, adapter, spec)
    return ended


def rescue(session: AnySession, entity: type[QueueMixin], *, limit: int | None = None) -> int:
    """Discard tasks whose claimers crashed in every attempt, with an error that says so.  Returns how many.

    Recurring tasks are not discarded: their next run is scheduled, with that error; locked ones are left to the next
    call.  A crashed task with attempts left needs no rescue: it can be claimed as soon as its lease expires.  For the
    transaction, its locks and ``limit`` see :func:`cancel`.
    """
    spec = spec_of(entity)
    session = session_of(session)
    values = finish_assignments(Fence(spec=spec), Status.DISCARDED, error=CRASHED)
    if spec.recurs:
        return _rescue_recurring(session, spec, values, limit)
    crashed = only(spec, is_exhausted(spec), *within(session, spec))
    discard = partial(end_all, session, spec, values=values, end=AttemptRecord(AttemptOutcome.CRASHED, CRASHED))
    rescued = limited(session, spec, crashed, limit, discard, among=(Status.RUNNING,))
    if rescued:
        announce_look(session, spec)
    return rescued


def _rescue_recurring(session: Session, spec: QueueSpec, values: Sequence[Assignment], limit: int | None) -> int:
    """Rescue recurring tasks in batches of one statement, each of which locks the rows that it reschedules."""
    if limit is not None:
        count("limit", limit)
    adapter = open_(session, spec, Access.SKIP)
    crashed = exhausted_picks(spec, within(session, spec))
    rescued = 0
    while limit is None or rescued < limit:
        number = adapter.rows.most(spec) if limit is None else min(limit - rescued, adapter.rows.most(spec))
        keys = adapter.rows.lock(session, crashed(number))
        if not keys:
            break
        claims = last_claims(adapter, session, spec, adapter.rows.key_in(spec, keys))
        fenced = FencedClaims(adapter, session, Fence(spec=spec), claims)
        mine, others = schedule_next_runs(fenced, error_assignments(spec, CRASHED))
        others.write(values)
        record(adapter, session, claims, AttemptRecord(AttemptOutcome.CRASHED, CRASHED))
        rescued += len(mine)
        if len(mine) < number:
            break
    return rescued


def change(session: Session, spec: QueueSpec, criterion: Criterion, assignments: Any) -> int:
    """Update all rows that satisfy ``criterion``, and read the instances of this session anew.  Return how many."""
    adapter = open_(session, spec, Access.CHANGE)  # with an old snapshot, MariaDB and PostgreSQL change no row
    with translating(adapter, spec):
        changed = adapter.rows.sweep(session, spec, write(spec, criterion, assignments))
    reread(session, adapter, spec)
    return changed


# -- deletes tasks that the queue finished long ago, and no others ----------------------------------------------------

logger = logger_of("sqlqueue")

_RELEASING = ("CASCADE", "SET NULL", "SET DEFAULT")
"""The ON DELETE actions of foreign keys that do not prevent the deletion of the referenced row."""


class Pruned(int):
    """The result of :func:`prune`: the number of deleted rows."""

    protected: int
    """How many rows are old enough but are kept because a foreign key refers to them; 0 if ``limit`` was reached
    first."""

    def __new__(cls, deleted: int, protected: int = 0) -> Self:
        pruned = super().__new__(cls, deleted)
        pruned.protected = protected
        return pruned


def prune(
    session: AnySession,
    entity: type[QueueMixin],
    older_than: timedelta | None = None,
    *,
    limit: int | None = None,
    adopted: bool = False,
) -> Pruned:
    """Delete tasks that the queue finished longer than ``older_than`` ago.  Returns and logs how many.

    Without ``older_than`` the model's ``retention`` applies, and its ``discarded_retention`` to dead letters if it has
    one. Deletes at most ``limit`` rows, to keep transactions short.  Runs in the session's transaction.

    Rows that were in the table before it became a queue are never deleted this way: they are final, but the queue did
    not finish them, and their ``finished_at`` is NULL.  ``adopted=True`` deletes these rows and no others, by their
    ``created_at``, which is when the table became a queue, and requires ``older_than``.

    Rows that a foreign key references (without ON DELETE CASCADE, SET NULL or SET DEFAULT) are kept; ``protected`` of
    the result is their number.  Members of batches that have not ended are kept, too, and dead letters that hold their
    key (``QueueOptions(sequential=...)``).
    """
    spec = spec_of(entity)
    session = session_of(session)
    if older_than is not None:
        duration("older_than", older_than, zero=True)
    if limit is not None:
        count("limit", limit)
    spared = is_held_by_batch(spec)
    free = () if spared is None else (~spared,)
    old = only(spec, is_prunable(spec, older_than, adopted=adopted), *free, *within(session, spec))
    # rows spread over several tables need a savepoint, and SQLite must begin the transaction before it
    adapter = open_(session, spec, Access.SKIP if _is_spread(spec) else Access.READ)
    pruned = _Pruning(session, adapter, spec, old).delete(limit)
    _report(spec, pruned, older_than, adopted=adopted)
    return pruned


def is_prunable(spec: QueueSpec, older_than: timedelta | None, *, adopted: bool = False) -> Criterion:
    """Return the criterion of the rows that :func:`prune` deletes unless they are protected.

    Raises :class:`.ArgumentError` if neither the call nor the model gives an age.
    """
    name = spec.entity.__name__
    if adopted:
        if older_than is None:
            raise ArgumentError(
                f"retention does not apply to rows from before {name} became a queue: give older_than=timedelta(...)"
            )
        return and_(is_adopted(spec), spec["created_at"] <= utcnow(-older_than))
    age = spec.options.retention if older_than is None else older_than
    dead_age = spec.options.discarded_retention if older_than is None else None
    ages = [each for each in (age, dead_age) if each is not None]
    if not ages:
        raise ArgumentError(f"{name} has no retention: give older_than=timedelta(...), or QueueOptions(retention=...)")
    is_dead = spec["status"] == state(Status.DISCARDED)
    if dead_age is None:
        old = spec["finished_at"] <= utcnow(-ages[0])
    else:
        dead = and_(is_dead, spec["finished_at"] <= utcnow(-dead_age))
        old = dead if age is None else or_(and_(~is_dead, spec["finished_at"] <= utcnow(-age)), dead)
    if spec.sequence is not None and spec.discarded_hold:  # without it, the next task of its key would start
        old = and_(old, or_(~is_dead, spec.sequence.is_(None)))
    return and_(is_final(spec), old)


def _report(spec: QueueSpec, pruned: Pruned, older_than: timedelta | None, *, adopted: bool) -> None:
    name, options = spec.name, spec.options
    age = f"older than {older_than}"
    if older_than is None:
        dead = "" if options.discarded_retention is None else f", dead letters {options.discarded_retention}"
        age = f"past their retention ({options.retention}{dead})"
    what = f"rows from before it became a queue, {age}" if adopted else f"final rows {age}"
    facts = {"queue": name, "deleted": int(pruned), "protected": pruned.protected}
    if pruned:
        logger.info("pruned %s: deleted %d %s", name, pruned, what, extra=facts)
    if pruned.protected:
        logger.warning("pruned %s: kept %d %s: foreign keys refer to them", name, pruned.protected, what, extra=facts)


class _Pruning:
    """Deletes the rows that satisfy ``old``, in batches, and skips those that foreign keys refer to.

    The query excludes rows that foreign keys in the metadata protect, at almost no cost.  Rows that other foreign keys
    protect are found by trial: a batch that fails is halved until the protected rows are isolated.
    """

    def __init__(self, session: Session, adapter: Adapter, spec: QueueSpec, old: Criterion) -> None:
        self._session = session
        self._adapter = adapter
        self._spec = spec
        self._old = old
        self._references = list(_references(spec))
        self._protected: list[Identity] = []
        """The keys of protected rows found by trial."""

    def delete(self, limit: int | None) -> Pruned:
        deleted = 0
        while limit is None or deleted < limit:
            room = None if limit is None else limit - deleted
            keys, before = self._candidates(room), (deleted, len(self._protected))
            deleted += sum(self._delete(some) for some in self._adapter.rows.batches(self._spec, keys))
            # without progress, the snapshot is old and shows rows that others have deleted
            if room is None or len(keys) < room or before == (deleted, len(self._protected)):
                return Pruned(deleted, self._count_protected())
        return Pruned(deleted)

    def _candidates(self, limit: int | None) -> list[Identity]:
        free = [~reference for reference in self._references]
        found = [
            ~self._adapter.rows.key_in(self._spec, some)
            for some in self._adapter.rows.batches(self._spec, self._protected)
        ]
        matching = select(*self._spec.primary_key).where(self._old, *free, *found).limit(limit)
        return self._adapter.rows.keys(self._session, self._spec, matching)

    def _delete(self, keys: Sequence[Identity]) -> int:
        """Delete the rows of ``keys`` that are not protected; return how many."""
        try:
            with self._undone_if_it_fails():
                return self._remove(and_(self._adapter.rows.key_in(self._spec, keys), self._old))
        except DBAPIError as error:
            if not self._adapter.connections.is_referenced(error):
                raise
        if len(keys) == 1:
            self._protected += keys
            return 0
        middle = len(keys) // 2
        return self._delete(keys[:middle]) + self._delete(keys[middle:])

    def _undone_if_it_fails(self) -> AbstractContextManager[object]:
        if _is_spread(self._spec):
            return self._session.begin_nested()
        return self._adapter.connections.tentative(self._session)

    def _remove(self, criterion: Criterion) -> int:
        spec, session, rows = self._spec, self._session, self._adapter.rows
        if not _is_spread(spec):
            return rows.count(session, spec, self._adapter.rows.by_key(spec, remove(spec, criterion)))
        # by key, not as instances: a row that cannot be read is deleted as well
        keys = rows.keys(session, spec, self._adapter.rows.select_by_key(spec, criterion, waits=True))
        for table in reversed(sort_tables(_tables(spec))) if keys else ():
            rows.delete(session, replace(spec, table=table, primary_key=tuple(table.primary_key)), keys)
        return len(keys)

    def _count_protected(self) -> int:
        if not self._references:
            return len(self._protected)
        counted = select(func.count()).select_from(self._spec.table).where(self._old, or_(*self._references))
        declared: int = self._adapter.rows.execute(self._session, self._spec, counted).scalar_one()
        return declared + len(self._protected)


def _is_spread(spec: QueueSpec) -> bool:
    """Return whether a task may have rows in several tables, as with joined-table inheritance."""
    return any(len(mapper.tables) > 1 for mapper in spec.mapper.self_and_descendants)


def _tables(spec: QueueSpec) -> set[Any]:
    """Return the tables that may have rows of the queue's tasks."""
    return {table for mapper in spec.mapper.base_mapper.self_and_descendants for table in mapper.tables}


def _references(spec: QueueSpec) -> Iterator[Criterion]:
    """Yield a criterion for each foreign key of another table that can protect a row from deletion.

    Foreign keys within the queue's own tables are left out: those rows can be deleted together.
    """
    own = _tables(spec)
    for other in spec.table.metadata.tables.values():
        for constraint in () if other in own else other.foreign_key_constraints:
            with suppress(NoReferenceError):  # the referred table is not in the metadata
                if constraint.referred_table in own and (constraint.ondelete or "").upper() not in _RELEASING:
                    yield _is_referred_to(spec, constraint)


def _is_referred_to(spec: QueueSpec, constraint: ForeignKeyConstraint) -> Criterion:
    target = constraint.referred_table
    joined = [element.parent == element.column for element in constraint.elements]
    if target is not spec.table:
        joined.append(same_key(spec, target))
    return exists(select(literal_column("1")).where(*joined).correlate(spec.table))
