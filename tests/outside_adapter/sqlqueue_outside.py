"""An engine of another package: a dialect, and the adapter that lets it carry queues."""

from __future__ import annotations

from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from sqlqueue.dialects.sqlite import SQLite


class OutsideDialect(SQLiteDialect_pysqlite):
    name = "outside"
    supports_statement_cache = True
    construct_arguments = SQLiteDialect_pysqlite.construct_arguments


class Outside(SQLite):
    name = "outside"
    product = "Outside"
    partial_index = "outside_where"
