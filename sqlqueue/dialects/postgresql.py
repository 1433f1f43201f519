"""PostgreSQL 12 and newer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Insert,
    Integer,
    Interval,
    Select,
    Table,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption

from ..exc import ArgumentError
from ..spec import Identity, QueueSpec
from ..statements import Assignment, Pick
from .base import Adapter, Replacement


class PostgreSQL(Adapter):
    """The claim is one statement: a materialized CTE locks, the UPDATE around it writes and returns.

    Rows are locked after the sort, ``FOR NO KEY UPDATE``, so that an insert of a foreign-key child neither hides its
    task nor waits for its claim.  ``WHERE id IN (SELECT ... LIMIT n FOR UPDATE)`` would not do: a plan may evaluate
    the subquery again for each row, and claim more than n.
    """

    name = "postgresql"
    product = "PostgreSQL"
    minimum: ClassVar[tuple[int, ...]] = (12,)
    needed = "AS MATERIALIZED"
    partial_index: ClassVar[str | None] = "postgresql_where"

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        # not clock_timestamp(): a volatile function cannot bound an index scan
        now = func.statement_timestamp()
        parts = [literal_column("0", Integer)] * 6  # years, months, weeks, days, hours, minutes
        return now if seconds is None else now + func.make_interval(*parts, seconds, type_=Interval())

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        return pick.select(*columns).limit(pick.limit).with_for_update(skip_locked=True, key_share=True)

    def take(
        self,
        session: Session,
        pick: Pick,
        assignments: Sequence[Assignment],
        *,
        delete: bool = False,
        options: Sequence[ExecutableOption] = (),
    ) -> list[Any]:
        spec = pick.spec
        if not assignments or delete:
            return super().take(session, pick, assignments, delete=delete, options=options)
        picked, position = self._picked(pick)
        statement: Any = self._writing(spec, picked, assignments)
        if spec.is_plain and not options:
            rows: Any = session.execute(
                statement.returning(spec.entity, position),
                execution_options={"synchronize_session": False, "populate_existing": True},
                bind_arguments=spec.bind_arguments,
            )
            return [task for task, _ in sorted(rows, key=lambda row: row[1])]
        rows = self.execute(session, spec, statement.returning(position, *spec.primary_key))
        identities: list[Identity] = [tuple(row[1:]) for row in sorted(rows, key=lambda row: row[0])]
        return self.load(session, spec, identities, options)

    def _picked(self, pick: Pick) -> tuple[Any, ColumnElement[int]]:
        """The locked keys as a subquery, and each one's position: RETURNING keeps no order."""
        key = [column.label(f"key_{n}") for n, column in enumerate(pick.spec.primary_key)]
        order = [term.column.label(f"order_{n}") for n, term in enumerate(pick.order)]
        locked: CTE = self.picking(pick, *key, *order).cte("locked").prefix_with("MATERIALIZED", dialect=self.name)
        by = [term.over(locked.c[f"order_{n}"]) for n, term in enumerate(pick.order)]
        keys = [locked.c[column.name] for column in key]
        picked = select(*keys, func.row_number().over(order_by=by).label("position")).subquery("picked")
        return picked, picked.c.position

    def _writing(self, spec: QueueSpec, picked: Any, assignments: Sequence[Assignment]) -> Any:
        joined = [column == picked.c[f"key_{n}"] for n, column in enumerate(spec.primary_key)]
        target: Any = spec.entity if spec.is_plain else spec.table
        return update(target).where(*joined).ordered_values(*assignments)

    def upsert(self, spec: QueueSpec, replace: Replacement | None) -> Insert | None:
        statement = insert(spec.table)
        if replace is None:
            return statement.on_conflict_do_nothing(index_elements=list(spec.primary_key))
        return statement.on_conflict_do_update(
            index_elements=list(spec.primary_key),
            set_={column.name: value for column, value in replace(lambda name: statement.excluded[name])},
        )

    def copy(self, connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        preparer = connection.dialect.identifier_preparer
        names = ", ".join(preparer.quote(column) for column in columns)
        command = f"COPY {preparer.format_table(table)} ({names}) FROM STDIN"
        if connection.dialect.driver not in ("psycopg", "psycopg_async"):
            raise ArgumentError(f"copy=True needs the driver psycopg, not {connection.dialect.driver}")
        try:
            _copy(connection, command, rows)
        except connection.dialect.loaded_dbapi.IntegrityError as error:
            raise IntegrityError(command, None, error) from error

    def is_duplicate(self, error: IntegrityError) -> bool:
        return bool(self.code(error) == "23505")

    def code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlstate", None)


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
