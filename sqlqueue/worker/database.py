"""One way to a database for sync and async sessions: a piece of work is a function of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from ..dialects import adapter_for
from ..exc import ArgumentError, ConfigurationError
from ..operations._connection import check_engine
from ..spec import QueueSpec
from .loops import Underway
from .threads import DaemonThreads

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import async_sessionmaker

R = TypeVar("R")
Work: TypeAlias = Callable[[Session], R]
THREADS = 8
"""For the transactions of the worker itself; handlers have their own."""
Begun: TypeAlias = Callable[[], None]
Heard: TypeAlias = Callable[[set[str]], bool]
Sessions: TypeAlias = "sessionmaker[Any] | async_sessionmaker[Any]"


class Database(Protocol):
    """Where a worker's transactions run."""

    @property
    def is_async(self) -> bool: ...

    async def run(self, work: Work[R]) -> R:
        """``work`` in a session and a transaction of its own, committed at its end; what it returns is detached.

        Who waits for it may be cancelled; it goes on then: interrupted, a driver would leave work of its own behind, to
        a loop that is about to be closed.
        """
        ...

    def engine(self, spec: QueueSpec) -> Engine:
        """The engine on which the tasks of ``spec`` are."""
        ...

    def own(self) -> OwnConnections:
        """Connections apart from the application's, for the one thread that asks."""
        ...

    def open(self) -> tuple[Any, Session]:
        """A session as the application makes it, and the sync one within."""
        ...

    async def end(self, patience: float) -> None:
        """Wait for all that :meth:`run` has begun, so many seconds; then cancel it, as far as that can be done."""
        ...

    async def dispose(self, engines: Iterable[Engine]) -> None:
        """The event loop ends: no connection that belongs to it may be left behind."""
        ...


class OwnConnections(Protocol):
    """Connections of one thread, for which nothing else can keep it waiting.

    Their pools are made as the application's are, so what it has set up for its connections holds here too.
    """

    def run(self, engine: Engine, work: Work[R]) -> R:
        """``work`` in a transaction of its own, committed at its end."""
        ...

    def listen(self, engine: Engine, begun: Begun, heard: Heard) -> None:
        """Call ``begun``; hand to ``heard`` what there is news of, at least once a second, until it returns false."""
        ...

    def close(self) -> None: ...


class SyncDatabase:
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
    def __init__(self) -> None:
        self._engines: dict[Engine, Engine] = {}

    def run(self, engine: Engine, work: Work[R]) -> R:
        with Session(own_engine(self._engines, engine)) as session, session.begin():
            return work(session)

    def listen(self, engine: Engine, begun: Begun, heard: Heard) -> None:
        adapter = adapter_for(engine.dialect)
        pooled = own_engine(self._engines, engine).raw_connection()
        connection = pooled.driver_connection
        try:
            adapter.listen(connection)
            begun()
            while heard(set(adapter.news(connection, 1))):
                pass
        finally:
            pooled.invalidate()  # it listens still

    def close(self) -> None:
        for engine in self._engines.values():
            engine.dispose()


def own_engine(engines: dict[Engine, Engine], engine: Engine) -> Engine:
    if engine not in engines:
        engines[engine] = Engine(
            engine.pool.recreate(),
            engine.dialect,
            engine.url,
            execution_options=engine.get_execution_options(),
            hide_parameters=engine.hide_parameters,
        )
    return engines[engine]


def engine_of(session: Session, spec: QueueSpec) -> Engine:
    check_engine(session, spec, spec.selecting)
    bind = session.get_bind(**spec.bind_arguments)
    if isinstance(bind, Connection):
        raise ConfigurationError("a worker needs sessions bound to an engine, not to a connection", model=spec.entity)
    if isinstance(bind.pool, (SingletonThreadPool, StaticPool)):
        raise ConfigurationError(
            "a worker needs a connection for each of its threads, which a database in memory does not have: use a file",
            model=spec.entity,
        )
    return bind


def database_of(sessions: Sessions) -> Database:
    if isinstance(sessions, sessionmaker):
        return SyncDatabase(sessions)
    if type(sessions).__name__ == "async_sessionmaker":
        from .coroutines import AsyncDatabase  # noqa: PLC0415  (needs greenlet)

        return AsyncDatabase(sessions)
    raise ArgumentError(f"{sessions!r} is neither a sessionmaker nor an async_sessionmaker, as in Worker(Session)")
