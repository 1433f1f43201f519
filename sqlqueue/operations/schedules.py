"""Recurring tasks by their schedules: declared, changed, removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import Column, Row, Select, and_, insert, literal_column, or_, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import SQLCoreOperations

from .._support.errors import ArgumentError, DuplicateTaskError
from .._support.texts import logger_of
from ..dialects.base import Adapter
from ..kinds import RecurringMixin
from ..kinds.recurring import plan_assignments, stop_assignments
from ..lifecycle.kind import kinds_of
from ..lifecycle.transitions import error_assignments, overwrite_assignments
from ..model.declaration import QueueMixin
from ..queue.options import FINAL, Status
from ..queue.schedules import Missed, Schedule, is_same, next_run, parse, text_of, zone_of
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..sql import Assignment, UTCDateTime, is_final, is_held, only, utcnow
from ..transaction import Access, AnySession, announce, ledger_of, open_, scope_of, session_of, within
from .bulk import change
from .conflicts import column_values, discriminator, hidden, insert_unless_duplicate
from .enqueueing import check_attributes, values_of
from .recording import Shown, moments_read

# -- changes the schedules of recurring tasks, and ends their recurrence ----------------------------------------------


def reschedule(
    session: AnySession,
    entity: type[QueueMixin],
    *where: Where,
    schedule: Schedule | str | None = None,
    drift: bool | None = None,
) -> int:
    """Give tasks that satisfy ``where`` a ``schedule``, or restart them on the one they have. Return how many.

    Waiting and ended tasks run next at the schedule's first time from now on.  A running task continues, and its next
    run follows the new schedule.  ``drift``: see :class:`.RecurringMixin`.  Without a ``schedule``, tasks that have
    none are not changed.  Runs in the session's transaction.  Raises :class:`.ArgumentError` for an invalid schedule.
    """
    spec = recurring_spec(entity)
    session = session_of(session)
    text = None if schedule is None else text_of(schedule)
    given: list[Assignment] = [] if drift is None else [(spec["drift"], drift)]
    chosen = only(spec, *within(session, spec, where))
    if text is not None:
        changed = plan(session, spec, chosen, text, [*given, (spec["schedule"], text)])
    else:
        own = schedules(session, spec, chosen)
        changed = sum(plan(session, spec, chosen & (spec["schedule"] == each), each, given) for each in own)
    if changed:
        announce(session, spec)
    return changed


def unschedule(session: AnySession, entity: type[QueueMixin], *where: Where) -> int:
    """End the recurrence of tasks that satisfy ``where``.  Return how many.

    Waiting tasks become ``cancelled`` and keep their ``schedule``, on which :func:`reschedule` restarts them.  A
    running task loses its schedule and ends like an ordinary task.  Runs in the session's transaction.
    """
    spec = recurring_spec(entity)
    session = session_of(session)
    chosen = only(spec, ~is_final(spec), spec["schedule"].is_not(None), *within(session, spec, where))
    return stop(session, spec, chosen)


def stop(session: Session, spec: QueueSpec, chosen: Criterion, given: Sequence[Assignment] = ()) -> int:
    """End the recurrence of the chosen tasks and apply the assignments in ``given``; return how many."""
    running, mine = is_held(spec), ledger_of(session).locked(spec.table)
    if mine:
        running = or_(running, open_(session, spec).rows.key_in(spec, mine))
    return change(session, spec, chosen, [*given, *stop_assignments(spec, running)])


def plan(session: Session, spec: QueueSpec, chosen: Criterion, text: str, given: Sequence[Assignment]) -> int:
    """Schedule the next run for a schedule's first time from now on, and apply ``given``; return how many changed."""
    return change(session, spec, chosen, plan_assignments(spec, first_run(session, spec, text), given))


def schedules(session: Session, spec: QueueSpec, chosen: Criterion) -> Sequence[str]:
    """Return the different schedules of the chosen tasks."""
    own = select(spec["schedule"]).where(chosen, spec["schedule"].is_not(None)).distinct()
    found: Sequence[str] = open_(session, spec).rows.execute(session, spec, own).scalars().all()
    return found


def first_run(session: Session, spec: QueueSpec, text: str) -> datetime:
    """Return a schedule's first time from now on, by the database's clock."""
    schedule = parse(text)
    now: datetime = open_(session, spec).rows.execute(session, spec, select(utcnow())).scalar_one()
    return schedule.after(now)


