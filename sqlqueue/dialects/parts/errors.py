"""Classifies driver errors by their codes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, SQLAlchemyError

from ..._support.errors import SQLQueueError

_CALLERS = ("sqlalchemy.dialects.", "sqlalchemy.connectors.", "sqlalchemy.engine.default", "sqlalchemy.engine.cursor")
"""The modules of SQLAlchemy that call drivers, apart from :mod:`sqlalchemy.pool`, which calls an engine's creator."""


@dataclass(frozen=True, kw_only=True)
class Errors(ABC):
    """An engine's error codes, and where its drivers store them."""

    transient: Collection[Any]
    """Codes of failures after which a retry of the transaction may succeed: deadlocks, serialization failures, lock
    timeouts."""
    outages: Collection[Any]
    """Codes of a server that is unreachable, shutting down or starting."""
    duplicates: Collection[Any]
    """Codes of violated unique keys."""
    references: Collection[Any]
    """Codes of foreign keys that prevented the deletion of a row."""
    denied: Collection[Any] = ()
    """Codes of missing privileges."""
    lost_savepoints: Collection[Any] = ()
    """Codes of a missing savepoint, whose transaction was ended by an earlier error."""

    @abstractmethod
    def code(self, error: DBAPIError) -> Any:
        """Return the driver's code of an error, or ``None`` if it has none."""

    def codes(self, error: DBAPIError) -> Collection[Any]:
        """Return all codes of an error, if there are several: the server's and the driver's."""
        return (self.code(error),)

    def is_transient(self, error: DBAPIError) -> bool:
        """Return whether the transaction failed because of concurrent ones, so that a retry may succeed."""
        return self._has(self.reason(error), self.transient)

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error``, which may be any exception, says that the connection was lost or cannot be
        established."""
        told = as_driver_error(error)
        return told is not None and self.has_lost(told)

    def has_lost(self, error: DBAPIError) -> bool:
        """Return whether an error of the driver is an outage; overridden by engines, see :meth:`is_outage`."""
        return error.connection_invalidated or self._has(error, self.outages) or comes_from_network(error)

    def is_temporary(self, error: DBAPIError) -> bool:
        """Return whether an error is about the server or the connection rather than the statement, and may thus pass.

        By the code first: drivers give the same error different classes, and some have no class for deadlocks.
        """
        told = self.is_outage(error) or self.is_transient(error)
        return told or isinstance(error, (OperationalError, InterfaceError, InternalError))

    def is_rejection(self, error: BaseException) -> bool:
        """Return whether the server or the driver does not accept a row or a value, so that no retry would succeed."""
        told = as_driver_error(error)
        # by code, not by class; and a statement that took too long for a driver, which then gave up the connection, is
        # not at fault
        return (
            told is not None
            and not told.connection_invalidated
            and not self.is_outage(told)
            and not self.is_transient(told)
        )

    def is_duplicate(self, error: DBAPIError) -> bool:
        """Return whether a unique key was violated."""
        return self._has(error, self.duplicates)

    def is_referenced(self, error: DBAPIError) -> bool:
        """Return whether a foreign key prevented the deletion of a row."""
        return self._has(error, self.references)

    def is_denied(self, error: DBAPIError) -> bool:
        """Return whether the account lacks a privilege."""
        return self._has(error, self.denied)

    def is_of_row(self, error: Exception) -> bool:
        """Return whether a row that the server returned could not be turned into Python objects.

        Not so errors of the server, of SQLAlchemy and of this library, which would be the same for every row.
        """
        if isinstance(error, DBAPIError):  # from the driver if it has no code
            return self.code(error) in (None, -1) and not self.is_outage(error)
        return not isinstance(error, (SQLAlchemyError, SQLQueueError, OSError, MemoryError))

    def reason(self, error: DBAPIError) -> DBAPIError:
        """Return the error itself or, for a lost savepoint, the deadlock that removed it."""
        if self._has(error, self.lost_savepoints):
            for before in _before(error):
                if self._has(before, self.transient):
                    return before
        return error

    def _has(self, error: DBAPIError, codes: Collection[Any]) -> bool:
        return any(code in codes for code in self.codes(error))


def first_argument(error: DBAPIError) -> Any:
    """Return the first argument of the driver's error, where most drivers store the code."""
    original: Any = error.orig
    return original.args[0] if original.args else None


def as_driver_error(error: BaseException) -> DBAPIError | None:
    """Return an error of the driver as SQLAlchemy wraps it; ``None`` for errors of anything else.

    Some drivers raise errors of Python itself while they connect or wait, such as asyncpg's :class:`TimeoutError`, and
    SQLAlchemy passes them on.  Only the traceback distinguishes them from those of an application's own requests.
    """
    if isinstance(error, DBAPIError):
        return error
    if not isinstance(error, Exception) or isinstance(error, SQLAlchemyError) or not _comes_from_driver(error):
        return None
    return DBAPIError(None, None, error, connection_invalidated=isinstance(error, OSError))


def _comes_from_driver(error: Exception) -> bool:
    """Return whether SQLAlchemy called a driver, rather than a listener or a type of the application, which then
    raised."""
    passed = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    # its greenlets, in sqlalchemy.util, stand between each asyncio driver and its caller
    own = [name for name in passed if name.startswith("sqlalchemy.") and not name.startswith("sqlalchemy.util.")]
    return bool(own) and own[-1].startswith((*_CALLERS, "sqlalchemy.pool."))


def comes_from_network(error: DBAPIError) -> bool:
    """Return whether the driver raised its error from one of a socket, whatever code it has chosen for that."""
    cause: BaseException | None = error.orig
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    return cause is not None


@contextmanager
def wrapping(dialect: Dialect, connection: Any = None, statement: str | None = None) -> Iterator[None]:
    """Wrap the driver's own errors in :class:`sqlalchemy.exc.DBAPIError`, where SQLAlchemy does not.

    It does not while it sets an isolation level, which is the first statement to fail on a dead connection.
    ``connection``: the driver's, if there is one; with some drivers, its state shows that it is dead. ``statement``:
    the SQL that the error names.
    """
    driver = dialect.loaded_dbapi.Error
    try:
        yield
    except driver as error:
        died = dialect.is_disconnect(error, connection, None)
        raise DBAPIError.instance(
            statement, None, error, driver, connection_invalidated=died, dialect=dialect
        ) from error


def _before(error: BaseException) -> Iterator[DBAPIError]:
    """Yield the errors that were being handled when ``error`` was raised."""
    before = error.__context__
    while before is not None:
        if isinstance(before, DBAPIError):
            yield before
        before = before.__context__
