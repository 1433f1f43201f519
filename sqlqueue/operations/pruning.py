"""Deletes tasks that the queue finished long ago, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self

from sqlalchemy import ForeignKeyConstraint, and_, exists, func, literal_column, or_, select
from sqlalchemy.exc import DBAPIError, NoReferenceError
from sqlalchemy.orm import Session
from sqlalchemy.schema import sort_tables

from .._support.checks import count, duration
from .._support.errors import ArgumentError
from .._support.texts import logger_of
from ..dialects.base import Adapter
from ..model.declaration import QueueMixin
from ..queue.options import Status
from ..queue.spec import Criterion, Identity, QueueSpec, spec_of
from ..sql import is_adopted, is_final, only, remove, same_key, state, utcnow
from ..transaction import Access, AnySession, open_, session_of, within

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
    the result is their number.
    """
    spec = spec_of(entity)
    session = session_of(session)
    if older_than is not None:
        duration("older_than", older_than, zero=True)
    if limit is not None:
        count("limit", limit)
    old = only(spec, is_prunable(spec, older_than, adopted=adopted), *within(session, spec))
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
    if dead_age is None:
        return and_(is_final(spec), spec["finished_at"] <= utcnow(-ages[0]))
    is_dead = spec["status"] == state(Status.DISCARDED)
    dead = and_(is_dead, spec["finished_at"] <= utcnow(-dead_age))
    old = dead if age is None else or_(and_(~is_dead, spec["finished_at"] <= utcnow(-age)), dead)
    return and_(is_final(spec), old)


def _report(spec: QueueSpec, pruned: Pruned, older_than: timedelta | None, *, adopted: bool) -> None:
    name, options = spec.entity.__name__, spec.options
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
