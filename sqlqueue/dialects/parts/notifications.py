"""Notifications of new tasks from one connection to others, through the server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from sqlalchemy import Connection


class Listener:
    """Receives notifications on a dedicated driver connection, with one pair of methods or the other."""

    def listen(self, connection: Any) -> None:
        """Start listening."""
        raise NotImplementedError

    def news(self, connection: Any, seconds: float) -> Collection[str]:
        """Wait up to ``seconds`` for notifications; return their names.

        Raises the driver's error if the connection is lost.
        """
        raise NotImplementedError

    async def listen_async(self, connection: Any) -> None:
        """Start listening on the connection of an asyncio driver."""
        raise NotImplementedError

    async def news_async(self, connection: Any, seconds: float) -> Collection[str]:
        """Wait for notifications like :meth:`news`, on the connection of an asyncio driver."""
        raise NotImplementedError


class Notifications:
    """No notifications, as on most engines: workers poll."""

    listeners: ClassVar[Mapping[str, type[Listener]]] = {}
    """By driver, what receives notifications; empty on engines that have none."""

    def notify(self, connection: Connection, name: str) -> None:
        """Notify the listeners for ``name`` on other connections when this transaction commits."""

    def listener(self, driver: str) -> Listener | None:
        """Return the listener for this driver, or ``None`` if the driver cannot listen."""
        made = self.listeners.get(driver)
        return None if made is None else made()
