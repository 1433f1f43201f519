"""Enqueues tasks: instances or rows, with or without handling of conflicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from itertools import groupby
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, overload

from sqlalchemy import Column, insert, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from .._support.checks import duration
from .._support.exc import ArgumentError
from ..dialects.base import Adapter
from ..lifecycle.kind import kinds_of, other_keys
from ..model.columns import check_values
from ..model.declaration import first_moment
from ..model.mixins import QueueMixin
from ..queue.spec import QueueSpec, spec_of
from ..queue.status import Status
from ..sql.clock import aware, utcnow
from ..transaction.connection import Access, AnySession, check_engine, open_, session_of
from ..transaction.notifications import announce
from .conflicts import Conflicts
from .copying import copy_rows
from .duplicates import translating
from .row_values import Instances, Row, values_of

OnConflict = Literal["raise", "ignore", "replace", "rerun"]


@overload
def enqueue(
    session: AnySession,
    tasks: QueueMixin | Iterable[QueueMixin],
    /,
    *,
    on_conflict: OnConflict = "raise",
    version: InstrumentedAttribute[Any] | None = None,
    delay: timedelta | None = None,
) -> None: ...
@overload
def enqueue(
    session: AnySession,
    entity: type[QueueMixin],
    rows: Iterable[Mapping[str, Any]],
    /,
    *,
    on_conflict: OnConflict = "raise",
    version: InstrumentedAttribute[Any] | None = None,
    delay: timedelta | None = None,
    copy: bool = False,
) -> None: ...
def enqueue(
    session: AnySession,
    tasks: Any,
    rows: Iterable[Mapping[str, Any]] | None = None,
    /,
    *,
    on_conflict: OnConflict = "raise",
    version: InstrumentedAttribute[Any] | None = None,
    delay: timedelta | None = None,
    copy: bool = False,
) -> None:
    """Insert tasks in the session's transaction: instances, or a model and rows as dictionaries.

    A task with an ``available_at`` and no ``status`` is scheduled for that time; ``delay`` schedules all of them that
    far from now, by the database's clock; a task with a ``schedule`` is scheduled for its first run; all others are
    available at once. Dictionaries, by attribute name, are inserted in bulk and make no instances; ``copy=True`` loads
    them by PostgreSQL's COPY. Instances become persistent, as by ``session.add()``; where the server generates the keys
    and cannot return them in bulk (MySQL, SQLite), they are inserted one by one.

    ``on_conflict`` says what happens to a task whose primary key exists, or, if it gives none, whose ``unique_key``
    (:class:`.UniqueMixin`) belongs to an unfinished task:

    ``"raise"``: :class:`.DuplicateTaskError`, after which the transaction can only be rolled back.
    ``"ignore"``: the existing row stays as it is.
    ``"replace"``: the row gets the new values, and is reactivated if it waits or is final; if it is running, the run
    continues and is not repeated.  With ``delay`` this debounces: the last of many calls wins, and its delay counts.
    ``"rerun"``: as ``"replace"``, and a running task runs again afterwards: completion makes it ``available``, and
    notifies workers if the model is a :class:`.UniqueMixin`; otherwise they find it at their next poll.  A task of a
    :class:`.StageMixin` starts at its first stage.  Rejected for a task that this transaction holds with
    ``lease=None``.

    With ``version``, an attribute that every row sets (a number, a time), only newer values change the row: a late
    update changes nothing and causes no run.

    Except with ``"raise"``, the values of instances are written, with the foreign keys that their many-to-one
    relationships give; new parents are inserted first.  The instances themselves stay out of the session and of their
    parents' collections. Raises :class:`.ArgumentError` for children, and for a parent that is detached or belongs to
    another session.

    Handling a conflict waits for a row that an open transaction is claiming or settling; a plain insert does not wait.
    Transactions that enqueue the same keys in different orders can deadlock; on MySQL and MariaDB, where a row can
    conflict on other unique keys as well, even in the same order.
    """
    session = session_of(session)
    if on_conflict not in get_args(OnConflict):
        raise ArgumentError(f"on_conflict={on_conflict!r}: one of {', '.join(get_args(OnConflict))}")
    if rows is None and isinstance(tasks, type):
        raise ArgumentError(f"enqueue({tasks.__name__}, rows): the rows are missing")
    if version is not None and on_conflict not in ("replace", "rerun"):
        raise ArgumentError("version= needs on_conflict='replace' or 'rerun': nothing else changes an existing row")
    if delay is not None:
        duration("delay", delay, zero=True)
    how = _How(on_conflict, version, delay, copy)
    if rows is not None:
        spec, values = spec_of(tasks), _dictionaries(rows)
        _check_rows(spec, values, how)
        _enqueue_rows(session, spec, values, how)
        return
    groups = _by_spec(tasks)
    if on_conflict == "raise":
        for spec, group in groups:
            _add(session, spec, group, delay)
        return
    batches = [(spec, Instances(session, spec, group)) for spec, group in groups]
    for spec, instances in batches:
        _check_rows(spec, instances.rows, how)
    for _, instances in batches:
        instances.withdraw()
    for spec, instances in batches:
        open_(session, spec, Access.CHANGE)  # flushes their parents
        _enqueue_rows(session, spec, instances.flushed_rows(), how)


class _How(NamedTuple):
    on_conflict: OnConflict
    version: InstrumentedAttribute[Any] | None
    delay: timedelta | None
    copy: bool

    def version_in(self, spec: QueueSpec) -> Column[Any] | None:
        """Return the version column; raise :class:`.ArgumentError` if it is not in the queue's table."""
        if self.version is None:
            return None
        of_queue = issubclass(spec.entity, getattr(self.version, "class_", type(None)))
        column = spec.mapper.columns.get(self.version.key) if of_queue else None
        if column is None or column.table is not spec.table or column in spec.columns.values():
            raise ArgumentError(
                f"version={self.version}: give a column of {spec.table.name}, as {spec.entity.__name__}.id"
            )
        return column


