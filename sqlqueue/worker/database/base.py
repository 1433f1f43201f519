"""The worker's interface to a database, the same for sync and asyncio sessions: it calls functions with a session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, sessionmaker

from ..._support.engines import has_one_connection, with_own_pool
from ..._support.errors import ConfigurationError
from ...dialects.parts.notifications import Listener
from ...queue.spec import QueueSpec
from ...transaction.connection import check_engine
from .checkouts import write_in_turn

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import async_sessionmaker

R = TypeVar("R")
Work: TypeAlias = Callable[[Session], R]
MAX_TRANSACTIONS = 8
"""The maximum number of the worker's own concurrent transactions, regardless of the number of queues."""
Begun: TypeAlias = Callable[[], None]
Heard: TypeAlias = Callable[[set[str]], bool]
Sessions: TypeAlias = "sessionmaker[Any] | async_sessionmaker[Any]"


class Database(Protocol):
    """Runs a worker's own transactions."""

    @property
    def is_async(self) -> bool:
        """Whether the sessions are asyncio sessions."""
        ...

    @property
    def engines(self) -> Collection[Engine]:
        """The engines that :meth:`engine` has returned."""
        ...

    @property
    def stuck(self) -> int:
        """The number of threads that wait for the database and cannot be woken."""
        ...

    async def run(self, work: Work[R], within: timedelta) -> R:
        """Run ``work`` in a new session and transaction, commit, and return its result, detached.

        Raises :class:`.NoResponse` if that takes longer than ``within``.

        At most :data:`MAX_TRANSACTIONS` run at a time.  Cancelling the caller does not interrupt the transaction: an
        interrupted driver would leave work behind on an event loop that is about to be closed.
        """
        ...

    def engine(self, spec: QueueSpec) -> Engine:
        """Return the engine of the tasks of ``spec``."""
        ...

    def own(self) -> OwnConnections:
        """Return connections for the calling thread only, outside the application's pool."""
        ...

    def open(self) -> tuple[Any, Session]:
        """Return a new session, as the application configures it, and its sync session."""
        ...

    async def end(self, timeout: float) -> None:
        """Wait ``timeout`` seconds for what :meth:`run` has started, then cancel it as far as possible."""
        ...

    async def dispose(self, engines: Iterable[Engine]) -> None:
        """Close the connections that belong to the event loop, which is about to end."""
        ...


class OwnConnections(Protocol):
    """Connections of one thread, which never waits for those of other threads.

    Their pools are copies of the application's pools, so the application's connection events and settings apply.
    """

    def run(self, engine: Engine, work: Work[R], within: timedelta) -> R:
        """Run ``work`` in a new transaction, and commit it.  The deadline is as for :meth:`.Database.run`."""
        ...

    def listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        """Call ``begun``, then ``heard`` with the notified names once a second or more, until it returns false.

        Raises :class:`.NoResponse` if the connection has become silent.
        """
        ...

    def close(self) -> None:
        """Close the connections.  Called on the thread that uses them."""
        ...


def own_engine(engines: dict[Engine, Engine], engine: Engine) -> Engine:
    """Return the copy of ``engine`` with its own pool that ``engines`` holds, creating it if needed."""
    if engine not in engines:
        engines[engine] = own = with_own_pool(engine)
        write_in_turn(own)
    return engines[engine]


def bound_engines(sessions: Sessions) -> list[Engine]:
    """Return the engines among the arguments of ``sessions``; its sessions may have others too, and choose them
    late."""
    binds = (sessions.kw.get("bind"), *(sessions.kw.get("binds") or {}).values())
    # an AsyncEngine wraps an Engine
    return [each for each in (getattr(bind, "sync_engine", bind) for bind in binds) if isinstance(each, Engine)]


def engine_of(session: Session, spec: QueueSpec) -> Engine:
    """Return the engine of ``spec``.  Raises :class:`.ConfigurationError` if a worker cannot use it."""
    check_engine(session, spec, spec.selecting)
    bind = session.get_bind(**spec.bind_arguments)
    if isinstance(bind, Connection):
        raise ConfigurationError("a worker needs sessions bound to an engine, not to a connection", model=spec.entity)
    if has_one_connection(bind):
        raise ConfigurationError(
            "a worker needs a connection for each of its threads, which an in-memory database does not offer: use a"
            " file",
            model=spec.entity,
        )
    return bind
