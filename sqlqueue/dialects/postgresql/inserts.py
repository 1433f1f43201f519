"""Upserts with ON CONFLICT, and COPY with psycopg."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Insert, Table, bindparam, func, select
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.exc import IntegrityError

from ..._support.errors import ArgumentError
from ...queue.spec import QueueSpec
from ...sql.rows import UniqueBy, utcnow
from ..naming import live_name, plain
from ..parts.inserts import Inserts, Replacement, Values, on_conflict
from .drivers import PSYCOPG


class PostgreSQLInserts(Inserts):
    """Upserts with ON CONFLICT, and COPY."""

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        return on_conflict(insert(spec.table), by, replace)

    def alike(self, table: Table, same: Sequence[str], different: Sequence[str], timed: str) -> Insert:
        """Return one statement with an array for each column that differs, because a list of rows is executed row by
        row."""
        fixed = (bindparam(name, type_=table.c[name].type) for name in same)
        lists = (func.pg_catalog.unnest(bindparam(name, type_=ARRAY(table.c[name].type))) for name in different)
        rows = select(*fixed, *lists, utcnow())
        return insert(table).from_select([*same, *different, timed], rows, include_defaults=False)

    def alike_values(self, same: Mapping[str, Any], different: Mapping[str, Sequence[Any]]) -> Values:
        return {**same, **different}

    def copy(self, connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        names = ", ".join(plain(connection.dialect, column) for column in columns)
        command = f"COPY {live_name(connection, table)} ({names}) FROM STDIN"
        if connection.dialect.driver not in PSYCOPG:
            raise ArgumentError(f"copy=True needs the driver psycopg, not {connection.dialect.driver}")
        try:
            _copy(connection, command, rows)
        except connection.dialect.loaded_dbapi.IntegrityError as error:
            raise IntegrityError(command, None, error) from error


def _copy(connection: Connection, command: str, rows: Iterable[Sequence[Any]]) -> None:
    pooled: Any = connection.connection
    if connection.dialect.is_async:
        pooled.dbapi_connection.run_async(lambda driver: _copy_async(driver, command, rows))
        return
    with pooled.driver_connection.cursor() as cursor, cursor.copy(command) as copy:
        for row in rows:
            copy.write_row(row)


async def _copy_async(driver: Any, command: str, rows: Iterable[Sequence[Any]]) -> None:
    async with driver.cursor() as cursor, cursor.copy(command) as copy:
        for row in rows:
            await copy.write_row(row)
