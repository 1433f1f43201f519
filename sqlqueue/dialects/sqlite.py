"""SQLite 3.35 and newer."""

from __future__ import annotations

import os
import re
import sqlite3
import time
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Insert,
    Integer,
    Select,
    Table,
    cast,
    column,
    false,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy import table as source
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedIndex
from sqlalchemy.exc import DatabaseError, DBAPIError, NotSupportedError, OperationalError, ProgrammingError, SAWarning
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateColumn

from ..queue.spec import Criterion, Finding, Identity, QueueSpec, Severity
from ..sql import Pick, UniqueBy
from .base import Adapter
from .connections import Connections, Interrupt, StatementResult
from .inspection import Inspection, LiveIndex, QueryPlan, Types, explain, read_only
from .naming import Product
from .statements import ClaimRequest, Replacement, Rows, Unreadable, on_conflict

# -- the types of columns on SQLite, and its clock --------------------------------------------------------------------

_MOMENT: ColumnElement[str] = literal_column("'%Y-%m-%d %H:%M:%f000'")
"""The format in which SQLAlchemy stores times; the clock has milliseconds."""
_NOW: ColumnElement[str] = literal_column("'now'")

_SECONDS = len("2026-01-01 00:00:00")


class SQLiteTypes(Types):
    """Times as text in UTC, and INTEGER keys, the only ones that SQLite generates."""

    serial = Integer()

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        if seconds is None:
            return func.strftime(_MOMENT, _NOW)
        return func.strftime(_MOMENT, _NOW, func.printf(literal_column("'%+.6f seconds'"), seconds))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return _since_epoch(later) - _since_epoch(earlier)


def _since_epoch(moment: ColumnElement[Any]) -> ColumnElement[int]:
    """Return a time in microseconds since the epoch.  SQLite's functions would round to milliseconds or seconds."""
    whole = cast(func.strftime("%s", func.substr(moment, 1, _SECONDS)), BigInteger)
    fraction = cast(func.substr(moment, _SECONDS + 2), BigInteger)
    return whole * literal_column("1000000") + fraction


# -- rows on SQLite, where the only lock is that of the writer, which is the lock of the whole database ---------------


def _is_counted(session: Session, request: ClaimRequest, task: Any) -> bool:
    """Return whether the numbers of a task are numbers; if not, its row cannot be read."""
    spec = request.pick.spec
    for role in ("attempt", "claim_token"):
        value = getattr(task, spec.attributes[role])
        if not isinstance(value, int):
            error = TypeError(f"{role} is {value!r}, which is not an integer")
            request.unreadable.append(Unreadable(spec.identity_of(task), error))
            session.expunge(task)
            return False
    return True


class SQLiteRows(Rows):
    """No row locks: there is one writer.  Upserts with ON CONFLICT."""

    skips_locked = True
    hides_criteria = True
    walks_keys = True
    # lists of tuples do not use an index, and expressions are at most 1,000 levels deep
    seeks_tuples = False
    batch = 500

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(spec.primary_key) > 1 and len(keys) > self.most(spec):
            return self.rows_in(spec, spec.primary_key, keys)  # more ORs would exceed the expression depth
        return super().key_in(spec, keys)

    def select_locking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        key = pick.spec.primary_key
        # primary key columns can be NULL unless declared otherwise, and such a row cannot be selected by its key
        named = () if len(key) == 1 and isinstance(key[0].type, Integer) else (part.is_not(None) for part in key)
        return pick.select(*columns).where(*named).limit(pick.limit)

    def is_free(self, session: Session, pick: Pick) -> bool:
        connection = session.connection(pick.spec.bind_arguments)
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except OperationalError as error:
            if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    def load_claimed(self, session: Session, request: ClaimRequest, identities: Sequence[Identity]) -> list[Any]:
        """Load the instances, but for rows whose numbers are texts; an assignment makes numbers of them."""
        tasks = super().load_claimed(session, request, identities)
        return tasks if request.assignments else [task for task in tasks if _is_counted(session, request, task)]

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        return on_conflict(insert(spec.table), by, replace)


# -- code for revisions that changes the defaults of columns on SQLite, which has no statement for it -----------------
#
# A copy of the table, as in Alembic's batch mode, is no substitute. It ends with a DROP TABLE, which deletes or
# changes the rows that refer to the table, and foreign keys cannot be disabled within a transaction. It also loses
# triggers, indexes on expressions, CHECK constraints and collations. SQLite's documentation describes another way: to
# edit the definition, which the database stores as text (https://www.sqlite.org/lang_altertable.html#otheralter).

