"""Notices an event loop that stands still, usually because a coroutine blocks it, from a thread of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable

from .._support.texts import stack_text
from .database import SharedConnections
from .jobs import InFlight, Job
from .reports import Reports

AGAIN = 10.0
"""Seconds between two calls that tell others of the stall."""


class StallWatch(threading.Thread):
    """Reports once that the event loop stands still, with the stack of its thread, and once that it goes on.

    Create it on the loop that it watches.
    """

    def __init__(
        self,
        in_flight: InFlight,
        reports: Reports,
        tell: Callable[[SharedConnections, float], object],
        *,
        own: SharedConnections,
    ) -> None:
        """``tell``: called on this thread during a stall, again and again, with ``own`` and the beginning of the stall
        by ``time.monotonic``."""
        super().__init__(name="sqlqueue-stalls", daemon=True)
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._in_flight = in_flight
        self._reports = reports
        self._tell = tell
        self._own = own
        self._since: float | None = None
        """When the loop last ran before the stall that has been reported."""
        self._told = 0.0
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make the thread end. Does not wait for it."""
        self._stopped.set()

    def run(self) -> None:
        """Look at the loop until :meth:`stop`."""
        try:
            while not self._stopped.wait(self._reports.liveness.tick):
                self._look()
        finally:
            self._own.close()

    def _look(self) -> None:
        liveness, now = self._reports.liveness, time.monotonic()
        turned = liveness.turned
        if self._since is not None and turned != self._since:
            self._reports.goes_on(turned - self._since)
            self._since = None
        elif self._since is None and liveness.is_stalled:
            self._since, self._told = turned, now - AGAIN
            running = [job for job in self._in_flight if job.is_on_loop]
            frame = sys._current_frames().get(self._watched)
            stack = "" if frame is None else stack_text(frame)
            if liveness.turned == turned:  # otherwise the stack is another one
                self._reports.stalled(now - turned, self._at_fault(running), running, stack)
        if self._since is not None and now - self._told >= AGAIN:
            self._told = now
            self._tell(self._own, self._since)

    def _at_fault(self, running: list[Job]) -> Job | None:
        task = asyncio.current_task(self._loop)
        return next((job for job in running if job.coroutine is task), None)
