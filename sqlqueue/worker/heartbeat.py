"""The threads of a run that go on while handlers block its event loop.

They extend the leases of the tasks that the worker holds, write what handlers report (``ProgressMixin``), and notice an
event loop that stands still.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import TypeAlias

from .._support.texts import stack_text
from ..operations.settling import report_some
from ..operations.upkeep import extend
from ..queue.spec import QueueSpec
from .context import BEATS, WorkerContext
from .database import OwnConnections, SharedConnections, growing_pauses, is_conflict
from .deadlines import transaction_limit
from .handlers import Handler
from .jobs import Job

Own: TypeAlias = OwnConnections | SharedConnections
EVERY = timedelta(seconds=1)
"""The time between two writes of what a task's handler reports, except for the last one."""
AGAIN = 10.0
"""Seconds between two calls that tell others of a stall."""


class _Thread(threading.Thread):
    """A thread that acts again and again, through connections other than those of the event loop."""

    def __init__(self, name: str, context: WorkerContext, own: Own) -> None:
        super().__init__(name=f"sqlqueue-{name}", daemon=True)
        self._in_flight = context.in_flight
        self._reports = context.reports
        self._own = own
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make the thread end. Does not wait for it."""
        self._stopped.set()


class _QueueThread(_Thread):
    """A thread that acts on one queue, through outages of its database."""

    def __init__(self, name: str, what: str, spec: QueueSpec, context: WorkerContext, own: Own) -> None:
        super().__init__(f"{name}-{spec.table.name}", context, own)
        self._spec = spec
        self._engine = context.database.engine(spec)
        self._adapter = context.adapter(spec)
        self._what = what
        self._every = EVERY
        self._new_pauses = partial(growing_pauses, 2 * EVERY.total_seconds())

    @abstractmethod
    def act(self) -> None:
        """Do once what the thread is for."""

    def run(self) -> None:
        """Act every so often until :meth:`stop`."""
        wait, pauses = self._every, self._new_pauses()
        try:
            while not self._stopped.wait(wait.total_seconds()):
                try:
                    self.act()
                    wait, pauses = self._every, self._new_pauses()
                except Exception as error:
                    wait = self._report(error, pauses)
        finally:
            self._own.close()

    def _report(self, error: Exception, pauses: Iterator[timedelta]) -> timedelta:
        """Report ``error``, and return the time until the next try, which is short after a conflict."""
        if is_conflict(error, self._adapter):
            pause = next(growing_pauses())
            self._reports.conflict(self._what, error, pause)
        else:
            pause = next(pauses)
            self._reports.database_error(self._what, error, pause)
        return pause


def _interval(handler: Handler) -> timedelta:
    """Return the time between two heartbeats, which also report threads that exceed their timeout."""
    beat = handler.lease / BEATS
    return beat if handler.timeout is None or handler.can_be_stopped else min(beat, handler.timeout)


class Heartbeat(_QueueThread):
    """Extends the leases of one queue, through a connection that it shares with the threads of other queues.

    No lease expires because the event loop is blocked, the pool is exhausted, or another queue has problems.
    """

    def __init__(self, spec: QueueSpec, handlers: Iterable[Handler], context: WorkerContext, own: Own) -> None:
        super().__init__("heartbeat", f"extend leases of {spec.name}", spec, context, own)
        self._every = min(_interval(handler) for handler in handlers if handler.spec is spec)
        self._new_pauses = partial(growing_pauses, longest=self._every.total_seconds())  # before the leases end
        self._due: dict[timedelta, float] = {}

    @property
    def has_died(self) -> bool:
        """Whether the thread ended without being stopped."""
        return self.ident is not None and not self.is_alive() and not self._stopped.is_set()

    def act(self) -> None:
        """Extend the leases that are due."""
        self._look_at_the_clock()
        alike: defaultdict[timedelta, list[Job]] = defaultdict(list)
        for job in self._in_flight:
            if job.handler.spec is self._spec and job.handler.mode == "lease":
                alike[job.handler.lease].append(job)
        due = [(lease, jobs) for lease, jobs in alike.items() if self._due.get(lease, 0) <= time.monotonic()]
        for lease, jobs in due:
            held = {job.claim: job for job in jobs}
            extend_all = partial(extend, claims=list(held), lease=lease)
            lost = self._own.run(self._engine, extend_all, transaction_limit(lease))
            self._due[lease] = time.monotonic() + (lease / BEATS - self._every / 2).total_seconds()
            for claim in lost:
                self._lose(held[claim])
        if due:
            self._reports.liveness.reached()

    def _lose(self, job: Job) -> None:
        if not job.has_returned:  # otherwise the job itself changed the row, or will notice
            self._in_flight.remove(job)
            job.lose("its lease expired, or it was cancelled or deleted")

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for job in self._in_flight:
            if job.handler.spec is not self._spec:
                continue
            timeout = job.handler.timeout
            if job.started is None or timeout is None or job.overdue or job.handler.can_be_stopped:
                continue
            if now - job.started > timeout.total_seconds():
                job.overdue = True
                self._reports.overdue(job)


class ProgressWriter(_QueueThread):
    """Writes what handlers of one queue report, once a second at the most.

    Rows that are locked are skipped: only their own handler can have locked them.  Nothing is sent if nothing is
    reported; its connection, which it shares with no other thread, is opened when it is needed.
    """

    def __init__(self, spec: QueueSpec, context: WorkerContext) -> None:
        what = f"write the progress of tasks of {spec.name}"
        super().__init__("progress", what, spec, context, context.database.own())

    def act(self) -> None:
        """Write what has been reported since the last time."""
        # the outcome of a job whose handler has returned is written together with its last report
        mine = [job for job in self._in_flight if job.handler.spec is self._spec and not job.has_returned]
        live = [(job, job.progress) for job in mine if job.progress is not None and not job.progress.is_held]
        left = [(job, progress, *found) for job, progress in live if (found := progress.unwritten())]
        if not left:
            return
        within = transaction_limit(min(job.handler.lease for job, *_ in left))
        reports = [(job.claim, document) for job, _, _, document in left]
        skipped = self._own.run(self._engine, partial(report_some, reports=reports, waits=False), within)
        for job, progress, number, _ in left:
            if job.claim not in skipped:
                progress.wrote(number)


class StallWatch(_Thread):
    """Reports once that the event loop stands still, with the stack of its thread, and once that it goes on.

    That is usually because a coroutine blocks it.  Create it on the loop that it watches.
    """

    def __init__(self, context: WorkerContext, own: Own, tell: Callable[[float], object]) -> None:
        """``tell``: called on this thread during a stall, again and again, with its beginning by ``time.monotonic``."""
        super().__init__("stalls", context, own)
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._tell = tell
        self._since: float | None = None
        """When the loop last ran before the stall that has been reported."""
        self._told = 0.0

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
                task = asyncio.current_task(self._loop)
                at_fault = next((job for job in running if job.coroutine is task), None)
                self._reports.stalled(now - turned, at_fault, running, stack)
        if self._since is not None and now - self._told >= AGAIN:
            self._told = now
            self._tell(self._since)
