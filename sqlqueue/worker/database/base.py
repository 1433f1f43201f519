"""One way to a database for sync and async sessions: a piece of work is a function of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from ..._support.exc import ConfigurationError
from ...dialects.parts.notifications import Listener
from ...queue.spec import QueueSpec
from ...transaction.connection import check_engine

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

    def listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        """Call ``begun``; hand to ``heard`` what there is news of, at least once a second, until it returns false."""
        ...

    def close(self) -> None: ...


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
