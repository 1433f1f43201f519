"""Writes what handlers report about their tasks while they run (``ProgressMixin``)."""

from __future__ import annotations

import threading
from functools import partial

from ..dialects import adapter_for
from ..operations.settling import report_some
from ..queue.spec import QueueSpec
from .database import Database, growing_pauses, is_conflict
from .deadlines import transaction_limit
from .jobs import InFlight
from .reports import Reports

EVERY = 1.0
"""Seconds between two writes for one task, except for the last one."""


class ProgressWriter(threading.Thread):
    """A thread that writes what handlers of one queue report, once a second at the most.

    Rows that are locked are skipped: only their own handler can have locked them.  Nothing is sent if nothing is
    reported; its connection, which it shares with no other thread, is opened when it is needed.
    """

    def __init__(self, spec: QueueSpec, database: Database, in_flight: InFlight, reports: Reports) -> None:
        super().__init__(name=f"sqlqueue-progress-{spec.table.name}", daemon=True)
        self._spec = spec
        self._engine = database.engine(spec)
        self._adapter = adapter_for(self._engine.dialect)
        self._own = database.own()
        self._in_flight = in_flight
        self._reports = reports
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make the thread end. Does not wait for it."""
        self._stopped.set()

    def run(self) -> None:
        """Write reports until :meth:`stop`, through outages of the database."""
        wait, pauses = EVERY, growing_pauses()
        try:
            while not self._stopped.wait(wait):
                try:
                    self._write()
                    wait, pauses = EVERY, growing_pauses()
                except Exception as error:
                    pause = next(pauses)
                    told = self._reports.conflict if is_conflict(error, self._adapter) else self._reports.database_error
                    told(f"write the progress of tasks of {self._spec.name}", error, pause)
                    wait = max(EVERY, pause.total_seconds())
        finally:
            self._own.close()

    def _write(self) -> None:
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
