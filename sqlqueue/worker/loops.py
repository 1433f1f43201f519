"""Word from threads to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

CANCEL_EVERY = 1.0
"""Seconds."""
CANCELS = 4
"""How often: one that goes on then will not be stopped by that."""


def soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call it on the loop, from any thread; not at all if the loop is closed: a thread may outlive its worker."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


async def cancel_others() -> None:
    """End all other tasks of this event loop, which belong to nobody else."""
    this = asyncio.current_task()
    for _ in range(CANCELS):
        others = asyncio.all_tasks() - {this}
        if not others:
            return
        for task in others:
            task.cancel()
        # more than once: at the first time, psycopg asks the server for an end, and waits for the answer
        await asyncio.wait(others, timeout=CANCEL_EVERY)
