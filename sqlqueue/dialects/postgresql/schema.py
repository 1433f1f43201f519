"""Reads from the catalog what SQLAlchemy does not reflect."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Table
from sqlalchemy.engine import Dialect

from ..parts.schema import Schema
from .catalog import added_at, invalid_indexes, lacks_storage, trigger_names

PARTIAL_INDEX = "postgresql_where"
# all equivalent as defaults, since the column stores the zone
_CLOCKS = ("now()", "statement_timestamp()", "clock_timestamp()", "transaction_timestamp()")


class CatalogSchema(Schema):
    """The common base for PostgreSQL and CockroachDB."""

    def same_default(self, dialect: Dialect, live: str) -> bool:
        return super().same_default(dialect, live) or live in _CLOCKS

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        return invalid_indexes(connection, table)


class PostgreSQLSchema(CatalogSchema):
    """Reads partial indexes, triggers, storage parameters, and the values of added columns."""

    partial_index: ClassVar[str | None] = PARTIAL_INDEX
    reviving: ClassVar[str | None] = "REINDEX INDEX CONCURRENTLY {schema}{index}"

    def lacks_storage(self, connection: Connection, table: Table) -> bool:
        return lacks_storage(connection, table)

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str]:
        return trigger_names(connection, table)

    def added_at(self, connection: Connection, column: Column[Any]) -> datetime | None:
        return added_at(connection, column)
