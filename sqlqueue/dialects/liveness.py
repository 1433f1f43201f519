"""What a worker wants to know of an engine: whether an error passes by itself, and whether there is news."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from sqlalchemy import Connection
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError


class Liveness:
    """Errors are told by code, never by text."""

    transient: ClassVar[Collection[Any]] = ()
    """Codes of errors after which the same transaction may succeed at once: deadlocks, serialization failures, locks
    that were waited for too long."""
    outages: ClassVar[Collection[Any]] = ()
    """Codes of errors that say that the server is not there, goes down or comes up."""
    lost_savepoints: ClassVar[Collection[Any]] = ()
    """Codes of errors that say that there is no such savepoint: what ended its transaction is the error before."""

    def code(self, error: DBAPIError) -> Any:
        """The driver's own code of an error; never its text."""
        original: Any = error.orig
        return original.args[0] if original.args else None

    def codes(self, error: DBAPIError) -> Collection[Any]:
        """All codes of an error, where there are several: the server's and the driver's."""
        return (self.code(error),)

    def is_transient(self, error: DBAPIError) -> bool:
        """Whether the transaction was the victim of others, and is worth being tried again."""
        return any(code in self.transient for code in self.codes(self.reason(error)))

    def reason(self, error: DBAPIError) -> DBAPIError:
        """The error itself, or, if it is about a savepoint that is gone, the deadlock that took it along."""
        if any(code in self.lost_savepoints for code in self.codes(error)):
            for before in _before(error):
                if any(code in self.transient for code in self.codes(before)):
                    return before
        return error

    def is_outage(self, error: DBAPIError) -> bool:
        """Whether the connection was lost, or cannot be made."""
        return error.connection_invalidated or any(code in self.outages for code in self.codes(error))

    def notify(self, connection: Connection, name: str) -> None:
        """Tell listeners on other connections, once this transaction is committed, that there is news of ``name``."""

    def can_listen(self, driver: str) -> bool:
        """Whether :meth:`listen` and its kin work with this driver."""
        return False

    def listen(self, connection: Any) -> None:
        """Begin to hear of news on a driver's connection that serves nothing else."""
        raise NotImplementedError

    def news(self, connection: Any, seconds: float) -> Collection[str]:
        """Wait so long for news; the names that it is about.  The driver's error if the connection is lost."""
        raise NotImplementedError

    async def listen_async(self, connection: Any) -> None:
        """:meth:`listen` on the connection of an asyncio driver."""
        raise NotImplementedError

    async def news_async(self, connection: Any, seconds: float) -> Collection[str]:
        """:meth:`news` on the connection of an asyncio driver."""
        raise NotImplementedError


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
    """The errors that were being handled when ``error`` came up."""
    before = error.__context__
    while before is not None:
        if isinstance(before, DBAPIError):
            yield before
        before = before.__context__
