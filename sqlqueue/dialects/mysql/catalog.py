"""Tables of the information schema."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, String, Table, column, func, table
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


def is_of(connection: Connection, table: Table, source: TableClause = STATISTICS) -> ColumnElement[bool]:
    """Return the criterion of rows of ``source``, an information schema table, that belong to ``table``."""
    schema = connection.schema_for_object(table) or func.database()
    return (source.c.table_schema == schema) & (source.c.table_name == table.name)
