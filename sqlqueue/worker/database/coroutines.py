"""The worker's transactions through SQLAlchemy's asyncio extension, which needs greenlet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from ...dialects.parts.notifications import Listener
from ...queue.spec import QueueSpec
from ..concurrency.event_loop import Underway
from .base import Begun, Heard, Work, engine_of, own_engine

R = TypeVar("R")


class AsyncDatabase:
    """A :class:`.Database` of asyncio sessions."""

    is_async = True

    def __init__(self, sessions: async_sessionmaker[Any]) -> None:
        self._sessions = sessions
        self._underway = Underway()

    async def run(self, work: Work[R]) -> R:
        return await self._underway.until(asyncio.create_task(self._transact(work)))

    async def _transact(self, work: Work[R]) -> R:
        async with self._sessions(expire_on_commit=False) as session, session.begin():
            result: R = await session.run_sync(work)
            return result

    def open(self) -> tuple[Any, Session]:
        session: AsyncSession = self._sessions()
        return session, session.sync_session

    def engine(self, spec: QueueSpec) -> Engine:
        return engine_of(self._sessions().sync_session, spec)

    def own(self) -> AsyncConnections:
        return AsyncConnections()

    async def end(self, patience: float) -> None:
        await self._underway.end(patience)

    async def dispose(self, engines: Iterable[Engine]) -> None:
        for engine in engines:
            await AsyncEngine(engine).dispose()


class AsyncConnections:
    """Run on an event loop of the thread's own, since connections belong to the loop that opened them."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._engines: dict[Engine, Engine] = {}

    def run(self, engine: Engine, work: Work[R]) -> R:
        return self._runner.run(self._transact(self._own(engine), work))

    async def _transact(self, engine: AsyncEngine, work: Work[R]) -> R:
        async with AsyncSession(engine) as session, session.begin():
            result: R = await session.run_sync(work)
            return result

    def listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        self._runner.run(self._listen(self._own(engine), listener, begun, heard))

    async def _listen(self, engine: AsyncEngine, listener: Listener, begun: Begun, heard: Heard) -> None:
        connection: AsyncConnection
        async with engine.connect() as connection:
            pooled = await connection.get_raw_connection()
            try:
                await listener.listen_async(pooled.driver_connection)
                begun()
                while heard(set(await listener.news_async(pooled.driver_connection, 1))):
                    pass
            finally:
                await connection.invalidate()  # it is still listening

    def _own(self, engine: Engine) -> AsyncEngine:
        return AsyncEngine(own_engine(self._engines, engine))

    def close(self) -> None:
        for engine in self._engines.values():
            self._runner.run(AsyncEngine(engine).dispose())
        self._runner.close()
