"""MariaDB 10.6 and newer."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import ClassVar

from sqlalchemy import ColumnClause, Connection, Delete, Table, column, table, text
from sqlalchemy.dialects import mysql

from ..spec import QueueSpec
from .mysql import MySQL, force_index


class MariaDB(MySQL):
    """Claims as MySQL does."""

    name = "mariadb"
    product = "MariaDB"
    key = mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_nopad_bin")
    minimum: ClassVar[tuple[int, ...]] = (10, 6)
    reads_only = "tx_read_only"
    # from 1,000 values on an IN becomes a join with a derived table, which may be read, and locked, in any order
    batch = 999

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        return ()  # an index that is IGNORED is one that SQLAlchemy does not find

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        connection.execute(text(f"SET SESSION max_statement_time = {timeout.total_seconds():f}"))

    def deleting_by_key(self, spec: QueueSpec, statement: Delete) -> Delete:
        # index hints belong to the form of DELETE that names its tables twice
        target: ColumnClause[None] = column(spec.table.name)
        target.table = table(spec.table.schema) if spec.table.schema else None
        multiple: Delete = force_index(statement.prefix_with(target), spec, "PRIMARY")
        return multiple
