"""The worker's own transactions through sync sessions, and its retries during outages."""

from __future__ import annotations

import asyncio
import random
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from .._support.engines import has_one_connection, with_own_pool
from .._support.errors import ArgumentError, ConfigurationError
from ..dialects.base import Adapter
from ..dialects.connections import Listener, as_driver_error
from ..queue.spec import QueueSpec
from ..transaction import check_engine
from .deadlines import PROBE_EVERY, PROBE_WITHIN, Deadline, NoResponse, observe, write_in_turn
from .reports import Liveness, Reports
from .threads import DaemonThreads, Underway

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import async_sessionmaker


# -- retries with growing pauses while a database cannot be reached ---------------------------------------------------

R = TypeVar("R")
LONGEST = 10.0
LONGEST_AFTER_CONFLICT = 0.25
"""The longest pause after a conflict, in seconds.  A cluster that certifies commits rejects some claims under load;
longer pauses would starve this worker."""


def growing_pauses(first: float = 0.05, longest: float = LONGEST) -> Iterator[timedelta]:
    """Yield growing pauses with jitter, each at least half as long as without it."""
    pause = first
    while True:
        yield timedelta(seconds=random.uniform(pause / 2, pause))
        pause = min(pause * 2, longest)


def passes(error: BaseException, adapter: Adapter) -> bool:
    """Return whether an error is about the server or the connection rather than the statement, and can thus be
    temporary."""
    told = as_driver_error(error)
    if told is not None:
        return told.connection_invalidated or adapter.connections.is_temporary(told)
    return isinstance(error, (PoolTimeoutError, OSError))


def is_conflict(error: BaseException, adapter: Adapter) -> bool:
    """Return whether a transaction failed because of another one, on a server that responds."""
    return (
        isinstance(error, DBAPIError)
        and not adapter.connections.is_outage(error)
        and adapter.connections.is_transient(error)
    )


@dataclass(eq=False)
class Backoff:
    """The growing pauses between attempts at an operation that is retried until it succeeds."""

    what: str
    reports: Reports
    adapters: Sequence[Adapter]
    claims: tuple[str, Hashable] | None = None
    """If these are claims, the table of the queue and the handler."""
    on_broken: Callable[[], None] | None = None
    """Called after an error that is not temporary."""
    writes_rows: bool = False
    """Whether the rejection of a row, by a trigger or a constraint, may raise an operational error, which no retry
    would help."""

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again with the shortest pauses."""
        self._pauses = growing_pauses()
        self._after_conflicts = growing_pauses(longest=LONGEST_AFTER_CONFLICT)

    def reached(self) -> None:
        """Record that the database answered, and start again with the shortest pauses."""
        self.reports.liveness.reached()
        self.reset()

    def passes(self, error: Exception) -> bool:
        """Return whether the operation may succeed later."""
        return any(
            passes(error, each) and not (self.writes_rows and each.connections.is_rejection(error))
            for each in self.adapters
        )

    async def pause_after(self, error: Exception) -> None:
        """Report ``error`` and pause: briefly after a conflict, and longer each time while the server cannot be
        reached."""
        if self.claims is not None:
            self.reports.liveness.claims_fail(*self.claims)
        if any(is_conflict(error, adapter) for adapter in self.adapters):
            pause = next(self._after_conflicts)
            self.reports.conflict(self.what, error, pause)
        elif self.passes(error):
            pause = next(self._pauses)
            self.reports.database_error(self.what, error, pause)
        else:
            pause = next(self._pauses)
            self.reports.broken(self.what, error)
            if self.on_broken is not None:
                self.on_broken()
            self.reports.liveness.missed()
        await asyncio.sleep(pause.total_seconds())


async def until_success(attempt: Callable[[], Awaitable[R]], backoff: Backoff) -> R:
    """Call ``attempt`` until it succeeds, and return its result.  Raises errors that are not temporary."""
    while True:
        try:
            result = await attempt()
        except Exception as error:
            if not backoff.passes(error):
                raise
            await backoff.pause_after(error)
        else:
            backoff.reached()
            return result


async def keep_running(turn: Callable[[], Awaitable[None]], is_over: Callable[[], bool], backoff: Backoff) -> None:
    """Call ``turn`` until ``is_over``, pausing after each error, whatever it is."""
    while not is_over():
        try:
            await turn()
            backoff.reached()
        except Exception as error:
            await backoff.pause_after(error)


# -- the worker's interface to a database, the same for sync and asyncio sessions: it calls functions with a
#    session

Work: TypeAlias = Callable[[Session], R]
MAX_TRANSACTIONS = 8
"""The maximum number of the worker's own concurrent transactions, regardless of the number of queues."""
Begun: TypeAlias = Callable[[], None]
Heard: TypeAlias = Callable[[set[str]], bool]
Sessions: TypeAlias = "sessionmaker[Any] | async_sessionmaker[Any]"


