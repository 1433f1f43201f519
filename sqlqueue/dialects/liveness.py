"""What a worker wants to know of an engine: whether an error passes by itself, and whether there is news."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError


class Liveness:
    """Errors are told by code, never by text."""

    transient: ClassVar[Collection[Any]] = ()
    """Codes of errors after which the same transaction may succeed at once: deadlocks, serialization failures, locks
    that were waited for too long."""
    outages: ClassVar[Collection[Any]] = ()
    """Codes of errors that say that the server is not there, goes down or comes up."""

    def code(self, error: DBAPIError) -> Any:
        """The driver's own code of an error; never its text."""
        original: Any = error.orig
        return original.args[0] if original.args else None

    def is_transient(self, error: DBAPIError) -> bool:
        """Whether the transaction was the victim of others, and is worth being tried again."""
        return self.code(error) in self.transient

    def is_outage(self, error: DBAPIError) -> bool:
        """Whether the connection was lost, or cannot be made."""
        return error.connection_invalidated or self.code(error) in self.outages

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
