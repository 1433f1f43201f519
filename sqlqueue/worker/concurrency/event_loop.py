"""Calls from threads to the event loop, and cancellation of what runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

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

    result, error = await asyncio.create_task(caught(), context=context)
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
