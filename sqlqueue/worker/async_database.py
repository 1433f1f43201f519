"""The worker's transactions through SQLAlchemy's asyncio extension, which needs greenlet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from ..dialects.connections import Listener
from .database import MAX_TRANSACTIONS, Begun, Database, Heard, OwnConnections, Work
from .deadlines import PROBE_EVERY, PROBE_WITHIN, Deadline
from .reports import Liveness

R = TypeVar("R")


class AsyncDatabase(Database):
    """Runs transactions of asyncio sessions on the event loop.  Coroutines can always be woken."""

    is_async = True

    def __init__(self, sessions: async_sessionmaker[Any], liveness: Liveness) -> None:
        super().__init__(sessions, liveness)
        self._places = asyncio.Semaphore(MAX_TRANSACTIONS)

    async def run(self, work: Work[R], within: timedelta) -> R:
        return await self._underway.until(asyncio.create_task(self._run(work, within)))

    async def _run(self, work: Work[R], within: timedelta) -> R:
        async with self._places:
            make = partial(self._sessions, expire_on_commit=False)
            return await _transact(make, work, within, self._liveness, self.engines)

    def own(self) -> AsyncConnections:
        return AsyncConnections(self._liveness)

    async def end(self, timeout: float) -> None:
        await super().end(timeout)
        self._places = asyncio.Semaphore(MAX_TRANSACTIONS)  # the next run may be on another event loop

    async def dispose(self, engines: Iterable[Engine]) -> None:
        for engine in engines:
            await AsyncEngine(engine).dispose()


class AsyncConnections(OwnConnections):
    """Connections of one thread with its own event loop, since connections belong to the loop that opened them."""

    def __init__(self, liveness: Liveness) -> None:
        super().__init__(liveness)
        self._runner = asyncio.Runner()

    def run(self, engine: Engine, work: Work[R], within: timedelta) -> R:
        make = partial(AsyncSession, AsyncEngine(self._own(engine)))
        return self._runner.run(_transact(make, work, within, self._liveness, (engine,)))

    def listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        self._runner.run(self._listen(engine, listener, begun, heard))

    async def _listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        connection: AsyncConnection
        with Deadline(PROBE_WITHIN, (engine,), is_async=True) as deadline:
            async with AsyncEngine(self._own(engine)).connect() as connection:
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

    def close(self) -> None:
        for engine in self._engines.values():
            self._runner.run(AsyncEngine(engine).dispose())
        self._runner.close()


async def _transact(
    make: Callable[[], AsyncSession], work: Work[R], within: timedelta, liveness: Liveness, engines: Collection[Engine]
) -> R:
    with Deadline(within, engines, is_async=True, liveness=liveness) as deadline:
        async with make() as session, session.begin():
            result: R = await session.run_sync(work)
            deadline.check()
            return result