DEFINITION_DIALECT = "sqlite"
_DIALECT = sqlite.dialect()

# rows that are older than a column store no value for it, and have the column's present default
_FUNCTION = """\
def set_sqlite_defaults(table, defaults, schema='main'):
    # SQLite cannot change a default, and a copy of the table would lose rows that refer to it, triggers and more. So
    # each row is written, without triggers, which keeps its values, and then the stored definition is edited.
    what = f"the defaults of {', '.join(defaults)} in {table}"
    if op.get_context().as_sql:
        raise NotImplementedError(f'changing {what} on SQLite needs a connection: run the upgrade without --sql')
    execute, quote = op.get_bind().exec_driver_sql, op.get_context().dialect.identifier_preparer.quote
    owner, column = quote(schema), quote(next(iter(defaults)))
    mine = "type = 'trigger' AND tbl_name = ? COLLATE NOCASE"
    triggers = execute(f'SELECT name, sql FROM {owner}.sqlite_master WHERE {mine}', (table,)).all()
    for name, _ in triggers:
        execute(f'DROP TRIGGER {owner}.{quote(name)}')
    execute(f'UPDATE {owner}.{quote(table)} SET {column} = {column}')
    for _, create in triggers:
        execute(create.replace('CREATE TRIGGER ', f'CREATE TRIGGER {owner}.', 1))
    described = 'SELECT name, type, "notnull", pk, hidden, dflt_value FROM pragma_table_xinfo(?, ?)'
    columns = execute(described, (table, schema)).all()
    mine = "type = 'table' AND name = ? COLLATE NOCASE"
    definition = execute(f'SELECT sql FROM {owner}.sqlite_master WHERE {mine}', (table,)).scalar_one()
    for name, *_, live in columns:
        if name in defaults:
            pattern = r'(?is)([\\s,(]["`\\[]?%s["`\\]]?\\s[^,]*?)\\sDEFAULT\\s*(\\()?%s(?(2)\\s*\\))(?!\\w)'
            pattern %= re.escape(name), re.escape(str(live))
            clause = '' if defaults[name] is None else f' DEFAULT ({defaults[name]})'
            definition = re.sub(pattern, lambda found: found[1] + clause, definition, count=1)
    version = execute(f'PRAGMA {owner}.schema_version').scalar_one()
    execute('PRAGMA writable_schema = ON')
    execute(f'UPDATE {owner}.sqlite_master SET sql = ? WHERE {mine}', (definition, table))
    execute(f'PRAGMA {owner}.schema_version = {version + 1}')
    execute('PRAGMA writable_schema = RESET')
    meant = [(name, *rest, defaults.get(name, live)) for name, *rest, live in columns]
    missing = defaults.keys() - {name for name, *_ in columns}
    if missing or meant != list(map(tuple, execute(described, (table, schema)))):
        raise RuntimeError(f'cannot change {what}: the definition of the table is unusual. Nothing is changed')
"""


def defaults_function(op: str) -> str:
    """Return the source of ``set_sqlite_defaults``, for a revision that imports ``re``.

    ``op`` is the prefix of Alembic's operations.  The function raises an error if the result is not as intended, and
    relies on the transaction to undo it.
    """
    return "\n\n" + _FUNCTION.replace("op.get_", f"{op}get_")


def setting_defaults(table: Table, columns: Iterable[Column[object]]) -> str:
    """Return the call of ``set_sqlite_defaults`` that gives ``columns`` of ``table`` their declared defaults."""
    schema = f", {table.schema!r}" if table.schema else ""
    return f"set_sqlite_defaults({table.name!r}, { {column.name: _default(column) for column in columns} }{schema})"


def _default(column: Column[object]) -> str | None:
    """Return a default as the database reports it: an expression without its parentheses."""
    compiled = CreateColumn(Column("x", Integer(), server_default=column.server_default)).compile(dialect=_DIALECT)
    _, _, default = str(compiled).partition(" DEFAULT ")
    return (default[1:-1] if default.startswith("(") else default) or None


# -- reads indexes and defaults from a SQLite database ----------------------------------------------------------------


