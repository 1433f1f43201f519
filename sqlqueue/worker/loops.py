"""Word from threads to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


def soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call it on the loop, from any thread; not at all if the loop is closed: a thread may outlive its worker."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
