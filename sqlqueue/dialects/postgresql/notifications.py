"""NOTIFY, and LISTEN with psycopg, whose connections can wait for notifications."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, func, select

from ..parts.notifications import Listener, Notifications

CHANNEL = "sqlqueue"
"""One channel for all queues: a notification's payload is the name of its queue."""

LISTEN = f"LISTEN {CHANNEL}"


class PostgreSQLNotifications(Notifications):
    """NOTIFY, which the server delivers at the commit, and only once for repeated identical notifications."""

    def notify(self, connection: Connection, name: str) -> None:
        connection.execute(select(func.pg_notify(CHANNEL, name)))

    def listener(self, driver: str) -> Listener | None:
        return PsycopgListener() if driver in ("psycopg", "psycopg_async") else None


class PsycopgListener(Listener):
    """Listens with psycopg, whose connections can wait for notifications."""

    def listen(self, connection: Any) -> None:
        connection.autocommit = True
        connection.execute(LISTEN)

    def news(self, connection: Any, seconds: float) -> Collection[str]:
        return {notification.payload for notification in connection.notifies(timeout=seconds, stop_after=1)}

    async def listen_async(self, connection: Any) -> None:
        await connection.set_autocommit(True)
        await connection.execute(LISTEN)

    async def news_async(self, connection: Any, seconds: float) -> Collection[str]:
        return {note.payload async for note in connection.notifies(timeout=seconds, stop_after=1)}
