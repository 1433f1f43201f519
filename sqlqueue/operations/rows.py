"""The rows that are enqueued: their values by column, and the checks of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy import Column, inspect
from sqlalchemy.orm import InstrumentedAttribute, RelationshipDirection, RelationshipProperty, Session
from sqlalchemy.orm.attributes import get_history, instance_state, set_committed_value
from sqlalchemy.orm.base import PASSIVE_NO_INITIALIZE

from .._support.errors import ArgumentError
from ..model.declaration import check_status, check_values, is_given
from ..queue.options import Status
from ..queue.schedules import text_of
from ..queue.spec import QueueSpec
from ..sql import aware

# -- reads the row to insert from an instance, without the ORM's unit of work: its columns, and foreign keys from
#    relationships

Row = dict[str, Any]
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
    names = (spec.mapper.get_property_by_column(column).key for column in spec.primary_key)
    return dict(zip(names, spec.identity_of(task), strict=True))


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
    copy: bool

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
    if options.copy and (options.on_conflict != "raise" or options.delay is not None):
        raise ArgumentError(f"copy=True cannot be combined with on_conflict={options.on_conflict!r} or a delay")
    for number, row in enumerate(rows):
        check_attributes(spec, number, row)
        if options.on_conflict != "raise":
            _check_key(spec, number, row, options.on_conflict)
        if version is not None and row.get(version) is None:
            raise ArgumentError(f"row {number}: {version} is missing: it decides whether the row is newer")
        if options.delay is not None:
            check_delay(spec, number, row)
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


def check_delay(spec: QueueSpec, number: int, row: Row) -> None:
    """Raise :class:`.ArgumentError` if the row sets what ``delay`` sets: its time or its status."""
    status, moment = spec.attributes["status"], spec.attributes["available_at"]
    if row.keys() & {status, moment}:
        raise ArgumentError(f"row {number}: delay= sets the time: leave out {moment} and {status}")


def _check_key(spec: QueueSpec, number: int, row: Row, on_conflict: str) -> None:
    key = {spec.mapper.get_property_by_column(column).key for column in spec.primary_key}
    if key.issubset(row) or spec.has_unique_keys:
        return
    needed = ", ".join(sorted(key))
    raise ArgumentError(f"row {number}: on_conflict={on_conflict!r} needs the primary key: give {needed}")