class SQLiteInspection(Inspection):
    """Reads with PRAGMA what SQLAlchemy does not reflect, and checks the database file."""

    partial_index = "sqlite_where"
    lasting_keys: ClassVar[Mapping[str, Any]] = {"sqlite_autoincrement": True}

    def locks_elsewhere(self, connection: Connection) -> bool:
        return True

    def live_indexes(self, connection: Connection, table: Table) -> dict[str, LiveIndex]:
        with warnings.catch_warnings():
            # no queue needs an index on an expression
            skipped = "Skipped unsupported reflection of expression-based index"
            warnings.filterwarnings("ignore", skipped, SAWarning)
            return super().live_indexes(connection, table)

    def descending(
        self, connection: Connection, table: Table, reflected: Collection[ReflectedIndex]
    ) -> Collection[tuple[Any, str]]:
        found: set[tuple[Any, str]] = set()
        for index in reflected:
            schema = connection.schema_for_object(table)
            where = [index["name"], *([schema] if schema else [])]
            term = func.pragma_index_xinfo(*where).table_valued("name", "desc")
            found.update(
                (index["name"], name) for name in connection.scalars(select(term.c.name).where(term.c.desc == 1))
            )
        return found

    def index_names(self, connection: Connection, table: Table) -> Collection[str]:
        schema = connection.schema_for_object(table)
        named = func.pragma_index_list(table.name, *([schema] if schema else [])).table_valued("name")
        return connection.scalars(select(named.c.name)).all()

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str]:
        names = ("type", "name", "tbl_name")
        master = source("sqlite_master", *map(column, names), schema=connection.schema_for_object(table))
        mine = (master.c.type == "trigger") & (func.lower(master.c.tbl_name) == func.lower(table.name))
        return connection.scalars(select(master.c.name).where(mine)).all()

    def same_default(self, dialect: Dialect, live: str) -> bool:
        # CURRENT_TIMESTAMP is in UTC as well; fractions of a second do not justify writing each row
        return super().same_default(dialect, live) or live == "CURRENT_TIMESTAMP"

    def plan(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> QueryPlan | None:
        if forced:
            return None
        steps = explain(connection, "EXPLAIN QUERY PLAN", statement).scalars("detail").all()
        used = (step.partition(" INDEX ")[2].partition(" ")[0] for step in steps)
        return QueryPlan(indexes=frozenset(filter(None, used)), sorted=sum("TEMP B-TREE" in step for step in steps))

    def absent(self, url: URL) -> str | None:
        path = url.database
        if not path or path == ":memory:" or path.startswith("file:") or os.path.exists(path):
            return None
        return f"the file {path} does not exist"

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        if connection.exec_driver_sql("PRAGMA query_only").scalar():
            yield read_only("query_only is set on this connection", "set PRAGMA query_only to off")
        (path, *_) = connection.exec_driver_sql("PRAGMA database_list").scalars("file")
        if not path or connection.engine.url.query.get("vfs") == "memdb":
            return  # in memory
        if connection.engine.url.query.get("mode") == "ro":
            yield read_only("the URL says mode=ro", "leave it out")
        for needed in (path, os.path.dirname(path)):  # the journal is a file in the same directory
            if not os.access(needed, os.W_OK):
                yield read_only(f"{needed} is not writable", "give this user write permission")
        if (mode := connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()) != "wal":
            message = f"the journal mode is {mode}, in which readers block claims, and claims block readers"
            fix = "run once, with any SQLite client: PRAGMA journal_mode = WAL"
            yield Finding.of(None, Severity.WARNING, "journal-mode", message, fix)

    def unindexed_reference(self, connection: Connection) -> str | None:
        is_enforced = connection.exec_driver_sql("PRAGMA foreign_keys").scalar()
        return super().unindexed_reference(connection) if is_enforced else None


# -- transactions on SQLite, which has one writer, and SQL tasks ------------------------------------------------------

_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|WITH|BEGIN\s+(IMMEDIATE|EXCLUSIVE))\b", re.IGNORECASE)
_INSTRUCTIONS = 10_000
"""Instructions of SQLite's virtual machine between two calls of a progress handler: well under a millisecond."""
_BEYOND_THE_CONNECTION = frozenset(
    {
        # of the file, for all programs
        *("journal_mode", "schema_version", "writable_schema"),
        # of all connections of this process
        *("data_store_directory", "hard_heap_limit", "soft_heap_limit", "temp_store_directory"),
    }
)
"""PRAGMAs with an effect on others."""