def _by_spec(tasks: Any) -> list[tuple[QueueSpec, list[Any]]]:
    """Return the instances, with consecutive instances of one class grouped."""
    if not isinstance(tasks, (QueueMixin, Iterable)):
        raise ArgumentError(f"{type(tasks).__name__} is not a queue model: give a task, or an iterable of tasks")
    instances = [tasks] if isinstance(tasks, QueueMixin) else list(tasks)
    return [(spec_of(cls), list(group)) for cls, group in groupby(instances, key=type)]


def _add(session: Session, spec: QueueSpec, tasks: list[Any], delay: timedelta | None) -> None:
    adapter = open_(session, spec)
    fixed = _delayed(spec, delay)
    for number, task in enumerate(tasks if fixed else ()):
        _check_delay(spec, number, values_of(spec, task))
    for task in tasks:
        for name, value in fixed.items():
            setattr(task, name, value)
    given = [values_of(spec, task) for task in tasks]  # before the server generates keys
    with translating(adapter, spec, given):
        session.add_all(tasks)
        session.flush()


def _delayed(spec: QueueSpec, delay: timedelta | None) -> Row:
    if delay is None:
        return {}
    return {spec.attributes["available_at"]: utcnow(delay), spec.attributes["status"]: Status.SCHEDULED.value}


def _enqueue_rows(session: Session, spec: QueueSpec, rows: list[Row], how: _How) -> None:
    if not rows:
        return
    adapter = open_(session, spec, Access.READ if how.on_conflict == "raise" else Access.CHANGE)
    adapter.inserts.check_keys(spec, rows)
    if how.on_conflict != "raise":
        adapter.inserts.check_blanks(spec, rows)
    fixed = _delayed(spec, how.delay)
    if kinds_of(spec) and not fixed:
        _plan(session, adapter, spec, rows)
    if how.copy or how.on_conflict != "raise":  # otherwise the ORM sets it
        _give_versions(spec, rows)
    announce(session, spec)  # what comes first in a transaction costs no round trip
    with translating(adapter, spec, rows if how.on_conflict == "raise" else None):
        if how.copy:
            copy_rows(session, adapter, spec, rows)
        elif how.on_conflict == "raise":
            if adapter.inserts.sends_values_alone and len(rows) > 1:
                _give_the_time(session, adapter, spec, rows)
            _insert(session, spec, rows, fixed)
        else:
            Conflicts(adapter, spec, how.on_conflict, how.version_in(spec)).enqueue(session, rows, fixed)


def _insert(session: Session, spec: QueueSpec, rows: list[Row], fixed: Row) -> None:
    """Insert in bulk.  Rows that the ORM would not change are inserted through Core, which is a third faster."""
    seen = session.dispatch.do_orm_execute  # the application's listeners may change the statement
    if not (fixed or seen) and spec.takes_rows and _are_alike(rows):
        names = {key: spec.mapper.columns[key].key for key in rows[0]}
        if any(key != name for key, name in names.items()):
            rows = [{names[key]: value for key, value in row.items()} for row in rows]
        session.execute(insert(spec.table), rows, bind_arguments=spec.bind_arguments)
    else:
        statement = insert(spec.entity)
        check_engine(session, spec, statement)
        session.execute(statement.values(fixed) if fixed else statement, rows)


