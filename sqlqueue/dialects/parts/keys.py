"""How rows are named by their primary keys, or by other columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

from sqlalchemy import BindParameter, Column, ColumnElement, bindparam, or_, tuple_

from ...queue.spec import Criterion, Identity, QueueSpec

R = TypeVar("R")
ByKey: TypeAlias = Any
"""A Select, an Update or a Delete; the same kind comes back that was given."""
_KEY = "sqlqueue_key_{}_{}"
KEYS = "sqlqueue_keys"
MANY = 0
ROWS = "sqlqueue_rows"


class Keys:
    """Selects rows by primary key, inline or by bind parameters."""

    batch: ClassVar[int] = 5_000
    """How many keys one statement names at the most, however many columns these have."""
    tuples: ClassVar[bool] = True
    """Whether the rows for a list of tuples are found by an index."""
    names_rows: ClassVar[bool] = True
    """Whether :meth:`rows_in` can be had with parameters, and not for given rows alone."""

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        """The rows with these primary keys, of which there may be more than :meth:`most`."""
        if len(keys) > self.most(spec):
            return or_(*(self.key_in(spec, some) for some in self.batches(spec, keys)))
        if len(keys) == 1:
            return spec.key(keys[0])  # MariaDB reads all of the table for a list of one tuple
        if len(spec.primary_key) == 1:
            return spec.primary_key[0].in_([key for (key,) in keys])
        return tuple_(*spec.primary_key).in_(keys) if self.tuples else or_(*map(spec.key, keys))

    def one_of(self, spec: QueueSpec, column: Column[str], values: Sequence[str]) -> Criterion:
        """The rows whose ``column`` has one of ``values``, of which there may be more than :meth:`most`."""
        if len(values) <= self.most(spec):
            return column.in_(values)
        # written out: a statement may repeat the condition, and every engine bounds the number of parameters
        parts = self.batches(spec, values)
        lists = (bindparam(None, some, column.type, expanding=True, literal_execute=True) for some in parts)
        return or_(*(column.in_(each) for each in lists))

    def named_for(self, spec: QueueSpec, count: int) -> int:
        """For how many keys a statement is made that is to name ``count``: so many, or ``MANY`` by one parameter."""
        return count if count == 1 or not (self.tuples or len(spec.primary_key) == 1) else MANY

    def keys_named(self, spec: QueueSpec, count: int) -> Criterion:
        """:meth:`key_in` for as many as :meth:`named_for` says, with :meth:`key_names` for parameters."""
        if count != MANY:
            return or_(*(spec.key(_names_of(spec, number)) for number in range(count)))
        if len(spec.primary_key) == 1:
            (column,) = spec.primary_key
            return column.in_(bindparam(KEYS, type_=column.type, expanding=True))
        return tuple_(*spec.primary_key).in_(bindparam(KEYS, expanding=True))

    def key_names(self, spec: QueueSpec, keys: Sequence[Identity]) -> dict[str, Any]:
        """The parameters of :meth:`keys_named`."""
        if self.named_for(spec, len(keys)) != MANY:
            return {_KEY.format(number, n): part for number, key in enumerate(keys) for n, part in enumerate(key)}
        return {KEYS: [key for (key,) in keys] if len(spec.primary_key) == 1 else keys}

    def rows_in(self, columns: Sequence[ColumnElement[Any]], rows: Sequence[Identity] | None = None) -> Criterion:
        """The rows whose ``columns`` have the values of one of ``rows``; of :meth:`row_names`, if those are not given.

        No index need serve it.
        """
        given: BindParameter[Any] = bindparam(ROWS if rows is None else None, rows, expanding=True)
        return tuple_(*columns).in_(given)

    def row_names(self, rows: Sequence[Identity]) -> dict[str, Any]:
        """The parameters of :meth:`rows_in`."""
        return {ROWS: rows}

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        """``statement``, which names rows by primary key, such that no others are read and waited for."""
        return statement

    def most(self, spec: QueueSpec) -> int:
        """How many keys of this queue one statement names at the most."""
        return self.batch

    def batches(self, spec: QueueSpec, items: Sequence[R]) -> Iterator[Sequence[R]]:
        """In parts for which statements about this queue have room."""
        size = self.most(spec)
        for start in range(0, len(items), size):
            yield items[start : start + size]


def _names_of(spec: QueueSpec, number: int) -> Identity:
    columns = enumerate(spec.primary_key)
    return tuple(bindparam(_KEY.format(number, n), type_=column.type) for n, column in columns)