def _authorize(refused: list[str], action: int, name: str | None, setting: str | None, *_: object) -> int:
    """Refuse an action that opens another file, as ATTACH and VACUUM INTO do, or has an effect on others."""
    if action == sqlite3.SQLITE_ATTACH and name != "":  # VACUUM attaches a temporary database, which has no name
        refused.append("ATTACH or VACUUM INTO, which open files of the worker's host")
    elif action == sqlite3.SQLITE_PRAGMA and setting is not None and str(name).lower() in _BEYOND_THE_CONNECTION:
        refused.append(f"PRAGMA {name}, which affects others")
    else:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _set_progress_handler(connection: Connection, handler: Callable[[], bool] | None) -> None:
    adapted: Any = connection.connection.dbapi_connection
    if hasattr(adapted, "run_async"):  # the asyncio driver uses its own thread
        adapted.run_async(lambda driver: driver.set_progress_handler(handler, _INSTRUCTIONS))
    else:
        adapted.set_progress_handler(handler, _INSTRUCTIONS)


class SQLiteConnections(Connections):
    """Transactions are serializable, which is harmless with one writer.  There is no network: a call waits only for
    another writer, until the driver's timeout.  Extended result codes contain the primary code in the lowest byte.

    SQL tasks are interrupted from another thread, read text that is not valid UTF-8, and open no files but the
    database's own.
    """

    one_writer = True
    has_network = False
    transient_errors = (5, 6)  # busy, locked
    outage_errors = (10, 13, 14)  # disk error, disk full, cannot be opened
    duplicate_errors = (1555, 2067)
    read_only_errors = (8,)
    reference_errors = (787, 1811)  # 1811 with ON DELETE RESTRICT

    def error_code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlite_errorcode", None)

    def error_codes(self, error: DBAPIError) -> Collection[int]:
        code = self.error_code(error) or 0
        return (code, code & 0xFF)

    def has_lost(self, error: DBAPIError) -> bool:
        return any(code in self.outage_errors for code in self.error_codes(error))

    def begin_to_claim(self, connection: Connection, spec: QueueSpec, *, fresh: bool) -> None:
        """Become the writer; wait for the current one as long as the driver's timeout allows.

        A transaction that starts by reading would have to be upgraded later, which SQLite rejects at once if another
        transaction has written in the meantime.
        """
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        elif fresh:
            # the driver (autocommit=False) or a savepoint has begun a transaction that does not write yet: an UPDATE
            # of no rows upgrades it
            connection.execute(update(spec.table).where(false()).values({spec["status"]: spec["status"]}))

    def single_writer(self, engine: Engine) -> Hashable | None:
        return None if engine.url.database is None else os.path.realpath(engine.url.database)

    def begins_to_write(self, statement: str) -> bool:
        return _WRITES.match(statement) is not None

    def before_disconnect(self, connection: Connection, cursor: Any) -> None:
        """End the transaction: closing does not.

        With an unfinished statement, such as an UPDATE ... RETURNING whose rows nobody has fetched, sqlite3_close_v2()
        keeps the connection and its locks until the statement is finalized (https://www.sqlite.org/c3ref/close.html).
        Whatever refers to the exception, and so to the cursor, delays that.
        """
        # aiosqlite performs calls in the order of their requests, even if another cancellation ends the wait for them
        with suppress(Exception):
            try:
                if cursor is not None:
                    cursor.close()
            finally:
                connection.connection.rollback()

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        # SQLite rolls back a failed statement alone; releasing a savepoint could end the transaction
        return nullcontext()

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        """Limit the time of all statements together until :meth:`lift_time_limit`."""
        end = time.monotonic() + timeout.total_seconds()
        _set_progress_handler(connection, lambda: time.monotonic() > end)

    def lift_time_limit(self, connection: Connection) -> None:
        _set_progress_handler(connection, None)

    def interruption(self, connection: Connection) -> Interrupt:
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.interrupt()

    @contextmanager
    def answer(self, connection: Connection, request: str) -> Iterator[StatementResult]:
        driver: Any = connection.connection.driver_connection
        driver.text_factory = lambda text: text.decode(errors="replace")  # stored text can be any bytes
        refused: list[str] = []
        driver.set_authorizer(partial(_authorize, refused))
        try:
            with super().answer(connection, request) as answer:
                yield answer
        except sqlite3.Warning as error:  # several statements, before Python 3.12
            raise ProgrammingError(request, None, error) from error
        except DatabaseError as error:
            if not refused:
                raise
            reason = sqlite3.NotSupportedError(f"a request cannot use {refused[0]}")
            raise NotSupportedError(request, None, reason) from error


# -- SQLite's adapter -------------------------------------------------------------------------------------------------


class SQLite(Adapter):
    """SQLite.  It allows one writer at a time, so a claim becomes the writer before it reads, and locks no rows."""

    product = Product(dialect="sqlite", name="SQLite", minimum=(3, 35), needed="RETURNING")
    parts = (SQLiteTypes, SQLiteRows, SQLiteConnections, SQLiteInspection)
