"""Transactions on SQLite, which has one writer."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy import Connection, Engine, false, update
from sqlalchemy.orm import Session

from ...queue.spec import QueueSpec
from ..parts.transactions import READ_COMMITTED, Transactions

_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|WITH|BEGIN\s+(IMMEDIATE|EXCLUSIVE))\b", re.IGNORECASE)


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
        # SQLite rolls back a failed statement alone; releasing a savepoint could end the transaction
        return nullcontext()

    def level(self, source: Engine | Connection) -> str | None:
        """Return a harmless level, whatever is configured: with one writer, serializable transactions are harmless."""
        return READ_COMMITTED

    def present_level(self, connection: Connection) -> str | None:
        """Return the same level for drivers that autocommit, because the claim begins the transaction itself."""
        return self.level(connection)
