"""Reads columns and indexes from the information schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.engine.interfaces import ReflectedIndex

from ..parts.schema import Schema
from .catalog import COLUMNS, STATISTICS, TRIGGERS, is_of, lists_triggers


class ListedSchema(Schema):
    """The common base for MySQL and MariaDB."""

    # other collations pad text with blanks
    exact_collations: ClassVar[tuple[str, ...]] = ("_0900_bin", "_nopad_bin")

    def descending(
        self, connection: Connection, table: Table, reflected: Collection[ReflectedIndex]
    ) -> Collection[tuple[Any, str]]:
        terms = select(STATISTICS.c.index_name, STATISTICS.c.column_name).where(STATISTICS.c.collation == "D")
        return {(index, name) for index, name in connection.execute(terms.where(is_of(connection, table)))}

    def index_names(self, connection: Connection, table: Table) -> Collection[str]:
        return connection.scalars(select(STATISTICS.c.index_name).where(is_of(connection, table)).distinct()).all()

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str] | None:
        schema = connection.schema_for_object(table) or func.database()
        mine = (TRIGGERS.c.event_object_schema == schema) & (TRIGGERS.c.event_object_table == table.name)
        found = connection.scalars(select(TRIGGERS.c.trigger_name).where(mine)).all()
        return found if found or lists_triggers(connection, table) else None

    def collations(self, connection: Connection, table: Table) -> Mapping[str, str | None]:
        found = select(COLUMNS.c.column_name, COLUMNS.c.collation_name).where(is_of(connection, table, COLUMNS))
        return {each[0]: each[1] for each in connection.execute(found)}


class MySQLSchema(ListedSchema):
    """Finds invisible indexes."""

    reviving: ClassVar[str | None] = "ALTER TABLE {table} ALTER INDEX {index} VISIBLE"

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        hidden = select(STATISTICS.c.index_name).where(is_of(connection, table), STATISTICS.c.is_visible == "NO")
        return connection.scalars(hidden).all()
