"""Enqueues tasks: instances or rows, with or without handling of conflicts, and with PostgreSQL's COPY."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import groupby
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, overload

from sqlalchemy import Column, insert, inspect, select
from sqlalchemy.orm import InstrumentedAttribute, RelationshipDirection, RelationshipProperty, Session
from sqlalchemy.orm.attributes import get_history, instance_state, set_committed_value
from sqlalchemy.orm.base import PASSIVE_NO_INITIALIZE
from sqlalchemy.util import immutabledict

from .._support.checks import duration
from .._support.errors import ArgumentError
from .._support.private import is_flushing
from ..dialects.base import Adapter
from ..kinds.columns import expiry
from ..model.declaration import QueueMixin, check_status, check_values, first_moment, is_given
from ..queue.options import Status
from ..queue.schedules import text_of
from ..queue.spec import QueueSpec, spec_of
from ..sql import aware, utcnow
from ..transaction import Access, AnySession, announce, check_engine, open_, scope_of, session_of
from .conflicts import Conflicts, Row, existing, translating
from .placing import Awaited, Place, Placing, When, listed

# -- reads the row to insert from an instance, without the ORM's unit of work: its columns, and foreign keys from
#    relationships

MANY_TO_ONE, ONE_TO_MANY = RelationshipDirection.MANYTOONE, RelationshipDirection.ONETOMANY


class Borrowed(NamedTuple):
    """A foreign key value to be read from a parent, which may have it only after a flush."""

    parent: Any
    attribute: str

    @property
    def value(self) -> Any:
        """The parent's value.  Raises :class:`.ArgumentError` if it gets one only by the flush that is going on."""
        value = getattr(self.parent, self.attribute)
        if value is None and inspect(self.parent).pending:
            raise ArgumentError(
                f"{type(self.parent).__name__} has no key yet, because the session is just flushing it: use"
                " on_conflict='raise', or enqueue in after_flush"
            )
        return value


class _Link(NamedTuple):
    """A many-to-one relationship of an instance."""

    relationship: RelationshipProperty[Any]
    parent: Any


def values_of(spec: QueueSpec, task: Any) -> Row:
    """Return the column values that an instance would insert; ``None`` values count as not given."""
    given = instance_state(task).dict
    keys = (prop.key for prop in spec.mapper.column_attrs)
    return {key: given[key] for key in keys if given.get(key) is not None}


def is_stored(task: Any) -> bool:
    """Return whether the instance has been read from a row, or written to one."""
    return instance_state(task).has_identity


def key_of(spec: QueueSpec, task: Any) -> Row:
    """Return the primary key of a stored instance, by attribute name."""
    return dict(zip(spec.key_names, spec.identity_of(task), strict=True))


def _changes_of(spec: QueueSpec, task: Any) -> Row:
    """Return what a stored instance gives: its primary key, the attributes that were set since, and its schedule."""
    given = instance_state(task).dict
    names = [
        prop.key
        for prop in spec.mapper.column_attrs
        if get_history(task, prop.key, PASSIVE_NO_INITIALIZE).has_changes()
    ]
    row = {name: given[name] for name in names} | key_of(spec, task)
    if spec.recurs:
        row[spec.attributes["schedule"]] = getattr(task, spec.attributes["schedule"])
    return row


class Instances:
    """Tasks of one class and their rows, whose foreign keys are :class:`Borrowed` where a relationship gives them.

    The row of a stored task has only what identifies it and what the instance changes.
    """

    def __init__(self, session: Session, spec: QueueSpec, tasks: Sequence[Any]) -> None:
        """Raise :class:`.ArgumentError` for related objects that the task's own row cannot store.  Changes nothing."""
        self.session, self.tasks = session, tasks
        self.linked = [list(_links(session, spec, task, tasks)) for task in tasks]
        self.rows = [_row(spec, task, links) for task, links in zip(tasks, self.linked, strict=True)]

    def withdraw(self) -> None:
        """Remove the instances from the session and from their parents' collections, so that no flush inserts them.

        Their attributes are left unchanged.  New parents are added to the session.
        """
        for task, links in zip(self.tasks, self.linked, strict=True):
            if task in self.session.new:
                self.session.expunge(task)
            if task not in self.session:
                _take_from_parents(task, links)
        parents = (link.parent for links in self.linked for link in links)
        self.session.add_all(parent for parent in parents if parent is not None)

    def flushed_rows(self, *, stored: bool) -> list[Row]:
        """Return the rows of tasks that are stored or not, with their parents' keys; call it after the parents have
        been flushed."""
        return [
            {key: value.value if isinstance(value, Borrowed) else value for key, value in row.items()}
            for row, task in zip(self.rows, self.tasks, strict=True)
            if is_stored(task) is stored
        ]


