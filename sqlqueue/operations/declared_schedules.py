"""Creates and updates the recurring tasks that an application declares when it starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import Column, Row, Select, and_, insert, null, or_, select
from sqlalchemy.orm import Session

from .._support.exc import ArgumentError, DuplicateTaskError
from .._support.logs import logger_of
from ..dialects.base import Adapter
from ..kinds import RecurringMixin
from ..lifecycle.reactivation import overwriting
from ..queue.spec import Criterion, Identity, QueueSpec, Where
from ..queue.status import FINAL, Status
from ..sql.criteria import only
from ..sql.states import is_final
from ..transaction.connection import Access, AnySession, open_, session_of
from ..transaction.notifications import announce
from .bulk import change
from .conflicts import discriminator
from .duplicates import hidden, insert_unless_duplicate
from .rescheduling import first_run, plan, recurring_spec, stop
from .schedule_declaration import Declaration, plain_key
from .session_criteria import scope_of, within

logger = logger_of("sqlqueue")

NOT_DECLARED = "no longer declared"
"""The ``error`` of a task that a declaration has ended.  It distinguishes such a task from one ended by an operator."""
_FINAL = frozenset(status.value for status in FINAL)
ScheduleChange: TypeAlias = Literal["created", "updated", "unchanged", "removed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSchedules:
    """The result of :func:`declare_schedules`, by the keys of the tasks: each a ``unique_key`` or a primary key."""

    created: tuple[object, ...] = ()
    """Inserted, or restarted after an earlier declaration had removed them."""
    updated: tuple[object, ...] = ()
    """Given another schedule or other values, by this call or a concurrent one."""
    unchanged: tuple[object, ...] = ()
    """Not written to: their next run is unchanged."""
    removed: tuple[object, ...] = ()
    """No longer declared, therefore cancelled; running ones have no further run."""
    stopped: tuple[object, ...] = ()
    """Declared, but cancelled, discarded or unscheduled, and left unchanged."""


def declare_schedules(
    session: AnySession,
    entity: type[RecurringMixin],
    tasks: Iterable[Mapping[str, Any] | RecurringMixin],
    /,
    *where: Where,
    remove_missing: bool = False,
) -> DeclaredSchedules:
    """Create the declared recurring tasks, and update those that differ.  Call it when the application starts.

    ``tasks`` are dictionaries by attribute name, or instances, which are not added to the session.  Each gives a
    ``schedule`` and the key that identifies it: its primary key, or its ``unique_key`` (:class:`.UniqueMixin`).

    A task that does not exist is inserted; ``available_at`` is its first run, if given.  An existing task gets the
    given values that differ; a new schedule counts from now, as with :func:`reschedule`, and a run in progress
    continues. A task that matches its declaration is not written to, so its interval continues however often the
    application starts.  Values that the declaration omits, or gives as ``None``, are left unchanged.

    A task that was cancelled, discarded or unscheduled is not restarted: it is returned as ``stopped``, with a warning
    in the log, until :func:`reschedule` restarts it, or its row is deleted.

    ``remove_missing``: end the recurrence of the other tasks of ``entity`` that satisfy ``where``, as
    :func:`unschedule` does; where tasks are identified by ``unique_key``, only of those that have one.  Declaring them
    again restarts them.

    Runs in the session's transaction.  Commit it soon: other processes that insert the same tasks wait for the commit,
    and then leave them unchanged.  Raises :class:`.ArgumentError`, before anything is sent, for an invalid declaration,
    and :class:`.DuplicateTaskError` if a task cannot be inserted because of another key, or has the key of a task that
    the session's criteria exclude.
    """
    spec = recurring_spec(entity)
    session = session_of(session)
    declaration = Declaration.of(spec, tasks)
    if where and not remove_missing:
        raise ArgumentError(
            "where= limits which tasks may be removed: give remove_missing=True as well, or omit where="
        )
    chosen = only(spec, *within(session, spec, where))
    declaring = _Declaring(session, open_(session, spec, Access.CLAIM), declaration)
    outcomes = declaring.apply(chosen if remove_missing else None)
    if outcomes["created"] or outcomes["updated"]:
        announce(session, spec)
    _log(spec, outcomes)
    return DeclaredSchedules(**{outcome: tuple(keys) for outcome, keys in outcomes.items()})


class _Declaring:
    """Applies a declaration task by task in key order, so that processes that declare the same tasks wait in turn."""

    def __init__(self, session: Session, adapter: Adapter, declaration: Declaration) -> None:
        self._session = session
        self._adapter = adapter
        self._declaration = declaration
        self._spec = declaration.spec

    def apply(self, removable: Criterion | None) -> Mapping[ScheduleChange, list[object]]:
        """Create, update and (among ``removable``) remove tasks; return their keys by outcome."""
        outcomes: defaultdict[ScheduleChange, list[object]] = defaultdict(list)
        present = self._present(list(self._declaration.tasks))
        missing = set() if removable is None else self._missing(removable)
        for identity in sorted(self._declaration.tasks.keys() | missing):
            outcome = self._remove(identity) if identity in missing else self._settle(identity, present.get(identity))
            if outcome is not None:
                outcomes[outcome].append(plain_key(identity))
        return outcomes

    def _settle(self, identity: Identity, present: Row[Any] | None) -> ScheduleChange:
        if present is None and self._insert(identity):
            return "created"
        outcome = self._adapt(identity, present or self._read(identity))
        # a concurrent process may have changed it, possibly to what is declared
        return outcome or self._adapt(identity, self._read(identity)) or "updated"

    def _adapt(self, identity: Identity, present: Row[Any]) -> ScheduleChange | None:
        """Update an existing row to match the declaration; return None if it changed in the meantime."""
        spec, row = self._spec, present._mapping
        schedule, error = spec["schedule"], spec["error"]
        changes = self._declaration.changes(identity, row)
        text = self._declaration.tasks[identity][schedule.name]
        key = tuple(row[column] for column in spec.primary_key)
        mine = only(spec, *within(self._session, spec, (spec.key(key),)))
        if scope_of(self._session, spec) and not self._adapter.rows.exists(self._session, spec, mine):
            raise hidden(spec, self._declaration.tasks[identity])
        if row[spec["status"]] in _FINAL or row[schedule] is None:
            if row[error] != NOT_DECLARED:
                return "stopped"
            ended = and_(mine, error == NOT_DECLARED, or_(is_final(spec), schedule.is_(None)))
            changes |= {schedule: text, error: null()}
            return "created" if self._plan(ended, text, changes) else None
        if not changes:
            return "unchanged"
        alive = and_(mine, ~is_final(spec), schedule == row[schedule])
        if schedule in changes:
            return "updated" if self._plan(alive, text, changes) else None
        return "updated" if change(self._session, spec, alive, overwriting(spec, changes)) else None

    def _plan(self, chosen: Criterion, text: str, changes: Mapping[Column[Any], Any]) -> int:
        return plan(self._session, self._spec, chosen, text, overwriting(self._spec, changes))

    def _insert(self, identity: Identity) -> bool:
        """Insert a declared task; return False if another process was faster."""
        spec, row = self._spec, dict(self._declaration.tasks[identity])
        self._adapter.inserts.check_keys(spec, [{key: row.get(name) for key, name in spec.column_names.items()}])
        moment = spec["available_at"].name
        if moment not in row:
            row[moment] = first_run(self._session, spec, row[spec["schedule"].name])
        row |= {spec["status"].name: Status.SCHEDULED.value, **discriminator(spec)}
        return insert_unless_duplicate(self._session, self._adapter, spec, insert(spec.table).values(row))

    def _remove(self, identity: Identity) -> ScheduleChange | None:
        spec = self._spec
        mine = and_(only(spec, self._declaration.is_row(identity)), ~is_final(spec), spec["schedule"].is_not(None))
        return "removed" if stop(self._session, spec, mine, [(spec["error"], NOT_DECLARED)]) else None

    def _missing(self, removable: Criterion) -> set[Identity]:
        """Return the keys of recurring tasks that are not declared."""
        spec, key = self._spec, self._declaration.key
        recur = (~is_final(spec), spec["schedule"].is_not(None), *(column.is_not(None) for column in key))
        missing = self._selecting(and_(removable, *recur))
        return self._rows(key, missing).keys() - self._declaration.tasks.keys()

    def _read(self, identity: Identity) -> Row[Any]:
        """Return the row that an insert conflicted with, even if this transaction's snapshot does not contain it."""
        found = self._present([identity]) or self._present([identity], latest=True)
        if identity not in found:
            name = self._spec.entity.__name__
            raise DuplicateTaskError(
                f"{name} {plain_key(identity)!r} cannot be inserted: another row has one of its unique keys",
                model=self._spec.entity,
            )
        return found[identity]

    def _present(self, identities: Sequence[Identity], *, latest: bool = False) -> dict[Identity, Row[Any]]:
        """Return the rows with these keys; for a ``unique_key`` that no row has, the last row that had it."""
        declaration, found = self._declaration, dict[Identity, Row[Any]]()
        for some in self._adapter.keys.batches(self._spec, identities):
            by_key = not declaration.by_unique_key
            named = self._adapter.keys.key_in(self._spec, some) if by_key else or_(*map(declaration.is_row, some))
            found |= self._select(declaration.key, named, latest=latest)
        absent = [identity for identity in identities if identity not in found]
        if declaration.by_unique_key:
            former = self._spec["former_key"]
            for some in self._adapter.keys.batches(self._spec, absent):
                found |= self._select((former,), former.in_([key for (key,) in some]), latest=latest)
        return found

    def _select(
        self, key: Sequence[Column[Any]], criterion: Criterion, *, latest: bool = False
    ) -> dict[Identity, Row[Any]]:
        statement = self._selecting(criterion)
        if latest:
            statement = statement.with_for_update(read=True)
        if not self._declaration.by_unique_key:
            statement = self._adapter.keys.by_key(self._spec, statement)
        return self._rows(key, statement)

    def _selecting(self, criterion: Criterion) -> Select[Any]:
        spec = self._spec
        return select(*spec.table.c).where(only(spec, criterion)).order_by(*spec.primary_key)

    def _rows(self, key: Sequence[Column[Any]], statement: Select[Any]) -> dict[Identity, Row[Any]]:
        rows: Any = self._adapter.rows.execute(self._session, self._spec, statement)
        return {tuple(row._mapping[column] for column in key): row for row in rows}


def _log(spec: QueueSpec, outcomes: Mapping[ScheduleChange, Sequence[object]]) -> None:
    for outcome, keys in outcomes.items():
        if outcome == "stopped":
            logger.warning(
                "%s %s: declared, but cancelled, discarded or unscheduled, and therefore left unchanged; reschedule()"
                " restarts them",
                spec.entity.__name__,
                list(keys),
            )
        elif outcome != "unchanged":
            logger.info("recurring tasks of %s %s: %s", spec.entity.__name__, outcome, list(keys))
