"""Workers that run in threads of the test, and handlers of the kind that these workers accept."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import timedelta
from threading import Event, Lock, Thread
from typing import Any, Self

from sqlalchemy import select

from sqlqueue import Worker, current_job
from tests.support.harness import Database
from tests.support.models import Ledger, Task

LONG = timedelta(minutes=5)
"""A `poll` that is too long for polling to find anything during a test."""
AT_ONCE = 60.0
"""Seconds, generous for a busy machine; with a poll of `LONG`, a worker polls after 150 at the earliest."""
POLL = timedelta(seconds=0.3)
LEASE = timedelta(seconds=4.5)
"""Heartbeats come after a third of it, so that the machine may stall for three seconds."""
_THREADS = ThreadPoolExecutor(50)
PATIENCE = 60.0
"""Seconds after which a wait fails."""


OF_WORKER = {"engine", "grace", "name", "notify", "poll", "version"}
"""Options of a worker; the other ones are those of its handler."""


class Workers:
    """The workers of a test; they are stopped at its end."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._running: list[Running] = []
        self._engines: list[Database] = []

    def make(
        self,
        *,
        poll: timedelta = timedelta(seconds=0.3),
        notify: bool = False,
        engine: Database | None = None,
        **options: Any,
    ) -> Worker:
        """Return a worker with a separate engine, because connections belong to the event loop that opened them. By
        default it does not listen for notifications: a listener takes up to a second to end.
        """
        engine = engine or self._db.variant(pool_size=20)
        self._engines.append(engine)
        return Worker(engine.sessions(), poll=poll, notify=notify, **options)

    def start(self, worker: Worker, *, engine: Database | None = None) -> Running:
        """Start a worker; pass ``engine`` for a worker that was not created here."""
        if engine is not None:
            self._engines.append(engine)
        running = Running(worker)
        self._running.append(running)
        return running

    def serve(self, model: Any, handler: Any, *where: Any, **options: Any) -> Running:
        """Start a worker with one handler; the options are those of `make` and of :meth:`.Worker.handler`."""
        of_worker = {name: options.pop(name) for name in OF_WORKER & options.keys()}
        worker = self.make(**of_worker)
        worker.handler(model, *where, **options)(handler)
        return self.start(worker)

    def end_test(self) -> None:
        for running in self._running:
            running.worker.stop(at_once=True)
        for running in self._running:
            running.wait()
        for engine in self._engines:
            eventually(lambda pool=engine.session_engine.pool: not pool.checkedout())


class Running:
    """A worker in a thread; as a context manager, it is stopped at the end."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(at_once=True)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self.error = error

    def stop(self, *, at_once: bool = False) -> None:
        self.worker.stop(at_once=at_once)
        self.wait()

    def wait(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the worker does not end"
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()


class BlockingHandler:
    """A handler whose calls block until the test releases them."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        """The keys of the tasks that it was called with."""
        self.max_running = 0
        """The maximum number of calls that ran at the same time."""
        self.lost: list[Any] = []
        """The keys of the tasks whose calls ended because their claims were lost."""
        self._running = 0
        self._lock = Lock()
        self._released = Event()

    def __call__(self, task: Any) -> None:
        job, key = current_job(), task.id
        with self._lock:
            self._running += 1
            self.max_running = max(self.max_running, self._running)
            self.started.append(key)
        while not self._released.is_set():
            if job.wait(0.05):
                self.lost.append(key)
                break
        with self._lock:
            self._running -= 1

    def wait_for(self, count: int = 1) -> None:
        eventually(lambda: len(self.started) >= count)

    def release(self) -> None:
        self._released.set()


def eventually(holds: Callable[[], Any], within: float = PATIENCE) -> Any:
    """Return the result of `holds` once it is true."""
    begun = time.monotonic()
    pause = 0.01
    while not (found := holds()):
        waited = time.monotonic() - begun
        assert waited < within, "it has not come about"
        time.sleep(pause)
        pause = min(1.5 * pause, max(0.05, waited / 20), 0.2)  # polling costs server time
    return found


@contextmanager
def seen(db: Database, name: str) -> Iterator[list[Any]]:
    """Yield the list of these events on the engine of the sessions of `db`."""
    found: list[Any] = []

    def observe(*arguments: Any) -> None:
        found.append(arguments)

    before = db.observers[name]
    db.observers[name] = (*before, observe)
    try:
        yield found
    finally:
        db.observers[name] = before


def nothing(*_: Any) -> None:
    pass


def write_ledger(session: Any, task: Any) -> None:
    """Write a row that can exist only once for each task."""
    session.add(Ledger(task_id=task.id, worker="worker"))


async def _in_thread(during: Callable[[Any], Any], task: Any) -> Any:
    """Call it in a thread, as `asyncio.to_thread` does, which has few threads."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, copy_context().run, during, task)


def with_session(
    db: Database,
    write: Callable[[Any, Any], Any] = write_ledger,
    *,
    before: Callable[[Any, Any], None] = nothing,
    during: Callable[[Any], None] = nothing,
) -> Any:
    """Return a handler that calls `before` with a sync session, `during`, which may block, and `write` likewise, and
    returns the result of `write`."""

    def function(session: Any, task: Any) -> Any:
        before(session, task)
        during(task)
        return write(session, task)

    async def coroutine(session: Any, task: Any) -> Any:
        await session.run_sync(before, task)
        await _in_thread(during, task)
        return await session.run_sync(write, task)

    return coroutine if db.is_async else function


def of_kind(db: Database, function: Callable[..., Any]) -> Any:
    """Return a function for tasks, or a coroutine function with its parameters, to match the sessions of `db`."""

    @functools.wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return coroutine if db.is_async else function


def without_session(db: Database, during: Callable[[Any], Any] = nothing) -> Any:
    """Return a handler that calls `during`, which may block, and returns its result."""

    def function(task: Any) -> Any:
        return during(task)

    async def coroutine(task: Any) -> Any:
        return await _in_thread(during, task)

    return coroutine if db.is_async else function


def raising(db: Database, error: BaseException, *, session: bool = True) -> Any:
    """Return a handler that writes and then fails."""

    def write(session: Any, task: Any) -> None:
        write_ledger(session, task)
        session.flush()
        raise error

    def during(task: Any) -> None:
        raise error

    return with_session(db, write) if session else without_session(db, during)


def by_id(db: Database, column: Any) -> dict[Any, Any]:
    """Return the values of a column by the id of the row."""
    with db.engine.connect() as connection:
        return dict(connection.execute(select(column.class_.id, column)).all())


def statuses(db: Database, model: Any = Task) -> dict[Any, str]:
    return by_id(db, model.status)


def all_are(db: Database, status: str, model: Any = Task) -> Callable[[], bool]:
    return lambda: set(statuses(db, model).values()) == {status}