def _are_alike(rows: list[Row]) -> bool:
    """Whether all rows have the same attributes and none is None, which stands for a default."""
    keys, kinds = rows[0].keys(), set[type[Any]]()
    for row in rows:
        if row.keys() != keys:
            return False
        kinds.update(map(type, row.values()))  # compare types, since values can define __eq__ themselves
    return NoneType not in kinds


def _give_the_time(session: Session, adapter: Adapter, spec: QueueSpec, rows: list[Row]) -> None:
    """Read the database's clock once, and set the columns that default to it."""
    # a computed property (column_property) has no default
    defaults = ((prop.key, getattr(prop.columns[0], "default", None)) for prop in spec.mapper.column_attrs)
    timed = [key for key, default in defaults if isinstance(getattr(default, "arg", None), utcnow)]
    now = adapter.rows.execute(session, spec, select(utcnow())).scalar_one()
    for row in rows:
        for key in timed:
            row.setdefault(key, now)


def _give_versions(spec: QueueSpec, rows: list[Row]) -> None:
    """Set the initial value of the mapper's ``version_id_col``."""
    generate, column = spec.mapper.version_id_generator, spec.mapper.version_id_col
    if column is not None and callable(generate):
        key = spec.mapper.get_property_by_column(column).key
        for row in rows:
            if row.get(key) is None:
                row[key] = generate(None)


def _plan(session: Session, adapter: Adapter, spec: QueueSpec, rows: list[Row]) -> None:
    """Schedule rows without ``available_at`` whose kind computes a first run, such as from a ``schedule``."""
    now = cache(lambda: adapter.rows.execute(session, spec, select(utcnow())).scalar_one())
    moment, status = spec.attributes["available_at"], spec.attributes["status"]
    for row in rows:
        first = first_moment(spec, row, now) if row.get(moment) is None else None
        if first is not None:
            row[moment] = first
            row.setdefault(status, Status.SCHEDULED.value)


def _dictionaries(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise ArgumentError(f"rows={rows!r}: give an iterable of dictionaries")
    found: list[Row] = []
    for number, row in enumerate(rows):
        if type(row) is not dict and not isinstance(row, Mapping):  # the first check is faster
            raise ArgumentError(f"row {number}: {row!r} is not a dictionary")
        found.append(dict(row))
    return found


def _check_rows(spec: QueueSpec, rows: list[Row], how: _How) -> None:
    """Reject values that cannot be stored, and set the status of rows that have a time."""
    status, moment = spec.attributes["status"], spec.attributes["available_at"]
    version = how.version.key if how.version_in(spec) is not None and how.version is not None else None
    if how.on_conflict != "raise" and len(spec.mapper.tables) > 1:
        name = spec.entity.__name__
        raise ArgumentError(f"on_conflict={how.on_conflict!r} needs one table; the rows of {name} are in several")
    if how.copy and (how.on_conflict != "raise" or how.delay is not None):
        raise ArgumentError(f"copy=True cannot be combined with on_conflict={how.on_conflict!r} or a delay")
    for number, row in enumerate(rows):
        check_attributes(spec, number, row)
        if how.on_conflict != "raise":
            _check_key(spec, number, row, how.on_conflict)
        if version is not None and row.get(version) is None:
            raise ArgumentError(f"row {number}: {version} is missing: it decides whether the row is newer")
        if how.delay is not None:
            _check_delay(spec, number, row)
        when = row.get(moment)
        if when is not None:
            if isinstance(when, datetime):
                aware(when)
            row.setdefault(status, Status.SCHEDULED.value)


def check_attributes(spec: QueueSpec, number: int, row: Row) -> None:
    """Reject attributes that the model does not have and values that cannot be stored; turn schedules into text."""
    if not spec.column_names.keys() >= row.keys():
        unknown = ", ".join(sorted(map(str, row.keys() - spec.column_names.keys())))
        raise ArgumentError(f"row {number}: {spec.entity.__name__} has no attribute {unknown}")
    for kind in kinds_of(spec):
        kind.normalize(spec, row)
    check_values(spec, row)


def _check_delay(spec: QueueSpec, number: int, row: Row) -> None:
    status, moment = spec.attributes["status"], spec.attributes["available_at"]
    if row.keys() & {status, moment}:
        raise ArgumentError(f"row {number}: delay= sets the time: leave out {moment} and {status}")


def _check_key(spec: QueueSpec, number: int, row: Row, on_conflict: str) -> None:
    key = {spec.mapper.get_property_by_column(column).key for column in spec.primary_key}
    if key.issubset(row) or other_keys(spec):
        return
    needed = ", ".join(sorted(key))
    raise ArgumentError(f"row {number}: on_conflict={on_conflict!r} needs the primary key: give {needed}")