class Database(ABC):
    """Runs a worker's own transactions, through plain or asyncio sessions."""

    is_async: ClassVar[bool]

    def __init__(self, sessions: Any, liveness: Liveness) -> None:
        self._sessions = sessions
        self._liveness = liveness
        self._underway = Underway()
        self.engines: set[Engine] = set()
        """The engines that :meth:`engine` has returned."""

    @property
    def stuck(self) -> int:
        """The number of threads that wait for the database and cannot be woken."""
        return 0

    @abstractmethod
    async def run(self, work: Work[R], within: timedelta) -> R:
        """Run ``work`` in a new session and transaction, commit, and return its result, detached.

        Raises :class:`.NoResponse` if that takes longer than ``within``.

        At most :data:`MAX_TRANSACTIONS` run at a time.  Cancelling the caller does not interrupt the transaction: an
        interrupted driver would leave work behind on an event loop that is about to be closed.
        """

    @abstractmethod
    def own(self) -> OwnConnections:
        """Return connections for the calling thread only, outside the application's pool."""

    def open(self) -> tuple[Any, Session]:
        """Return a new session, as the application configures it, and its sync session."""
        session = self._sessions()
        return session, session.sync_session if self.is_async else session

    def engine(self, spec: QueueSpec) -> Engine:
        """Return the engine of the tasks of ``spec``.  Raises :class:`.ConfigurationError` if a worker cannot use
        it."""
        session = self.open()[1]
        check_engine(session, spec, spec.selecting)
        bind = session.get_bind(**spec.bind_arguments)
        if isinstance(bind, Connection):
            text = "a worker needs sessions bound to an engine, not to a connection"
            raise ConfigurationError(text, model=spec.entity)
        if has_one_connection(bind):
            raise ConfigurationError(
                "a worker needs a connection for each of its threads, which an in-memory database does not offer: use a"
                " file",
                model=spec.entity,
            )
        self.engines.add(bind)
        return bind

    async def end(self, timeout: float) -> None:
        """Wait ``timeout`` seconds for what :meth:`run` has started, then cancel it as far as possible."""
        await self._underway.end(timeout)

    @abstractmethod
    async def dispose(self, engines: Iterable[Engine]) -> None:
        """Close the connections that belong to the event loop, which is about to end."""


class OwnConnections(ABC):
    """Connections of one thread, which never waits for those of other threads.

    Their pools are copies of the application's pools, so the application's connection events and settings apply.
    """

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._engines: dict[Engine, Engine] = {}

    @abstractmethod
    def run(self, engine: Engine, work: Work[R], within: timedelta) -> R:
        """Run ``work`` in a new transaction, and commit it.  The deadline is as for :meth:`.Database.run`."""

    @abstractmethod
    def listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        """Call ``begun``, then ``heard`` with the notified names once a second or more, until it returns false.

        Raises :class:`.NoResponse` if the connection has become silent.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connections.  Called on the thread that uses them."""

    def _own(self, engine: Engine) -> Engine:
        """Return the copy of ``engine`` with its own pool."""
        if engine not in self._engines:
            self._engines[engine] = own = with_own_pool(engine)
            write_in_turn(own)
        return self._engines[engine]


# -- connections that several threads share ---------------------------------------------------------------------------

TURN_WAIT = 1.0
"""Seconds for which a thread waits for its turn."""


class SharedConnections:
    """The shared connections of several threads: one for each engine, and more only while it is blocked.

    A thread that has waited for :data:`TURN_WAIT` seconds, because another's transaction waits for locks or for a
    silent server, opens a connection for its own transaction and closes it afterwards.
    """

    def __init__(self, make: Callable[[], OwnConnections], threads: int) -> None:
        self._make = make
        self._threads = threads
        self._turn = threading.Lock()
        self._count = threading.Lock()

    @cached_property
    def _kept(self) -> OwnConnections:
        return self._make()

    def run(self, engine: Engine, work: Work[R], within: timedelta) -> R:
        """Run ``work`` in a new transaction, and commit it.  The deadline is as for :meth:`.Database.run`."""
        if self._turn.acquire(timeout=TURN_WAIT):
            try:
                return self._kept.run(engine, work, within)
            finally:
                self._turn.release()
        own = self._make()
        try:
            return own.run(engine, work, within)
        finally:
            own.close()

    def close(self) -> None:
        """Close the connections, once each of the threads has called this."""
        with self._count:
            self._threads -= 1
            is_last = self._threads == 0
        if is_last and "_kept" in self.__dict__:
            self._kept.close()


