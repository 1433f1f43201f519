"""PostgreSQL 12 and newer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, ClassVar

from sqlalchemy import (
    CTE,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Insert,
    Integer,
    Interval,
    Select,
    Table,
    and_,
    any_,
    bindparam,
    cast,
    extract,
    func,
    literal_column,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption

from .._support.exc import ArgumentError
from ..queue.findings import Finding
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.selection import Assignment, Pick, UniqueBy, write
from .base import Adapter, Replacement
from .catalog import added_at, invalid_indexes, lacks_storage
from .health import Plan, explain, read_only
from .keys import KEYS, MANY, ROWS
from .naming import live_name, plain
from .notifications import Notifications
from .requests import Answer, Interrupt, milliseconds
from .rows import Parameters
from .streaming import stream

# admin shutdown, crash shutdown, cannot connect now, idle session timeout, read-only (as a primary that was demoted)
_OUTAGES = frozenset({"57P01", "57P02", "57P03", "57P05", "25006"})
# connection exceptions, insufficient resources (a full disk, too many connections), system errors
_OUTAGE_CLASSES = ("08", "53", "58")
# idle-in-transaction and transaction timeout, which end the connection too
_TOO_SLOW = frozenset({"25P03", "25P04"})
# as good a default as any, where the column keeps the zone
_CLOCKS = ("now()", "statement_timestamp()", "clock_timestamp()", "transaction_timestamp()")


class PostgreSQL(Notifications, Adapter):
    """The claim is one statement: a materialized CTE locks, the UPDATE around it writes and returns.

    Rows are locked after the sort, ``FOR NO KEY UPDATE``, so that an insert of a foreign-key child neither hides its
    task nor waits for its claim.  ``WHERE id IN (SELECT ... LIMIT n FOR UPDATE)`` would not do: a plan may evaluate
    the subquery again for each row, and claim more than n.
    """

    name = "postgresql"
    product = "PostgreSQL"
    minimum: ClassVar[tuple[int, ...]] = (12,)
    needed = "AS MATERIALIZED"
    reviving: ClassVar[str | None] = "REINDEX INDEX CONCURRENTLY {schema}{index}"
    partial_index: ClassVar[str | None] = "postgresql_where"
    passes_over: ClassVar[bool] = True
    # serialization failure, deadlock, lock not available
    transient: ClassVar[Collection[Any]] = ("40001", "40P01", "55P03")
    request_drivers: ClassVar[Mapping[str, Mapping[str, Any]] | None] = {"psycopg": {}}

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        # not clock_timestamp(): a volatile function cannot bound an index scan
        now = func.statement_timestamp()
        parts = [literal_column("0", Integer)] * 6  # years, months, weeks, days, hours, minutes
        return now if seconds is None else now + func.make_interval(*parts, seconds, type_=Interval())

    def default(self) -> ColumnElement[Any]:
        return func.current_timestamp()  # its columns keep the zone

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        # rounded: some versions have seconds as floating-point numbers, which come close
        seconds = extract("epoch", later - earlier)
        return cast(func.round(seconds * literal_column("1000000")), BigInteger)

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        return pick.select(*columns).limit(pick.limit).with_for_update(skip_locked=True, key_share=True)

    def take(
        self,
        session: Session,
        pick: Pick,
        assignments: Sequence[Assignment],
        parameters: Parameters | None = None,
        *,
        delete: bool = False,
        options: Sequence[ExecutableOption] = (),
    ) -> list[Any]:
        spec = pick.spec
        if not assignments or delete:
            return super().take(session, pick, assignments, parameters, delete=delete, options=options)
        whole = spec.is_plain and not options
        statement = pick.made.get((self, assignments, whole), lambda: self._taking(pick, assignments, whole=whole))
        if not whole:
            rows = sorted(self.execute(session, spec, statement, parameters), key=itemgetter(0))
            return self.load(session, spec, [tuple(row[1:]) for row in rows], options)
        loading = {"populate_existing": True}
        taken: Any = session.execute(
            statement, parameters, execution_options=loading, bind_arguments=spec.bind_arguments
        )
        return [task for _, task in sorted(taken, key=itemgetter(0))]

    def _taking(self, pick: Pick, assignments: Sequence[Assignment], *, whole: bool) -> Any:
        """Returns the place of each row in the order, for RETURNING keeps none, and its key, or the ``whole`` of it."""
        spec = pick.spec
        key = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
        order = [term.column.label(f"order_{n}") for n, term in enumerate(pick.order)]
        locked: CTE = self.picking(pick, *key, *order).cte("locked").prefix_with("MATERIALIZED", dialect=self.name)
        by = [term.over(locked.c[f"order_{n}"]) for n, term in enumerate(pick.order)]
        keys = [locked.c[column.name] for column in key]
        picked = select(*keys, func.row_number().over(order_by=by).label("position")).subquery("picked")
        joined = [column == picked.c[f"key_{n}"] for n, column in enumerate(spec.primary_key)]
        taking = write(spec, and_(*joined), assignments)
        if not whole:
            return taking.returning(picked.c.position, *spec.primary_key)
        # not by an UPDATE of the entity, whose criteria the session would evaluate in Python
        every = taking.returning(picked.c.position, *spec.table.columns)
        return select(picked.c.position, spec.entity).from_statement(every)

    def keys_named(self, spec: QueueSpec, count: int) -> Criterion:
        if count == MANY and len(spec.primary_key) == 1:
            (column,) = spec.primary_key
            # one parameter, and so one statement for the server however many keys there are
            return column == any_(bindparam(KEYS, type_=ARRAY(column.type)))
        return super().keys_named(spec, count)

    def rows_in(self, columns: Sequence[ColumnElement[Any]], rows: Sequence[Identity] | None = None) -> Criterion:
        # a list of tuples would be compared one by one, where these are hashed; and without IS TRUE it would become a
        # join, for which a plan may choose nested loops
        values = [None] * len(columns) if rows is None else [list(each) for each in zip(*rows, strict=True)]
        names = [f"{ROWS}_{n}" if rows is None else None for n, _ in enumerate(columns)]
        lists = [
            bindparam(name, value, type_=ARRAY(column.type), required=value is None)
            for name, value, column in zip(names, values, columns, strict=True)
        ]
        return tuple_(*columns).in_(select(*map(func.unnest, lists))).is_(true())

    def row_names(self, rows: Sequence[Identity]) -> dict[str, Any]:
        return {f"{ROWS}_{n}": list(given) for n, given in enumerate(zip(*rows, strict=True))}

    def passing_over(self, spec: QueueSpec, named: Criterion) -> Criterion:
        # joined, and the condition not repeated: of how many rows it holds the planner has no idea
        key = [column.label(f"key_{n}") for n, column in enumerate(spec.primary_key)]
        free = self.picking_named(spec, named, *key).cte("free").prefix_with("MATERIALIZED", dialect=self.name)
        return and_(*(column == free.c[f"key_{n}"] for n, column in enumerate(spec.primary_key)))

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        statement = insert(spec.table)
        if replace is None:
            return statement.on_conflict_do_nothing(index_elements=list(by.columns), index_where=by.predicate)
        return statement.on_conflict_do_update(
            index_elements=list(by.columns),
            index_where=by.predicate,
            set_={column.name: value for column, value in replace(lambda name: statement.excluded[name])},
        )

    def copy(self, connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        names = ", ".join(plain(connection.dialect, column) for column in columns)
        command = f"COPY {live_name(connection, table)} ({names}) FROM STDIN"
        if connection.dialect.driver not in ("psycopg", "psycopg_async"):
            raise ArgumentError(f"copy=True needs the driver psycopg, not {connection.dialect.driver}")
        try:
            _copy(connection, command, rows)
        except connection.dialect.loaded_dbapi.IntegrityError as error:
            raise IntegrityError(command, None, error) from error

    def same_default(self, dialect: Dialect, live: str) -> bool:
        return super().same_default(dialect, live) or live in _CLOCKS

    def lacks_storage(self, connection: Connection, table: Table) -> bool:
        return lacks_storage(connection, table)

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        return invalid_indexes(connection, table)

    def added_at(self, connection: Connection, column: Column[Any]) -> datetime | None:
        return added_at(connection, column)

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        standby, default = connection.execute(
            select(func.pg_is_in_recovery(), func.current_setting("default_transaction_read_only"))
        ).one()
        if standby:
            yield read_only("this server is a hot standby", "connect to the primary")
        if default == "on":
            yield read_only("transactions start read-only", "set default_transaction_read_only to off for this role")

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        schema = connection.schema_for_object(spec.table)
        if schema and not connection.scalar(select(func.has_schema_privilege(schema, "USAGE"))):
            return [f"USAGE on the schema {schema}"]
        # rights to single columns are enough, if they are the right ones
        name = live_name(connection, spec.table)
        of_queue = {each.name for each in spec.columns.values()}
        present = [column["name"] for column in live]
        needed = {"SELECT": present, "INSERT": present, "UPDATE": [each for each in present if each in of_queue]}
        rights = {
            privilege: and_(*(func.has_column_privilege(name, each, privilege) for each in columns))
            for privilege, columns in needed.items()
        }
        rights["DELETE"] = func.has_table_privilege(name, "DELETE")
        for column in live:
            if "nextval(" in (column["default"] or ""):  # an identity needs no right of its own
                sequence = func.pg_get_serial_sequence(name, column["name"])
                right = func.coalesce(func.has_sequence_privilege(sequence, "USAGE"), true())
                rights[f"USAGE on the sequence of {column['name']}"] = right
        granted = connection.execute(select(*(right.label(None) for right in rights.values()))).one()
        return [privilege for privilege, has in zip(rights, granted, strict=True) if not has]

    def plan(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> Plan | None:
        if not forced:
            return _plan(connection, statement)
        with connection.begin_nested() as savepoint:
            for way in ("seqscan", "sort", "bitmapscan"):
                connection.execute(select(func.set_config(f"enable_{way}", "off", true())))
            plan = _plan(connection, statement)
            savepoint.rollback()  # and the settings with it
        return plan

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        setting = func.set_config("statement_timeout", f"{milliseconds(timeout)}ms", True)
        connection.execute(select(setting))

    def interruption(self, connection: Connection) -> Interrupt:
        process = connection.scalar(select(func.pg_backend_pid()))

        def interrupt(by_force: bool) -> None:
            end = func.pg_terminate_backend if by_force else func.pg_cancel_backend
            with connection.engine.connect() as other:
                other.execute(select(end(process)))

        return interrupt

    def answer(self, connection: Connection, request: str) -> AbstractContextManager[Answer]:
        return stream(connection, request, self.type_name)

    def type_name(self, code: Any) -> str:
        try:
            from psycopg import adapters  # noqa: PLC0415  # a user of PostgreSQL may have another driver
        except ImportError:
            return str(code)
        known = adapters.types.get(code)
        return str(code) if known is None else known.name

    def is_duplicate(self, error: IntegrityError) -> bool:
        return bool(self.code(error) == "23505")

    def is_referenced(self, error: IntegrityError) -> bool:
        return self.code(error) in ("23001", "23503")

    def code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlstate", None)

    def is_outage(self, error: DBAPIError) -> bool:
        code = self.code(error)
        if error.connection_invalidated:
            return code not in _TOO_SLOW
        # an operational error without a code is the client's own: it could not connect
        if code is None:
            return isinstance(error, OperationalError)
        return code in _OUTAGES or code.startswith(_OUTAGE_CLASSES)


def _plan(connection: Connection, statement: Select[Any]) -> Plan:
    (found,) = explain(connection, "EXPLAIN (FORMAT JSON)", statement).scalar_one()
    nodes = list(_nodes(found["Plan"]))
    return Plan(
        indexes=frozenset(node["Index Name"] for node in nodes if "Index Name" in node),
        sorted=sum(node["Plan Rows"] for node in nodes if "Sort" in node["Node Type"]),
    )


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


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
