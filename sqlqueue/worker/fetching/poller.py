"""Waits for work: for a notification, for the time at which a task is due, and at the latest for the next query."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

from ...operations.upkeep import poll, postpone
from ...transaction.notifications import channel_of, subscribe
from ..concurrency.event_loop import happens_within, soon
from ..database.backoff import growing_pauses
from ..database.deadlines import transaction_limit
from ..handling.handlers import Handler
from .context import WorkerContext
from .readiness import MAX_CHANGES

FIRST_LOOK = 0.1
"""Seconds after which an idle worker queries again; the pauses grow from there."""
WAKE_UPS = 10
"""How many wake-ups in a row may find nothing before the next ones are delayed: anyone may send notifications."""
WAKE_UP_EVERY = 0.05
"""Seconds between further wake-ups, on average."""
NOW = timedelta(0)
SETTLING_PAUSE = timedelta(milliseconds=5)
"""A pause after a claim: handlers can start, and a notification in the meantime saves the query."""


class Poller:
    """Waits for work for one handler, by queries that lock nothing.

    Rows found ``available`` before their time become ``scheduled``, so that later claims do not read past them.
    """

    def __init__(self, handler: Handler, context: WorkerContext) -> None:
        self._handler = handler
        self._context = context
        self._news = asyncio.Event()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._looks = self._pauses()
        self._in_vain = False
        """Whether a claim found nothing although the query saw work, because others have locked it."""
        self._saw_nothing = False
        self._woken = 0.0
        """When the recent wake-ups that found nothing would have ended if each had taken :data:`WAKE_UP_EVERY`."""
        self._unsubscribe = subscribe([channel_of(handler.spec)], self.wake)

    def wake(self) -> None:
        """Signal that there may be work.  Thread-safe."""
        soon(self._loop, self._news.set)

    def close(self) -> None:
        """Wake :meth:`wait` permanently."""
        self._closed = True
        self._unsubscribe()
        self._news.set()

    def expect(self) -> bool:
        """Forget earlier notifications.  Call it before each claim.

        Returns whether the last query found nothing claimable, so that anything claimable now was just enqueued.
        """
        if not self._closed:
            self._news.clear()
        saw_nothing, self._saw_nothing = self._saw_nothing, False
        return saw_nothing

    def refresh(self) -> None:
        """Reset the pauses after a claim that found work."""
        self._looks = self._pauses()
        self._in_vain = False
        self._woken = 0.0

    async def wait(self) -> None:
        """Wait until a claim is worth trying."""
        await self._wait()
        if self._news.is_set() and not self._closed:
            now = self._loop.time()
            self._woken = max(self._woken, now) + WAKE_UP_EVERY
            await asyncio.sleep(self._woken - now - WAKE_UPS * WAKE_UP_EVERY)  # a negative pause is none

    async def _wait(self) -> None:
        if await self._heard(SETTLING_PAUSE):
            return
        while not self._news.is_set():
            due = await self._look()
            if due == NOW and not self._in_vain:
                self._in_vain = True
                return
            pause = next(self._looks)
            if await self._heard(min(due or pause, pause)):
                return
            if due is not None and due <= pause:
                self._saw_nothing = False  # by now it is due
                return

    async def _look(self) -> timedelta | None:
        query = self._context.claim_query(self._handler)
        if query is None:
            return None
        entity, where = self._handler.entity, query.where
        run = partial(self._context.database.run, within=transaction_limit(self._handler.lease))
        seen = await run(lambda session: poll(session, entity, *where))
        self._saw_nothing = seen.due != NOW
        self._context.reports.liveness.reached()
        some = MAX_CHANGES if seen.early else 0
        while some == MAX_CHANGES and not self._news.is_set():
            some = await run(lambda session: postpone(session, entity, *where, limit=MAX_CHANGES))
        return seen.due

    async def _heard(self, pause: timedelta) -> bool:
        return await happens_within(self._news, pause.total_seconds())

    def _pauses(self) -> Iterator[timedelta]:
        return growing_pauses(FIRST_LOOK, self._context.poll.total_seconds())
