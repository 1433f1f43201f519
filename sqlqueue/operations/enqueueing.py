"""Enqueueing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Literal, get_args, overload

from sqlalchemy import Column, ColumnElement, insert, literal, null
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.types import TypeEngine

from ..clock import aware
from ..dialects.base import Adapter, Replacement
from ..exc import ArgumentError, DuplicateTaskError
from ..mixins import QueueMixin
from ..spec import QueueSpec, spec_of
from ..statements import write
from ..states import Status
from ..transitions import replacing
from ..wakeups import announce
from ._connection import AnySession, open_, session_of

OnConflict = Literal["raise", "ignore", "replace", "rerun"]
Row = dict[str, Any]


@overload
def enqueue(
    session: AnySession, tasks: QueueMixin | Iterable[QueueMixin], /, *, on_conflict: OnConflict = "raise"
) -> None: ...
@overload
def enqueue(
    session: AnySession,
    entity: type[QueueMixin],
    rows: Iterable[Mapping[str, Any]],
    /,
    *,
    on_conflict: OnConflict = "raise",
    copy: bool = False,
) -> None: ...
def enqueue(
    session: AnySession,
    tasks: Any,
    rows: Iterable[Mapping[str, Any]] | None = None,
    /,
    *,
    on_conflict: OnConflict = "raise",
    copy: bool = False,
) -> None:
    """Insert tasks in the session's transaction: instances, or a model and rows as dictionaries.

    A task with an ``available_at`` and no ``status`` is scheduled for then; one with neither is available at once.
    Dictionaries, by names of attributes, are inserted in bulk and make no instances; ``copy=True`` loads them by
    PostgreSQL's COPY.  Instances become persistent, as by ``session.add()``; where the server makes the keys and
    cannot return them in bulk (MySQL, SQLite), they are inserted one by one.

    ``on_conflict`` says what becomes of a task whose primary key is there already:

    ``"raise"``: :class:`.DuplicateTaskError`, after which the transaction can only be rolled back.
    ``"ignore"``: the row stays as it is.
    ``"replace"``: the row gets the new values, and a new life if it waits or is final; if it is running, the run
    goes on and is not repeated.
    ``"rerun"``: likewise, and if it is running now it runs again afterwards: completion makes it ``available``.

    For all but ``"raise"`` the values of instances are written and the instances are left as they are.  A row that is
    being claimed or settled in an open transaction is waited for; a plain insert waits for nobody.
    """
    session = session_of(session)
    if on_conflict not in get_args(OnConflict):
        raise ArgumentError(f"on_conflict={on_conflict!r}: one of {', '.join(get_args(OnConflict))}")
    if rows is None and isinstance(tasks, type):
        raise ArgumentError(f"enqueue({tasks.__name__}, rows): the rows are missing")
    if rows is not None:
        spec, values = spec_of(tasks), _dictionaries(rows)
        _check_rows(spec, values, on_conflict)
        _enqueue_rows(session, spec, values, on_conflict, copy=copy)
        return
    groups = _by_spec(tasks)
    if on_conflict == "raise":
        for spec, group in groups:
            _add(session, spec, group)
        return
    batches = [(spec, [_values(spec, task) for task in group]) for spec, group in groups]
    for spec, values in batches:
        _check_rows(spec, values, on_conflict)
    for spec, values in batches:
        _enqueue_rows(session, spec, values, on_conflict)


def _by_spec(tasks: Any) -> list[tuple[QueueSpec, list[Any]]]:
    """The instances, those of one class that stand together as a group."""
    if not isinstance(tasks, (QueueMixin, Iterable)):
        raise ArgumentError(f"{type(tasks).__name__} is no queue model: give a task, or an iterable of tasks")
    instances = [tasks] if isinstance(tasks, QueueMixin) else list(tasks)
    return [(spec_of(cls), list(group)) for cls, group in groupby(instances, key=type)]


def _add(session: Session, spec: QueueSpec, tasks: list[Any]) -> None:
    adapter = open_(session, spec)
    with _translating(adapter, spec):
        session.add_all(tasks)
        session.flush()


def _values(spec: QueueSpec, task: Any) -> Row:
    """What an instance would insert; None stands for what was not given."""
    given = instance_state(task).dict
    keys = (prop.key for prop in spec.mapper.column_attrs)
    return {key: given[key] for key in keys if given.get(key) is not None}


def _enqueue_rows(
    session: Session, spec: QueueSpec, rows: list[Row], on_conflict: OnConflict, *, copy: bool = False
) -> None:
    if not rows:
        return
    adapter = open_(session, spec)
    if copy:
        _copy(session, adapter, spec, rows, on_conflict)
    elif on_conflict == "raise":
        with _translating(adapter, spec):
            session.execute(insert(spec.entity), rows)
    else:
        with _translating(adapter, spec):
            _upsert(session, adapter, spec, rows, on_conflict)
    announce(session, spec)


def _dictionaries(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise ArgumentError(f"rows={rows!r}: give an iterable of dictionaries")
    found: list[Row] = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ArgumentError(f"row {number}: {row!r} is no dictionary")
        found.append(dict(row))
    return found


def _check_rows(spec: QueueSpec, rows: list[Row], on_conflict: OnConflict) -> None:
    """Refuse what cannot be stored, and say what each row is."""
    key = {spec.mapper.get_property_by_column(column).key for column in spec.primary_key}
    known = {prop.key for prop in spec.mapper.column_attrs}
    status, moment = spec.attributes["status"], spec.attributes["available_at"]
    for number, row in enumerate(rows):
        if not known.issuperset(row):
            unknown = ", ".join(sorted(set(row) - known))
            raise ArgumentError(f"row {number}: {spec.entity.__name__} has no attribute {unknown}")
        if on_conflict != "raise" and not key.issubset(row):
            needed = ", ".join(sorted(key))
            raise ArgumentError(f"row {number}: on_conflict={on_conflict!r} goes by the primary key: give {needed}")
        when = row.get(moment)
        if isinstance(when, datetime):
            aware(when)
        if when is not None:
            row.setdefault(status, Status.SCHEDULED.value)


class _translating:
    """A violated unique key becomes :class:`.DuplicateTaskError`."""

    def __init__(self, adapter: Adapter, spec: QueueSpec) -> None:
        self.adapter, self.spec = adapter, spec

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, IntegrityError) and self.adapter.is_duplicate(error):
            name = self.spec.entity.__name__
            raise DuplicateTaskError(
                f"a {name} with this key exists: roll back, or say what to do by on_conflict='ignore', 'replace' or"
                " 'rerun'",
                model=self.spec.entity,
            ) from error


# -- conflicts ---------------------------------------------------------------------------------------------------------


def _upsert(session: Session, adapter: Adapter, spec: QueueSpec, rows: list[Row], on_conflict: OnConflict) -> None:
    columns = {prop.key: prop.columns[0].name for prop in spec.mapper.column_attrs}
    key = {column.name for column in spec.primary_key}
    for names, group in groupby(rows, key=lambda row: sorted(columns[name] for name in row)):
        replace = None if on_conflict == "ignore" else _replacement(spec, names, key, rerun=on_conflict == "rerun")
        values = [{columns[name]: value for name, value in row.items()} for row in group]
        statement = adapter.upsert(spec, replace)
        if statement is not None:
            adapter.execute(session, spec, statement, values)
            continue
        for row in values:
            _update_or_insert(session, adapter, spec, row, replace)


def _replacement(spec: QueueSpec, names: Sequence[str], key: set[str], *, rerun: bool) -> Replacement:
    given = [name for name in names if name not in key]
    return lambda proposed: replacing(spec, given, proposed, rerun=rerun)


def _update_or_insert(
    session: Session, adapter: Adapter, spec: QueueSpec, row: Row, replace: Replacement | None
) -> None:
    """For engines without an upsert.  Whoever loses the race to insert finds the row at the next try."""
    mine = spec.key(tuple(row[column.name] for column in spec.primary_key))
    proposed = _literals(spec, row)
    while True:
        if replace is not None and adapter.count(session, spec, write(spec, mine, replace(proposed))):
            return
        try:
            with session.begin_nested():
                adapter.execute(session, spec, insert(spec.table), row)
        except IntegrityError as error:
            if not adapter.is_duplicate(error) or not adapter.exists(session, spec, mine):
                raise  # another unique key stands in the way
            if replace is None:
                return
        else:
            return


def _literals(spec: QueueSpec, row: Row) -> Callable[[str], ColumnElement[Any]]:
    def proposed(name: str) -> ColumnElement[Any]:
        column = spec.table.c[name]
        return literal(row[name], column.type) if row[name] is not None else null()

    return proposed


# -- COPY --------------------------------------------------------------------------------------------------------------


def _copy(session: Session, adapter: Adapter, spec: QueueSpec, rows: list[Row], on_conflict: OnConflict) -> None:
    if on_conflict != "raise":
        raise ArgumentError(f"copy=True cannot be combined with on_conflict={on_conflict!r}")
    if spec.mapper.inherits is not None or len(spec.mapper.tables) > 1:
        raise ArgumentError("copy=True loads one table: not for an inheriting class")
    names = list(rows[0])
    if any(row.keys() != rows[0].keys() for row in rows):
        raise ArgumentError("copy=True needs the same keys in every row")
    dialect = session.get_bind(**spec.bind_arguments).dialect
    columns = [spec.mapper.columns[name] for name in names]
    made = [c for c in spec.table.columns if c not in columns and c.default and not c.default.is_clause_element]
    processors = [_processor(column, dialect) for column in (*columns, *made)]
    connection = session.connection(spec.bind_arguments)

    def values() -> Iterator[list[Any]]:
        for row in rows:
            given = [*(row[name] for name in names), *(_default(column) for column in made)]
            yield [process(value) for process, value in zip(processors, given, strict=True)]

    with _translating(adapter, spec):
        adapter.copy(connection, spec.table, [column.name for column in (*columns, *made)], values())


def _processor(column: Column[Any], dialect: Dialect) -> Callable[[Any], Any]:
    """What the column's type makes of a value on its way to the driver."""
    kind: TypeEngine[Any] = column.type.dialect_impl(dialect)
    return kind.bind_processor(dialect) or (lambda value: value)


def _default(column: Any) -> Any:
    """What the column's own default gives; only SQL expressions are left to the server."""
    return column.default.arg(None) if column.default.is_callable else column.default.arg
