"""Writes outcomes, those of a few milliseconds together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy.exc import DBAPIError

from ..claims import Claim
from ..dialects import adapter_for
from ..wakeups import channel_of, spread
from .database import Database
from .jobs import Holdings, Job
from .loops import soon
from .outcomes import Outcome, write_outcomes
from .patience import insist, passes
from .reports import Reports

GATHER = 0.003
"""Seconds for which the first outcome waits for others.  What is not written yet is done again after a crash."""
LARGEST = 500
WAITING = ("failed", "snoozed")
"""Outcomes that come due at a moment of which no lookout knows yet."""


class _Pending(NamedTuple):
    job: Job
    outcome: Outcome


class Settler:
    """Takes outcomes from any thread; a task of the event loop writes them, as long as it takes."""

    def __init__(self, database: Database, holdings: Holdings, reports: Reports) -> None:
        self._database = database
        self._holdings = holdings
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._pending: list[_Pending] = []
        self._some = asyncio.Event()
        self._closing = False

    def put(self, job: Job, outcome: Outcome) -> None:
        self._pending.append(_Pending(job, outcome))
        if not self._some.is_set():
            soon(self._loop, self._some.set)

    def close(self) -> None:
        """Let :meth:`run` end, once all is written."""
        self._closing = True
        self._some.set()

    async def run(self) -> None:
        while not (self._closing and not self._pending):
            await self._some.wait()
            if len(self._pending) < LARGEST and not self._closing:
                await asyncio.sleep(GATHER)
            self._some.clear()
            batch = self._pending[:LARGEST]
            del self._pending[: len(batch)]  # and not what came in the meantime
            if self._pending or self._closing:
                self._some.set()
            await self._write(batch)

    async def _write(self, batch: Sequence[_Pending]) -> None:
        if not batch:
            return
        try:
            lost = set(
                await insist(lambda: self._settle(batch), "settle tasks", self._reports, partial(self._passes, batch))
            )
        except Exception as error:
            await self._write_each(batch, error)
            return
        for job, _ in batch:
            self._holdings.remove(job)
            if job.claim in lost:
                self._reports.lost(job)
        spread({channel_of(job.handler.spec) for job, outcome in batch if outcome.kind in WAITING})

    def _passes(self, batch: Sequence[_Pending], error: BaseException) -> bool:
        # by code: what a trigger or a constraint refuses may be an operational error too, and would never pass
        if not isinstance(error, DBAPIError):
            return passes(error)
        adapters = {adapter_for(self._database.engine(job.handler.spec).dialect) for job, _ in batch}
        return any(adapter.is_outage(error) or adapter.is_transient(error) for adapter in adapters)

    async def _settle(self, batch: Sequence[_Pending]) -> list[Claim]:
        return await self._database.run(
            lambda session: write_outcomes(session, ((job.claim, outcome) for job, outcome in batch))
        )

    async def _write_each(self, batch: Sequence[_Pending], error: Exception) -> None:
        """One of them cannot be written, and must not keep the others from it.  Its lease will end."""
        if len(batch) > 1:
            for each in batch:
                await self._write([each])
            return
        self._reports.broken(f"settle {batch[0].job}", error)
        self._holdings.remove(batch[0].job)
