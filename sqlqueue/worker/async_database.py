"""The worker's transactions through SQLAlchemy's asyncio extension, which needs greenlet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from ..dialects.connections import Listener
from ..queue.spec import QueueSpec
from .database import MAX_TRANSACTIONS, Begun, Heard, Work, engine_of, own_engine
from .deadlines import PROBE_EVERY, PROBE_WITHIN, Deadline, LibraryDeadline
from .reports import Liveness
from .threads import Underway

R = TypeVar("R")


class AsyncDatabase:
    """A :class:`.Database` of asyncio sessions."""

    is_async = True

    stuck = 0
    """Coroutines can always be woken."""

    def __init__(self, sessions: async_sessionmaker[Any], liveness: Liveness) -> None:
        self._sessions = sessions
        self._liveness = liveness
        self.engines: set[Engine] = set()
        self._underway = Underway()
        self._places = asyncio.Semaphore(MAX_TRANSACTIONS)

    async def run(self, work: Work[R], within: timedelta) -> R:
        """Run ``work`` in a transaction, see :meth:`.Database.run`."""
        return await self._underway.until(asyncio.create_task(self._run(work, within)))

    async def _run(self, work: Work[R], within: timedelta) -> R:
        async with self._places:
            make = partial(self._sessions, expire_on_commit=False)
            return await _transact(make, work, within, self._liveness, self.engines)

    def open(self) -> tuple[Any, Session]:
        """Return a new asyncio session and its sync session."""
        session: AsyncSession = self._sessions()
        return session, session.sync_session

    def engine(self, spec: QueueSpec) -> Engine:
        """Return the engine of a queue, see :meth:`.Database.engine`."""
        engine = engine_of(self._sessions().sync_session, spec)
        self.engines.add(engine)
        return engine

    def own(self) -> AsyncConnections:
        """Return connections for one thread, which runs its own event loop."""
        return AsyncConnections(self._liveness)

    async def end(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for transactions that are under way."""
        await self._underway.end(timeout)
        self._places = asyncio.Semaphore(MAX_TRANSACTIONS)  # the next run may be on another event loop

    async def dispose(self, engines: Iterable[Engine]) -> None:
        """Close the pooled connections of ``engines``, which belong to the running event loop."""
        for engine in engines:
            await AsyncEngine(engine).dispose()


class AsyncConnections:
    """Connections of one thread with its own event loop, since connections belong to the loop that opened them."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._runner = asyncio.Runner()
        self._engines: dict[Engine, Engine] = {}

    def run(self, engine: Engine, work: Work[R], within: timedelta) -> R:
        """Run ``work`` in a transaction on a connection to ``engine``, within a deadline."""
        make = partial(AsyncSession, self._own(engine))
        return self._runner.run(_transact(make, work, within, self._liveness, (engine,)))

    def listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        """Listen for notifications until the listener is stopped or the connection is lost."""
        self._runner.run(self._listen(engine, listener, begun, heard))

    async def _listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        connection: AsyncConnection
        with Deadline(PROBE_WITHIN, (engine,), is_async=True) as deadline:
            async with self._own(engine).connect() as connection:
                driver = (await connection.get_raw_connection()).driver_connection
                try:
                    await listener.listen_async(driver)
                    begun()
                    while True:
                        with deadline.suspended(None):
                            for _ in range(PROBE_EVERY):
                                if not heard(set(await listener.news_async(driver, 1))):
                                    return
                        await listener.listen_async(driver)  # the server responds to it unless the connection is dead
                finally:
                    await connection.invalidate()  # it is still listening

    def _own(self, engine: Engine) -> AsyncEngine:
        return AsyncEngine(own_engine(self._engines, engine))

    def close(self) -> None:
        """Close the connections and the thread's event loop."""
        for engine in self._engines.values():
            self._runner.run(AsyncEngine(engine).dispose())
        self._runner.close()


async def _transact(
    make: Callable[[], AsyncSession], work: Work[R], within: timedelta, liveness: Liveness, engines: Collection[Engine]
) -> R:
    with LibraryDeadline(within, liveness, engines, is_async=True) as deadline:
        async with make() as session, session.begin():
            result: R = await session.run_sync(work)
            deadline.check()
            return result
