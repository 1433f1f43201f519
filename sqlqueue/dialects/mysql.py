"""MySQL 8.0.2 and newer, and MariaDB, which shares most of its parts."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import groupby, pairwise, takewhile
from operator import itemgetter
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Executable,
    FromClause,
    Insert,
    Integer,
    Select,
    String,
    Table,
    UniqueConstraint,
    and_,
    column,
    exists,
    false,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    text,
    union_all,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine.interfaces import ReflectedColumn, ReflectedIndex
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.sql import operators
from sqlalchemy.sql.expression import TableClause
from sqlalchemy.types import TypeEngine

from .._support.errors import ArgumentError
from .._support.private import affinity
from ..queue.spec import Criterion, Finding, Identity, QueueSpec, Severity, conjuncts
from ..sql import KeyText, Pick, UniqueBy, UTCDateTime
from .base import Adapter
from .connections import Connections, Interrupt, StatementResult, first_argument, milliseconds, socket_of
from .inspection import Inspection, LiveIndex, QueryPlan, Term, Types, bare, catalog, explain, multi_primary, read_only
from .naming import Naming, Product, live_name
from .statements import MANY_LANES, ByKey, Replacement, Rows, skip_locked

# -- index hints for rows selected by primary key ---------------------------------------------------------------------

_QUOTE = mysql.dialect().identifier_preparer.quote


def force_index(statement: ByKey, spec: QueueSpec, index: str) -> ByKey:
    """Return ``statement`` with a FORCE INDEX hint."""
    hint = f"FORCE INDEX ({_QUOTE(index)})"
    if isinstance(statement, Select):
        return statement.with_hint(spec.table, hint)
    return statement.with_hint(hint)


def unless_constant(spec: QueueSpec, term: Criterion) -> Criterion:
    """Return an equality on the last key column as a range, and any other term unchanged.

    If a whole key is given, MySQL and MariaDB read its row first, and keep it locked even if it does not match:
    https://dev.mysql.com/doc/refman/9.7/en/explain-output.html#jointype_const
    """
    column: Any = spec.primary_key[-1]
    left, right = getattr(term, "left", None), getattr(term, "right", None)
    if getattr(term, "operator", None) is not operators.eq or left is None or not column.shares_lineage(left):
        return term
    return and_(column >= right, column <= right) if isinstance(right, BindParameter) else term


def is_partitioned(table: Table) -> bool:
    """Return whether the model declares the table as partitioned, with the PARTITION BY option for MySQL or MariaDB."""
    return any(f"{name}_partition_by" in table.kwargs for name in ("mysql", "mariadb"))


def _no_constants(spec: QueueSpec, criteria: Sequence[Criterion]) -> tuple[Criterion, ...]:
    return tuple(unless_constant(spec, term) for term in conjuncts(criteria))


def _in_one_order(statement: Select[Any]) -> Select[Any]:
    """Prevent an EXISTS in a criterion from becoming a join that starts at the other table."""
    return statement.prefix_with("STRAIGHT_JOIN")


# -- times without a zone, and utf8mb4 text ---------------------------------------------------------------------------


class MySQLTypes(Types):
    """Types with an explicit character set, independent of the database's."""

    timestamp = UTCDateTime.wrapping(mysql.DATETIME, fsp=6)
    long_text = mysql.TEXT(charset="utf8mb4")

    exact = "utf8mb4_0900_bin"
    """The collation of keys, since the database's may equate different keys."""

    def text(self, length: int) -> TypeEngine[Any] | None:
        return mysql.VARCHAR(length, charset="utf8mb4")

    def key(self, length: int) -> TypeEngine[Any] | None:
        return KeyText.wrapping(mysql.VARCHAR, length=length, charset="utf8mb4", collation=self.exact)

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.utc_timestamp(literal_column("6"))
        if seconds is None:
            return now
        return func.timestampadd(text("MICROSECOND"), seconds * literal_column("1000000"), now)

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return func.timestampdiff(text("MICROSECOND"), earlier, later, type_=BigInteger())

    def remainder(self, number: ColumnElement[int], divisor: ColumnElement[int]) -> ColumnElement[int]:
        return func.mod(number, divisor, type_=BigInteger())  # % is no operator in MariaDB's sql_mode=ORACLE


