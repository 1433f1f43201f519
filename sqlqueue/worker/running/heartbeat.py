"""Extends the leases of all tasks that the worker holds, even if its handlers block."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from ...operations.upkeep import extend
from ...queue.spec import QueueSpec
from ..database.backoff import pauses
from ..database.base import Database, OwnConnections
from ..handling.handlers import Handler
from ..handling.jobs import InFlight, Job
from ..reporting.reports import Reports

BEATS = 3
"""Heartbeats per lease."""


def _interval(handler: Handler) -> timedelta:
    """Return the time between two heartbeats, which also report threads that exceed their timeout."""
    beat = handler.lease / BEATS
    return beat if handler.timeout is None or handler.is_coroutine else min(beat, handler.timeout)


class Heartbeat(threading.Thread):
    """A thread with its own connection that extends the leases of one queue.

    A blocked event loop, an exhausted pool or trouble with another queue does not let a lease expire.
    """

    def __init__(
        self, spec: QueueSpec, handlers: Iterable[Handler], database: Database, in_flight: InFlight, reports: Reports
    ) -> None:
        super().__init__(name=f"sqlqueue-heartbeat-{spec.table.name}", daemon=True)
        handlers = [handler for handler in handlers if handler.spec is spec]
        self._spec = spec
        self._engine = database.engine(spec)
        self._database = database
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
        self._stopped.set()

    def run(self) -> None:
        own = self._database.own()
        wait = self._interval
        patience = pauses(longest=self._interval.total_seconds())
        try:
            while not self._stopped.wait(wait.total_seconds()):
                try:
                    if self._beat(own):
                        self._reports.reached()
                    wait, patience = self._interval, pauses(longest=self._interval.total_seconds())
                except Exception as error:
                    wait = next(patience)
                    self._reports.database_error(f"extend leases of {self._spec.entity.__name__}", error, wait)
        finally:
            own.close()

    def _beat(self, own: OwnConnections) -> bool:
        """Extend the leases that are due.  Returns whether anything was sent to the database."""
        self._look_at_the_clock()
        alike: defaultdict[timedelta, list[Job]] = defaultdict(list)
        for job in self._mine():
            alike[job.handler.lease].append(job)
        due = [(lease, jobs) for lease, jobs in alike.items() if self._due.get(lease, 0) <= time.monotonic()]
        for lease, jobs in due:
            held = {job.claim: job for job in jobs}
            lost = own.run(self._engine, partial(extend, claims=list(held), lease=lease))
            self._due[lease] = time.monotonic() + (lease / BEATS - self._interval / 2).total_seconds()
            for claim in lost:
                self._lose(held[claim])
        return bool(due)

    def _mine(self) -> list[Job]:
        return [job for job in self._in_flight if job.handler.spec is self._spec and job.handler.mode == "lease"]

    def _lose(self, job: Job) -> None:
        if not job.settling:  # otherwise the job itself changed the row, or will notice
            self._in_flight.remove(job)
            job.lose("its lease ended, or it was cancelled or deleted")

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for job in self._in_flight:
            if job.handler.spec is not self._spec:
                continue
            timeout = job.handler.timeout
            if job.started is None or timeout is None or job.overdue or job.handler.is_coroutine:
                continue
            if now - job.started > timeout.total_seconds():
                job.overdue = True
                self._reports.overdue(job)
