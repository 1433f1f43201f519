"""The worker: the loop that claims tasks and calls handlers, written once for everybody."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar, overload

from ..checks import duration
from ..exc import ArgumentError, HandlerNotFoundError
from ..spec import T, Where
from .config import Handler, Mode, Settings, handler_of
from .database import Sessions, database_of
from .health import Health
from .reports import make_reports
from .run import Run

S = TypeVar("S")
R = TypeVar("R")
Task = TypeVar("Task")


class Register(Protocol[Task]):
    """Takes a handler, and returns it as it is."""

    @overload
    def __call__(self, function: Callable[[Task], R], /) -> Callable[[Task], R]: ...
    @overload
    def __call__(self, function: Callable[[S, Task], R], /) -> Callable[[S, Task], R]: ...


class Worker:
    """Claims tasks and calls handlers, until it is stopped.  Nothing that a database or a handler does ends it.

    ``sessions``: the application's ``sessionmaker`` or ``async_sessionmaker``, of sessions of any class.
    ``name``: by which its claims are known (``claimed_by``); ``host:pid`` if not given.
    ``poll``: the longest time between two looks for work, where nothing tells it.
    ``grace``: how long running handlers are waited for when it stops.
    ``notify``: whether to listen for notifications where the engine has them; not possible behind a pooler of
    transactions.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        name: str | None = None,
        poll: timedelta = timedelta(seconds=3),
        grace: timedelta = timedelta(seconds=30),
        notify: bool = True,
    ) -> None:
        self._database = database_of(sessions)
        self._settings = Settings(
            name=name, poll=duration("poll", poll), grace=duration("grace", grace, zero=True), notify=notify
        )
        self.handlers: list[Handler] = []
        self.reports = make_reports()
        self._run: Run | None = None
        self._stop_first = False

    def handler(
        self,
        entity: type[T],
        *where: Where,
        concurrency: int = 10,
        timeout: timedelta | None = None,
        lease: timedelta | None = None,
        batch: int = 100,
        mode: Mode = "lease",
    ) -> Register[T]:
        """Register a function, or a coroutine function, for the tasks of ``entity`` that satisfy ``where``.

        ``(session, task)``: its writes through the session and the completion of the task are one commit, tried at
        least once and effective exactly once.  The session is the worker's, a new one for each call.
        ``(task)``: it is completed afterwards, together with others.  The task is detached, its columns are loaded.

        An exception rolls back what was written and is recorded: the task is retried after the model's backoff, and
        discarded after its last attempt.  :class:`.Retry`, :class:`.Snooze`, :class:`.Discard` and :class:`.Cancel`
        say otherwise.  A transaction that fell victim to a deadlock or a serialization failure is run again at once.

        ``concurrency``: how many run at a time, functions in threads, coroutines on the event loop.
        ``timeout``: a coroutine is cancelled, and has failed; of a thread it is only reported.
        ``lease``: the model's if not given; it is extended while the worker lives.
        ``batch``: how many tasks one claim takes at the most; less the longer they take.
        ``mode``: ``"lock"`` holds the task by its row's lock in one transaction from claim to completion, without a
        lease; ``"at-most-once"`` completes it before the handler is called.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            handler = handler_of(
                function,
                entity,
                where,
                concurrency=concurrency,
                timeout=timeout,
                lease=lease,
                batch=batch,
                mode=mode,
            )
            self._check(handler)
            self.handlers.append(handler)
            return function

        return register

    def _check(self, handler: Handler) -> None:
        if handler.takes_session and handler.is_coroutine != self._database.is_async:
            kinds = ("coroutine", "an async_sessionmaker") if handler.is_coroutine else ("function", "a sessionmaker")
            raise ArgumentError(f"{handler.name}: a {kinds[0]} that takes a session needs a worker of {kinds[1]}")

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or :meth:`stop`, in the calling thread.

        The first signal drains: nothing more is claimed, what runs is given the grace period, the rest is released
        (the attempt does not count) and is picked up by others at once.  A second one does not wait.
        """
        asyncio.run(self._serve_with_signals())

    async def serve(self) -> None:
        """:meth:`run` as a part of an application's own event loop, which handles the signals; cancelled, it drains."""
        if not self.handlers:
            raise HandlerNotFoundError("the worker has no handlers: register one with @worker.handler(Task)", name="")
        self._run = Run(self.handlers, self._database, self.reports, self._settings)
        if self._stop_first:
            self._run.stop(at_once=False)
        try:
            await self._run.serve()
        finally:
            self._run, self._stop_first = None, False

    def health(self) -> Health | None:
        """How it is, ``None`` unless it runs.  From any thread; asks nothing of the database."""
        return None if self._run is None else self._run.health()

    def stop(self, *, at_once: bool = False) -> None:
        """Let :meth:`run` or :meth:`serve` end, as by a signal; ``at_once`` as by the second.  From any thread.

        One that has not begun yet ends as soon as it does.
        """
        self._stop_first = True  # before the look: it may begin between the two
        if self._run is not None:
            self._run.stop(at_once=at_once)

    async def _serve_with_signals(self) -> None:
        with _signals(self._signalled):
            try:
                await self.serve()
            finally:
                await self._database.dispose({self._database.engine(handler.spec) for handler in self.handlers})

    def _signalled(self) -> None:
        if self._run is None:
            self.stop()
        else:
            self._run.signalled()


@contextmanager
def _signals(heard: Callable[[], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, lambda *_: heard())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
