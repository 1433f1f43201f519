"""Writes the outcomes of attempts, batched over a few milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from ..dialects.base import Adapter
from ..transaction import channel_of, spread
from .database import Backoff, Database, until_success
from .deadlines import transaction_limit
from .jobs import InFlight, Job, Outcome, Written, plain_failure, write_reports, write_what_is_free
from .reports import Reports
from .threads import soon

GATHER = 0.003
"""Seconds that the first outcome of a batch waits for others.  A crash before the write repeats their tasks."""
LARGEST = 500
"""The maximum number of outcomes in one batch."""
LOCKED = 0.2
"""Seconds until a row that another transaction has locked is tried again."""
WAITING = ("failed", "snoozed")
"""Outcomes whose tasks come due at a time that pollers have not read yet."""


class _Pending(NamedTuple):
    job: Job
    outcome: Outcome
    is_plain: bool = False
    """Whether the outcome replaces one that cannot be written."""


class Completer:
    """Takes outcomes of one queue from any thread; a task of the event loop writes them, retrying during outages."""

    def __init__(self, database: Database, adapter: Adapter, in_flight: InFlight, reports: Reports) -> None:
        self._database = database
        self._adapter = adapter
        self._in_flight = in_flight
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._pending: list[_Pending] = []
        self._postponed: list[_Pending] = []
        self._some = asyncio.Event()
        self._told = False
        """Whether the loop has been notified of outcomes that it has not taken yet."""
        self._closing = False

    @property
    def backlog(self) -> int:
        """The number of finished tasks whose outcome is not written yet."""
        return len(self._pending) + len(self._postponed)

    def put(self, job: Job, outcome: Outcome | None) -> None:
        """Queue the outcome of a job to be written with others; forget the job if there is none.  Thread-safe."""
        if outcome is None:
            self._in_flight.remove(job)
            return
        self._pending.append(_Pending(job, outcome))
        if not self._told:
            self._told = True
            soon(self._loop, self._some.set)

    async def write(self, outcomes: Iterable[tuple[Job, Outcome]]) -> None:
        """Write these outcomes now; :meth:`run` retries those whose rows are locked."""
        await self._write([_Pending(*each) for each in outcomes])

    def close(self) -> None:
        """End :meth:`run` once everything is written."""
        self._closing = True
        self._some.set()

    async def run(self) -> None:
        """Write outcomes in batches until the completer is closed and all are written."""
        while not (self._closing and not self.backlog):
            await self._some.wait()
            if len(self._pending) < LARGEST and not self._closing:
                await asyncio.sleep(GATHER)
            self._some.clear()
            self._told = False  # before the batch is taken: an outcome put after this sets the event again
            batch = self._pending[:LARGEST]
            del self._pending[: len(batch)]  # keep what was put in the meantime
            if self._pending:
                self._some.set()
            await self._write(batch)

    async def _write(self, batch: Sequence[_Pending]) -> None:
        if not batch:
            return
        try:
            what = f"settle {batch[0].job.handler.spec.name}"
            backoff = Backoff(what, self._reports, [self._adapter], writes_rows=True)
            written = await until_success(lambda: self._settle(batch), backoff)
        except Exception as error:
            await self._write_each(batch, error)
            return
        locked = [each for each in batch if written.locked and each.job.claim in written.locked]
        kept = {each.job for each in locked}
        for job, *_ in batch:
            if written.lost and job.claim in written.lost:
                self._reports.lost(job)
            if job not in kept:
                self._in_flight.remove(job)
        spread({channel_of(job.handler.spec) for job, outcome, _ in batch if outcome.kind in WAITING})
        if locked:  # they are tried again slightly later, without delaying the others
            self._postponed += locked
            self._loop.call_later(LOCKED, self._resume)

    async def _settle(self, batch: Sequence[_Pending]) -> Written:
        outcomes = [(job.claim, outcome) for job, outcome, _ in batch]
        within = transaction_limit(min([job.handler.lease for job, *_ in batch]))

        def settle(session: Session) -> Written:
            if batch[0].job.progress is not None:
                write_reports(session, [job for job, *_ in batch], waits=False)
            return write_what_is_free(session, outcomes)

        return await self._database.run(settle, within)

    def _resume(self) -> None:
        postponed, self._postponed = self._postponed, []
        self._pending += postponed
        self._some.set()

    async def _write_each(self, batch: Sequence[_Pending], error: Exception) -> None:
        """Write each outcome separately, so that one that cannot be written does not block the others.

        Instead of that one, for example a result that is not JSON, an error text beyond the database's character set,
        or a completion that a trigger rejects, a plain failure is written.  If the database rejects that too, the lease
        of the task will expire.
        """
        if len(batch) > 1:
            for each in batch:
                await self._write([each])
            return
        (one,) = batch
        if one.is_plain:
            self._reports.broken(f"settle {one.job}", error)
            self._in_flight.remove(one.job)
            return
        failure = plain_failure(one.outcome, error, one.job.described.number)
        self._reports.finished(one.job, failure, error)
        await self._write([_Pending(one.job, failure, is_plain=True)])
