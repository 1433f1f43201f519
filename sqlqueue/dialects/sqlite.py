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
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.orm import Session

from ..queue.findings import Finding, Severity
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql.selection import Pick, UniqueBy
from .base import READ_COMMITTED, Adapter, Replacement
from .health import Plan, explain, read_only
from .requests import Answer, Interrupt

_MOMENT = "%Y-%m-%d %H:%M:%f000"
"""What SQLAlchemy stores, as far as the clock goes: milliseconds."""
_SECONDS = len("2026-01-01 00:00:00")


class SQLite(Adapter):
    """One writer at a time, so a claim needs no lock but that: it makes sure of it before it looks for rows."""

    name = "sqlite"
    product = "SQLite"
    minimum: ClassVar[tuple[int, ...]] = (3, 35)
    needed = "RETURNING"
    one_writer: ClassVar[bool] = True
    passes_over: ClassVar[bool] = True
    # a list of tuples is no reason for it to use an index; and an expression is at most 1,000 deep
    tuples: ClassVar[bool] = False
    batch: ClassVar[int] = 500
    partial_index: ClassVar[str | None] = "sqlite_where"
    alters_defaults: ClassVar[bool] = False
    lasting_keys: ClassVar[Mapping[str, Any]] = {"sqlite_autoincrement": True}
    # busy, locked
    transient: ClassVar[Collection[int]] = (5, 6)
    # the same, for whoever writes for that long, it is no task's fault; and disk error, disk full, cannot be opened
    outages: ClassVar[Collection[int]] = (5, 6, 10, 13, 14)

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        if seconds is None:
            return func.strftime(_MOMENT, "now")
        return func.strftime(_MOMENT, "now", func.printf("%+.6f seconds", seconds))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return _since_epoch(later) - _since_epoch(earlier)

    def connect(
        self, session: Session, spec: QueueSpec, *, fresh: bool, claims: bool, meets: bool = False
    ) -> Connection:
        connection = super().connect(session, spec, fresh=fresh, claims=claims, meets=meets)
        if claims:
            _begin_immediate(connection, spec, fresh=fresh)
        return connection

    def level(self, source: Engine | Connection) -> str | None:
        """Transactions are serializable, which harms nobody where there is one writer; what is asked for is ignored."""
        return READ_COMMITTED

    def present_level(self, connection: Connection) -> str | None:
        """The same with a driver that does not begin by itself, which is just what is needed: the claim begins."""
        return self.level(connection)

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(spec.primary_key) > 1 and len(keys) > self.most(spec):
            return self.rows_in(spec.primary_key, keys)  # so many alternatives would be too deep
        return super().key_in(spec, keys)

    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        key = pick.spec.primary_key
        # it lets a part of a key be NULL unless the table says otherwise, and such a row cannot be named
        named = () if len(key) == 1 and isinstance(key[0].type, Integer) else (part.is_not(None) for part in key)
        return pick.select(*columns).where(*named).limit(pick.limit)

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        return nullcontext()  # a statement is undone alone; and the end of a savepoint may be that of the transaction

    def upsert(self, spec: QueueSpec, by: UniqueBy, replace: Replacement | None) -> Insert | None:
        statement = insert(spec.table)
        if replace is None:
            return statement.on_conflict_do_nothing(index_elements=list(by.columns), index_where=by.predicate)
        return statement.on_conflict_do_update(
            index_elements=list(by.columns),
            index_where=by.predicate,
            set_={column.name: value for column, value in replace(lambda name: statement.excluded[name])},
        )

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

    def absent(self, url: URL) -> str | None:
        path = url.database
        if not path or path == ":memory:" or path.startswith("file:") or os.path.exists(path):
            return None
        return f"there is no file {path}"

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
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

    def plan(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> Plan | None:
        if forced:
            return None
        steps = explain(connection, "EXPLAIN QUERY PLAN", statement).scalars("detail").all()
        used = (step.partition(" INDEX ")[2].partition(" ")[0] for step in steps)
        return Plan(indexes=frozenset(filter(None, used)), sorted=sum("TEMP B-TREE" in step for step in steps))

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

    def is_duplicate(self, error: IntegrityError) -> bool:
        return self.code(error) in (1555, 2067)

    def is_referenced(self, error: IntegrityError) -> bool:
        return self.code(error) in (787, 1811)  # the latter if ON DELETE RESTRICT

    def code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlite_errorcode", None)

    def codes(self, error: DBAPIError) -> Collection[int]:
        return ((self.code(error) or 0) & 0xFF,)  # the lowest byte of an extended code

    def is_outage(self, error: DBAPIError) -> bool:
        return any(code in self.outages for code in self.codes(error))


def _since_epoch(moment: ColumnElement[Any]) -> ColumnElement[int]:
    """In microseconds.  SQLite's own functions would round to a millisecond, and to the next second."""
    whole = cast(func.strftime("%s", func.substr(moment, 1, _SECONDS)), BigInteger)
    fraction = cast(func.substr(moment, _SECONDS + 2), BigInteger)
    return whole * literal_column("1000000") + fraction


def _begin_immediate(connection: Connection, spec: QueueSpec, *, fresh: bool) -> None:
    """Become the writer, waiting for the present one as long as the driver's timeout says.

    A transaction that has only read would have to be upgraded later, which SQLite refuses at once if anybody has
    written in the meantime.
    """
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif fresh:
        # the driver (autocommit=False) or a savepoint has begun already, and not to write: to write nothing upgrades it
        connection.execute(update(spec.table).where(false()).values({spec["status"]: spec["status"]}))
