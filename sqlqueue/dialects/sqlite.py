"""SQLite 3.35 and newer."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.orm import Session

from ..queue.findings import Finding, Severity
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.selection import Pick, UniqueBy
from .base import Adapter
from .parts.errors import Errors
from .parts.inserts import Inserts, Replacement, on_conflict
from .parts.keys import Keys
from .parts.locking import Locking
from .parts.plans import Plan, Plans, explain
from .parts.product import Product
from .parts.requests import Answer, Interrupt, Requests
from .parts.schema import Schema
from .parts.server import Server, read_only
from .parts.transactions import READ_COMMITTED, Transactions
from .parts.types import Types

_MOMENT = "%Y-%m-%d %H:%M:%f000"
"""What SQLAlchemy stores, as far as the clock goes: milliseconds."""
_SECONDS = len("2026-01-01 00:00:00")


class SQLite(Adapter):
    """One writer at a time, so a claim needs no lock but that: it makes sure of it before it looks for rows."""

    def __init__(self) -> None:
        product = Product(dialect="sqlite", name="SQLite", minimum=(3, 35), needed="RETURNING")
        super().__init__(
            product,
            types=SQLiteTypes(),
            locking=SQLiteLocking(SQLiteKeys()),
            inserts=SQLiteInserts(product),
            transactions=SQLiteTransactions(product),
            errors=SQLiteErrors(),
            schema=SQLiteSchema(),
            server=SQLiteServer(product),
            plans=SQLitePlans(),
            requests=SQLiteRequests(),
        )


class SQLiteTypes(Types):
    """Moments as text, in UTC."""

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        if seconds is None:
            return func.strftime(_MOMENT, "now")
        return func.strftime(_MOMENT, "now", func.printf("%+.6f seconds", seconds))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return _since_epoch(later) - _since_epoch(earlier)


class SQLiteKeys(Keys):
    """A list of tuples is no reason for it to use an index; and an expression is at most 1,000 deep."""

    tuples: ClassVar[bool] = False
    batch: ClassVar[int] = 500

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(spec.primary_key) > 1 and len(keys) > self.most(spec):
            return self.rows_in(spec.primary_key, keys)  # so many alternatives would be too deep
        return super().key_in(spec, keys)


class SQLiteLocking(Locking):
    """None: there is one writer."""

    one_writer: ClassVar[bool] = True
    passes_over: ClassVar[bool] = True

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        key = pick.spec.primary_key
        # it lets a part of a key be NULL unless the table says otherwise, and such a row cannot be named
        named = () if len(key) == 1 and isinstance(key[0].type, Integer) else (part.is_not(None) for part in key)
        return pick.select(*columns).where(*named).limit(pick.limit)


class SQLiteInserts(Inserts):
    """ON CONFLICT."""

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        return on_conflict(insert(spec.table), by, replace)


class SQLiteTransactions(Transactions):
    """Serializable, which harms nobody where there is one writer."""

    def begin_to_claim(self, connection: Connection, spec: QueueSpec, *, fresh: bool) -> None:
        """Become the writer, waiting for the present one as long as the driver's timeout says.

        A transaction that has only read would have to be upgraded later, which SQLite refuses at once if anybody has
        written in the meantime.
        """
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        elif fresh:
            # the driver (autocommit=False) or a savepoint has begun already, and not to write: to write nothing
            # upgrades it
            connection.execute(update(spec.table).where(false()).values({spec["status"]: spec["status"]}))

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        return nullcontext()  # a statement is undone alone; and the end of a savepoint may be that of the transaction

    def level(self, source: Engine | Connection) -> str | None:
        """Transactions are serializable, which harms nobody where there is one writer; what is asked for is ignored."""
        return READ_COMMITTED

    def present_level(self, connection: Connection) -> str | None:
        """The same with a driver that does not begin by itself, which is just what is needed: the claim begins."""
        return self.level(connection)


class SQLiteErrors(Errors):
    """Codes that are extended, with the primary one in the lowest byte."""

    def __init__(self) -> None:
        super().__init__(
            # busy, locked
            transient=(5, 6),
            # the same, for whoever writes for that long, it is no task's fault; and disk error, disk full, cannot be
            # opened
            outages=(5, 6, 10, 13, 14),
            duplicates=(1555, 2067),
            references=(787, 1811),  # the latter if ON DELETE RESTRICT
        )

    def code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlite_errorcode", None)

    def codes(self, error: DBAPIError) -> Collection[int]:
        code = self.code(error) or 0
        return (code, code & 0xFF)

    def is_outage(self, error: DBAPIError) -> bool:
        return any(code in self.outages for code in self.codes(error))


class SQLiteSchema(Schema):
    """PRAGMA, for what is not reflected."""

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
        # it is in UTC too, and fractions of a second are not worth copying the table
        return super().same_default(dialect, live) or live == "CURRENT_TIMESTAMP"


class SQLiteServer(Server):
    """A file."""

    def absent(self, url: URL) -> str | None:
        path = url.database
        if not path or path == ":memory:" or path.startswith("file:") or os.path.exists(path):
            return None
        return f"there is no file {path}"

    def findings(self, connection: Connection) -> Iterator[Finding]:
        if connection.exec_driver_sql("PRAGMA query_only").scalar():
            yield read_only("this connection may only query", "set PRAGMA query_only to off")
        (path, *_) = connection.exec_driver_sql("PRAGMA database_list").scalars("file")
        if not path:
            return  # in memory
        if connection.engine.url.query.get("mode") == "ro":
            yield read_only("the URL says mode=ro", "leave it out")
        for needed in (path, os.path.dirname(path)):  # the journal is a file beside it
            if not os.access(needed, os.W_OK):
                yield read_only(f"{needed} cannot be written", "give this user the right to write it")
        if (mode := connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()) != "wal":
            yield Finding(
                severity=Severity.WARNING,
                code="journal-mode",
                message=f"the journal mode is {mode}, in which readers make claims wait, and claims readers",
                fix="once, with any SQLite client: PRAGMA journal_mode = WAL",
            )


class SQLitePlans(Plans):
    """EXPLAIN QUERY PLAN."""

    def of(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> Plan | None:
        if forced:
            return None
        steps = explain(connection, "EXPLAIN QUERY PLAN", statement).scalars("detail").all()
        used = (step.partition(" INDEX ")[2].partition(" ")[0] for step in steps)
        return Plan(indexes=frozenset(filter(None, used)), sorted=sum("TEMP B-TREE" in step for step in steps))


class SQLiteRequests(Requests):
    """Ends a statement from another thread, and reads any bytes for text."""

    def interruption(self, connection: Connection) -> Interrupt:
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.interrupt()

    @contextmanager
    def answer(self, connection: Connection, request: str) -> Iterator[Answer]:
        driver: Any = connection.connection.driver_connection
        driver.text_factory = lambda text: text.decode(errors="replace")  # it may be any bytes
        try:
            with super().answer(connection, request) as answer:
                yield answer
        except sqlite3.Warning as error:  # before Python 3.12, for more than one statement
            raise ProgrammingError(request, None, error) from error


def _since_epoch(moment: ColumnElement[Any]) -> ColumnElement[int]:
    """In microseconds.  SQLite's own functions would round to a millisecond, and to the next second."""
    whole = cast(func.strftime("%s", func.substr(moment, 1, _SECONDS)), BigInteger)
    fraction = cast(func.substr(moment, _SECONDS + 2), BigInteger)
    return whole * literal_column("1000000") + fraction
