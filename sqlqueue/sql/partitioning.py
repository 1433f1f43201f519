"""Finds the criteria that restrict a claim to some partitions of its queue."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Column
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BindParameter

from ..queue.spec import Criterion
from .key_text import KeyText

_Listing: TypeAlias = tuple[Column[Any], Criterion] | tuple[None, None]
MAX_PARTS = 200
"""The maximum number of listed values that a claim reads one by one.  Engines limit the parts of a statement (SQLite:
500)."""


def given(term: Any, column: Column[Any]) -> Sequence[Any]:
    """Return the values that ``term`` allows for ``column``, if it is an equality or a list of values."""
    left = getattr(term, "left", None)
    if left is None or not column.shares_lineage(left):
        return ()
    return [term.right.value] if fixes([term], column) else listed(term)


def fixes(terms: Iterable[Criterion], column: Column[Any]) -> bool:
    """Return whether one of ``terms`` is an equality with a value for ``column``."""
    return any(
        getattr(term, "operator", None) is operators.eq
        and column.shares_lineage(term.left)
        and isinstance(term.right, BindParameter)
        for term in terms
    )


def listing(terms: Sequence[Criterion], columns: Iterable[Column[Any]]) -> _Listing:
    """Return the first of ``columns`` for which one of ``terms`` lists values, and that term; ``None`` for both if
    there is none.

    Only lists of at most :data:`MAX_PARTS` values count.  Raises :class:`.ArgumentError` for values that a text key
    cannot have, because a claim may compare them without sending them.
    """
    for column in columns:
        for term in terms:
            if _lists(term, column):
                if isinstance(column.type, KeyText):
                    column.type.check(listed(term))
                return column, term
    return None, None


def _lists(term: Any, column: Column[Any]) -> bool:
    return 1 < len(listed(term)) <= MAX_PARTS and column.shares_lineage(term.left)


def unlisted(term: Any, columns: Sequence[Column[Any]]) -> Criterion:
    """Return a list of one value of one of ``columns`` as an equality, and any other term unchanged."""
    values = listed(term)
    single = len(values) == 1 and any(column.shares_lineage(term.left) for column in columns)
    criterion: Criterion = term.left == values[0] if single else term
    return criterion


def listed(term: Any) -> Sequence[Any]:
    """Return the different values of ``column IN (values)``; none for any other term, or if one of them is NULL."""
    given = getattr(term, "right", None) if getattr(term, "operator", None) is operators.in_op else None
    values = given.value if isinstance(given, BindParameter) and isinstance(given.value, list | tuple) else ()
    usable = all(value is not None and isinstance(value, Hashable) for value in values)
    return list(dict.fromkeys(values)) if usable else ()
