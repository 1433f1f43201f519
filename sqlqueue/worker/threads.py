"""Threads, the event loop, and calls from one to the other.  Nothing here depends on tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue
from typing import Any, TypeVar

# -- calls from threads to the event loop, and cancellation of what runs on it ----------------------------------------

R = TypeVar("R")

CANCEL_EVERY = 1.0
"""Seconds between two cancellations of the same task."""
CANCELS = 4
"""How often a task is cancelled.  One that continues after that ignores cancellation."""


def soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call ``callback`` on the loop, from any thread.  Do nothing if the loop is closed: threads may outlive it."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


async def happens_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait at most ``seconds`` until ``event`` is set.  Returns whether it is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def in_task(awaitable: Awaitable[R], context: Context) -> R:
    """Await ``awaitable`` in a task of its own, with this context, and return its result.

    Whatever it does to its task stays there: variables of the context, and cancellations that nobody requested here.
    """

    async def caught() -> tuple[R | None, BaseException | None]:
        try:
            return await awaitable, None
        except BaseException as error:  # asyncio would end the event loop with a SystemExit
            return None, error

    try:
        result, error = await asyncio.create_task(caught(), context=context)
    except asyncio.CancelledError:  # before its first step: from then on, it catches every error
        if asyncio.iscoroutine(awaitable):
            awaitable.close()
        raise
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait for them to finish."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def cancel_others() -> None:
    """Cancel all other tasks of this event loop, which must belong to the caller alone."""
    this = asyncio.current_task()
    await _end(lambda: asyncio.all_tasks() - {this}, 0)


class Underway:
    """Futures that run to their end even if the tasks awaiting them are cancelled."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[Any]] = set()

    async def until(self, future: asyncio.Future[R]) -> R:
        """Await ``future`` and return its result.  Cancelling the caller leaves the future running."""
        self._futures.add(future)
        future.add_done_callback(self._ended)
        await asyncio.wait([future])
        return future.result()

    async def end(self, timeout: float) -> None:
        """Wait ``timeout`` seconds for all futures, then cancel the remaining ones."""
        await _end(lambda: set(self._futures), timeout)

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._futures.discard(future)
        if not future.cancelled():
            future.exception()  # retrieve it, or asyncio would log it if the caller no longer awaits it


async def _end(pending: Callable[[], Collection[asyncio.Future[Any]]], timeout: float) -> None:
    # cancelled more than once: after the first, psycopg sends a cancel request to the server and waits for the response
    for pause in (timeout, *[CANCEL_EVERY] * CANCELS):
        if not (left := pending()):
            return
        _, late = await asyncio.wait(left, timeout=pause)
        for each in late:
            each.cancel()


# -- a lock for threads and coroutines --------------------------------------------------------------------------------

HANDED_AFTER = 0.5
"""Seconds after which a waiting caller is the next one to hold the lock."""
PAUSES = 0.005, 0.04
"""The first and the longest pause in seconds between two attempts of a waiting caller until then."""


class FairLock:
    """A lock for threads and coroutines of any event loop, which no caller is kept from by those that come later.

    A free lock is taken by the first caller that asks for it, usually the one that has just released it: a thread that
    had to be woken for every transaction would leave the database idle meanwhile.  A caller that has waited for
    :data:`HANDED_AFTER` gets the lock at its next release, the longest waiting one first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_held = False
        self._waiting: deque[_Waiting] = deque()

    def acquire(self, timeout: float, *, is_async: bool) -> bool:
        """Wait for the lock for at most ``timeout`` seconds.  Returns whether the caller holds it now.

        With ``is_async``, the caller runs in one of SQLAlchemy's greenlets, whose event loop keeps running.
        """
        with self._lock:
            if not self._is_held:
                self._is_held = True
                return True
            waiting = _Waiting(is_async=is_async)
            self._waiting.append(waiting)
        try:
            return self._wait(waiting, timeout)
        except BaseException:
            if self._withdraw(waiting):
                self.release()
            raise

    def release(self) -> None:
        """Hand the lock to the longest waiting caller if it has waited for long enough, or free it."""
        with self._lock:
            if self._waiting and self._waiting[0].since + HANDED_AFTER <= time.monotonic():
                self._waiting.popleft().handed.set_result(None)
            else:
                self._is_held = False

    def _wait(self, waiting: _Waiting, timeout: float) -> bool:
        until = waiting.since + timeout
        pause, longest = PAUSES
        while not waiting.handed.done() and (left := until - time.monotonic()) > 0:
            waiting.sleep(min(left, pause))
            self._retry(waiting)
            pause = min(2 * pause, longest)
        return self._withdraw(waiting)

    def _withdraw(self, waiting: _Waiting) -> bool:
        """Stop waiting.  Returns whether the caller holds the lock."""
        with self._lock:
            if waiting.handed.done():
                return True
            self._waiting.remove(waiting)
            return False

    def _retry(self, waiting: _Waiting) -> None:
        """Hand the lock to a waiting caller if it is free."""
        with self._lock:
            if not self._is_held:
                self._is_held = True
                self._waiting.remove(waiting)
                waiting.handed.set_result(None)


class _Waiting:
    """A caller that waits for the lock."""

    def __init__(self, *, is_async: bool) -> None:
        self.since = time.monotonic()
        self.handed = Future[None]()
        """Done when the caller holds the lock."""
        self._awaited = {asyncio.wrap_future(self.handed)} if is_async else None

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``, or when the caller holds the lock."""
        if self._awaited is None:
            with suppress(TimeoutError):
                self.handed.result(seconds)
        else:
            from sqlalchemy.util import await_only  # noqa: PLC0415

            await_only(asyncio.wait(self._awaited, timeout=seconds))


# -- daemon threads, which do not keep a process alive when one hangs in a handler or waits for a silent database -----


class DaemonThreads(ThreadPoolExecutor):
    """At most ``count`` daemon threads, started on demand.

    It uses none of the base class's threads, which the interpreter joins at exit; it derives from it because
    ``loop.set_default_executor`` accepts nothing else.
    """

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count)
        self._count = count
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begun = 0
        self._busy = 0
        self._lock = threading.Lock()
        self.stuck = 0
        """Threads whose calls were abandoned and have not returned."""

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Call ``fn`` in a daemon thread, and return the future of its result."""
        future: Future[R] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        with self._lock:
            self._busy += 1
            self._start()
        self._calls.put(call)
        return future

    def grow(self, count: int) -> None:
        """Allow at least ``count`` threads."""
        with self._lock:
            self._count = max(self._count, count)
            self._start()

    def abandon(self, future: Future[Any], error: Exception) -> None:
        """Make ``future`` raise ``error``, and allow another thread to replace the one that may never return."""
        with suppress(InvalidStateError):
            future.set_exception(error)
            with self._lock:
                self.stuck += 1
                self._begun -= 1
                self._busy -= 1
                self._start()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """End idle threads, without waiting for running calls.  A later ``submit`` starts new threads."""
        with self._lock:
            for _ in range(self._begun):
                self._calls.put(None)
            self._begun = 0

    def _start(self) -> None:
        """Start a thread if all are busy, up to the number of threads."""
        if self._busy > self._begun and self._begun < self._count:
            self._begun += 1
            name = f"sqlqueue-{self._name}-{self._begun}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except InvalidStateError:  # the call was abandoned, and this thread has been replaced
                with self._lock:
                    self.stuck -= 1
                return
            with self._lock:
                self._busy -= 1
