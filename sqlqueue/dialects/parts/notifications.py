"""Word of new work that goes from one connection to others, through the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection


class Listener(ABC):
    """Hears notifications on a driver's connection that serves nothing else."""

    @abstractmethod
    def listen(self, connection: Any) -> None:
        """Begin."""

    @abstractmethod
    def news(self, connection: Any, seconds: float) -> Collection[str]:
        """Wait so long for news; return the names that it is about.  Raises the driver's error on a lost connection."""

    @abstractmethod
    async def listen_async(self, connection: Any) -> None:
        """:meth:`listen` on the connection of an asyncio driver."""

    @abstractmethod
    async def news_async(self, connection: Any, seconds: float) -> Collection[str]:
        """:meth:`news` on the connection of an asyncio driver."""


class Notifications:
    """None: what most engines have.  Workers then look for work from time to time."""

    def notify(self, connection: Connection, name: str) -> None:
        """Tell listeners on other connections, once this transaction is committed, that there is news of ``name``."""

    def listener(self, driver: str) -> Listener | None:
        """Return what listens by this driver, ``None`` if nothing does."""
        return None
