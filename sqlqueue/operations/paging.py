"""Reads tasks page by page, each page by its position instead of its number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from sqlalchemy import ColumnElement, and_, literal, or_

from .._support.checks import count
from ..model.mixins import T
from ..queue.spec import Criterion, Ordering, QueueSpec, Where, spec_of
from ..queue.status import DUE, Status
from ..sql.selection import state
from ..transaction.connection import AnySession
from .finding import find

Position = tuple[Any, ...]
"""The values by which a page is ordered, of its last task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Some tasks, and where the next page begins."""

    tasks: Sequence[T]
    """The tasks, in order."""
    next: Position | None
    """The ``after`` of the next page; ``None`` on the last one."""


def page(
    session: AnySession,
    entity: type[T],
    *where: Where,
    status: Status | None = None,
    after: Position | None = None,
    limit: int = 50,
) -> Page[T]:
    """Return up to ``limit`` tasks that satisfy ``where``, in the state ``status`` if given, and come ``after`` a page.

    One query, which locks nothing.  A page costs the same wherever it is: rows before it are not read.  Available tasks
    are in claim order, other unfinished ones by ``available_at``, and all others by primary key, the last first.  Tasks
    that change their place in the meantime can be missing, or be on two pages.
    """
    spec = spec_of(entity)
    count("limit", limit)
    order = _order(spec, status)
    places = [term for term in order if term.column is not spec["finished_at"]]
    criteria = [*where]
    if status is not None:
        criteria.append(spec["status"] == state(status))
    if len(places) < len(order):
        criteria.append(spec["finished_at"].is_(None))
    if after is not None:
        criteria.append(_beyond(places, after))
    found = find(session, entity, *criteria, limit=limit + 1, order_by=[term.expression for term in order])
    shown = found[:limit]
    return Page(tasks=shown, next=_position(spec, places, shown[-1]) if len(found) > limit else None)


def positions(spec: QueueSpec, status: Status | None) -> list[ColumnElement[Any]]:
    """Return the columns whose values make up a position among tasks in this state."""
    return [term.column for term in _order(spec, status) if term.column is not spec["finished_at"]]


def _order(spec: QueueSpec, status: Status | None) -> tuple[Ordering, ...]:
    """Return an order that an index has."""
    if status in DUE:
        return spec.due_order
    if status is Status.AVAILABLE and not any(getattr(term.column, "nullable", True) for term in spec.ready_order):
        return spec.ready_order
    return tuple(Ordering(column, descending=True) for column in spec.primary_key)


def _beyond(order: Sequence[Ordering], position: Position) -> Criterion:
    """Return the criterion of rows after ``position``.  Its first term is a range of an index."""
    values = [literal(value, term.column.type) for term, value in zip(order, position, strict=True)]
    first, start = order[0], values[0]
    within: Criterion = first.column <= start if first.descending else first.column >= start
    return and_(within, or_(*_ranges(order, values)))


def _ranges(order: Sequence[Ordering], values: Sequence[ColumnElement[Any]]) -> Iterator[Criterion]:
    for number, (term, value) in enumerate(zip(order, values, strict=True)):
        same = (earlier.column == fixed for earlier, fixed in zip(order[:number], values, strict=False))
        yield and_(*same, term.column < value if term.descending else term.column > value)


def _position(spec: QueueSpec, order: Sequence[Ordering], task: object) -> Position:
    names: Mapping[Any, str] = {prop.columns[0]: prop.key for prop in spec.mapper.column_attrs}
    return tuple(getattr(task, names[term.column]) for term in order)
