"""Notifications of new tasks from one connection to others, through the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection


class Listener(ABC):
    """Receives notifications on a dedicated driver connection."""

    @abstractmethod
    def listen(self, connection: Any) -> None:
        """Start listening."""

    @abstractmethod
    def news(self, connection: Any, seconds: float) -> Collection[str]:
        """Wait up to ``seconds`` for notifications; return their names.

        Raises the driver's error if the connection is lost.
        """

    @abstractmethod
    async def listen_async(self, connection: Any) -> None:
        """Start listening on the connection of an asyncio driver."""

    @abstractmethod
    async def news_async(self, connection: Any, seconds: float) -> Collection[str]:
        """Wait for notifications like :meth:`news`, on the connection of an asyncio driver."""


class Notifications:
    """No notifications, as on most engines: workers poll."""

    def notify(self, connection: Connection, name: str) -> None:
        """Notify the listeners for ``name`` on other connections when this transaction commits."""

    def listener(self, driver: str) -> Listener | None:
        """Return the listener for this driver, or ``None`` if the driver cannot listen."""
        return None
