"""Enqueues tasks: instances or rows, with or without handling of conflicts, and with PostgreSQL's COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from itertools import groupby
from types import NoneType
from typing import Any, get_args, overload

from sqlalchemy import Column, insert, select
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.types import TypeEngine

from .._support.checks import duration
from .._support.errors import ArgumentError
from .._support.private import is_flushing
from ..dialects.base import Adapter
from ..model.declaration import QueueMixin, first_moment
from ..queue.options import Status
from ..queue.spec import QueueSpec, spec_of
from ..sql import utcnow
from ..transaction import Access, AnySession, announce, check_engine, open_, scope_of, session_of
from .conflicts import Conflicts, existing, translating
from .rows import (
    EnqueueOptions,
    Instances,
    OnConflict,
    Row,
    check_delay,
    check_rows,
    dictionaries,
    is_stored,
    key_of,
    values_of,
)

# -- enqueues rows with PostgreSQL's COPY -----------------------------------------------------------------------------


def copy_rows(session: Session, adapter: Adapter, spec: QueueSpec, rows: list[dict[str, Any]]) -> None:
    """Load ``rows``, which all have the same keys, in the session's transaction."""
    if spec.mapper.inherits is not None or len(spec.mapper.tables) > 1:
        raise ArgumentError("copy=True writes to a single table and does not support classes with mapped inheritance")
    names = list(rows[0])
    for number, row in enumerate(rows):
        if list(row) != names:  # the order may differ
            if row.keys() != rows[0].keys():
                raise ArgumentError("copy=True needs the same keys in every row")
            rows[number] = {name: row[name] for name in names}
    dialect = session.get_bind(**spec.bind_arguments).dialect
    columns = [spec.mapper.columns[name] for name in names]
    made = [c for c in spec.table.columns if c not in columns and c.default and not c.default.is_clause_element]
    processors = [(n, _processor(column, dialect)) for n, column in enumerate((*columns, *made))]
    processed = [(n, process) for n, process in processors if process is not None]
    connection = session.connection(spec.bind_arguments)

    def complete() -> Iterator[list[Any]]:
        for row in rows:
            given = [*row.values(), *map(_default, made)]
            for n, process in processed:
                given[n] = process(given[n])
            yield given

    with translating(adapter, spec, rows):
        values = complete() if made or processed else map(tuple, map(dict.values, rows))
        adapter.rows.copy(connection, spec.table, [column.name for column in (*columns, *made)], values)


