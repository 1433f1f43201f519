"""The position of a row in an order: the number of rows before it, up to a cap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, literal, literal_column, select

from ..queue.spec import Criterion, Ordering, QueueSpec, Where
from .criteria import only

COUNTED = 1_000
"""The maximum number of rows that are counted in each range of an order."""

Values = Mapping[ColumnElement[Any], Any]


def before(order: Sequence[Ordering], values: Values) -> Iterator[Criterion]:
    """Yield the ranges of ``order`` before the row with these ``values``.

    They are disjoint, and each is one range of an index on the columns of ``order``.
    """
    for number, term in enumerate(order):
        same = (earlier.column == _literal(earlier, values) for earlier in order[:number])
        value = _literal(term, values)
        yield and_(*same, term.column > value if term.descending else term.column < value)


def capped_count(spec: QueueSpec, *criteria: Where) -> ColumnElement[int]:
    """Return the number of rows that satisfy all of ``criteria``, :data:`COUNTED` at most, as a subquery."""
    rows = select(literal_column("1").label("one")).where(only(spec, *criteria)).limit(COUNTED).subquery()
    return select(func.count()).select_from(rows).scalar_subquery()


def counts_before(spec: QueueSpec, order: Sequence[Ordering], values: Values, *criteria: Where) -> Select[Any]:
    """Return the SELECT whose columns add up to the number of rows before this one that satisfy ``criteria``."""
    parts = before(order, values)
    counts: list[ColumnElement[Any]] = [capped_count(spec, *criteria, part).label(None) for part in parts]
    return select(*counts)


def _literal(term: Ordering, values: Values) -> ColumnElement[Any]:
    return literal(values[term.column], term.column.type)