# -- the worker's transactions through plain sessions, in threads -----------------------------------------------------


class SyncDatabase(Database):
    """Runs transactions of plain sessions in threads."""

    is_async = False

    def __init__(self, sessions: sessionmaker[Any], liveness: Liveness) -> None:
        super().__init__(sessions, liveness)
        self._threads = _Callers(MAX_TRANSACTIONS, "database", liveness)
        self._all_threads = weakref.WeakSet([self._threads])

    @property
    def stuck(self) -> int:
        return sum(threads.stuck for threads in tuple(self._all_threads))

    async def run(self, work: Work[R], within: timedelta) -> R:
        make = partial(self._sessions, expire_on_commit=False)
        future = self._threads.transact(make, work, within, self.engines)
        return await self._underway.until(asyncio.wrap_future(future))

    def own(self) -> SyncConnections:
        own = SyncConnections(self._liveness)
        self._all_threads.add(own.threads)
        return own

    async def end(self, timeout: float) -> None:
        await super().end(timeout)
        self._threads.shutdown()

    async def dispose(self, engines: Iterable[Engine]) -> None:
        """Do nothing: plain connections do not belong to an event loop."""


class SyncConnections(OwnConnections):
    """Connections of plain sessions."""

    def __init__(self, liveness: Liveness) -> None:
        super().__init__(liveness)
        self.threads = _Callers(1, "own", liveness)
        """Separate threads, so that the caller's thread can continue if one is stuck."""

    def run(self, engine: Engine, work: Work[R], within: timedelta) -> R:
        try:
            return self.threads.transact(partial(Session, self._own(engine)), work, within, (engine,)).result()
        except NoResponse:
            self._engines.clear()  # a thread that is stuck keeps its place in the pool
            raise

    def listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        with Deadline(PROBE_WITHIN, (engine,), is_async=False) as deadline:
            pooled = self._own(engine).raw_connection()
            connection = pooled.driver_connection
            try:
                listener.listen(connection)
                begun()
                while True:
                    with deadline.suspended(None):
                        for _ in range(PROBE_EVERY):
                            if not heard(set(listener.news(connection, 1))):
                                return
                    listener.listen(connection)  # the server responds to it unless the connection is dead
            finally:
                pooled.invalidate()  # it is still listening

    def close(self) -> None:
        for engine in self._engines.values():
            engine.dispose()
        self.threads.shutdown()


class _Callers(DaemonThreads):
    """Threads for transactions with a deadline."""

    def __init__(self, count: int, name: str, liveness: Liveness) -> None:
        super().__init__(count, name)
        self._liveness = liveness

    def transact(
        self, begin: Callable[[], Session], work: Work[R], within: timedelta, engines: Collection[Engine]
    ) -> Future[R]:
        """Run a transaction in a thread.  Its future raises :class:`.NoResponse` even if the thread cannot be woken."""

        def run() -> R:
            with deadline, begin() as session, session.begin():
                result = work(session)
                deadline.check()
                return result

        def on_stuck() -> None:
            self.abandon(future, NoResponse(within))

        deadline = Deadline(within, engines, is_async=False, liveness=self._liveness, on_stuck=on_stuck)
        future = self.submit(run)
        return future


# -- the worker's own transactions, through sync or asyncio sessions, and its retries during outages ------------------
#
# Deadlines, connections of single threads and turns to write are here too; nothing here knows handlers or jobs.


def database_of(sessions: Sessions, liveness: Liveness) -> Database:
    """Return the database behind a ``sessionmaker`` or ``async_sessionmaker``.  Raises :class:`.ArgumentError` for
    others."""
    database: Database
    if isinstance(sessions, sessionmaker):
        database = SyncDatabase(sessions, liveness)
    elif type(sessions).__name__ == "async_sessionmaker":
        from .async_database import AsyncDatabase  # noqa: PLC0415  (needs greenlet)

        database = AsyncDatabase(sessions, liveness)
    else:
        raise ArgumentError(f"{sessions!r} is neither a sessionmaker nor an async_sessionmaker, as in Worker(Session)")
    # its sessions may have other engines too, and choose them late
    for bind in (sessions.kw.get("bind"), *(sessions.kw.get("binds") or {}).values()):
        engine = getattr(bind, "sync_engine", bind)  # an AsyncEngine wraps an Engine
        if isinstance(engine, Engine):
            observe(engine)
    return database
