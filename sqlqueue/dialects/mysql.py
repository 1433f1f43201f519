"""MySQL 8.0.1 and newer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Delete,
    Insert,
    Select,
    String,
    Table,
    UniqueConstraint,
    Update,
    and_,
    column,
    false,
    func,
    literal_column,
    null,
    select,
    table,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedColumn, ReflectedIndex
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.sql.expression import TableClause
from sqlalchemy.types import TypeEngine

from ..queue.findings import Finding, Severity
from ..queue.spec import Criterion, Identity, QueueSpec, conjuncts
from ..sql.clock import utc
from ..sql.key_text import key_text
from ..sql.selection import Pick, UniqueBy
from .base import Adapter, Replacement
from .health import Plan, bare, explain, read_only
from .keys import ByKey, unless_constant
from .killing import Requests
from .naming import Naming, live_name
from .requests import milliseconds

_QUOTE = mysql.dialect().identifier_preparer.quote
_STATISTICS = table(
    "statistics",
    *map(column, ("table_schema", "table_name", "index_name", "column_name", "collation", "is_visible")),
    schema="information_schema",
)
_TABLES = table(
    "tables", column("table_schema"), column("table_name"), column("engine", String), schema="information_schema"
)
_COLUMNS = table(
    "columns",
    *map(column, ("table_schema", "table_name")),
    *(column(name, String) for name in ("column_name", "collation_name")),
    schema="information_schema",
)
_PARTITIONS = table(
    "partitions", *map(column, ("table_schema", "table_name", "partition_name")), schema="information_schema"
)
_OFF = ("0", "OFF")
_READ_ONLY = (1290, 1792, 1836)
"""The server or the transaction, whatever this account may do."""
_DENIED = (1044, 1142, 1143)
"""To a database, a table, a column."""


class MySQL(Requests, Adapter):
    """The claim is two statements: a locking SELECT of the primary keys, then an UPDATE of those.

    InnoDB locks what it scans, before it sorts.  So the claim names its index, whose order is the claim's: any other
    plan would lock rows that the claim does not return, and leave nothing to others.

    An entry of an index stays locked although its row is then found not to match (MariaDB), or to be locked by others,
    who wait as soon as they write to it.  So what one index alone does not serve is found without a lock first, and
    then locked by primary key, one after the other until there are enough.  So are rows of a table in partitions: each
    has an index of its own, whose next entry is read, and locked, to tell which of all comes first.
    """

    name = "mysql"
    product = "MySQL"
    minimum: ClassVar[tuple[int, ...]] = (8, 0, 1)
    needed = "SKIP LOCKED"
    timestamp = utc(mysql.DATETIME, fsp=6)
    error_text = mysql.VARCHAR(2000, charset="utf8mb4")
    exact: ClassVar[str | None] = "utf8mb4_0900_bin"
    reads_only: ClassVar[str] = "transaction_read_only"
    """The variable that says so of a session."""
    # deadlock, lock wait timeout, lock not available at once, record has changed since last read
    transient: ClassVar[Collection[int]] = (1213, 1205, 3572, 1020)
    # shutdown, killed, cannot connect, gone away, lost; too many connections (of all, of an account), disk full, table
    # full; read-only (as a primary that was demoted)
    outages: ClassVar[Collection[int]] = (
        *(1053, 1927, 2002, 2003, 2005, 2006, 2013, 2055, 4031),
        *(1040, 1203, 1021, 1114),
        *(1290, 1836),
    )
    # a deadlock, which ends the transaction, has taken it along
    lost_savepoints: ClassVar[Collection[int]] = (1305,)
    key_before_row = True
    # PyMySQL and what is made after it look for nothing but parameters between the parentheses
    sends_values_alone = True
    reviving = "ALTER TABLE {table} ALTER INDEX {index} VISIBLE"
    returning = False
    orders_freely = False
    changes_unseen = True

    def specialize(self, dialect: Dialect, adapters: Mapping[str, Adapter]) -> Adapter:
        return adapters["mariadb"] if getattr(dialect, "is_mariadb", False) else self

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.utc_timestamp(literal_column("6"))
        if seconds is None:
            return now
        return func.timestampadd(text("MICROSECOND"), seconds * literal_column("1000000"), now)

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return func.timestampdiff(text("MICROSECOND"), earlier, later, type_=BigInteger())

    def key(self, length: int) -> TypeEngine[Any] | None:
        return key_text(mysql.VARCHAR, length=length, charset="utf8mb4", collation=self.exact)

    def banner(self, connection: Connection) -> str:
        return str(connection.scalar(select(func.version())))

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        if "tidb" in banner.lower():
            self.refuse(f"(TiDB, {banner})", "MySQL itself, or MariaDB,", "SKIP LOCKED, which TiDB does not have")
        super().judge(version, banner)

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(keys) != 1:
            return super().key_in(spec, keys)
        return and_(*(unless_constant(spec, term) for term in conjuncts([spec.key(keys[0])])))

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        if pick.index is None:
            pick = replace(pick, where=tuple(unless_constant(pick.spec, term) for term in pick.where))
        # STRAIGHT_JOIN: an EXISTS in a criterion must not become a join that is read from the other table
        statement = super().picking(pick, *columns).prefix_with("STRAIGHT_JOIN")
        hinted: Select[Any] = force_index(statement, pick.spec, pick.index or "PRIMARY")
        return hinted

    def looking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        hinted: Select[Any] = force_index(super().looking(pick, *columns), pick.spec, pick.index or "PRIMARY")
        return hinted

    def lock(self, session: Session, pick: Pick) -> list[Identity]:
        if pick.exact and not _is_partitioned(pick.spec.table):
            return super().lock(session, pick)
        return self.lock_seen(session, pick)

    def loading(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        statement = super().loading(spec, count, latest=latest)
        if not latest or not spec.is_plain:
            return statement
        # a plain SELECT in a REPEATABLE READ transaction may not see the version of a row that was just locked
        locking: Select[Any] = self.by_key(spec, statement.with_for_update())
        return locking

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        # left alone, the optimizer reads all of a small table, and waits for what others have locked in it
        if isinstance(statement, Delete):
            return self.deleting_by_key(spec, statement)
        return force_index(statement, spec, "PRIMARY")

    def deleting_by_key(self, spec: QueueSpec, statement: Delete) -> Delete:
        # the syntax of DELETE has no place for index hints, but for this one
        return statement.prefix_with(Naming("/*+ INDEX({} PRIMARY) */", spec.table, qualified=False))

    def sweep(self, session: Session, spec: QueueSpec, statement: Update | Delete, limit: int | None = None) -> int:
        # by primary key, in the order in which claims are settled: by way of an index, the two would deadlock
        return self.sweep_by_key(session, spec, statement, limit)

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        if _has_other_keys(spec.table, by):
            return None  # ON DUPLICATE KEY would go by any of them, and change another task
        statement = mysql.insert(spec.table)
        if replace is None:
            first = spec.primary_key[0]
            return statement.on_duplicate_key_update([(first.name, first)])
        assignments = replace(lambda name: statement.inserted[name])
        return statement.on_duplicate_key_update([(column.name, value) for column, value in assignments])

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        # a statement is undone alone; and a deadlock takes a savepoint along, whose loss would be the error then
        return nullcontext()

    def descending(
        self, connection: Connection, table: Table, reflected: Collection[ReflectedIndex]
    ) -> Collection[tuple[Any, str]]:
        terms = select(_STATISTICS.c.index_name, _STATISTICS.c.column_name).where(_STATISTICS.c.collation == "D")
        return {(index, name) for index, name in connection.execute(terms.where(is_of(connection, table)))}

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        hidden = select(_STATISTICS.c.index_name).where(is_of(connection, table), _STATISTICS.c.is_visible == "NO")
        return connection.scalars(hidden).all()

    def collations(self, connection: Connection, table: Table) -> Mapping[str, str | None]:
        found = select(_COLUMNS.c.column_name, _COLUMNS.c.collation_name).where(is_of(connection, table, _COLUMNS))
        return {each[0]: each[1] for each in connection.execute(found)}

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        of_session = literal_column(f"@@session.{self.reads_only}", String)
        if connection.scalar(select(func.upper(of_session))) not in _OFF:
            yield read_only("transactions start read-only", "SET SESSION TRANSACTION READ WRITE")
        of_server = literal_column("@@global.read_only", String)
        if connection.scalar(select(func.upper(of_server))) not in _OFF:
            yield read_only("this server has read_only set, as a replica has", "connect to the primary")

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        storage = connection.scalar(select(_TABLES.c.engine).where(is_of(connection, spec.table, _TABLES)))
        if storage and storage.upper() != "INNODB":
            name = live_name(connection, spec.table)
            message = f"{spec.table.fullname} is stored by {storage}, which has no transactions: claims keep nobody out"
            fix = f"ALTER TABLE {name} ENGINE = InnoDB"
            yield Finding.of(spec, Severity.ERROR, "storage-engine", message, fix)
        partitioned = _PARTITIONS.c.partition_name.is_not(None)
        parts = connection.scalar(select(func.count()).where(is_of(connection, spec.table, _PARTITIONS), partitioned))
        if parts and not _is_partitioned(spec.table):
            message = f"{spec.table.fullname} is in partitions, of which its model does not tell: claims lock too much"
            fix = f'__table_args__ = {{"{self.name}_partition_by": "..."}}, as the table has it'
            yield Finding.of(spec, Severity.WARNING, "undeclared-partitions", message, fix)

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        # EXPLAIN needs the rights of what it explains, and knows of roles, patterns and single columns
        target = bare(connection, spec.table, live)
        nothing: dict[str, Any] = {each.name: null() for each in spec.columns.values() if each.name in target.c}
        asked: dict[str, Any] = {
            "SELECT": select(*target.columns).where(false()),
            "INSERT": target.insert().values({each.name: null() for each in target.columns}),
            "UPDATE": target.update().values(nothing).where(false()),
            "DELETE": target.delete().where(false()),
        }
        return [privilege for privilege, statement in asked.items() if self._is_refused(connection, statement)]

    def _is_refused(self, connection: Connection, statement: Any) -> bool:
        try:
            explain(connection, "EXPLAIN", statement).close()
        except DBAPIError as error:
            if not self.is_denied(error) and self.code(error) not in _READ_ONLY:
                raise
            return self.is_denied(error)
        return False

    def is_denied(self, error: DBAPIError) -> bool:
        return self.code(error) in _DENIED

    def plan(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> Plan | None:
        if forced:
            return None  # a claim names its index anyway
        rows = explain(connection, "EXPLAIN FORMAT=TRADITIONAL", statement).mappings().all()
        return Plan(
            indexes=frozenset(row["key"] for row in rows if row["key"]),
            sorted=sum("filesort" in (row["Extra"] or "") for row in rows),
        )

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        # of queries alone: for statements that write, the server has no such limit of its own
        connection.execute(text(f"SET SESSION max_execution_time = {milliseconds(timeout)}"))

    def is_duplicate(self, error: IntegrityError) -> bool:
        return self.code(error) in (1062, 1586)

    def is_referenced(self, error: IntegrityError) -> bool:
        return self.code(error) in (1217, 1451)


def force_index(statement: ByKey, spec: QueueSpec, index: str) -> ByKey:
    hint = f"FORCE INDEX ({_QUOTE(index)})"
    if isinstance(statement, Select):
        return statement.with_hint(spec.table, hint)
    return statement.with_hint(hint)


def _is_partitioned(table: Table) -> bool:
    """Whether the model says so: PARTITION BY is an option of its table, for MySQL or for MariaDB."""
    return any(f"{name}_partition_by" in table.kwargs for name in ("mysql", "mariadb"))


def _has_other_keys(table: Table, by: UniqueBy) -> bool:
    """Whether a row could meet another by another key; by its primary key only if that is given."""
    constraints = [tuple(each.columns) for each in table.constraints if isinstance(each, UniqueConstraint)]
    indexes = [tuple(index.columns) for index in table.indexes if index.unique]
    return any(columns != by.columns for columns in (*constraints, *indexes))


def is_of(connection: Connection, table: Table, source: TableClause = _STATISTICS) -> ColumnElement[bool]:
    schema = connection.schema_for_object(table) or func.database()
    return (source.c.table_schema == schema) & (source.c.table_name == table.name)
