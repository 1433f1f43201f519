"""Extends the leases of all tasks that the worker holds, even if its handlers block."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import partial

from ..dialects import adapter_for
from ..operations.upkeep import extend
from ..queue.spec import QueueSpec
from .database import Database, SharedConnections, growing_pauses, is_conflict
from .deadlines import transaction_limit
from .handlers import Handler
from .jobs import InFlight, Job
from .reports import Reports

BEATS = 3
"""Heartbeats per lease."""


def _interval(handler: Handler) -> timedelta:
    """Return the time between two heartbeats, which also report threads that exceed their timeout."""
    beat = handler.lease / BEATS
    return beat if handler.timeout is None or handler.can_be_stopped else min(beat, handler.timeout)


class Heartbeat(threading.Thread):
    """A thread that extends the leases of one queue, through a connection that it shares with those of other queues.

    No lease expires because the event loop is blocked, the pool is exhausted, or another queue has problems.
    """

    def __init__(
        self,
        spec: QueueSpec,
        handlers: Iterable[Handler],
        database: Database,
        in_flight: InFlight,
        reports: Reports,
        *,
        own: SharedConnections,
    ) -> None:
        super().__init__(name=f"sqlqueue-heartbeat-{spec.table.name}", daemon=True)
        handlers = [handler for handler in handlers if handler.spec is spec]
        self._spec = spec
        self._engine = database.engine(spec)
        self._adapter = adapter_for(self._engine.dialect)
        self._own = own
        self._in_flight = in_flight
        self._reports = reports
        self._interval = min(_interval(handler) for handler in handlers)
        self._due: dict[timedelta, float] = {}
        self._stopped = threading.Event()

    @property
    def has_died(self) -> bool:
        """Whether the thread ended without being stopped."""
        return self.ident is not None and not self.is_alive() and not self._stopped.is_set()

    def stop(self) -> None:
        """Make the thread end. Does not wait for it."""
        self._stopped.set()

    def run(self) -> None:
        """Extend leases until :meth:`stop`, through outages of the database."""
        wait = self._interval
        backoff = growing_pauses(longest=self._interval.total_seconds())
        try:
            while not self._stopped.wait(wait.total_seconds()):
                try:
                    if self._beat():
                        self._reports.liveness.reached()
                    wait, backoff = self._interval, growing_pauses(longest=self._interval.total_seconds())
                except Exception as error:
                    wait = self._report(error, backoff)
        finally:
            self._own.close()

    def _report(self, error: Exception, backoff: Iterator[timedelta]) -> timedelta:
        """Report ``error``, and return the time until the next try: short after a conflict, before the leases end."""
        what = f"extend leases of {self._spec.name}"
        if is_conflict(error, self._adapter):
            pause = next(growing_pauses())
            self._reports.conflict(what, error, pause)
        else:
            pause = next(backoff)
            self._reports.database_error(what, error, pause)
        return pause

    def _beat(self) -> bool:
        """Extend the leases that are due.  Returns whether anything was sent to the database."""
        self._look_at_the_clock()
        alike: defaultdict[timedelta, list[Job]] = defaultdict(list)
        for job in self._mine():
            alike[job.handler.lease].append(job)
        due = [(lease, jobs) for lease, jobs in alike.items() if self._due.get(lease, 0) <= time.monotonic()]
        for lease, jobs in due:
            held = {job.claim: job for job in jobs}
            extend_all = partial(extend, claims=list(held), lease=lease)
            lost = self._own.run(self._engine, extend_all, transaction_limit(lease))
            self._due[lease] = time.monotonic() + (lease / BEATS - self._interval / 2).total_seconds()
            for claim in lost:
                self._lose(held[claim])
        return bool(due)

    def _mine(self) -> list[Job]:
        return [job for job in self._in_flight if job.handler.spec is self._spec and job.handler.mode == "lease"]

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
