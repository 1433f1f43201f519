"""Claims tasks for one handler, as many as it can run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from ...operations.claiming import Wanted, claim_wanted, consume_wanted
from ..concurrency.event_loop import soon
from ..database.backoff import Patience, keep_on
from ..handling.handlers import Handler
from ..handling.jobs import Job
from ..handling.outcomes import RELEASED, Outcome
from ..running.executor import Executor
from ..running.pool import CoroutinePool, Pool, ThreadPool
from .context import WorkerContext
from .poller import Poller
from .readiness import Readiness

AHEAD = 0.1
"""Seconds of work claimed ahead.  Short tasks are claimed in large batches; long ones do not wait here while another
worker is idle."""

UNSETTLED = 2_000
"""The number of unwritten outcomes at which claiming stops: a crash would repeat all of them."""
PAUSE = 0.1
"""Seconds until such a fetcher checks again."""


class Fetcher:
    """Claims tasks for one handler and hands them to its pool."""

    def __init__(self, handler: Handler, context: WorkerContext) -> None:
        self.handler = handler
        self._context = context
        self._poller = Poller(handler, context)
        self._adapter = context.adapter(handler.spec)
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._draining = self._claiming = False
        self._holds = handler.mode == "lease"
        self._jobs: set[Job] = set()
        self._mean: float | None = None
        self._enough = 0
        """The number of jobs left at which claiming more is worth a statement."""
        self._readiness = Readiness(handler.entity, context)
        executor = Executor(handler, context.database, self._adapter, context.reports)
        self._pool: Pool
        if handler.is_coroutine:
            self._pool = CoroutinePool(executor, handler.concurrency, self._done)
        else:
            self._pool = ThreadPool(executor, handler.concurrency, handler.name, self._done)

    def drain(self) -> None:
        """Claim nothing more and release the jobs that have not started; jobs without a lease are still run."""
        self._draining = True
        self._poller.close()
        self._room.set()
        for job in self._pool.withdraw() if self._holds else ():
            self._release(job)

    @property
    def is_idle(self) -> bool:
        return not self._jobs and not self._claiming

    def abandon(self, reason: str) -> None:
        """Stop running jobs as far as possible, and release them."""
        for job in tuple(self._jobs):
            if not job.settling:
                job.lose(reason)
                self._release(job)

    def close(self) -> None:
        for job in tuple(self._jobs):
            job.lose("the worker stopped, and the database did not answer")
        self._poller.close()
        self._pool.close()

    async def run(self) -> None:
        """Claim until :meth:`drain`, through outages; return when no coroutine is running."""
        patience = Patience(f"claim {self.handler.entity.__name__}", self._context.reports, self._adapter)
        await keep_on(self._turn, lambda: self._draining, patience)
        await self._pool.ended()

    async def _turn(self) -> None:
        wanted = await self._wanted()
        if self._draining:
            return
        only_ready = self._poller.expect()
        self._claiming = True
        try:
            tasks = await self._claim(wanted, only_ready=only_ready)
            for task in tasks:
                self._start(task)
        finally:
            self._claiming = False
        if tasks:
            self._poller.refresh()
        if self._draining:
            return
        if len(tasks) < wanted:
            await self._poller.wait()
        elif (claimed := self._context.wanted(self.handler)) is not None:
            await self._readiness.now_and_then(claimed.where)

    async def _wanted(self) -> int:
        """Wait until claiming is worth a statement.  Returns how many tasks to claim."""
        while True:
            self._room.clear()
            ahead = self._ahead()
            most = self.handler.concurrency + ahead
            self._enough = most - max(1, ahead // 2)
            left = len(self._jobs)
            wanted = min(most - left, self.handler.batch)
            if self._draining:
                return wanted
            if self._context.completers[self.handler.spec].backlog >= UNSETTLED:
                await asyncio.sleep(PAUSE)
            elif left <= self._enough:
                return wanted
            else:
                await self._room.wait()

    def _ahead(self) -> int:
        if self._mean is None or not self._holds:
            return 0
        # two batches: one runs while the next is claimed
        return min(2 * self.handler.batch, int(self.handler.concurrency * AHEAD / max(self._mean, 1e-6)))

    async def _claim(self, limit: int, *, only_ready: bool) -> Sequence[Any]:
        wanted = self._context.wanted(self.handler)
        if wanted is None:
            return ()
        wanted = wanted.ready if only_ready else wanted
        return await self._context.database.run(partial(self._take, wanted=wanted, limit=limit))

    def _take(self, session: Session, wanted: Wanted, limit: int) -> Sequence[Any]:
        if self.handler.mode == "at-most-once":
            return consume_wanted(session, wanted, limit, claimed_by=self._context.name)
        return claim_wanted(session, wanted, limit, lease=self.handler.lease, claimed_by=self._context.name)

    def _start(self, task: Any) -> None:
        job = Job(self.handler, task)
        self._context.reports.claimed(job)
        self._context.in_flight.add(job)
        self._jobs.add(job)
        if self._draining and self._holds:
            self._release(job)
        else:
            self._pool.put(job)

    def _release(self, job: Job) -> None:
        self._jobs.discard(job)
        self._context.settle(job, RELEASED if self._holds else None)

    def _done(self, job: Job, outcome: Outcome | None) -> None:
        """Settle a finished job.  Called on any thread."""
        if job.seconds is not None:
            self._mean = job.seconds if self._mean is None else 0.9 * self._mean + 0.1 * job.seconds
        self._context.settle(job, outcome if self._holds else None)
        self._jobs.discard(job)  # last: the completer is not closed before the fetcher is idle
        if len(self._jobs) <= self._enough and not self._room.is_set():
            soon(self._loop, self._room.set)