def _row(spec: QueueSpec, task: Any, links: Sequence[_Link]) -> Row:
    row = _changes_of(spec, task) if is_stored(task) else values_of(spec, task)
    for relationship, parent in links:
        for source, target in relationship.synchronize_pairs:
            key = spec.mapper.get_property_by_column(target).key
            row.pop(key, None)
            if parent is not None:
                row[key] = Borrowed(parent, inspect(parent).mapper.get_property_by_column(source).key)
    return row


def _links(session: Session, spec: QueueSpec, task: Any, together: Collection[Any]) -> Iterator[_Link]:
    name, state = spec.entity.__name__, instance_state(task)
    for relationship in spec.mapper.relationships:
        history = get_history(task, relationship.key, PASSIVE_NO_INITIALIZE)
        related = history.added if state.has_identity else history.non_deleted()
        if relationship.viewonly or not related:
            continue
        if relationship.direction is not MANY_TO_ONE:
            raise ArgumentError(
                f"{name}.{relationship.key} is not empty: on_conflict= writes the task's own row only, which may exist"
                " already. Leave it empty, or enqueue with on_conflict='raise'"
            )
        (parent,) = related
        _check_parent(session, f"{name}.{relationship.key}", relationship, parent, together)
        yield _Link(relationship, parent)
    for owner, key in _one_sided(spec):
        if owner.class_manager.has_parent(state, key):
            raise ArgumentError(
                f"{owner.class_.__name__}.{key} contains this {name}, which has no relationship back: give {name} a"
                f" relationship with back_populates={key!r}, or set its foreign key"
            )


def _check_parent(
    session: Session, name: str, relationship: RelationshipProperty[Any], parent: Any, together: Collection[Any]
) -> None:
    if parent is None:
        return
    state = inspect(parent)
    if any(parent is each for each in together):
        raise ArgumentError(f"{name} is enqueued by the same call, and has no key yet: enqueue it first")
    if state.session not in (None, session):
        raise ArgumentError(f"{name} belongs to another session: pass the result of session.merge()")
    if state.detached:
        raise ArgumentError(f"{name} is detached: add it to the session first, or pass the result of session.merge()")
    if state.deleted or parent in session.deleted:
        raise ArgumentError(f"{name} is being deleted: nothing can refer to it")
    if state.transient and not relationship.cascade.save_update:
        raise ArgumentError(
            f"{name} is not in the session, and the relationship does not cascade: add it to the session"
        )


def _one_sided(spec: QueueSpec) -> list[tuple[Any, str]]:
    """Return collections of other classes that contain tasks of this queue and have no relationship back."""
    return [
        (owner, relationship.key)
        for owner in spec.mapper.registry.mappers
        for relationship in owner.relationships
        if relationship.direction is ONE_TO_MANY and spec.mapper.isa(relationship.mapper)
        if not (relationship.viewonly or relationship.back_populates or relationship.backref)
    ]


def _take_from_parents(task: Any, links: Sequence[_Link]) -> None:
    """Remove a task from its parents' collections, so that a flush does not insert it; its attributes stay."""
    for relationship, parent in links:
        if parent is not None and get_history(task, relationship.key, PASSIVE_NO_INITIALIZE).added:
            setattr(task, relationship.key, None)
            set_committed_value(task, relationship.key, parent)


# -- checks the arguments of `enqueue`: its options, and the values of each row ---------------------------------------

OnConflict = Literal["raise", "ignore", "replace", "rerun"]


