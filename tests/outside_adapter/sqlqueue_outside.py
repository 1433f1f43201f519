"""An engine from another package: a dialect, and an adapter for queues on it. It uses no adapter that comes with
sqlqueue.  The engine behind it is SQLite's library.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, cast, func, literal_column
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqlqueue import Finding
from sqlqueue.dialects.base import Adapter
from sqlqueue.dialects.connections import Connections
from sqlqueue.dialects.inspection import Inspection, Types, read_only
from sqlqueue.dialects.naming import Product
from sqlqueue.dialects.statements import Rows
from sqlqueue.queue.spec import QueueSpec
from sqlqueue.sql import Pick


class OutsideDialect(SQLiteDialect_pysqlite):
    name = "outside"
    supports_statement_cache = True
    construct_arguments = SQLiteDialect_pysqlite.construct_arguments


class OutsideTypes(Types):
    """Types in which times are text of 26 characters, as stored by SQLAlchemy."""

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        later = [] if seconds is None else [func.printf("%+.6f seconds", seconds)]
        return func.strftime("%Y-%m-%d %H:%M:%f000", "now", *later)

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return _since_epoch(later) - _since_epoch(earlier)


def _since_epoch(moment: ColumnElement[Any]) -> ColumnElement[int]:
    whole = cast(func.strftime("%s", func.substr(moment, 1, 19)), BigInteger)
    return whole * literal_column("1000000") + cast(func.substr(moment, 21), BigInteger)


class OutsideRows(Rows):
    """No rows have to be skipped, since there is one writer."""

    skips_locked = True
    # expressions are at most 1,000 levels deep
    batch = 500
    seeks_tuples = False

    def select_locking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        return pick.select(*columns).limit(pick.limit)


class OutsideConnections(Connections):
    """Extended error codes, whose lowest byte is the primary code, and serializable transactions, one after the
    other."""

    one_writer = True
    transient_errors = (5, 6)
    outage_errors = (10, 13, 14)
    duplicate_errors = (1555, 2067)
    reference_errors = (787, 1811)

    def error_code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlite_errorcode", None)

    def error_codes(self, error: DBAPIError) -> Collection[Any]:
        code = self.error_code(error) or 0
        return (code, code & 0xFF)

    def begin_to_claim(self, connection: Connection, spec: QueueSpec, *, fresh: bool) -> None:
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        return nullcontext()  # only the failed statement is undone


class OutsideInspection(Inspection):
    """A database file, which may not be writable."""

    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        path = connection.engine.url.database
        if path and not os.access(path, os.W_OK):
            yield read_only(f"{path} cannot be written", "give this user the right to write it")


class Outside(Adapter):
    """An adapter without upserts, partial indexes, plans, notifications and other optional features."""

    product = Product(dialect="outside", name="Outside", minimum=(3, 35), needed="RETURNING")
    parts = (OutsideTypes, OutsideRows, OutsideConnections, OutsideInspection)
