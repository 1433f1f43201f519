"""Upserts with ON DUPLICATE KEY UPDATE."""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import Insert, Table, UniqueConstraint
from sqlalchemy.dialects import mysql

from ...queue.spec import QueueSpec
from ...sql.rows import UniqueBy
from ..parts.inserts import Inserts, Replacement


class MySQLInserts(Inserts):
    """Upserts with ON DUPLICATE KEY UPDATE, which applies to all unique keys of the table."""

    key_before_row: ClassVar[bool] = True
    # PyMySQL and drivers derived from it batch an INSERT only if VALUES contains nothing but parameters
    sends_values_alone: ClassVar[bool] = True

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        if _has_other_keys(spec.table, by):
            return None  # ON DUPLICATE KEY applies to any unique key, and could change another task
        statement = mysql.insert(spec.table)
        if replace is None:
            first = spec.primary_key[0]
            return statement.on_duplicate_key_update([(first.name, first)])
        assignments = replace(lambda name: statement.inserted[name])
        return statement.on_duplicate_key_update([(column.name, value) for column, value in assignments])


def _has_other_keys(table: Table, by: UniqueBy) -> bool:
    """Return whether a row could conflict on a key other than ``by``; the primary key counts only if the row sets
    it."""
    constraints = [tuple(each.columns) for each in table.constraints if isinstance(each, UniqueConstraint)]
    indexes = [tuple(index.columns) for index in table.indexes if index.unique]
    return any(columns != by.columns for columns in (*constraints, *indexes))