class EnqueueOptions(NamedTuple):
    """The keyword arguments of one call of ``enqueue``."""

    on_conflict: OnConflict
    version: InstrumentedAttribute[Any] | None
    delay: timedelta | None
    expires: timedelta | None
    copy: bool
    place: Mapping[str, Any] = immutabledict()
    """The attributes that the place of the tasks among others gives them."""
    max_delay: timedelta | None = None
    """How long after its first insert a task that is replaced may be delayed at most."""

    def placed(self, spec: QueueSpec, place: Place | None) -> EnqueueOptions:
        """Return these options with the place of the tasks, if they have one."""
        if place is None:
            return self
        return self._replace(place={spec.attributes[role]: value for role, value in place.values.items()})

    def fixed(self, spec: QueueSpec) -> Row:
        """Return the expressions for the attributes that ``delay`` and ``expires`` set, by the database's clock.

        Raises :class:`.ArgumentError` if tasks of this queue do not expire.
        """
        values: Row = dict(self.place)
        if self.delay is not None:
            moment, status = spec.attributes["available_at"], spec.attributes["status"]
            values = {moment: utcnow(self.delay), status: Status.SCHEDULED.value}
        return values if self.expires is None else values | expiry(spec, self.expires, self.delay)

    def version_in(self, spec: QueueSpec) -> Column[Any] | None:
        """Return the version column; raise :class:`.ArgumentError` if it is not in the queue's table."""
        if self.version is None:
            return None
        of_queue = issubclass(spec.entity, getattr(self.version, "class_", type(None)))
        column = spec.mapper.columns.get(self.version.key) if of_queue else None
        if column is None or column.table is not spec.table or column in spec.columns.values():
            raise ArgumentError(
                f"version={self.version}: give a column of {spec.table.name}, such as {spec.entity.__name__}.id"
            )
        return column


