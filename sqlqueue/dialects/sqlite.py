"""SQLite 3.35 and newer."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Insert,
    Integer,
    Select,
    Table,
    cast,
    false,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedIndex
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from ..queue.findings import Finding, Severity
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.selection import Pick, UniqueBy
from .base import Adapter
from .parts.claims import Claims
from .parts.errors import Errors
from .parts.inserts import Inserts, Replacement, on_conflict
from .parts.keys import Keys
from .parts.locking import Locking
from .parts.network import Network
from .parts.plans import Plan, Plans, explain
from .parts.product import Product
from .parts.requests import Answer, Interrupt, Requests
from .parts.schema import Schema
from .parts.server import Server, read_only
from .parts.transactions import READ_COMMITTED, Transactions
from .parts.types import Types

_MOMENT = "%Y-%m-%d %H:%M:%f000"
"""The format in which SQLAlchemy stores times; the clock has milliseconds."""
_SECONDS = len("2026-01-01 00:00:00")
_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|WITH|BEGIN\s+(IMMEDIATE|EXCLUSIVE))\b", re.IGNORECASE)


class SQLite(Adapter):
    """SQLite.  It allows one writer at a time, so a claim becomes the writer before it reads, and locks no rows."""

    def __init__(self) -> None:
        product = Product(dialect="sqlite", name="SQLite", minimum=(3, 35), needed="RETURNING")
        super().__init__(
            product,
            types=SQLiteTypes(),
            locking=SQLiteLocking(SQLiteKeys()),
            claims=SQLiteClaims,
            inserts=SQLiteInserts(product),
            transactions=SQLiteTransactions(product),
            errors=SQLiteErrors(),
            schema=SQLiteSchema(),
            server=SQLiteServer(product),
            plans=SQLitePlans(),
            requests=SQLiteRequests(),
            network=SQLiteNetwork(),
        )


class SQLiteTypes(Types):
    """Times are text, in UTC, and only a key of the type INTEGER is generated."""

    serial: ClassVar[TypeEngine[Any] | None] = Integer()

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        if seconds is None:
            return func.strftime(_MOMENT, "now")
        return func.strftime(_MOMENT, "now", func.printf("%+.6f seconds", seconds))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return _since_epoch(later) - _since_epoch(earlier)


class SQLiteKeys(Keys):
    """Lists of tuples do not use an index, and expressions can be at most 1,000 levels deep."""

    tuples: ClassVar[bool] = False
    batch: ClassVar[int] = 500

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(spec.primary_key) > 1 and len(keys) > self.most(spec):
            return self.rows_in(spec.primary_key, keys)  # so many ORs would exceed the expression depth
        return super().key_in(spec, keys)


class SQLiteLocking(Locking):
    """No row locks: there is one writer."""

    one_writer: ClassVar[bool] = True
    passes_over: ClassVar[bool] = True

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        key = pick.spec.primary_key
        # primary key columns can be NULL unless declared otherwise, and such a row cannot be selected by its key
        named = () if len(key) == 1 and isinstance(key[0].type, Integer) else (part.is_not(None) for part in key)
        return pick.select(*columns).where(*named).limit(pick.limit)


class SQLiteClaims(Claims):
    """The lock of a row is that of the whole database."""

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


class SQLiteInserts(Inserts):
    """Upserts with ON CONFLICT."""

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        return on_conflict(insert(spec.table), by, replace)


class SQLiteTransactions(Transactions):
    """Transactions are serializable, which is harmless with one writer."""

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

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        return nullcontext()  # a failed statement is undone alone; releasing a savepoint could end the transaction

    def level(self, source: Engine | Connection) -> str | None:
        """Return a harmless level whatever is configured: with one writer, serializable transactions are harmless."""
        return READ_COMMITTED

    def present_level(self, connection: Connection) -> str | None:
        """Return the same for drivers that autocommit: the claim begins the transaction itself."""
        return self.level(connection)


class SQLiteErrors(Errors):
    """Extended result codes, which contain the primary code in the lowest byte."""

    def __init__(self) -> None:
        super().__init__(
            # busy, locked
            transient=(5, 6),
            # disk error, disk full, cannot be opened
            outages=(10, 13, 14),
            duplicates=(1555, 2067),
            references=(787, 1811),  # 1811 with ON DELETE RESTRICT
        )

    def code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlite_errorcode", None)

    def codes(self, error: DBAPIError) -> Collection[int]:
        code = self.code(error) or 0
        return (code, code & 0xFF)

    def is_outage(self, error: DBAPIError) -> bool:
        return any(code in self.outages for code in self.codes(error))


class SQLiteSchema(Schema):
    """Reads with PRAGMA what SQLAlchemy does not reflect."""

    partial_index: ClassVar[str | None] = "sqlite_where"
    alters_defaults: ClassVar[bool] = False
    lasting_keys: ClassVar[Mapping[str, Any]] = {"sqlite_autoincrement": True}

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

    def same_default(self, dialect: Dialect, live: str) -> bool:
        # CURRENT_TIMESTAMP is in UTC as well; fractions of a second do not justify copying the table
        return super().same_default(dialect, live) or live == "CURRENT_TIMESTAMP"


class SQLiteServer(Server):
    """A database file."""

    def absent(self, url: URL) -> str | None:
        path = url.database
        if not path or path == ":memory:" or path.startswith("file:") or os.path.exists(path):
            return None
        return f"the file {path} does not exist"

    def findings(self, connection: Connection) -> Iterator[Finding]:
        if connection.exec_driver_sql("PRAGMA query_only").scalar():
            yield read_only("query_only is set on this connection", "set PRAGMA query_only to off")
        (path, *_) = connection.exec_driver_sql("PRAGMA database_list").scalars("file")
        if not path:
            return  # in memory
        if connection.engine.url.query.get("mode") == "ro":
            yield read_only("the URL says mode=ro", "leave it out")
        for needed in (path, os.path.dirname(path)):  # the journal is a file in the same directory
            if not os.access(needed, os.W_OK):
                yield read_only(f"{needed} is not writable", "give this user write permission")
        if (mode := connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()) != "wal":
            yield Finding(
                severity=Severity.WARNING,
                code="journal-mode",
                message=f"the journal mode is {mode}, in which readers block claims, and claims block readers",
                fix="run once, with any SQLite client: PRAGMA journal_mode = WAL",
            )


class SQLitePlans(Plans):
    """Plans from EXPLAIN QUERY PLAN."""

    def of(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> Plan | None:
        if forced:
            return None
        steps = explain(connection, "EXPLAIN QUERY PLAN", statement).scalars("detail").all()
        used = (step.partition(" INDEX ")[2].partition(" ")[0] for step in steps)
        return Plan(indexes=frozenset(filter(None, used)), sorted=sum("TEMP B-TREE" in step for step in steps))


class SQLiteNetwork(Network):
    """Return ``None``: a wait on SQLite is for another writer, until the driver's timeout."""

    is_there: ClassVar[bool] = False