class MySQLRows(Rows):
    """Reads rows without locks, in the order of the claim's index, and then locks them by primary key.

    InnoDB locks each index entry that it reads, before sorting.  The entry stays locked even if its row turns out not
    to match (MariaDB) or to be locked by another transaction, which then waits when it writes to the row.  Therefore,
    every statement locks rows through the primary key, whose index entries are the rows, and prevents the use of other
    indexes.
    """

    locks_after_sorting = False
    # by primary key, the order in which claims are settled: locking through another index would deadlock with it
    sweeps_by_key = True
    # ON DUPLICATE KEY UPDATE
    key_before_row = True
    probes = MANY_LANES
    skips_values = True
    # PyMySQL and drivers derived from it batch an INSERT only if VALUES contains nothing but parameters
    sends_values_alone = True

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(keys) != 1:
            return super().key_in(spec, keys)
        return and_(*(unless_constant(spec, term) for term in conjuncts([spec.key(keys[0])])))

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        # without a hint, the optimizer scans a small table, and waits for rows that others have locked
        if isinstance(statement, Delete):
            return self.deleting(spec, statement)
        return force_index(statement, spec, "PRIMARY")

    def deleting(self, spec: QueueSpec, statement: Delete) -> Delete:
        """Return :meth:`by_key` for a DELETE, which supports no index hints, only optimizer hints."""
        return statement.prefix_with(Naming("/*+ INDEX({} PRIMARY) */", spec.table, qualified=False))

    def select_locking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        spec = pick.spec
        pick = replace(pick, state=_no_constants(spec, pick.state), where=_no_constants(spec, pick.where))
        hinted: Select[Any] = force_index(_in_one_order(skip_locked(pick, *columns)), spec, "PRIMARY")
        return hinted

    def select_by_key(self, spec: QueueSpec, *criteria: Criterion, waits: bool) -> Select[Any]:
        return _in_one_order(super().select_by_key(spec, *_no_constants(spec, criteria), waits=waits))

    def locked_in_order(self, spec: QueueSpec, keys: Sequence[Identity]) -> int:
        # rows are read in index order, partition by partition; only the server can order text
        if is_partitioned(spec.table) or not all(isinstance(part, int) for key in keys for part in key):
            return 0
        return 1 + sum(1 for _ in takewhile(lambda pair: pair[0] < pair[1], pairwise(keys)))

    def use_index(self, pick: Pick, reading: Select[Any]) -> Select[Any]:
        hinted: Select[Any] = force_index(reading, pick.spec, pick.index or "PRIMARY")
        return hinted

    def is_served(self, pick: Pick) -> bool:
        return pick.index is None

    def select_next(self, searches: Sequence[Pick], key: ColumnElement[Any]) -> Executable:
        first = searches[0]
        if first.is_divided or len(first.order) > 1:
            return super().select_next(searches, key)
        # the optimizer searches the index for each MIN beforehand, and has no rows to sort or keep; with IS NULL before
        # the column, or IS NOT NULL, which MIN does not need, it would read all rows
        found: list[Any] = []
        for number, each in enumerate(searches):
            needed = (term for term in each.where if getattr(term, "operator", None) is not operators.is_not)
            first_key: Any = select(literal_column(str(number)), func.min(key)).where(*each.state, *needed)
            found.append(self.use_index(each, first_key))
        return union_all(*found)

    def select_instances(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        statement = super().select_instances(spec, count, latest=latest)
        if not latest or not spec.is_plain:
            return statement
        # a plain SELECT in a REPEATABLE READ transaction may not see the version of the row that was just locked
        locking: Select[Any] = self.by_key(spec, statement.with_for_update())
        return locking

    def prefer_index(self, spec: QueueSpec, index: str | None, reading: Select[Any]) -> Select[Any]:
        if index is None:
            return reading
        # for few rows of a status, the index of a partition seems as good, whose rows would have to be sorted. Unlike
        # FORCE INDEX, the comment is no error if there is no such index: https://dev.mysql.com/doc/refman/9.7/en/optimizer-hints.html
        return reading.prefix_with(f"/*+ INDEX({_QUOTE(spec.table.name)} {_QUOTE(index)}) */".replace(":", r"\:"))

    def probing(self, spec: QueueSpec, index: str, reading: Select[Any]) -> Select[Any]:
        hinted: Select[Any] = force_index(reading, spec, index)
        return hinted

    def of_key(self, spec: QueueSpec, table: FromClause, kind: str, reading: Select[Any]) -> Select[Any]:
        # others begin with the same column: all rows of the key would be sorted, or all discarded ones read
        return reading.with_hint(table, f"FORCE INDEX ({_QUOTE(spec.index_name(kind))})")

    def locking(self, table: Table, reading: Select[Any], *, skips: bool, shared: bool = False) -> Select[Any]:
        # a scan would lock all rows
        return super().locking(table, reading, skips=skips, shared=shared).with_hint(table, "FORCE INDEX (PRIMARY)")

    def supports_returning(self, spec: QueueSpec) -> bool:
        return False

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        if _has_other_keys(spec.table, by):
            return None  # ON DUPLICATE KEY applies to any unique key, and could change another task
        statement = mysql.insert(spec.table)
        if replace is None:
            first = spec.primary_key[0]
            return statement.on_duplicate_key_update([(first.name, first)])
        assignments = replace(lambda name: statement.inserted[name])
        return statement.on_duplicate_key_update([(column.name, value) for column, value in assignments])


def _has_other_keys(table: Table, by: UniqueBy) -> bool:
    """Return whether a row could conflict on a key other than ``by``; the primary key counts only if the row sets
    it."""
    constraints = [tuple(each.columns) for each in table.constraints if isinstance(each, UniqueConstraint)]
    indexes = [tuple(index.columns) for index in table.indexes if index.unique]
    return any(columns != by.columns for columns in (*constraints, *indexes))


# -- tables of the information schema ---------------------------------------------------------------------------------

_catalog = partial(catalog, "information_schema")
_STATISTICS = _catalog(
    "statistics",
    *("table_schema", "table_name", "index_name", "seq_in_index", "column_name", "collation", "non_unique"),
    # on MySQL and on MariaDB alone
    *("is_visible", "ignored"),
)
_TABLES = _catalog("tables", "table_schema", "table_name", engine=String)
_COLUMNS = _catalog("columns", "table_schema", "table_name", column_name=String, collation_name=String)
_PARTITIONS = _catalog("partitions", "table_schema", "table_name", "partition_name")
_TRIGGERS = _catalog("triggers", "event_object_schema", "event_object_table", "trigger_name")
_ON_ALL = _catalog("user_privileges", "grantee", "privilege_type")
_ON_SCHEMA = _catalog("schema_privileges", "grantee", "privilege_type", "table_schema")
_ON_TABLE = _catalog("table_privileges", "grantee", "privilege_type", "table_schema", "table_name")


def is_of(connection: Connection, table: Table, source: TableClause = _STATISTICS) -> ColumnElement[bool]:
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


# -- checks the server's state and the privileges of an account, and reads plans --------------------------------------

_CLUSTER_SETTINGS = text(
    "SHOW GLOBAL VARIABLES WHERE variable_name IN"
    " ('wsrep_on', 'wsrep_provider', 'group_replication_single_primary_mode')"
).columns(column("name", String), column("value", String))
_OFF = ("0", "OFF")


class MySQLInspection(Inspection):
    """Reads the information schema; detects replicas, clusters and unsuitable storage engines; checks privileges with
    EXPLAIN, and reads plans from its traditional format."""

    reads_only = "transaction_read_only"
    """The session's variable for read-only transactions."""
    reviving = "ALTER TABLE {table} ALTER INDEX {index} VISIBLE"
    # other collations pad text with blanks
    exact_collations = ("_0900_bin", "_nopad_bin")

    def descending(
        self, connection: Connection, table: Table, reflected: Collection[ReflectedIndex]
    ) -> Collection[tuple[Any, str]]:
        terms = select(_STATISTICS.c.index_name, _STATISTICS.c.column_name).where(_STATISTICS.c.collation == "D")
        return {(index, name) for index, name in connection.execute(terms.where(is_of(connection, table)))}

    def index_names(self, connection: Connection, table: Table) -> Collection[str]:
        return connection.scalars(select(_STATISTICS.c.index_name).where(is_of(connection, table)).distinct()).all()

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        hidden = select(_STATISTICS.c.index_name).where(is_of(connection, table), _STATISTICS.c.is_visible == "NO")
        return connection.scalars(hidden).all()

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str] | None:
        schema = connection.schema_for_object(table) or func.database()
        mine = (_TRIGGERS.c.event_object_schema == schema) & (_TRIGGERS.c.event_object_table == table.name)
        found = connection.scalars(select(_TRIGGERS.c.trigger_name).where(mine)).all()
        return found if found or lists_triggers(connection, table) else None

    def collations(self, connection: Connection, table: Table) -> Mapping[str, str | None]:
        found = select(_COLUMNS.c.column_name, _COLUMNS.c.collation_name).where(is_of(connection, table, _COLUMNS))
        return {each[0]: each[1] for each in connection.execute(found)}

    def banner(self, connection: Connection) -> str:
        return str(connection.scalar(select(func.version())))

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        if "tidb" in banner.lower():
            self.refuse(f"(TiDB, {banner})", "MySQL itself, or MariaDB,", "SKIP LOCKED, which TiDB does not support")
        if "vitess" in banner.lower():
            lacked = "ordering, unique indexes and atomic commits across all shards, which Vitess does not guarantee"
            self.refuse(f"(Vitess, {banner})", "MySQL itself, or MariaDB,", lacked)
        super().judge(version, banner)

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        of_session = literal_column(f"@@session.{self.reads_only}", String)
        if connection.scalar(select(func.upper(of_session))) not in _OFF:
            yield read_only("transactions start read-only", "SET SESSION TRANSACTION READ WRITE")
        of_server = literal_column("@@global.read_only", String)
        if connection.scalar(select(func.upper(of_server))) not in _OFF:
            yield read_only("read_only is set on this server, as on a replica", "connect to the primary")
        if cluster := self.cluster(connection):
            yield multi_primary(cluster)

    def cluster(self, connection: Connection) -> str | None:
        # servers built without cluster support do not have these variables, so they cannot be selected
        settings = {name.lower(): value for name, value in connection.execute(_CLUSTER_SETTINGS)}
        if settings.get("wsrep_on") == "ON" and settings.get("wsrep_provider", "none") != "none":
            return "a Galera cluster (wsrep_on is ON)"
        if settings.get("group_replication_single_primary_mode") == "OFF":
            return "a replication group of several primaries (group_replication_single_primary_mode is OFF)"
        return None

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        storage = connection.scalar(select(_TABLES.c.engine).where(is_of(connection, spec.table, _TABLES)))
        if storage and storage.upper() != "INNODB":
            name = live_name(connection, spec.table)
            message = (
                f"{spec.table.fullname} uses the storage engine {storage}, which has no transactions: claims are not"
                " exclusive"
            )
            fix = f"ALTER TABLE {name} ENGINE = InnoDB"
            yield Finding.of(spec, Severity.ERROR, "storage-engine", message, fix)
        partitioned = _PARTITIONS.c.partition_name.is_not(None)
        parts = connection.scalar(select(func.count()).where(is_of(connection, spec.table, _PARTITIONS), partitioned))
        if parts and not is_partitioned(spec.table):
            message = f"{spec.table.fullname} has partitions that its model does not declare: claims are out of order"
            fix = f'__table_args__ = {{"{self.product.dialect}_partition_by": "..."}}, as the table has it'
            yield Finding.of(spec, Severity.WARNING, "undeclared-partitions", message, fix)

    def unindexed_reference(self, connection: Connection) -> str | None:
        return None  # InnoDB creates an index for each foreign key, and does not let it be dropped

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        # EXPLAIN needs the privileges of the statement, and takes roles, patterns and column privileges into account
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
            if not self.connections.is_denied(error) and not self.connections.is_read_only(error):
                raise
            return self.connections.is_denied(error)
        return False

    def plan(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> QueryPlan | None:
        if forced:
            return None  # a claim forces its index anyway
        rows = explain(connection, "EXPLAIN FORMAT=TRADITIONAL", statement).mappings().all()
        return QueryPlan(
            indexes=frozenset(row["key"] for row in rows if row["key"]),
            sorted=sum("filesort" in (row["Extra"] or "") for row in rows),
        )


# -- errors, SQL tasks, and the timeouts of drivers and servers -------------------------------------------------------

# statement killed; max_execution_time on MySQL, max_statement_time on MariaDB
_INTERRUPTED = (1317, 3024, 1969)

_UNSAFE: Mapping[str, Collection[str]] = {
    "pymysql": ("local_infile", "client_flag"),
    # of option files, which take precedence over arguments, one that MariaDB's library finds by itself is not read
    "mysqldb": ("local_infile", "client_flag", "read_default_file", "read_default_group"),
}
"""By driver, the options of a URL with which the server may ask the driver for files of this host, or execute several
statements."""


def _forget_rows(driver: Any) -> None:
    """Keep PyMySQL from reading the remaining rows of a result from a closed connection, which raises errors."""
    unread = getattr(driver, "_result", None)
    if unread is not None and driver._sock is None:
        unread.unbuffered_active = False


def _as_sent() -> dict[Any, Any]:
    """Return PyMySQL's conversions without times and decimals, which are kept as the server sends them, valid or
    not."""
    from pymysql.constants import FIELD_TYPE  # noqa: PLC0415
    from pymysql.converters import conversions  # noqa: PLC0415

    kinds = ("DATE", "DATETIME", "TIME", "TIMESTAMP", "DECIMAL", "NEWDECIMAL")
    kept = {getattr(FIELD_TYPE, kind) for kind in kinds}
    return {kind: conversion for kind, conversion in conversions.items() if kind not in kept}


_SHORT_ENOUGH = timedelta(hours=1)
_LOCKED = (
    "a client that disappears during a transaction keeps its locks for that long, unless TCP closes the connection"
    " first"
)
_LONGER = ", or longer if a handler keeps its transaction idle for longer"


class MySQLConnections(Connections):
    """The default isolation level is REPEATABLE READ, in which reads and changes can use different versions of a
    row."""

    changes_unseen = True
    short_lock_wait = "SET SESSION innodb_lock_wait_timeout = 1"
    time_variable = "max_execution_time"
    """The session's variable that limits the time of statements."""

    transient_errors = (
        # deadlock, lock wait timeout, lock not available at once, record has changed since last read
        *(1213, 1205, 3572, 1020),
        # group replication rejects the commit, which conflicts with another server's
        3101,
    )
    outage_errors = (
        # shutdown, killed, cannot connect, gone away, lost
        *(1053, 1927, 2002, 2003, 2005, 2006, 2013, 2055, 4031),
        # too many connections (of all, of an account), disk full, table full
        *(1040, 1203, 1021, 1114),
        # read-only (such as a demoted primary)
        *(1290, 1836),
        # a Galera node that has not joined or lost its quorum; a commit that the cluster cannot carry out
        *(1047, 1180),
    )
    duplicate_errors = (1062, 1586)
    reference_errors = (1217, 1451)
    # access denied to a database, a table, a column
    denied_errors = (1044, 1142, 1143)
    read_only_errors = (1290, 1792, 1836)
    # removed by a deadlock, which ends the transaction
    lost_savepoint_errors = (1305,)

    def is_temporary(self, error: DBAPIError) -> bool:
        return self._has(error, _INTERRUPTED) or super().is_temporary(error)

    def error_code(self, error: DBAPIError) -> Any:
        # MariaDB's connector has the number in an attribute only; the others also, or only, as the first argument
        return getattr(error.orig, "errno", None) or first_argument(error)

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        # the server rolls back a failed statement alone; after a deadlock, the savepoint would be missing, which is an
        # error
        return nullcontext()

    # SQL tasks: results keep the server's representation, and KILL ends statements

    request_drivers: ClassVar[Mapping[str, Mapping[str, Any]] | None] = {
        "pymysql": {"local_infile": False},
        "mysqldb": {"local_infile": 0, "multi_statements": False},
    }

    def request_arguments(self, url: URL) -> dict[str, Any]:
        arguments = super().request_arguments(url)
        unsafe = sorted(set(url.query).intersection(_UNSAFE[url.get_driver_name()]))
        if unsafe:
            raise ArgumentError(
                f"a URL of requests must not contain {', '.join(unsafe)}: with LOAD DATA LOCAL INFILE, or with several"
                " statements, a request could do more than its user; remove it"
            )
        return arguments if url.get_driver_name() != "pymysql" else {**arguments, "conv": _as_sent()}

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        # only for SELECT: the server has no such limit for statements that write
        connection.execute(text(f"SET SESSION {self.time_variable} = {milliseconds(timeout)}"))

    def lift_time_limit(self, connection: Connection) -> None:
        connection.execute(text(f"SET SESSION {self.time_variable} = DEFAULT"))

    def interruption(self, connection: Connection) -> Interrupt:
        thread = connection.scalar(select(func.connection_id()))

        def interrupt(by_force: bool) -> None:
            with connection.engine.connect() as other:
                other.execute(text(f"KILL {'CONNECTION' if by_force else 'QUERY'} {thread}"))

        return interrupt

    @contextmanager
    def answer(self, connection: Connection, request: str) -> Iterator[StatementResult]:
        driver: Any = connection.connection.driver_connection
        with super().answer(connection, request) as answer:
            try:
                yield answer
            except BaseException:
                _forget_rows(driver)
                raise

    def type_name(self, code: Any) -> str:
        try:
            from pymysql.constants import FIELD_TYPE  # noqa: PLC0415  # a user of MySQL may have another driver
        except ImportError:
            return str(code)
        names = {number: name for name, number in vars(FIELD_TYPE).items() if isinstance(number, int)}
        return names.get(code, str(code)).lower()

    # the sockets of drivers, some of which are private attributes, and their timeouts

    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = {
        # after connecting, PyMySQL waits for the server's greeting as for the response to a statement
        "pymysql": ("connect_timeout", "read_timeout"),
        "aiomysql": ("connect_timeout",),
        "asyncmy": ("connect_timeout",),
        "mysqldb": ("connect_timeout",),
        "mysqlconnector": ("connection_timeout",),
        "mariadbconnector": ("connect_timeout",),
    }

    def driver_advice(self, connection: Any) -> str | None:
        limits = {name: 60 for name in ("read_timeout", "write_timeout") if hasattr(connection, f"_{name}")}
        if any(getattr(connection, f"_{name}") is None for name in limits):  # PyMySQL has both, asyncmy one
            return f"{_maker(connection)}(..., connect_args={limits}), or longer if a statement takes longer"
        if not limits and getattr(connection, "connect_timeout", 0) is None:  # aiomysql
            arguments = {"connect_timeout": 10}
            return (
                f"{_maker(connection)}(..., connect_args={arguments}), and asyncio.timeout() around calls that must"
                " not block: this driver has no time limit for statements"
            )
        return None

    def server_advice(self, connection: Connection) -> Iterator[tuple[str, str]]:
        # the server limits idle transactions only by its limit on idle connections
        seconds = session_variable(connection, "wait_timeout")
        if seconds > _SHORT_ENOUGH.total_seconds():
            arguments = {"init_command": "SET SESSION wait_timeout = 600"}
            fix = f"create_engine(..., connect_args={arguments}, pool_recycle=300){_LONGER}"
            yield f"wait_timeout is {seconds} seconds: {_LOCKED}", fix

    def lift_connect_limits(self, connection: Any, limits: Collection[str]) -> None:
        if "read_timeout" in limits:
            connection._read_timeout = None

    def descriptor(self, connection: Any) -> int | None:
        tell = getattr(connection, "_get_socket", None)  # MariaDB's connector, whose `socket` would close it
        if tell is not None:
            return int(tell())
        # PyMySQL; MySQL's connector
        own = getattr(connection, "_sock", None) or getattr(getattr(connection, "_socket", None), "sock", None)
        if own is not None:
            return int(own.fileno())
        stream = getattr(connection, "_writer", None)  # aiomysql
        transport = getattr(connection, "_transport", None) if stream is None else stream.transport  # asyncmy
        return super().descriptor(connection) if transport is None else socket_of(transport)


def _maker(connection: Any) -> str:
    """Return the name of the function that creates an engine with this driver."""
    return "create_async_engine" if inspect.iscoroutinefunction(connection.ping) else "create_engine"


def session_variable(connection: Connection, name: str) -> int:
    """Return the value of a numeric session variable."""
    return connection.execute(select(literal_column(f"@@session.{name}", Integer))).scalar_one()


# -- MySQL ------------------------------------------------------------------------------------------------------------


class MySQL(Adapter):
    """MySQL 8.0.2 and newer."""

    product = Product(dialect="mysql", name="MySQL", minimum=(8, 0, 2), needed="window functions")
    parts = (MySQLTypes, MySQLRows, MySQLConnections, MySQLInspection)


# -- MariaDB ----------------------------------------------------------------------------------------------------------

_PLACE = (_STATISTICS.c.index_name, _STATISTICS.c.seq_in_index)
_TERM = (_STATISTICS.c.index_name, _STATISTICS.c.column_name, _STATISTICS.c.collation, _STATISTICS.c.non_unique)
_IGNORED = select(*_TERM).where(_STATISTICS.c.ignored == "YES").order_by(*_PLACE)


class MariaDBTypes(MySQLTypes):
    """MariaDB's collations."""

    exact = "utf8mb4_nopad_bin"


class MariaDBRows(MySQLRows):
    """Uses the form of DELETE that supports index hints."""

    # with 1,000 values or more, IN becomes a join with a derived table, which may read, and lock, rows in any order
    batch = 999

    def deleting(self, spec: QueueSpec, statement: Delete) -> Delete:
        # only the multiple-table form of DELETE, which names the table twice, supports index hints
        target = Naming("{}", spec.table, qualified=True)
        multiple: Delete = force_index(statement.prefix_with(target), spec, "PRIMARY")
        return multiple


class MariaDBInspection(MySQLInspection):
    """Finds ignored indexes."""

    reads_only = "tx_read_only"

    def type_of(self, live: Column[Any], wanted: Column[Any]) -> TypeEngine[Any]:
        # JSON is LONGTEXT with a CHECK constraint, which goes if the column is defined anew as what is reflected
        return JSON() if affinity(wanted.type) is JSON and isinstance(live.type, mysql.LONGTEXT) else live.type

    reviving = "ALTER TABLE {table} ALTER INDEX {index} NOT IGNORED"

    def live_indexes(self, connection: Connection, table: Table) -> dict[str, LiveIndex]:
        # SQLAlchemy does not reflect IGNORED indexes
        terms = _IGNORED.where(is_of(connection, table))
        ignored = {
            name: LiveIndex(
                terms=tuple(Term(each.column_name, each.collation == "D") for each in rows),
                predicate=None,
                unique=not rows[0].non_unique,
                usable=False,
            )
            for name, group in groupby(connection.execute(terms), key=itemgetter(0))
            if (rows := list(group))
        }
        return {**super().live_indexes(connection, table), **ignored}

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        return ()  # see above; there is no column is_visible


class MariaDBConnections(MySQLConnections):
    """Limits the time of statements, and of idle transactions."""

    snapshots_conflict = True  # innodb_snapshot_isolation, the default since MariaDB 11.6.2
    time_variable = "max_statement_time"

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        connection.execute(text(f"SET SESSION {self.time_variable} = {timeout.total_seconds():f}"))

    def server_advice(self, connection: Connection) -> Iterator[tuple[str, str]]:
        if session_variable(connection, "idle_transaction_timeout") == 0:
            for message, _ in super().server_advice(connection):
                arguments = {"init_command": "SET SESSION idle_transaction_timeout = 300"}
                fix = f"create_engine(..., connect_args={arguments}){_LONGER}"
                yield f"idle_transaction_timeout is not set, and {message}", fix


class MariaDB(Adapter):
    """MariaDB 10.6 and newer."""

    product = Product(dialect="mariadb", name="MariaDB", minimum=(10, 6), needed="SKIP LOCKED")
    parts = (MariaDBTypes, MariaDBRows, MariaDBConnections, MariaDBInspection)
