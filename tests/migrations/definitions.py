"""The definitions of tables as reported by a database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, MetaData, NullPool, Table, create_engine, inspect

from tests.support.harness import Database


def definitions(db: Database, metadata: MetaData) -> dict[str, list[str]]:
    """Return the columns, keys and indexes of each table, as reflected by SQLAlchemy and as the engine's own DDL."""
    # on a new connection: SQLite's PRAGMAs use the schema that their connection has last read
    engine = create_engine(db.url, poolclass=NullPool)
    with engine.connect() as connection:
        return {
            table.key: [*_reflected(connection, table), *_worded(connection, table, db.case.definition_sql)]
            for table in metadata.sorted_tables
        }


def table_names(db: Database, schema: str | None = None) -> set[str]:
    with create_engine(db.url, poolclass=NullPool).connect() as connection:
        return set(inspect(connection).get_table_names(schema))


def _reflected(connection: Connection, table: Table) -> Iterable[str]:
    inspector, where = inspect(connection), (table.name, table.schema)
    keys = [inspector.get_pk_constraint(*where), *inspector.get_foreign_keys(*where)]
    indexes = sorted(map(_readable, inspector.get_indexes(*where)), key=str)
    return map(str, [*inspector.get_columns(*where), *keys, *indexes])


def _readable(index: Any) -> dict[str, Any]:
    options = index.get("dialect_options", {})
    return {**index, "dialect_options": {name: str(value) for name, value in options.items()}}


def _worded(connection: Connection, table: Table, query: str | None) -> list[str]:
    # descending order is not reflected on every engine
    if query is None:
        return []
    rows = connection.exec_driver_sql(query.format(table=table.name))
    lines = [line for row in rows for value in row if value for line in value.splitlines()]
    return sorted(re.sub(r" AUTO_INCREMENT=\d+", "", line).strip(" ,") for line in lines)