def dictionaries(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return copies of ``rows``; raise :class:`.ArgumentError` if they are not dictionaries."""
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise ArgumentError(f"rows={rows!r}: give an iterable of dictionaries")
    found: list[Row] = []
    for number, row in enumerate(rows):
        if type(row) is not dict and not isinstance(row, Mapping):  # the first check is faster
            raise ArgumentError(f"row {number}: {row!r} is not a dictionary")
        found.append(dict(row))
    return found


def check_rows(spec: QueueSpec, rows: list[Row], options: EnqueueOptions) -> None:
    """Reject values that cannot be stored, and set the status of rows that have a time."""
    status, moment = spec.attributes["status"], spec.attributes["available_at"]
    column = options.version_in(spec)
    version = None if column is None else spec.mapper.get_property_by_column(column).key
    if options.on_conflict != "raise" and len(spec.mapper.tables) > 1:
        name = spec.entity.__name__
        raise ArgumentError(f"on_conflict={options.on_conflict!r} needs one table; the rows of {name} are in several")
    fixed = options.fixed(spec)
    if options.copy and (options.on_conflict != "raise" or fixed):
        raise ArgumentError(
            f"copy=True cannot be combined with on_conflict={options.on_conflict!r}, delay= or expires="
        )
    for number, row in enumerate(rows):
        check_attributes(spec, number, row)
        if options.on_conflict != "raise":
            _check_key(spec, number, row, options)
        if version is not None and row.get(version) is None:
            raise ArgumentError(f"row {number}: {version} is missing: it decides whether the row is newer")
        check_free(number, row, fixed)
        when = row.get(moment)
        if is_given(when):
            if isinstance(when, datetime):
                aware(when)
            row.setdefault(status, Status.SCHEDULED.value)
        elif when is not None:  # the column's own default
            del row[moment]


def check_attributes(spec: QueueSpec, number: int, row: Row) -> None:
    """Reject attributes that the model does not have and values that cannot be stored; turn schedules into text."""
    if not spec.column_names.keys() >= row.keys():
        unknown = ", ".join(sorted(map(str, row.keys() - spec.column_names.keys())))
        raise ArgumentError(f"row {number}: {spec.entity.__name__} has no attribute {unknown}")
    if spec.recurs:
        schedule = spec.attributes["schedule"]
        if row.get(schedule) is not None:
            row[schedule] = text_of(row[schedule])
    check_values(spec, row)
    check_status(spec, row)


def check_free(number: int, row: Row, fixed: Row) -> None:
    """Raise :class:`.ArgumentError` if the row sets what ``delay`` or ``expires`` sets."""
    if row.keys() & fixed.keys():
        raise ArgumentError(f"row {number}: delay= and expires= set the times: leave out {' and '.join(fixed)}")


def _check_key(spec: QueueSpec, number: int, row: Row, options: EnqueueOptions) -> None:
    has_key, needed = row.keys() >= set(spec.key_names), ", ".join(sorted(spec.key_names))
    if options.max_delay is not None and (has_key or not spec.has_unique_keys):
        fix = f"leave out {needed}" if spec.has_unique_keys else f"derive {spec.entity.__name__} from UniqueMixin"
        raise ArgumentError(
            f"row {number}: max_delay= counts from the first call with a unique_key, since a row with the same primary"
            f" key is never new again: {fix}"
        )
    if not has_key and not spec.has_unique_keys:
        raise ArgumentError(f"row {number}: on_conflict={options.on_conflict!r} needs the primary key: give {needed}")


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
    kinds = [column.type.dialect_impl(dialect) for column in (*columns, *made)]
    processors = [(n, kind.bind_processor(dialect)) for n, kind in enumerate(kinds)]
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
    max_delay: timedelta | None = None,
    expires: timedelta | None = None,
    after: Awaited | Iterable[Awaited] | None = None,
    when: When = "completed",
    timeout: timedelta | None = None,
    into: Awaited | None = None,
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
    max_delay: timedelta | None = None,
    expires: timedelta | None = None,
    after: Awaited | Iterable[Awaited] | None = None,
    when: When = "completed",
    timeout: timedelta | None = None,
    into: Awaited | None = None,
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
    max_delay: timedelta | None = None,
    expires: timedelta | None = None,
    after: Awaited | Iterable[Awaited] | None = None,
    when: When = "completed",
    timeout: timedelta | None = None,
    into: Awaited | None = None,
    copy: bool = False,
) -> None:
    """Insert tasks in the session's transaction: instances, or a model and rows as dictionaries.

    A task with an ``available_at`` and no ``status`` is scheduled for that time; ``delay`` schedules all of them that
    far in the future, by the database's clock; a task with a ``schedule`` is scheduled for its first run; all others
    are available at once. A task that is not started within ``expires`` is not run, see :class:`.ExpiryMixin`.
    Dictionaries, by attribute name, are inserted in bulk without creating instances;
    ``copy=True`` loads them with PostgreSQL's COPY. Instances become persistent, as with ``session.add()``; where the
    server generates the keys and cannot return them in bulk (MySQL, SQLite), they are inserted one by one.

    ``on_conflict`` says what happens to a task whose primary key exists, or, if it gives none, whose ``unique_key``
    (:class:`.UniqueMixin`) belongs to an unfinished task:

    ``"raise"``: :class:`.DuplicateTaskError`, after which the transaction can only be rolled back. ``"ignore"``: the
    existing row is left unchanged. ``"replace"``: the row gets the new values, and is reactivated if it waits or is
    final; if it is running, the run continues and is not repeated. With ``delay`` this debounces: the last of many
    calls wins, and its delay counts, but the task is due at the latest ``max_delay`` after the first of them, which
    needs a ``unique_key`` and no primary key. ``"rerun"``: like ``"replace"``, but a running task also runs again
    afterwards: completion makes it ``available``, and notifies workers if the model is a :class:`.UniqueMixin`;
    otherwise they find it at their next poll. A task of a :class:`.StageMixin` starts at its first stage. Rejected for
    a task that this transaction holds with ``lease=None``.

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

    With ``after``, the tasks wait for stored tasks, or for batches and events by their keys, of one of these or of a
    list, as ``when`` says: see :meth:`.TaskBatch.add`.  ``timeout``: after that time they start whatever has happened.
    A key that no batch has is that of an event, see :func:`.open_event`.  ``into``: the key of a batch whose members
    they become, or a task in one, such as the one that is running: what waits for that task waits for them too.  Raises
    :class:`.BatchClosedError` if the batch has ended, and :class:`.ArgumentError` if what they wait for waits for the
    batch, as far as this transaction sees: they would never start.  These need ``on_conflict="raise"``.

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
    _check_delays(delay, max_delay, on_conflict)
    options = EnqueueOptions(on_conflict, version, delay, expires, copy, max_delay=max_delay)
    placing = Placing(into, None if after is None else listed(after), when, timeout)
    placing.check(alone=on_conflict == "raise" and delay is None and not copy)
    if rows is not None:
        spec, values = spec_of(tasks), dictionaries(rows)
        _place_rows(session, spec, values, options, placing)
        return
    groups = _by_spec(tasks)
    if on_conflict == "raise":
        for spec, group in groups:
            _place(session, spec, group, options, placing)
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


def _check_delays(delay: timedelta | None, most: timedelta | None, on_conflict: OnConflict) -> None:
    if delay is not None:
        duration("delay", delay, zero=True)
    if most is None:
        return
    if on_conflict not in ("replace", "rerun") or delay is None:
        raise ArgumentError("max_delay= needs delay=, and on_conflict='replace' or 'rerun': nothing else delays a task")
    if duration("max_delay", most) < delay:
        raise ArgumentError(f"max_delay={most!r} is shorter than delay={delay!r}")


def _place_rows(session: Session, spec: QueueSpec, rows: list[Row], options: EnqueueOptions, placing: Placing) -> None:
    """Insert rows at their place among other tasks."""
    place = placing.of(session, spec)
    options = options.placed(spec, place)
    check_rows(spec, rows, options)
    _enqueue_rows(session, spec, rows, options)
    if place is not None:
        place.arrive()


def _place(session: Session, spec: QueueSpec, tasks: list[Any], options: EnqueueOptions, placing: Placing) -> None:
    """Insert instances at their place among other tasks."""
    if placing.into is not None or placing.after is not None:
        check_new(session, spec, tasks)
    place = placing.of(session, spec)
    _add(session, spec, tasks, options.placed(spec, place).fixed(spec))
    if place is not None and place.arrive():
        for task in tasks:
            session.refresh(task)


def check_new(session: Session, spec: QueueSpec, tasks: Sequence[Any]) -> None:
    """Raise an error for instances that are stored, or that the next flush would store without their place."""
    _refuse_stored(spec, tasks)
    for task in tasks:
        if task in session:
            raise ArgumentError(f"{task!r} is in the session, and would start at its next flush: do not add it before")


def _by_spec(tasks: Any) -> list[tuple[QueueSpec, list[Any]]]:
    """Return the instances, with consecutive instances of one class grouped."""
    if not isinstance(tasks, (QueueMixin, Iterable)):
        raise ArgumentError(f"{type(tasks).__name__} is not a queue model: give a task, or an iterable of tasks")
    instances = [tasks] if isinstance(tasks, (QueueMixin, Mapping)) else list(tasks)
    if any(isinstance(each, Mapping) for each in instances):
        raise ArgumentError("dictionaries need their model: enqueue(session, Email, [{...}, ...])")
    return [(spec_of(cls), list(group)) for cls, group in groupby(instances, key=type)]


def _add(session: Session, spec: QueueSpec, tasks: list[Any], fixed: Row) -> None:
    _refuse_stored(spec, tasks)
    adapter = open_(session, spec)
    for number, task in enumerate(tasks if fixed else ()):
        check_free(number, values_of(spec, task), fixed)
    for task in tasks:
        for name, value in fixed.items():
            setattr(task, name, value)
    given = [values_of(spec, task) for task in tasks]  # before the server generates keys
    with translating(adapter, spec, given):
        session.add_all(tasks)
        if not is_flushing(session):
            session.flush()


def _refuse_stored(spec: QueueSpec, tasks: Iterable[Any]) -> None:
    stored = [key_of(spec, task) for task in tasks if is_stored(task)]
    if stored:
        raise existing(spec, stored)


def _enqueue_rows(
    session: Session, spec: QueueSpec, rows: list[Row], options: EnqueueOptions, *, stored: bool = False
) -> None:
    if not rows:
        return
    adapter = open_(session, spec, Access.READ if options.on_conflict == "raise" else Access.CHANGE)
    adapter.rows.check_keys(spec, rows)
    if options.on_conflict != "raise":
        adapter.rows.check_blanks(spec, rows)
    fixed = options.fixed(spec)
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
            version, scope = options.version_in(spec), scope_of(session, spec)
            delays = None if options.delay is None or options.max_delay is None else (options.delay, options.max_delay)
            conflicts = Conflicts(adapter, session, spec, options.on_conflict, version, scope, delays)
            (conflicts.update if stored else conflicts.enqueue)(rows, fixed)


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
