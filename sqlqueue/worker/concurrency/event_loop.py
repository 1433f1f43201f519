"""Word from threads to the event loop, and the ends of what runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, TypeVar

R = TypeVar("R")

CANCEL_EVERY = 1.0
"""Seconds."""
CANCELS = 4
"""How often: one that goes on then will not be stopped by that."""


def soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call it on the loop, from any thread; not at all if the loop is closed: a thread may outlive its worker."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """They wait for nothing that would be in the way of their end."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def cancel_others() -> None:
    """End all other tasks of this event loop, which belong to nobody else."""
    this = asyncio.current_task()
    await _end(lambda: asyncio.all_tasks() - {this}, 0)


class Underway:
    """What has begun and is to come to its end, whether or not anybody still waits for it."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[Any]] = set()

    async def until(self, future: asyncio.Future[R]) -> R:
        """Its result; who is cancelled meanwhile leaves it to go on."""
        self._futures.add(future)
        future.add_done_callback(self._ended)
        await asyncio.wait([future])
        return future.result()

    async def end(self, patience: float) -> None:
        """Wait for all of them, so many seconds; then they are cancelled."""
        await _end(lambda: set(self._futures), patience)

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._futures.discard(future)
        if not future.cancelled():
            future.exception()  # nobody may be left to see it, and asyncio is to make no noise of that


async def _end(pending: Callable[[], Collection[asyncio.Future[Any]]], patience: float) -> None:
    # cancelled more than once: at the first time, psycopg asks the server for an end, and waits for the answer
    for pause in (patience, *[CANCEL_EVERY] * CANCELS):
        if not (left := pending()):
            return
        _, late = await asyncio.wait(left, timeout=pause)
        for each in late:
            each.cancel()
