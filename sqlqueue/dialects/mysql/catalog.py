"""Tables of the information schema."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, String, Table, column, exists, func, literal, or_, select, table
from sqlalchemy.sql.expression import TableClause

STATISTICS = table(
    "statistics",
    *map(column, ("table_schema", "table_name", "index_name", "column_name", "collation", "is_visible")),
    schema="information_schema",
)
TABLES = table(
    "tables", column("table_schema"), column("table_name"), column("engine", String), schema="information_schema"
)
COLUMNS = table(
    "columns",
    *map(column, ("table_schema", "table_name")),
    *(column(name, String) for name in ("column_name", "collation_name")),
    schema="information_schema",
)
PARTITIONS = table(
    "partitions", *map(column, ("table_schema", "table_name", "partition_name")), schema="information_schema"
)

TRIGGERS = table(
    "triggers",
    *map(column, ("event_object_schema", "event_object_table", "trigger_name")),
    schema="information_schema",
)
_ON_ALL, _ON_SCHEMA, _ON_TABLE = (
    table(name, *map(column, ("grantee", "privilege_type", *further)), schema="information_schema")
    for name, *further in (
        ("user_privileges",),
        ("schema_privileges", "table_schema"),
        ("table_privileges", "table_schema", "table_name"),
    )
)


def is_of(connection: Connection, table: Table, source: TableClause = STATISTICS) -> ColumnElement[bool]:
    """Return the criterion of rows of ``source``, an information schema table, that belong to ``table``."""
    schema = connection.schema_for_object(table) or func.database()
    return (source.c.table_schema == schema) & (source.c.table_name == table.name)


def lists_triggers(connection: Connection, of: Table) -> bool:
    """Return whether the account has the privilege TRIGGER, without which the server lists no triggers of the table.

    Privileges from roles are not considered.
    """
    account = func.concat("'", func.replace(func.current_user(), "@", "'@'"), "'")
    schema = literal(connection.schema_for_object(of) or connection.dialect.default_schema_name)
    granted = (
        exists().where(_ON_ALL.c.grantee == account, _ON_ALL.c.privilege_type == "TRIGGER"),
        # granted on a pattern
        exists().where(
            _ON_SCHEMA.c.grantee == account,
            _ON_SCHEMA.c.privilege_type == "TRIGGER",
            schema.like(_ON_SCHEMA.c.table_schema),
        ),
        exists().where(
            _ON_TABLE.c.grantee == account,
            _ON_TABLE.c.privilege_type == "TRIGGER",
            is_of(connection, of, _ON_TABLE),
        ),
    )
    return bool(connection.scalar(select(or_(*granted))))