def recurring_spec(entity: type[QueueMixin]) -> QueueSpec:
    """Return a model's queue; raise :class:`.ArgumentError` if its tasks cannot recur."""
    spec = spec_of(entity)
    if not spec.recurs:
        raise ArgumentError(f"{entity.__name__} has no schedules: derive it from RecurringMixin")
    return spec


# -- reads recurring tasks with their last and next runs, for operators ------------------------------------------------

RUNS = 3
"""The maximum number of next runs that are returned."""
_READ = ("status", "schedule", "drift", "claimed_at", "scheduled_for", "available_at", "error")
_OPTIONAL = ("unique_key", "former_key", "task", "topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringTask:
    """A task with a schedule, and its runs."""

    identity: Identity
    """Its primary key."""
    unique_key: str | None
    """The ``unique_key`` that it has, or had before it was stopped; ``None`` without :class:`.UniqueMixin`."""
    function: str | None
    """The name of the function that it calls; ``None`` without :class:`.JobMixin`."""
    topic: str | None
    """Its topic; ``None`` without :class:`.TopicMixin`."""
    status: str
    schedule: str
    """The stored text, which another program may have written."""
    last_run: datetime | None
    """When its last attempt began; ``None`` before the first one."""
    next_runs: tuple[datetime, ...]
    """The next times at which it is due, at most three; none for a task that has ended.  Fewer if this host cannot
    evaluate the schedule."""
    error: str | None
    """The error of the last run, if that failed."""
    at: datetime
    """When this was read, by the database's clock."""

    @property
    def zone(self) -> tzinfo:
        """The time zone of its schedule; UTC for an interval, and if this host does not know it."""
        return zone_of(self.schedule)

    @property
    def has_ended(self) -> bool:
        """Whether it has no further run."""
        return self.status in _FINAL


def recurring_tasks(
    session: AnySession,
    entity: type[QueueMixin],
    *where: Where,
    first: int | None = None,
    limit: int | None = None,
) -> tuple[list[RecurringTask], bool]:
    """Return tasks with a schedule that satisfy ``where``, in the order of their primary keys, and whether there may be
    more.

    ``first``: how many rows are read, the lowest primary keys first, because no index finds tasks with a schedule; all
    by default.  ``limit``: the maximum number of tasks to return.  Locks nothing.  Raises :class:`.ArgumentError` if
    tasks of ``entity`` cannot recur.
    """
    spec = recurring_spec(entity)
    session = session_of(session)
    adapter = open_(session, spec)
    shown = [*_READ, *(role for role in _OPTIONAL if role in spec.columns)]
    columns = [spec[role] for role in shown]
    keys = [column.label(f"key_{place}") for place, column in enumerate(spec.primary_key)]
    chosen = only(spec, *within(session, spec, where))

    def asked(moment: Shown, *of: Criterion) -> Select[Any]:
        values = (moment(each) if isinstance(each.type, UTCDateTime) else each for each in columns)
        named = [each.label(role) for role, each in zip(shown, values, strict=True)]
        read = select(*keys, *named, utcnow().label("now")).where(chosen, *of).order_by(*spec.primary_key)
        some = read.limit(first).subquery("some")
        statement = select(some).where(some.c.schedule.is_not(None)).order_by(*(some.c[each.name] for each in keys))
        return statement if limit is None else statement.limit(limit + 1)

    def asked_of(moment: Shown, rows: Sequence[Any]) -> Select[Any]:
        return asked(moment, adapter.rows.key_in(spec, [tuple(row[:width]) for row in rows]))

    width = len(keys)
    found = moments_read(adapter, session, spec, asked, asked_of)
    tasks = [_recurring_task(spec, tuple(row[:width]), dict(row._mapping)) for row in found[:limit]]
    if len(tasks) < len(found):
        return tasks, True
    beyond: Select[Any] = (
        select(literal_column("1")).where(chosen).order_by(*spec.primary_key).offset(first or 0).limit(1)
    )
    is_cut = first is not None and adapter.rows.execute(session, spec, beyond).first() is not None
    return tasks, is_cut


def _recurring_task(spec: QueueSpec, identity: Identity, row: Mapping[str, Any]) -> RecurringTask:
    return RecurringTask(
        identity=identity,
        unique_key=row.get("unique_key") or row.get("former_key"),
        function=row.get("task"),
        topic=row.get("topic"),
        status=row["status"],
        schedule=row["schedule"],
        last_run=row["claimed_at"],
        next_runs=tuple(islice(_next_runs(spec.options.missed, row), RUNS)),
        error=row["error"],
        at=row["now"],
    )


def _next_runs(missed: Missed, row: Mapping[str, Any]) -> Iterator[datetime]:
    """Yield the times at which a task is due, as far as this host can evaluate its schedule."""
    if row["status"] in _FINAL:
        return
    with suppress(ArgumentError):  # another program may have stored an invalid schedule
        moment = row["available_at"]
        if row["status"] == Status.RUNNING:
            planned = row["scheduled_for"] or row["claimed_at"] or row["now"]
            moment = next_run(row["schedule"], planned, row["now"], drift=bool(row["drift"]), missed=missed)
        while True:
            yield moment
            moment = parse(row["schedule"]).after(moment)


# -- a validated declaration of recurring tasks: the key that identifies them, and their values -----------------------

_WRITTEN_BY_THE_QUEUE = (
    *("status", "attempt", "max_attempts", "claimed_by", "claimed_at", "crashes", "finished_at", "created_at"),
    *("error", "error_group"),
)
Values = dict[str, Any]
"""Values by column name."""


class Declaration(NamedTuple):
    """The declared tasks by key."""

    spec: QueueSpec
    key: tuple[Column[Any], ...]
    """The columns that identify the tasks: the primary key's, or ``unique_key``."""
    tasks: dict[Identity, Values]

    @classmethod
    def of(cls, spec: QueueSpec, tasks: Iterable[Mapping[str, Any] | RecurringMixin]) -> Declaration:
        """Validate ``tasks``; raise :class:`.ArgumentError` for invalid ones."""
        if len(spec.mapper.tables) > 1:
            raise ArgumentError(f"the columns of {spec.entity.__name__} are in several tables: it cannot be declared")
        if isinstance(tasks, (Mapping, QueueMixin)) or not isinstance(tasks, Iterable):
            raise ArgumentError(f"tasks={tasks!r}: give an iterable of dictionaries or instances")
        rows = [_values(spec, number, task) for number, task in enumerate(tasks)]
        key = _key_of(spec, rows)
        keyed: dict[Identity, Values] = {}
        for row in rows:
            identity = tuple(row[column.name] for column in key)
            if identity in keyed:
                raise ArgumentError(f"{spec.entity.__name__} {plain_key(identity)!r} is declared twice")
            keyed[identity] = row
        return cls(spec, key, keyed)

    @property
    def by_unique_key(self) -> bool:
        """Whether ``unique_key`` identifies the tasks, instead of the primary key."""
        return self.key != self.spec.primary_key

    def is_row(self, identity: Identity) -> Criterion:
        """Return the criterion of the row with this key."""
        return and_(*(column == value for column, value in zip(self.key, identity, strict=True)))

    def changes(self, identity: Identity, row: Mapping[Any, Any]) -> dict[Column[Any], Any]:
        """Return the declared values that differ from those of the existing ``row``.

        ``available_at`` is left out: it is declared for the first run only.
        """
        fixed = {*self.spec.primary_key, *self.key, self.spec["available_at"]}
        declared = {self.spec.table.c[name]: value for name, value in self.tasks[identity].items()}
        return {
            column: value
            for column, value in declared.items()
            if column not in fixed and not _is_same(self.spec, column, row[column], value)
        }


def plain_key(identity: Identity) -> object:
    """Return a key as callers give it: the value of a single column, or a tuple for several."""
    return identity[0] if len(identity) == 1 else identity


def _values(spec: QueueSpec, number: int, task: Mapping[str, Any] | RecurringMixin) -> Values:
    """Return the values that one task gives, in an instance or a dictionary; ``None`` counts as not given."""
    if isinstance(task, spec.entity):
        row = values_of(spec, task)
    elif isinstance(task, Mapping):
        row = {name: value for name, value in task.items() if value is not None}
    else:
        raise ArgumentError(f"row {number}: give a dictionary or a {spec.entity.__name__}, not {type(task).__name__}")
    check_attributes(spec, number, row)
    written_by_queue = (*_WRITTEN_BY_THE_QUEUE, *(role for kind in kinds_of(spec) for role in kind.written_by_queue))
    refused = sorted({spec.attributes[role] for role in written_by_queue} & row.keys())
    if refused:
        raise ArgumentError(f"row {number}: leave out {', '.join(refused)}: only the queue writes them")
    if spec.attributes["schedule"] not in row:
        raise ArgumentError(
            f"row {number}: {spec.attributes['schedule']} is missing: give an Every(...) or a Cron(...)"
        )
    if any(isinstance(value, SQLCoreOperations) for value in row.values()):
        raise ArgumentError(f"row {number}: give values, not SQL expressions: they are compared with those of the row")
    return column_values(spec, row)


def _key_of(spec: QueueSpec, rows: Sequence[Values]) -> tuple[Column[Any], ...]:
    """Return the columns of the first key that all rows give."""
    others = [(spec["unique_key"],)] if spec.has_unique_keys else []
    ways = [spec.primary_key, *others]
    if not rows:
        return ways[-1]
    for way in ways:
        if all(column.name in row for row in rows for column in way):
            return way
    needed = " or ".join(", ".join(column.name for column in way) for way in ways)
    advice = "" if others else ", or derive the model from UniqueMixin and give unique_key"
    raise ArgumentError(
        f"declared tasks are identified by their keys: give {needed} for each {spec.entity.__name__}{advice}"
    )


def _is_same(spec: QueueSpec, column: Column[Any], stored: Any, declared: Any) -> bool:
    if column is spec["schedule"]:
        return stored is not None and is_same(stored, declared)
    if column is spec["drift"]:
        return bool(stored) == bool(declared)
    return bool(column.type.compare_values(stored, declared))


# -- creates and updates the recurring tasks that an application declares when it starts ------------------------------

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
    declaring = _Declaring(session, open_(session, spec, Access.SKIP), declaration)
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
            changes |= {schedule: text, **dict(error_assignments(spec, None))}
            return "created" if self._plan(ended, text, changes) else None
        if not changes:
            return "unchanged"
        alive = and_(mine, ~is_final(spec), schedule == row[schedule])
        if schedule in changes:
            return "updated" if self._plan(alive, text, changes) else None
        return "updated" if change(self._session, spec, alive, overwrite_assignments(spec, changes)) else None

    def _plan(self, chosen: Criterion, text: str, changes: Mapping[Column[Any], Any]) -> int:
        return plan(self._session, self._spec, chosen, text, overwrite_assignments(self._spec, changes))

    def _insert(self, identity: Identity) -> bool:
        """Insert a declared task; return False if another process was faster."""
        spec, row = self._spec, dict(self._declaration.tasks[identity])
        self._adapter.rows.check_keys(spec, [{key: row.get(name) for key, name in spec.column_names.items()}])
        moment = spec["available_at"].name
        if moment not in row:
            row[moment] = first_run(self._session, spec, row[spec["schedule"].name])
        row |= {spec["status"].name: Status.SCHEDULED.value, **discriminator(spec)}
        return insert_unless_duplicate(self._session, self._adapter, spec, insert(spec.table).values(row))

    def _remove(self, identity: Identity) -> ScheduleChange | None:
        spec = self._spec
        mine = and_(only(spec, self._declaration.is_row(identity)), ~is_final(spec), spec["schedule"].is_not(None))
        return "removed" if stop(self._session, spec, mine, error_assignments(spec, NOT_DECLARED)) else None

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
        for some in self._adapter.rows.batches(self._spec, identities):
            found |= self._select(declaration.key, self._named(some), latest=latest)
        absent = [identity for identity in identities if identity not in found]
        if declaration.by_unique_key:
            former = self._spec["former_key"]
            for some in self._adapter.rows.batches(self._spec, absent):
                named = self._adapter.rows.one_of(self._spec, former, [key for (key,) in some])
                found |= self._select((former,), named, latest=latest)
        return found

    def _named(self, identities: Sequence[Identity]) -> Criterion:
        keys = self._adapter.rows
        if not self._declaration.by_unique_key:
            return keys.key_in(self._spec, identities)
        (column,) = self._declaration.key
        return keys.one_of(self._spec, column, [key for (key,) in identities])

    def _select(
        self, key: Sequence[Column[Any]], criterion: Criterion, *, latest: bool = False
    ) -> dict[Identity, Row[Any]]:
        statement = self._selecting(criterion)
        if latest:
            statement = statement.with_for_update(read=True)
        if not self._declaration.by_unique_key:
            statement = self._adapter.rows.by_key(self._spec, statement)
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
                spec.name,
                list(keys),
            )
        elif outcome != "unchanged":
            logger.info("recurring tasks of %s %s: %s", spec.name, outcome, list(keys))
