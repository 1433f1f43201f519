"""Reads indexes and defaults from a SQLite database."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from sqlalchemy import Connection, Table, column, func, select
from sqlalchemy import table as source
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedIndex
from sqlalchemy.exc import SAWarning

from ..parts.schema import LiveIndex, Schema


class SQLiteSchema(Schema):
    """Reads with PRAGMA what SQLAlchemy does not reflect."""

    partial_index: ClassVar[str | None] = "sqlite_where"
    alters_defaults: ClassVar[bool] = False
    lasting_keys: ClassVar[Mapping[str, Any]] = {"sqlite_autoincrement": True}

    def live_indexes(self, connection: Connection, table: Table) -> dict[str, LiveIndex]:
        with warnings.catch_warnings():
            # no queue needs an index on an expression
            skipped = "Skipped unsupported reflection of expression-based index"
            warnings.filterwarnings("ignore", skipped, SAWarning)
            return super().live_indexes(connection, table)

    def descending(
        self, connection: Connection, table: Table, reflected: Collection[ReflectedIndex]
    ) -> Collection[tuple[Any, str]]:
        found: set[tuple[Any, str]] = set()
        for index in reflected:
            schema = connection.schema_for_object(table)
            where = [index["name"], *([schema] if schema else [])]
            term = func.pragma_index_xinfo(*where).table_valued("name", "desc")
            found.update(
                (index["name"], name) for name in connection.scalars(select(term.c.name).where(term.c.desc == 1))
            )
        return found

    def index_names(self, connection: Connection, table: Table) -> Collection[str]:
        schema = connection.schema_for_object(table)
        named = func.pragma_index_list(table.name, *([schema] if schema else [])).table_valued("name")
        return connection.scalars(select(named.c.name)).all()

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str]:
        names = ("type", "name", "tbl_name")
        master = source("sqlite_master", *map(column, names), schema=connection.schema_for_object(table))
        mine = (master.c.type == "trigger") & (func.lower(master.c.tbl_name) == func.lower(table.name))
        return connection.scalars(select(master.c.name).where(mine)).all()

    def same_default(self, dialect: Dialect, live: str) -> bool:
        # CURRENT_TIMESTAMP is in UTC as well; fractions of a second do not justify writing each row
        return super().same_default(dialect, live) or live == "CURRENT_TIMESTAMP"
