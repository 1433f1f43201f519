"""Reads columns and indexes from the system views."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Connection, String, Table, Unicode, column, func, literal, select, table
from sqlalchemy.dialects import mssql
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedIndex
from sqlalchemy.types import TypeEngine

from ..naming import live_name
from ..parts.schema import Schema

INDEXES = table(
    "indexes",
    *map(column, ("object_id", "index_id", "is_disabled", "allow_row_locks", "is_primary_key", "type")),
    column("name", String),
    schema="sys",
)
_COLUMNS = table(
    "columns", column("object_id"), *(column(name, String) for name in ("name", "collation_name")), schema="sys"
)
_KEYS = table("index_columns", *map(column, ("object_id", "index_id", "column_id", "is_descending_key")), schema="sys")

_TRIGGERS = table("triggers", column("parent_id"), column("name", String), schema="sys")


class SQLServerSchema(Schema):
    """Reads filtered indexes, disabled indexes and sort directions."""

    partial_index: ClassVar[str | None] = "mssql_where"
    reviving: ClassVar[str | None] = "ALTER INDEX {index} ON {table} REBUILD"

    def descending(
        self, connection: Connection, table: Table, reflected: Collection[ReflectedIndex]
    ) -> Collection[tuple[Any, str]]:
        name = func.col_name(_KEYS.c.object_id, _KEYS.c.column_id, type_=String)
        same = (_KEYS.c.object_id == INDEXES.c.object_id) & (_KEYS.c.index_id == INDEXES.c.index_id)
        terms = select(INDEXES.c.name, name).join_from(INDEXES, _KEYS, same).where(is_of(connection, table))
        return {(index, each) for index, each in connection.execute(terms.where(_KEYS.c.is_descending_key == 1))}

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        disabled = select(INDEXES.c.name).where(is_of(connection, table), INDEXES.c.is_disabled == 1)
        return connection.scalars(disabled).all()

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str] | None:
        name = name_of(connection, table)
        found = connection.scalars(select(_TRIGGERS.c.name).where(_TRIGGERS.c.parent_id == func.object_id(name))).all()
        # an account without this privilege sees no triggers
        sees = select(func.has_perms_by_name(name, "OBJECT", "VIEW DEFINITION"))
        return found if found or connection.scalar(sees) else None

    def collations(self, connection: Connection, table: Table) -> Mapping[str, str | None]:
        mine = _COLUMNS.c.object_id == func.object_id(name_of(connection, table))
        found = select(_COLUMNS.c.name, _COLUMNS.c.collation_name).where(mine)
        return {each[0]: each[1] for each in connection.execute(found)}

    def same_moments(self, dialect: Dialect, declared: TypeEngine[Any], live: TypeEngine[Any]) -> bool:
        # SQLAlchemy does not reflect the precision
        unknown = isinstance(live, mssql.DATETIME2) and live.precision is None
        return unknown or super().same_moments(dialect, declared, live)


def name_of(connection: Connection, table: Table) -> ColumnElement[str]:
    """Return the table's quoted name as a string literal, for system functions."""
    return literal(live_name(connection, table), Unicode())


def is_of(connection: Connection, table: Table) -> ColumnElement[bool]:
    """Return the criterion of the table's indexes."""
    return INDEXES.c.object_id == func.object_id(name_of(connection, table))
