"""SQL Server 2016 and newer.  Never run on a real server by this project: see the README."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Delete,
    Integer,
    Select,
    String,
    Table,
    Unicode,
    Update,
    and_,
    cast,
    column,
    func,
    literal,
    literal_column,
    or_,
    select,
    table,
    text,
    update,
)
from sqlalchemy.dialects import mssql
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedColumn, ReflectedIndex
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption
from sqlalchemy.sql.util import ClauseAdapter
from sqlalchemy.types import TypeEngine

from ..queue.findings import Finding
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.clock import utc
from ..sql.key_text import key_text
from ..sql.selection import Assignment, Pick
from .base import READ_COMMITTED, Adapter
from .databases import findings_of_database
from .keys import ByKey
from .naming import live_name
from .rows import Parameters

_QUOTE = mssql.dialect().identifier_preparer.quote  # type: ignore[no-untyped-call]

_INDEXES = table(
    "indexes", *map(column, ("object_id", "index_id", "is_disabled")), column("name", String), schema="sys"
)
_COLUMNS = table(
    "columns", column("object_id"), *(column(name, String) for name in ("name", "collation_name")), schema="sys"
)
_KEYS = table("index_columns", *map(column, ("object_id", "index_id", "column_id", "is_descending_key")), schema="sys")

# https://learn.microsoft.com/en-us/sql/relational-databases/errors-events/database-engine-events-and-errors
_TRANSIENT = (
    # deadlock, lock timeout, no memory for locks; a snapshot's conflict with a write, and with a change of the table
    *(1205, 1222, 1204, 3960, 3961),
    # commits of memory-optimized tables that depend on, or conflict with, others
    *(41301, 41302, 41305, 41325, 41839),
)
_OUTAGES = (
    # SQLSTATE: cannot connect, not connected, refused, lost at commit, communication link failure
    *("08001", "08003", "08004", "08007", "08S01"),
    # database cannot be opened, not recovered yet, being recovered; not accessible as part of an availability group
    *(4060, 921, 922, 976, 983),
    # session killed; shutdown, paused, upgraded, too many connections
    *(596, 6005, 17142, 18401, 17809),
    # read-only (as a secondary), log full, file group full
    *(3906, 9002, 1105),
    # Azure SQL: fails over, too busy, not available, limit reached, not enough resources, too many operations
    # https://learn.microsoft.com/en-us/azure/azure-sql/database/troubleshoot-common-errors-issues
    *(40197, 40501, 40613, 10928, 10929, 49918, 49919, 49920),
    # pymssql, which gives the numbers of DB-Library: connection failed, reading, writing, no socket, not there, closed
    *(20002, 20004, 20006, 20008, 20009, 20017, 20047),
)
_TIMEOUTS = frozenset({"HYT00", 20003})
"""Of a login, or of a statement."""
_DUPLICATES = frozenset({2601, 2627})
_REFERENCED = 547
_FIRST = re.compile(r"\((-?\d+)\) \(SQL[A-Za-z]+[)(]")
"""In "[23000] ... (2627) (SQLExecDirectW); [01000] ... (3621)": what a message quotes comes before its number."""
_FURTHER = re.compile(r"\((-?\d+)\)(?=; \[|$)")


_ALWAYS_NEW = ("5", "8", "12")
"""Editions of the engine whose version says nothing: Azure SQL Database, Azure SQL Managed Instance, Fabric.
https://learn.microsoft.com/en-us/sql/t-sql/functions/serverproperty-transact-sql"""
_FEW = 25
"""Rows up to which a plan looks each up when it comes to it in the index.  For more it may read ahead in that, and keep
locks that it takes there: https://learn.microsoft.com/en-us/archive/blogs/craigfr/read-committed-and-bookmark-lookup"""


