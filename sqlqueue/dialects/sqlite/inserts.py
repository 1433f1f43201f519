"""Upserts on SQLite."""

from __future__ import annotations

from sqlalchemy import Insert
from sqlalchemy.dialects.sqlite import insert

from ...queue.spec import QueueSpec
from ...sql.rows import UniqueBy
from ..parts.inserts import Inserts, Replacement, on_conflict


class SQLiteInserts(Inserts):
    """Upserts with ON CONFLICT."""

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        return on_conflict(insert(spec.table), by, replace)
