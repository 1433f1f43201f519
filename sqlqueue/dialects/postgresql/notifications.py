"""NOTIFY, and LISTEN with the drivers that can wait for notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any, ClassVar

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from ..parts.errors import wrapping
from ..parts.notifications import Listener, Notifications
from .drivers import PSYCOPG

CHANNEL = "sqlqueue"
"""One channel for all queues: a notification's payload is the name of its queue."""

LISTEN = f"LISTEN {CHANNEL}"


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


class Psycopg2Listener(Listener):
    """Listens with psycopg2, whose connections collect notifications when they are polled."""

    def listen(self, connection: Any) -> None:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(LISTEN)

    def news(self, connection: Any, seconds: float) -> Collection[str]:
        with DefaultSelector() as arrival:
            arrival.register(connection, EVENT_READ)
            connection.poll()  # what was received together with the response to a statement
            if not connection.notifies and arrival.select(seconds):
                connection.poll()
        names = {notification.payload for notification in connection.notifies}
        connection.notifies.clear()
        return names


class AsyncpgListener(Listener):
    """Listens with asyncpg, which calls a function with each notification."""

    def __init__(self) -> None:
        self._names: asyncio.Queue[str] = asyncio.Queue()

    async def listen_async(self, connection: Any) -> None:
        await connection.add_listener(CHANNEL, self._notified)
        await connection.execute(LISTEN)  # again: the function above sends nothing if it is listening already

    async def news_async(self, connection: Any, seconds: float) -> Collection[str]:
        names = set[str]()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                names.add(await self._names.get())
        while not self._names.empty():
            names.add(self._names.get_nowait())
        if connection.is_closed():
            await connection.execute(LISTEN)  # raises the driver's error
        return names

    def _notified(self, _connection: object, _process: int, _channel: str, name: str) -> None:
        self._names.put_nowait(name)


class PostgreSQLNotifications(Notifications):
    """NOTIFY, which the server delivers at the commit, and only once for repeated identical notifications."""

    listeners: ClassVar[Mapping[str, type[Listener]]] = {
        **dict.fromkeys(PSYCOPG, PsycopgListener),
        "psycopg2": Psycopg2Listener,
        "asyncpg": AsyncpgListener,
    }

    def notify(self, connection: Connection, name: str) -> None:
        driver: Any = connection.connection.driver_connection
        if connection.dialect.driver in PSYCOPG and _sends_begin_next(driver):
            _begin_and_notify(connection, driver, name)
        else:
            connection.execute(select(func.pg_catalog.pg_notify(CHANNEL, name)))


def _sends_begin_next(driver: Any) -> bool:
    """Return whether psycopg would send a BEGIN before the next statement, with no option but an isolation level."""
    from psycopg.pq import TransactionStatus  # noqa: PLC0415  # a user of PostgreSQL may have another driver

    if driver.autocommit or driver.info.transaction_status != TransactionStatus.IDLE:
        return False
    return driver.read_only is driver.deferrable is None


def _begin_and_notify(connection: Connection, driver: Any, name: str) -> None:
    """Begin the transaction and notify in one round trip; psycopg waits for the response to each BEGIN."""
    from psycopg.errors import error_from_result  # noqa: PLC0415
    from psycopg.generators import execute  # noqa: PLC0415
    from psycopg.pq import ExecStatus  # noqa: PLC0415
    from psycopg.sql import SQL  # noqa: PLC0415

    level = driver.isolation_level
    begin = "BEGIN" if level is None else f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}"
    request = begin.encode() + SQL("; SELECT pg_catalog.pg_notify({}, {})").format(CHANNEL, name).as_bytes(driver)
    try:
        with wrapping(connection.dialect, driver):
            driver.pgconn.send_query(request)
            answer = driver.wait(execute(driver.pgconn))
            if connection.dialect.is_async:
                from sqlalchemy.util import await_only  # noqa: PLC0415

                answer = await_only(answer)
            for result in answer:
                if result.status == ExecStatus.FATAL_ERROR:
                    raise error_from_result(result, driver.info.encoding)
    except DBAPIError as error:
        if error.connection_invalidated:
            connection.invalidate(error)  # a rollback would fail
        raise