def _processor(column: Column[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """Return the column type's bind processor, or ``None`` if values are sent unchanged."""
    kind: TypeEngine[Any] = column.type.dialect_impl(dialect)
    return kind.bind_processor(dialect)


def _default(column: Any) -> Any:
    """Return the value of the column's Python default; the server evaluates only SQL expressions."""
    return column.default.arg(None) if column.default.is_callable else column.default.arg


# -- enqueues tasks: instances or rows, with or without handling of conflicts -----------------------------------------


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
    far in the future, by the database's clock; a task with a ``schedule`` is scheduled for its first run; all others
    are available at once. Dictionaries, by attribute name, are inserted in bulk without creating instances;
    ``copy=True`` loads them with PostgreSQL's COPY. Instances become persistent, as with ``session.add()``; where the
    server generates the keys and cannot return them in bulk (MySQL, SQLite), they are inserted one by one.

    ``on_conflict`` says what happens to a task whose primary key exists, or, if it gives none, whose ``unique_key``
    (:class:`.UniqueMixin`) belongs to an unfinished task:

    ``"raise"``: :class:`.DuplicateTaskError`, after which the transaction can only be rolled back. ``"ignore"``: the
    existing row is left unchanged. ``"replace"``: the row gets the new values, and is reactivated if it waits or is
    final; if it is running, the run continues and is not repeated.  With ``delay`` this debounces: the last of many
    calls wins, and its delay counts. ``"rerun"``: like ``"replace"``, but a running task also runs again afterwards:
    completion makes it ``available``, and notifies workers if the model is a :class:`.UniqueMixin`; otherwise they find
    it at their next poll.  A task of a :class:`.StageMixin` starts at its first stage.  Rejected for a task that this
    transaction holds with ``lease=None``.

    With ``version``, an attribute that every row sets (a number, a time), only newer values change the row: a late
    update changes nothing and causes no run.

    An instance that is stored stands for its row, by its primary key: ``"raise"`` always raises, and the others do what
    they do for a row that exists, which gets the attributes set since it was loaded.  If the row is gone, they raise
    :class:`.ArgumentError`.  See also :func:`rerun`.

    Except with ``"raise"``, the values of new instances are written, with the foreign keys that their many-to-one
    relationships give; new parents are inserted first.  The instances themselves stay out of the session and of their
    parents' collections. Raises :class:`.ArgumentError` for children, and for a parent that is detached or belongs to
    another session.

    In a listener of a flush (``before_flush``, ``after_flush``), instances are only added, as by ``session.add()``: the
    session's next flush inserts them, at the latest that of the commit.

    Handling a conflict waits for a row that an open transaction is claiming or settling; a plain insert does not wait.
    Transactions that enqueue the same keys in different orders can deadlock; on MySQL and MariaDB, where a row can
    conflict on other unique keys as well, they can deadlock even in the same order.
    """
    session = session_of(session)
    if on_conflict not in get_args(OnConflict):
        raise ArgumentError(f"on_conflict={on_conflict!r}: give one of {', '.join(get_args(OnConflict))}")
    if rows is None and isinstance(tasks, type):
        raise ArgumentError(f"enqueue({tasks.__name__}, rows): the rows are missing")
    if version is not None and on_conflict not in ("replace", "rerun"):
        raise ArgumentError("version= needs on_conflict='replace' or 'rerun': nothing else changes an existing row")
    if delay is not None:
        duration("delay", delay, zero=True)
    options = EnqueueOptions(on_conflict, version, delay, copy)
    if rows is not None:
        spec, values = spec_of(tasks), dictionaries(rows)
        check_rows(spec, values, options)
        _enqueue_rows(session, spec, values, options)
        return
    groups = _by_spec(tasks)
    if on_conflict == "raise":
        for spec, group in groups:
            _add(session, spec, group, delay)
        return
    batches = [(spec, Instances(session, spec, group)) for spec, group in groups]
    for spec, instances in batches:
        if version is not None and any(map(is_stored, instances.tasks)):
            raise ArgumentError(
                "version= compares new rows with stored ones: these tasks are the stored rows themselves"
            )
        check_rows(spec, instances.rows, options)
    for _, instances in batches:
        instances.withdraw()
    for spec, instances in batches:
        adapter = open_(session, spec, Access.CHANGE)  # flushes their parents
        _enqueue_rows(session, spec, instances.flushed_rows(stored=False), options)
        _enqueue_rows(session, spec, instances.flushed_rows(stored=True), options, stored=True)
        shown = [spec.identity_of(task) for task in instances.tasks if is_stored(task) and task in session]
        if on_conflict != "ignore":
            adapter.rows.load(session, spec, shown)


def _by_spec(tasks: Any) -> list[tuple[QueueSpec, list[Any]]]:
    """Return the instances, with consecutive instances of one class grouped."""
    if not isinstance(tasks, (QueueMixin, Iterable)):
        raise ArgumentError(f"{type(tasks).__name__} is not a queue model: give a task, or an iterable of tasks")
    instances = [tasks] if isinstance(tasks, (QueueMixin, Mapping)) else list(tasks)
    if any(isinstance(each, Mapping) for each in instances):
        raise ArgumentError("dictionaries need their model: enqueue(session, Email, [{...}, ...])")
    return [(spec_of(cls), list(group)) for cls, group in groupby(instances, key=type)]


def _add(session: Session, spec: QueueSpec, tasks: list[Any], delay: timedelta | None) -> None:
    stored = [key_of(spec, task) for task in tasks if is_stored(task)]
    if stored:
        raise existing(spec, stored)
    adapter = open_(session, spec)
    fixed = _delayed(spec, delay)
    for number, task in enumerate(tasks if fixed else ()):
        check_delay(spec, number, values_of(spec, task))
    for task in tasks:
        for name, value in fixed.items():
            setattr(task, name, value)
    given = [values_of(spec, task) for task in tasks]  # before the server generates keys
    with translating(adapter, spec, given):
        session.add_all(tasks)
        if not is_flushing(session):
            session.flush()


def _delayed(spec: QueueSpec, delay: timedelta | None) -> Row:
    if delay is None:
        return {}
    return {spec.attributes["available_at"]: utcnow(delay), spec.attributes["status"]: Status.SCHEDULED.value}


def _enqueue_rows(
    session: Session, spec: QueueSpec, rows: list[Row], options: EnqueueOptions, *, stored: bool = False
) -> None:
    if not rows:
        return
    adapter = open_(session, spec, Access.READ if options.on_conflict == "raise" else Access.CHANGE)
    adapter.rows.check_keys(spec, rows)
    if options.on_conflict != "raise":
        adapter.rows.check_blanks(spec, rows)
    fixed = _delayed(spec, options.delay)
    if spec.recurs and not fixed:
        _plan(session, adapter, spec, rows)
    if spec.mapper.version_id_col is not None and (options.copy or options.on_conflict != "raise"):
        _give_versions(spec, rows)  # otherwise the ORM sets it
    announce(session, spec)  # at the start of a transaction, a notification costs no round trip
    with translating(adapter, spec, rows, handled=options.on_conflict != "raise"):
        if options.copy:
            copy_rows(session, adapter, spec, rows)
        elif options.on_conflict == "raise":
            if adapter.rows.sends_values_alone and len(rows) > 1:
                _give_the_time(session, adapter, spec, rows)
            _insert(session, spec, rows, fixed)
        else:
            conflicts = Conflicts(
                adapter,
                spec,
                on_conflict=options.on_conflict,
                version=options.version_in(spec),
                scope=scope_of(session, spec),
            )
            (conflicts.update if stored else conflicts.enqueue)(session, rows, fixed)


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
    """Return whether all rows have the same attributes and none is None, which stands for a default."""
    keys, kinds = rows[0].keys(), set[type[Any]]()
    for row in rows:
        if row.keys() != keys:
            return False
        kinds.update(map(type, row.values()))  # compare types, since values can define their own __eq__
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
    """Schedule rows without ``available_at`` with a ``schedule``, which has a first run."""
    now = cache(lambda: adapter.rows.execute(session, spec, select(utcnow())).scalar_one())
    moment, status = spec.attributes["available_at"], spec.attributes["status"]
    for row in rows:
        first = first_moment(spec, row, now) if row.get(moment) is None else None
        if first is not None:
            row[moment] = first
            row.setdefault(status, Status.SCHEDULED.value)
