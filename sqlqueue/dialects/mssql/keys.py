"""Selects rows by key within the limit of 2,100 parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Select, and_, literal, or_

from ...queue.spec import Criterion, Identity, QueueSpec
from ..parts.keys import ByKey, Keys


class SQLServerKeys(Keys):
    """Compares key columns one by one, because the engine has no tuple comparison."""

    batch: ClassVar[int] = 400
    tuples: ClassVar[bool] = False
    names_rows: ClassVar[bool] = False

    def most(self, spec: QueueSpec) -> int:
        # at most 2,100 parameters; a statement may contain each key three times: all keys, keys with attempt and
        # token, and keys that are not locked
        return max(self.batch * 5 // (3 * len(spec.primary_key) + 2), 1)

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(keys) <= self.most(spec):
            return super().key_in(spec, keys)
        types = [column.type for column in spec.primary_key]
        written = (
            [literal(part, kind, literal_execute=True) for part, kind in zip(key, types, strict=True)] for key in keys
        )
        return or_(*(spec.key(tuple(key)) for key in written))

    def rows_in(self, columns: Sequence[ColumnElement[Any]], rows: Sequence[Identity] | None = None) -> Criterion:
        pairs = (zip(columns, row, strict=True) for row in rows or ())
        return or_(*(and_(*(column == value for column, value in each)) for each in pairs))

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        # a scan would wait for rows that others have locked
        if isinstance(statement, Select):
            return statement.with_hint(spec.table, "WITH (FORCESEEK)")
        return statement.with_hint("WITH (ROWLOCK, FORCESEEK)")
