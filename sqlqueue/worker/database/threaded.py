"""The worker's transactions through plain sessions, in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from ...dialects.parts.notifications import Listener
from ...queue.spec import QueueSpec
from ..concurrency.event_loop import Underway
from ..concurrency.threads import DaemonThreads
from .base import THREADS, Begun, Heard, Work, engine_of, own_engine

R = TypeVar("R")


class SyncDatabase:
    """A :class:`.Database` of plain sessions, which runs them in threads."""

    is_async = False

    def __init__(self, sessions: sessionmaker[Any]) -> None:
        self._sessions = sessions
        self._threads = DaemonThreads(THREADS, "database")
        self._underway = Underway()

    async def run(self, work: Work[R]) -> R:
        loop = asyncio.get_running_loop()
        return await self._underway.until(loop.run_in_executor(self._threads, self._transact, work))

    def _transact(self, work: Work[R]) -> R:
        with self._sessions(expire_on_commit=False) as session, session.begin():
            return work(session)

    def open(self) -> tuple[Any, Session]:
        session = self._sessions()
        return session, session

    def engine(self, spec: QueueSpec) -> Engine:
        with self._sessions() as session:
            return engine_of(session, spec)

    def own(self) -> SyncConnections:
        return SyncConnections()

    async def end(self, patience: float) -> None:
        await self._underway.end(patience)
        self._threads.shutdown()

    async def dispose(self, engines: Iterable[Engine]) -> None:
        pass


class SyncConnections:
    """:class:`.OwnConnections` of plain sessions."""

    def __init__(self) -> None:
        self._engines: dict[Engine, Engine] = {}

    def run(self, engine: Engine, work: Work[R]) -> R:
        with Session(own_engine(self._engines, engine)) as session, session.begin():
            return work(session)

    def listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        pooled = own_engine(self._engines, engine).raw_connection()
        connection = pooled.driver_connection
        try:
            listener.listen(connection)
            begun()
            while heard(set(listener.news(connection, 1))):
                pass
        finally:
            pooled.invalidate()  # it is still listening

    def close(self) -> None:
        for engine in self._engines.values():
            engine.dispose()
