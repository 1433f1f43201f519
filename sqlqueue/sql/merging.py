"""Reads several parts of a queue in one order, each from its own range of an index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Select, select, union_all

from ..queue.spec import Ordering

Read: TypeAlias = Callable[[Sequence[ColumnElement[Any]]], Iterable[Select[Any]]]
"""Returns one limited SELECT of these columns for each part."""


def merged(read: Read, columns: Sequence[ColumnElement[Any]], order: Sequence[Ordering]) -> Select[Any]:
    """Return the SELECT of ``columns`` from all parts, in ``order``; the caller adds the limit.

    An engine reads at most the limit from each part, however many other rows the table has.
    """
    wanted = [column.label(f"read_{n}") for n, column in enumerate(columns)]
    places = [term.column.label(f"place_{n}") for n, term in enumerate(order)]
    parts = (part.subquery() for part in read([*wanted, *places]))
    found = union_all(*(select(*part.c) for part in parts)).subquery("found")
    again = (found.c[label.name].label(_name_of(column)) for label, column in zip(wanted, columns, strict=True))
    by = (term.over(found.c[label.name]) for label, term in zip(places, order, strict=True))
    return select(*again).order_by(*by)


def _name_of(column: ColumnElement[Any]) -> str | None:
    name = getattr(column, "name", None)
    return None if name is None else str(name)
