"""Requests to stop a run: after its grace period, without waiting, or once its running handlers have ended."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import timedelta

from ..concurrency.event_loop import soon

ONE_SIGNAL = 0.5
"""Seconds within which two signals count as one."""


class StopRequest:
    """Whether a run is to stop, and how long it waits for running handlers.

    Created on the event loop of the run.  :meth:`signal` and :meth:`make` may be called on any thread.
    """

    def __init__(self, grace: timedelta) -> None:
        self.grace = grace.total_seconds()
        """Seconds for which running handlers may continue after the request."""
        self._loop = asyncio.get_running_loop()
        self._made, self._immediate = asyncio.Event(), asyncio.Event()
        self._deadline = math.inf
        """When running handlers are abandoned, by the loop's time."""
        self._drains = False
        """Whether handlers may run however long they take."""
        self._signalled: float | None = None

    def signal(self) -> None:
        """Request a stop at the first signal, and one without waiting at the second.

        A signal to a process group arrives twice, once directly and once through the supervisor: that is one signal.
        """
        now = time.monotonic()
        if self._signalled is None:
            self._signalled = now
        self.make(at_once=now - self._signalled > ONE_SIGNAL)

    def make(self, *, at_once: bool) -> None:
        """Request a stop after the grace period, which begins now, or with ``at_once`` one without waiting."""
        soon(self._loop, self._begin_grace)
        soon(self._loop, self._made.set)
        if at_once:
            soon(self._loop, self._immediate.set)

    def drain(self) -> None:
        """Request a stop once all running handlers have ended, however long they take."""
        self._drains = True
        self._made.set()

    async def wait(self) -> None:
        """Wait for a request."""
        await self._made.wait()

    def begin(self) -> None:
        """Record that the run is stopping, whatever the reason: the grace period begins, unless the run drains."""
        if not self._drains:
            self._begin_grace()

    @property
    def is_immediate(self) -> bool:
        """Whether the run is to end without waiting."""
        return self._immediate.is_set()

    @property
    def gives_up_handlers(self) -> bool:
        """Whether running handlers have no time left."""
        return self.is_immediate or self._loop.time() >= self._deadline

    def _begin_grace(self) -> None:
        self._deadline = min(self._deadline, self._loop.time() + self.grace)
