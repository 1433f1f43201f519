"""Claims messages for a relay and has them published, as many at a time as it may."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..worker.config import Handler
from ..worker.crew import Crew
from ..worker.jobs import Job
from ..worker.lookout import Lookout
from ..worker.outcomes import RELEASED, Outcome
from ..worker.patience import keep_on
from ..worker.sorting import Sorting
from .claiming import claim_messages
from .delivery import Delivery


class RelayLane:
    """One batch after the other: the next is claimed when it is written what became of the one before."""

    def __init__(self, handler: Handler, crew: Crew, delivery: Delivery) -> None:
        self._handler = handler
        self._crew = crew
        self._delivery = delivery
        self._lookout = Lookout(handler, crew)
        self._draining = self._busy = False
        self._jobs: Sequence[Job] = ()
        self._publishing: asyncio.Task[None] | None = None
        self._sorting = Sorting(handler.entity, crew)

    @property
    def is_idle(self) -> bool:
        return not self._busy

    def drain(self) -> None:
        """Claim nothing more; the publisher is not called again."""
        self._draining = self._delivery.stopping = True
        self._lookout.close()

    def abandon(self, reason: str) -> None:
        """A coroutine is cancelled, a thread is left to itself; what it may not have published is released."""
        for job in self._jobs:
            job.reason = reason
        if self._publishing is not None:
            self._publishing.cancel(reason)

    def close(self) -> None:
        self._lookout.close()
        self._delivery.close()

    async def run(self) -> None:
        """Until :meth:`drain`, whatever is wrong with the database."""
        what, adapter = f"claim {self._handler.entity.__name__}", self._crew.adapter(self._handler.spec)
        await keep_on(self._turn, what, lambda: self._draining, self._crew.reports, adapter)

    async def _turn(self) -> None:
        self._lookout.expect()
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
            self._lookout.refresh()
            await self._sorting.now_and_then(self._crew.gate.where(self._handler.spec) or ())
        elif not self._draining:
            await self._lookout.wait()

    async def _claim(self) -> Sequence[Job]:
        where, handler = self._crew.gate.where(self._handler.spec), self._handler
        if where is None:
            return ()
        entity: Any = handler.entity
        claim = partial(claim_messages, limit=handler.batch, lease=handler.lease, claimed_by=self._crew.name)
        messages = await self._crew.database.run(lambda session: claim(session, entity, *where))
        jobs = [Job(handler, message) for message in messages]
        for job in jobs:
            self._crew.reports.claimed(job)
            self._crew.holdings.add(job)
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
        """In one transaction, so that the first of a key and those after it change together."""
        settler = self._crew.settlers[self._handler.spec]
        await settler.settle([(job, outcomes.get(job, RELEASED)) for job in self._jobs])
