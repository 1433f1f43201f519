"""The fetcher of a relay: claims messages and publishes them in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from ..worker.database.backoff import keep_running
from ..worker.database.deadlines import transaction_limit
from ..worker.fetching.base import BaseFetcher
from ..worker.fetching.context import WorkerContext
from ..worker.fetching.poller import Poller
from ..worker.fetching.readiness import Readiness
from ..worker.handling.handlers import Handler
from ..worker.handling.jobs import Job
from ..worker.handling.outcomes import RELEASED, Outcome
from .delivery import Delivery
from .message_claims import claim_messages


class RelayFetcher(BaseFetcher):
    """Publishes batches one after the other; the next is claimed after the outcomes of the last are written."""

    slots = 1

    def __init__(self, handler: Handler, context: WorkerContext, delivery: Delivery) -> None:
        self._handler = handler
        self._context = context
        self._delivery = delivery
        self._poller = Poller(handler, context)
        self._draining = self._busy = False
        self._free = asyncio.Event()
        self._free.set()
        self._jobs: Sequence[Job] = ()
        self._publishing: asyncio.Task[None] | None = None
        self._readiness = Readiness(handler, context)

    @property
    def is_idle(self) -> bool:
        """Whether no batch is being claimed or published."""
        return not self._busy

    def resize(self, slots: int) -> None:
        """Ignore ``slots``: the order of messages allows no more than one batch at a time."""

    def hold(self) -> None:
        self._free.clear()

    def resume(self) -> None:
        self._free.set()

    def drain(self) -> None:
        """Stop claiming, and stop calling the publisher."""
        self._draining = self._delivery.stopping = True
        self._free.set()
        self._poller.close()

    def abandon(self, reason: str) -> None:
        """Cancel a publishing coroutine, or abandon a publishing thread, and release messages without an outcome."""
        for job in self._jobs:
            job.reason = reason
        if self._publishing is not None:
            self._publishing.cancel(reason)

    def close(self) -> None:
        """Release the publisher's thread and stop polling."""
        self._poller.close()
        self._delivery.close()

    async def run(self) -> None:
        """Claim and publish until :meth:`drain`, through outages of the database."""
        await keep_running(self._turn, lambda: self._draining, self._context.claim_backoff(self._handler))

    async def _turn(self) -> None:
        await self._free.wait()
        if self._draining:
            return
        self._poller.expect()
        outcomes: dict[Job, Outcome] = {}
        self._busy = True
        try:
            self._jobs = await self._claim()
            if self._jobs and not self._draining:
                await self._publish(outcomes)
        finally:
            self._busy = False
        if self._jobs:
            await self._settle(outcomes)
            self._poller.refresh()
            await self._readiness.now_and_then()
        elif not self._draining:
            await self._poller.wait()

    async def _claim(self) -> Sequence[Job]:
        where, handler = self._context.paused.where(self._handler.spec), self._handler
        if where is None:
            return ()
        entity: Any = handler.entity
        claim = partial(claim_messages, limit=handler.batch, lease=handler.lease, claimed_by=self._context.name)

        def take(session: Session) -> Sequence[Any]:
            found = claim(session, entity, *where)
            if self._context.note_claim(handler, session):
                self._poller.refresh()
            return found

        messages = await self._context.database.run(take, transaction_limit(handler.lease))
        jobs = [Job(handler, message) for message in messages]
        if jobs:
            self._context.reports.claimed(jobs)
        for job in jobs:
            self._context.in_flight.add(job)
        return jobs

    async def _publish(self, outcomes: dict[Job, Outcome]) -> None:
        self._publishing = asyncio.create_task(self._delivery.deliver(self._jobs, outcomes))
        try:
            await asyncio.wait([self._publishing])
        finally:
            self._publishing.cancel()
        if not self._publishing.cancelled():
            self._publishing.result()

    async def _settle(self, outcomes: dict[Job, Outcome]) -> None:
        """Write all outcomes in one transaction, so that the messages of a key change together."""
        completer = self._context.completers[self._handler.spec]
        await completer.settle([(job, outcomes.get(job, RELEASED)) for job in self._jobs])
