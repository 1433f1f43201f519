"""Transactions of an engine: isolation levels, savepoints, and how they begin."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Collection, Hashable
from contextlib import AbstractContextManager
from typing import ClassVar

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import Session

from ..._support.errors import SQLQueueWarning, UnsupportedIsolationError
from ...queue.spec import QueueSpec
from .product import Product

READ_COMMITTED = "READ COMMITTED"
AUTOCOMMIT = "AUTOCOMMIT"


class Transactions:
    """Standard SQL isolation levels and savepoints."""

    changes_unseen: ClassVar[bool] = False
    """Whether a transaction with an old snapshot can change rows committed since, instead of failing."""
    ends_with_error: ClassVar[bool] = False
    """Whether an error ends the transaction, unless it is rolled back to a savepoint."""
    harmless_levels: ClassVar[Collection[str]] = (READ_COMMITTED, "READ UNCOMMITTED")
    """Isolation levels at which a claim neither fails because of other transactions nor blocks them."""
    impatient: ClassVar[str | None] = None
    """The statement that limits a session's wait for locks to one second."""
    refused_levels: ClassVar[Collection[str]] = ()
    """Isolation levels at which the engine rejects a claim, or a claim would be wrong."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self._warned: weakref.WeakSet[Dialect] = weakref.WeakSet()

    def begin_to_claim(self, connection: Connection, spec: QueueSpec, *, fresh: bool) -> None:
        """Prepare a transaction for a claim.  ``fresh``: nothing has been sent in it yet."""

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        """Return a context in which a statement can fail without affecting the rest of the transaction."""
        return session.begin_nested()

    def single_writer(self, engine: Engine) -> Hashable | None:
        """Return a key for the database, if only one transaction at a time writes to it; otherwise ``None``."""
        return None

    def begins_to_write(self, statement: str) -> bool:
        """Return whether ``statement`` makes its transaction the single writer, if it is not already."""
        return False

    def level(self, source: Engine | Connection) -> str | None:
        """Return the isolation level of transactions, as far as it is known without querying the server."""
        # the server's default is known once the first connection has been opened
        return self.chosen_level(source) or getattr(source.dialect, "default_isolation_level", None)

    def chosen_level(self, source: Engine | Connection) -> str | None:
        """Return the isolation level that the application has configured."""
        options = source.get_execution_options()
        return options.get("isolation_level") or getattr(source.dialect, "_on_connect_isolation_level", None)

    def present_level(self, connection: Connection) -> str | None:
        """Return the isolation level at which a claim on this connection would run now."""
        return AUTOCOMMIT if _autocommits(connection) else self.level(connection)

    def may_change_unseen(self, connection: Connection) -> bool:
        """Return whether this transaction may change versions of rows that its snapshot does not contain."""
        return self.changes_unseen and self.level(connection) not in self.harmless_levels

    def check_level(self, connection: Connection) -> None:
        """Raise :class:`.UnsupportedIsolationError` if a claim would be wrong; warn once if it may fail."""
        level = self.present_level(connection)
        if level is None or level in self.harmless_levels:
            return
        advice = f"claim first in a transaction, or create_engine(..., isolation_level={READ_COMMITTED!r})"
        if level == AUTOCOMMIT or level in self.refused_levels:
            raise UnsupportedIsolationError(
                f"a claim on {self.product.name} cannot run at {level}, the isolation level of this transaction:"
                f" {advice}",
                dialect=self.product.dialect,
                level=level,
            )
        if connection.dialect not in self._warned:
            self._warned.add(connection.dialect)
            text = f"a claim in a {level} transaction can fail or block others on {self.product.name}: {advice}"
            warnings.warn(text, SQLQueueWarning, stacklevel=2)


def _autocommits(connection: Connection) -> bool:
    """Return whether the driver commits each statement, however that was configured."""
    detect = getattr(connection.dialect, "detect_autocommit_setting", None)  # SQLAlchemy 2.0.43
    try:
        return detect is not None and bool(detect(connection.connection.dbapi_connection))
    except NotImplementedError:
        return False
