"""Selects rows by their primary keys, or by the values of other columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

from sqlalchemy import BindParameter, ColumnElement, bindparam, or_, tuple_

from ...queue.spec import Criterion, Identity, QueueSpec

R = TypeVar("R")
ByKey: TypeAlias = Any
"""A Select, an Update or a Delete; functions return the same kind that they receive."""
_KEY = "sqlqueue_key_{}_{}"
KEYS = "sqlqueue_keys"
MANY = 0
ROWS = "sqlqueue_rows"


class Keys:
    """Selects rows by primary key, inline or by bind parameters."""

    batch: ClassVar[int] = 5_000
    """The maximum number of keys in one statement, regardless of their number of columns."""
    tuples: ClassVar[bool] = True
    """Whether a list of tuples uses an index."""
    pads: ClassVar[bool] = False
    """Whether the server keeps a plan for each text, so that lists should have few different lengths."""
    names_rows: ClassVar[bool] = True
    """Whether :meth:`rows_in` supports parameters; otherwise it needs the rows themselves."""

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        """Return the criterion of rows with these primary keys, which may be more than :meth:`most`."""
        if len(keys) > self.most(spec):
            return or_(*(self.key_in(spec, some) for some in self.batches(spec, keys)))
        if len(keys) == 1:
            return spec.key(keys[0])  # MariaDB scans the table for a list of one tuple
        keys = self.padded(spec, keys)
        if len(spec.primary_key) == 1:
            return spec.primary_key[0].in_([key for (key,) in keys])
        return tuple_(*spec.primary_key).in_(keys) if self.tuples else or_(*map(spec.key, keys))

    def one_of(self, spec: QueueSpec, column: ColumnElement[Any], values: Sequence[Any]) -> Criterion:
        """Return the criterion of rows whose ``column`` has one of ``values``, which may be more than :meth:`most`."""
        if len(values) <= self.most(spec):
            return column.in_(self.padded(spec, values))
        # as literals: a statement may repeat the condition, and every engine limits the number of parameters
        parts = self.batches(spec, values)
        lists = (bindparam(None, some, column.type, expanding=True, literal_execute=True) for some in parts)
        return or_(*(column.in_(each) for each in lists))

    def named_for(self, spec: QueueSpec, count: int) -> int:
        """Return the number of keys to build a statement for, or ``MANY`` if one parameter holds all."""
        return self._length(spec, count) if count == 1 or not (self.tuples or len(spec.primary_key) == 1) else MANY

    def keys_named(self, spec: QueueSpec, count: int) -> Criterion:
        """Return :meth:`key_in` for the number that :meth:`named_for` returns, with parameters :meth:`key_names`."""
        if count != MANY:
            return or_(*(spec.key(names_of(spec, number)) for number in range(count)))
        if len(spec.primary_key) == 1:
            (column,) = spec.primary_key
            return column.in_(bindparam(KEYS, type_=column.type, expanding=True))
        return tuple_(*spec.primary_key).in_(bindparam(KEYS, expanding=True))

    def key_names(self, spec: QueueSpec, keys: Sequence[Identity]) -> dict[str, Any]:
        """Return the parameters of :meth:`keys_named`."""
        keys = self.padded(spec, keys)
        if self.named_for(spec, len(keys)) != MANY:
            return {_KEY.format(number, n): part for number, key in enumerate(keys) for n, part in enumerate(key)}
        return {KEYS: [key for (key,) in keys] if len(spec.primary_key) == 1 else keys}

    def rows_in(
        self, spec: QueueSpec, columns: Sequence[ColumnElement[Any]], rows: Sequence[Identity] | None = None
    ) -> Criterion:
        """Return the criterion of rows whose ``columns`` have the values of one of ``rows``.

        Without ``rows``, :meth:`row_names` returns the parameters.  The criterion does not have to use an index.
        """
        padded = None if rows is None else self.padded(spec, rows)
        given: BindParameter[Any] = bindparam(ROWS if rows is None else None, padded, expanding=True)
        return tuple_(*columns).in_(given)

    def row_names(self, spec: QueueSpec, rows: Sequence[Identity]) -> dict[str, Any]:
        """Return the parameters of :meth:`rows_in`."""
        return {ROWS: self.padded(spec, rows)}

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        """Return ``statement``, which selects rows by primary key, changed so that it reads and waits for no other
        rows."""
        return statement

    def most(self, spec: QueueSpec) -> int:
        """Return the maximum number of keys of this queue in one statement."""
        return self.batch

    def padded(self, spec: QueueSpec, items: Sequence[R]) -> Sequence[R]:
        """Return ``items`` with the last one repeated up to the next power of two, if the engine needs that."""
        missing = self._length(spec, len(items)) - len(items)
        return (*items, *[items[-1]] * missing) if missing else items

    def _length(self, spec: QueueSpec, count: int) -> int:
        return max(count, min(1 << (count - 1).bit_length(), self.most(spec))) if self.pads and count else count

    def batches(self, spec: QueueSpec, items: Sequence[R]) -> Iterator[Sequence[R]]:
        """Split ``items`` into parts that fit into one statement."""
        size = self.most(spec)
        for start in range(0, len(items), size):
            yield items[start : start + size]


def names_of(spec: QueueSpec, number: int) -> Identity:
    """Return the parameters of one of the keys of :meth:`Keys.keys_named`."""
    columns = enumerate(spec.primary_key)
    return tuple(bindparam(_KEY.format(number, n), type_=column.type) for n, column in columns)
