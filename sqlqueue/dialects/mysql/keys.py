"""Index hints for rows selected by primary key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, Delete, Select, and_
from sqlalchemy.dialects import mysql
from sqlalchemy.sql import operators

from ...queue.spec import Criterion, Identity, QueueSpec, conjuncts
from ..naming import Naming
from ..parts.keys import ByKey, Keys

_QUOTE = mysql.dialect().identifier_preparer.quote


class HintedKeys(Keys):
    """Selects rows by primary key, and prevents the use of other indexes."""

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(keys) != 1:
            return super().key_in(spec, keys)
        return and_(*(unless_constant(spec, term) for term in conjuncts([spec.key(keys[0])])))

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        # without a hint, the optimizer scans a small table, and waits for rows that others have locked
        if isinstance(statement, Delete):
            return self.deleting(spec, statement)
        return force_index(statement, spec, "PRIMARY")

    @abstractmethod
    def deleting(self, spec: QueueSpec, statement: Delete) -> Delete:
        """Return :meth:`by_key` for a DELETE."""


class MySQLKeys(HintedKeys):
    """Uses an optimizer hint for DELETE."""

    def deleting(self, spec: QueueSpec, statement: Delete) -> Delete:
        # DELETE supports no index hints, only optimizer hints
        return statement.prefix_with(Naming("/*+ INDEX({} PRIMARY) */", spec.table, qualified=False))


def force_index(statement: ByKey, spec: QueueSpec, index: str) -> ByKey:
    """Return ``statement`` with a FORCE INDEX hint."""
    hint = f"FORCE INDEX ({_QUOTE(index)})"
    if isinstance(statement, Select):
        return statement.with_hint(spec.table, hint)
    return statement.with_hint(hint)


def unless_constant(spec: QueueSpec, term: Criterion) -> Criterion:
    """Return an equality on the last key column as a range, and any other term unchanged.

    If a whole key is given, MySQL and MariaDB read its row first, and keep it locked even if it does not match:
    https://dev.mysql.com/doc/refman/9.7/en/explain-output.html#jointype_const
    """
    column: Any = spec.primary_key[-1]
    left, right = getattr(term, "left", None), getattr(term, "right", None)
    if getattr(term, "operator", None) is not operators.eq or left is None or not column.shares_lineage(left):
        return term
    return and_(column >= right, column <= right) if isinstance(right, BindParameter) else term
