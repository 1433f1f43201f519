"""Reads the row to insert from an instance, without the ORM's unit of work: its columns, and foreign keys from
relationships.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import inspect
from sqlalchemy.orm import RelationshipDirection, RelationshipProperty, Session
from sqlalchemy.orm.attributes import get_history, instance_state, set_committed_value
from sqlalchemy.orm.base import PASSIVE_NO_INITIALIZE

from .._support.exc import ArgumentError
from ..lifecycle.kind import recurs
from ..queue.spec import QueueSpec

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
    if recurs(spec):
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