class SQLiteRequests(Requests):
    """Interrupts statements from another thread, and reads text that is not valid UTF-8."""

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        """Limit the time of all statements together until :meth:`lift_limit`."""
        end = time.monotonic() + timeout.total_seconds()
        _set_progress_handler(connection, lambda: time.monotonic() > end)

    def lift_limit(self, connection: Connection) -> None:
        _set_progress_handler(connection, None)

    def interruption(self, connection: Connection) -> Interrupt:
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.interrupt()

    @contextmanager
    def answer(self, connection: Connection, request: str) -> Iterator[Answer]:
        driver: Any = connection.connection.driver_connection
        driver.text_factory = lambda text: text.decode(errors="replace")  # stored text can be any bytes
        try:
            with super().answer(connection, request) as answer:
                yield answer
        except sqlite3.Warning as error:  # several statements, before Python 3.12
            raise ProgrammingError(request, None, error) from error


_INSTRUCTIONS = 10_000
"""Instructions of SQLite's virtual machine between two calls of a progress handler: well under a millisecond."""


def _set_progress_handler(connection: Connection, handler: Callable[[], bool] | None) -> None:
    adapted: Any = connection.connection.dbapi_connection
    if hasattr(adapted, "run_async"):  # asyncio's driver works in a thread of its own
        adapted.run_async(lambda driver: driver.set_progress_handler(handler, _INSTRUCTIONS))
    else:
        adapted.set_progress_handler(handler, _INSTRUCTIONS)


def _since_epoch(moment: ColumnElement[Any]) -> ColumnElement[int]:
    """Return a time in microseconds since the epoch.  SQLite's functions would round to milliseconds or seconds."""
    whole = cast(func.strftime("%s", func.substr(moment, 1, _SECONDS)), BigInteger)
    fraction = cast(func.substr(moment, _SECONDS + 2), BigInteger)
    return whole * literal_column("1000000") + fraction