class SQLServer(Adapter):
    """The claim is one statement: an UPDATE of a common table expression whose rows are locked as they are found.

    READPAST skips what others hold, UPDLOCK keeps it, ROWLOCK keeps it to rows, and FORCESEEK keeps a small table
    from being scanned and sorted, which would lock all of it.  Locks that are taken on the way to a row that is then
    found not to match are kept too.  So what one index alone does not serve is found without a lock first, as are
    more than a few rows, and then locked by primary key.
    https://learn.microsoft.com/en-us/sql/t-sql/queries/hints-transact-sql-table
    """

    name = "mssql"
    product = "SQL Server"
    minimum: ClassVar[tuple[int, ...]] = (13,)
    needed = "filtered indexes and DATETIME2 arithmetic as this library uses them"
    timestamp = utc(mssql.DATETIME2, precision=6)
    error_text = mssql.NVARCHAR(2000)
    exact: ClassVar[str | None] = "Latin1_General_100_BIN2"
    partial_index: ClassVar[str | None] = "mssql_where"
    reviving = "ALTER INDEX {index} ON {table} REBUILD"
    orders_freely = False
    transient: ClassVar[Collection[Any]] = _TRANSIENT
    outages: ClassVar[Collection[Any]] = _OUTAGES
    lost_savepoints: ClassVar[Collection[Any]] = (3903, 6401)
    batch = 400
    tuples = False
    names_rows = False
    harmless_levels: ClassVar[Collection[str]] = (READ_COMMITTED,)
    # error 650: READPAST is for READ COMMITTED and REPEATABLE READ alone
    refused_levels: ClassVar[Collection[str]] = ("READ UNCOMMITTED", "SNAPSHOT", "SERIALIZABLE")

    def banner(self, connection: Connection) -> str:
        if (connection.dialect.server_version_info or ()) >= self.minimum:
            return ""
        return str(connection.scalar(select(cast(func.serverproperty("EngineEdition"), Integer))))

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        if banner not in _ALWAYS_NEW:
            super().judge(version, banner)

    def key(self, length: int) -> TypeEngine[Any] | None:
        return key_text(mssql.NVARCHAR, length=length, collation=self.exact)

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.sysutcdatetime()
        if seconds is None:
            return now
        # DATEADD takes an int: whole seconds first, then what is left of one
        whole = func.floor(seconds)
        micros = (seconds - whole) * literal_column("1000000")
        return func.dateadd(text("microsecond"), micros, func.dateadd(text("second"), whole, now))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return func.datediff_big(text("microsecond"), earlier, later, type_=BigInteger())

    def most(self, spec: QueueSpec) -> int:
        # 2,100 parameters at the most; a statement may name each key three times: all, with attempt and token, and
        # those that are not locked
        return max(self.batch * 5 // (3 * len(spec.primary_key) + 2), 1)

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(keys) <= self.most(spec):
            return super().key_in(spec, keys)
        types = [column.type for column in spec.primary_key]
        written = (
            [literal(part, kind, literal_execute=True) for part, kind in zip(key, types, strict=True)] for key in keys
        )
        return or_(*(spec.key(tuple(key)) for key in written))

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        picked = pick.select(*_with_row(pick.spec, columns)).limit(pick.limit)
        return picked.with_hint(pick.spec.table, f"WITH (ROWLOCK, UPDLOCK, READPAST, {_seek(pick)})")

    def looking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        return super().looking(pick, *columns).with_hint(pick.spec.table, f"WITH ({_seek(pick)})")

    def lock(self, session: Session, pick: Pick) -> list[Identity]:
        return super().lock(session, pick) if _is_served(pick) else self.lock_seen(session, pick)

    def locking(self, spec: QueueSpec, *named: Criterion, waits: bool) -> Select[Any]:
        matching = select(*_with_row(spec, spec.primary_key)).where(*named)
        return matching.with_hint(spec.table, f"WITH (ROWLOCK, UPDLOCK, {'' if waits else 'READPAST, '}FORCESEEK)")

    def returns(self, spec: QueueSpec) -> bool:
        # OUTPUT is refused where the table has a trigger; Table(implicit_returning=False) says so
        return spec.table.implicit_returning

    def loading(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        loading: Select[Any] = self.by_key(spec, super().loading(spec, count, latest=latest))
        return loading

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
        if not assignments or delete or not (self.returns(spec) and _is_served(pick)):
            return super().take(session, pick, assignments, parameters, delete=delete, options=options)
        rows = self.execute(session, spec, self.claiming(pick, assignments), parameters).all()
        count = len(pick.order)
        for n, term in reversed(list(enumerate(pick.order))):
            rows = sorted(rows, key=lambda row, n=n: _null_first(row[n]), reverse=term.descending)  # type: ignore[misc]
        return self.load(session, spec, [tuple(row[count:]) for row in rows], options)

    def claiming(self, pick: Pick, assignments: Sequence[Assignment]) -> Any:
        """The one statement.  It returns the order by which each row was found, then its primary key."""
        spec = pick.spec
        columns = {column.name: column for column in (*spec.primary_key, *spec.columns.values())}
        columns |= {term.column.name: term.column for term in pick.order}
        picked = self.picking(pick, *columns.values()).cte("picked")
        adapter = ClauseAdapter(picked)
        values = {picked.c[column.name]: adapter.traverse(value) for column, value in assignments}
        before = picked.alias("deleted").c
        order = [before[term.column.name] for term in pick.order]
        return update(picked).values(values).returning(*order, *(picked.c[c.name] for c in spec.primary_key))

    def rows_in(self, columns: Sequence[ColumnElement[Any]], rows: Sequence[Identity] | None = None) -> Criterion:
        # it compares no tuples
        pairs = (zip(columns, row, strict=True) for row in rows or ())
        return or_(*(and_(*(column == value for column, value in each)) for each in pairs))

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        # a scan would wait for what others have locked on its way
        if isinstance(statement, Select):
            return statement.with_hint(spec.table, "WITH (FORCESEEK)")
        return statement.with_hint("WITH (ROWLOCK, FORCESEEK)")

    def sweep(self, session: Session, spec: QueueSpec, statement: Update | Delete, limit: int | None = None) -> int:
        # a scan waits for what others have locked, and some 5,000 locks of one statement become one of the whole table
        return self.sweep_by_key(session, spec, statement, limit)

    def descending(
        self, connection: Connection, table: Table, reflected: Collection[ReflectedIndex]
    ) -> Collection[tuple[Any, str]]:
        name = func.col_name(_KEYS.c.object_id, _KEYS.c.column_id, type_=String)
        same = (_KEYS.c.object_id == _INDEXES.c.object_id) & (_KEYS.c.index_id == _INDEXES.c.index_id)
        terms = select(_INDEXES.c.name, name).join_from(_INDEXES, _KEYS, same).where(_is_of(connection, table))
        return {(index, column) for index, column in connection.execute(terms.where(_KEYS.c.is_descending_key == 1))}

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        disabled = select(_INDEXES.c.name).where(_is_of(connection, table), _INDEXES.c.is_disabled == 1)
        return connection.scalars(disabled).all()

    def collations(self, connection: Connection, table: Table) -> Mapping[str, str | None]:
        mine = _COLUMNS.c.object_id == func.object_id(_name_of(connection, table))
        found = select(_COLUMNS.c.name, _COLUMNS.c.collation_name).where(mine)
        return {each[0]: each[1] for each in connection.execute(found)}

    def same_moments(self, dialect: Dialect, declared: TypeEngine[Any], live: TypeEngine[Any]) -> bool:
        # SQLAlchemy reflects no precision
        unknown = isinstance(live, mssql.DATETIME2) and live.precision is None
        return unknown or super().same_moments(dialect, declared, live)

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        yield from findings_of_database(connection)

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        # of the whole table: rights to single columns do not count here
        name = _name_of(connection, spec.table)
        asked = ("SELECT", "INSERT", "UPDATE", "DELETE")
        granted = connection.execute(
            select(*(func.has_perms_by_name(name, "OBJECT", privilege).label(privilege) for privilege in asked))
        ).one()
        return [privilege for privilege, has in zip(asked, granted, strict=True) if not has]

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        # what the server has, QUERY_GOVERNOR_COST_LIMIT, is about estimates; by this the driver cancels there
        driver: Any = connection.connection.driver_connection
        driver.timeout = max(math.ceil(timeout.total_seconds()), 1)

    @contextmanager
    def tentative(self, session: Session) -> Iterator[None]:
        # a savepoint although a statement is undone alone: with XACT_ABORT on, which a server may have for all, a
        # violated key ends the transaction, and what follows would be committed without what was written before
        try:
            with session.begin_nested():
                yield
        except DBAPIError as error:
            reason = self.reason(error)
            raise reason from reason.orig

    def is_duplicate(self, error: IntegrityError) -> bool:
        return not _DUPLICATES.isdisjoint(self.codes(error))

    def is_referenced(self, error: IntegrityError) -> bool:
        return _REFERENCED in self.codes(error)

    def is_outage(self, error: DBAPIError) -> bool:
        if not _TIMEOUTS.isdisjoint(self.codes(error)):
            # of a login; that of a statement is its own, although SQLAlchemy gives up the connection for it
            return error.statement is None
        return super().is_outage(error)

    def code(self, error: DBAPIError) -> Any:
        code = super().code(error)
        return code[0] if isinstance(code, tuple) else code  # pymssql: its number and its text

    def codes(self, error: DBAPIError) -> Collection[Any]:
        return (self.code(error), *_numbers(error))


def _numbers(error: DBAPIError) -> Iterator[int]:
    """The server's own, which pyodbc appends to the text of each message: nothing within a text is taken for one."""
    text = str(error.orig.args[-1]) if error.orig is not None and error.orig.args else ""
    *_, first = (None, *_FIRST.finditer(text))
    if first is not None:
        yield int(first[1])
        yield from map(int, _FURTHER.findall(text, first.end()))


def _is_served(pick: Pick) -> bool:
    """Whether the statement that picks rows locks no others."""
    return pick.exact and (pick.index is None or pick.limit <= _FEW)


def _seek(pick: Pick) -> str:
    return "FORCESEEK" if pick.index is None else f"FORCESEEK, INDEX({_QUOTE(pick.index)})"


def _with_row(spec: QueueSpec, columns: Sequence[ColumnElement[Any]]) -> Sequence[ColumnElement[Any]]:
    """With a column that no index has, unless there is one: so that the row is read, and locked, itself.

    A statement that an index covers locks keys of that index and not the rows: whoever comes to a row by another index
    would not see that it is taken.  See the remarks on table hints.
    """
    indexed = {column for index in spec.table.indexes for column in index.columns} | set(spec.primary_key)
    beyond = [column for column in spec.columns.values() if column not in indexed]
    return columns if set(columns) & set(beyond) else (*columns, *beyond[:1])


def _null_first(value: Any) -> tuple[bool, Any]:
    return value is not None, value


def _name_of(connection: Connection, table: Table) -> ColumnElement[str]:
    return literal(live_name(connection, table), Unicode())


def _is_of(connection: Connection, table: Table) -> ColumnElement[bool]:
    return _INDEXES.c.object_id == func.object_id(_name_of(connection, table))
