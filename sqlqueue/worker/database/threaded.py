"""The worker's transactions through plain sessions, in threads."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from ...dialects.parts.notifications import Listener
from ...queue.spec import QueueSpec
from ..concurrency.event_loop import Underway
from ..concurrency.threads import DaemonThreads
from ..reporting.health import Liveness
from .base import MAX_TRANSACTIONS, Begun, Heard, Work, engine_of, own_engine
from .deadlines import PROBE_EVERY, PROBE_WITHIN, Deadline, LibraryDeadline, NoResponse

R = TypeVar("R")


class SyncDatabase:
    """A :class:`.Database` of plain sessions, which runs them in threads."""

    is_async = False

    def __init__(self, sessions: sessionmaker[Any], liveness: Liveness) -> None:
        self._sessions = sessions
        self._liveness = liveness
        self.engines: set[Engine] = set()
        self._threads = _Callers(MAX_TRANSACTIONS, "database", liveness)
        self._all_threads = weakref.WeakSet([self._threads])
        self._underway = Underway()

    @property
    def stuck(self) -> int:
        """The number of threads whose calls were abandoned and have not returned."""
        return sum(threads.stuck for threads in tuple(self._all_threads))

    async def run(self, work: Work[R], within: timedelta) -> R:
        """Run ``work`` in a transaction on a thread, see :meth:`.Database.run`."""
        make = partial(self._sessions, expire_on_commit=False)
        future = self._threads.transact(make, work, within, self.engines)
        return await self._underway.until(asyncio.wrap_future(future))

    def open(self) -> tuple[Any, Session]:
        """Return a new session, twice: it is its own sync session."""
        session = self._sessions()
        return session, session

    def engine(self, spec: QueueSpec) -> Engine:
        """Return the engine of a queue, see :meth:`.Database.engine`."""
        with self._sessions() as session:
            engine = engine_of(session, spec)
        self.engines.add(engine)
        return engine

    def own(self) -> SyncConnections:
        """Return connections for one thread."""
        own = SyncConnections(self._liveness)
        self._all_threads.add(own.threads)
        return own

    async def end(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for transactions that are under way, and end the threads."""
        await self._underway.end(timeout)
        self._threads.shutdown()

    async def dispose(self, engines: Iterable[Engine]) -> None:
        """Do nothing: plain connections do not belong to an event loop."""


class SyncConnections:
    """:class:`.OwnConnections` of plain sessions."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._engines: dict[Engine, Engine] = {}
        self.threads = _Callers(1, "own", liveness)
        """Separate threads, so that the caller's thread can continue if one is stuck."""

    def run(self, engine: Engine, work: Work[R], within: timedelta) -> R:
        """Run ``work`` in a transaction on a connection to ``engine``, within a deadline."""
        own = own_engine(self._engines, engine)
        try:
            return self.threads.transact(partial(Session, own), work, within, (engine,)).result()
        except NoResponse:
            self._engines.clear()  # a thread that is stuck keeps its place in the pool
            raise

    def listen(self, engine: Engine, listener: Listener, begun: Begun, heard: Heard) -> None:
        """Listen for notifications until the listener is stopped or the connection is lost."""
        with Deadline(PROBE_WITHIN, (engine,), is_async=False) as deadline:
            pooled = own_engine(self._engines, engine).raw_connection()
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
        """Close the connections and end the threads."""
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

        deadline = LibraryDeadline(within, self._liveness, engines, is_async=False, on_stuck=on_stuck)
        future = self.submit(run)
        return future
