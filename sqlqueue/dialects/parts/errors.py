"""What an error of a driver says, by its code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, IntegrityError


@dataclass(frozen=True, kw_only=True)
class Errors(ABC):
    """The codes of an engine, and where its drivers keep them."""

    transient: Collection[Any]
    """After these the same transaction may succeed at once: deadlocks, serialization failures, locks that were waited
    for too long."""
    outages: Collection[Any]
    """The server is not there, goes down or comes up."""
    duplicates: Collection[Any]
    """A unique key was violated."""
    references: Collection[Any]
    """A foreign key kept a row from being deleted."""
    denied: Collection[Any] = ()
    """This account may not see or touch a table."""
    lost_savepoints: Collection[Any] = ()
    """There is no such savepoint: what ended its transaction is the error before."""

    @abstractmethod
    def code(self, error: DBAPIError) -> Any:
        """Return the driver's own code of an error, ``None`` if it has none."""

    def codes(self, error: DBAPIError) -> Collection[Any]:
        """Return all codes of an error, where there are several: the server's and the driver's."""
        return (self.code(error),)

    def is_transient(self, error: DBAPIError) -> bool:
        """Return whether the transaction was the victim of others, and is worth being tried again."""
        return self._has(self.reason(error), self.transient)

    def is_outage(self, error: DBAPIError) -> bool:
        """Return whether the connection was lost, or cannot be made."""
        return error.connection_invalidated or self._has(error, self.outages)

    def is_duplicate(self, error: IntegrityError) -> bool:
        """Return whether a unique key was violated."""
        return self._has(error, self.duplicates)

    def is_referenced(self, error: IntegrityError) -> bool:
        """Return whether a foreign key kept a row from being deleted."""
        return self._has(error, self.references)

    def is_denied(self, error: DBAPIError) -> bool:
        """Return whether this account may not see or touch a table."""
        return self._has(error, self.denied)

    def reason(self, error: DBAPIError) -> DBAPIError:
        """Return the error itself, or, if it is about a savepoint that is gone, the deadlock that took it along."""
        if self._has(error, self.lost_savepoints):
            for before in _before(error):
                if self._has(before, self.transient):
                    return before
        return error

    def _has(self, error: DBAPIError, codes: Collection[Any]) -> bool:
        return any(code in codes for code in self.codes(error))


def first_argument(error: DBAPIError) -> Any:
    """Return where most drivers keep the code."""
    original: Any = error.orig
    return original.args[0] if original.args else None


@contextmanager
def wrapping(dialect: Dialect) -> Iterator[None]:
    """Raise the driver's own errors as :class:`sqlalchemy.exc.DBAPIError`, where SQLAlchemy itself does not.

    It does not while it sets an isolation level, which on a connection that has died is the first statement to fail.
    """
    driver = dialect.loaded_dbapi.Error
    try:
        yield
    except driver as error:
        died = dialect.is_disconnect(error, None, None)
        raise DBAPIError.instance(None, None, error, driver, connection_invalidated=died, dialect=dialect) from error


def _before(error: BaseException) -> Iterator[DBAPIError]:
    """Yield the errors that were being handled when ``error`` came up."""
    before = error.__context__
    while before is not None:
        if isinstance(before, DBAPIError):
            yield before
        before = before.__context__
