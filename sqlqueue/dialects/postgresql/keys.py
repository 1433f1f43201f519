"""Selects rows by arrays of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, any_, bindparam, func, select, true, tuple_
from sqlalchemy.dialects.postgresql import ARRAY

from ...queue.spec import Criterion, Identity, QueueSpec
from ..parts.keys import KEYS, MANY, ROWS, Keys


class PostgreSQLKeys(Keys):
    """Sends lists as arrays, one parameter each."""

    def keys_named(self, spec: QueueSpec, count: int) -> Criterion:
        if count == MANY and len(spec.primary_key) == 1:
            (column,) = spec.primary_key
            # one parameter, so that the server sees the same statement for any number of keys
            return column == any_(bindparam(KEYS, type_=ARRAY(column.type)))
        return super().keys_named(spec, count)

    def rows_in(
        self, spec: QueueSpec, columns: Sequence[ColumnElement[Any]], rows: Sequence[Identity] | None = None
    ) -> Criterion:
        # a subquery is hashed, a list of tuples compared one by one; without IS TRUE it would become a join, for which
        # a plan may choose nested loops
        values = [None] * len(columns) if rows is None else [list(each) for each in zip(*rows, strict=True)]
        names = [f"{ROWS}_{n}" if rows is None else None for n, _ in enumerate(columns)]
        lists = [
            bindparam(name, value, type_=ARRAY(column.type), required=value is None)
            for name, value, column in zip(names, values, columns, strict=True)
        ]
        return tuple_(*columns).in_(select(*map(func.pg_catalog.unnest, lists))).is_(true())

    def row_names(self, spec: QueueSpec, rows: Sequence[Identity]) -> dict[str, Any]:
        return {f"{ROWS}_{n}": list(given) for n, given in enumerate(zip(*rows, strict=True))}
