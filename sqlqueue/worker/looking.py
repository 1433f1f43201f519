"""Looks at the latches of tasks that have ended: right after this worker's commits, and at all of them now and then."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import partial
from itertools import islice
from math import ceil
from typing import NamedTuple, TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ..model.companions import LatchTable, latches_of
from ..operations.latches import LATE, MOST, Latches, Look
from ..operations.placing import PART
from ..queue.spec import Identity, QueueSpec
from ..transaction import Access, subscribe
from .context import WorkerContext
from .database import Backoff, growing_pauses, until_success
from .deadlines import SHORTEST_MAINTENANCE
from .jobs import Job
from .reports import logger
from .threads import happens_within, soon

R = TypeVar("R")
SHORTEST, LONGEST = 0.004, 0.05
"""Seconds between two looks that open nothing; they become rarer, as in the middle of a large batch."""
SHARE, SWEEP_SHARE = 10, 100
"""A look, or a sweep, is followed by a pause of this many times its duration."""
PATIENCE = 1.0
"""Seconds that the end of a batch waits at the most, because looks take long on a busy machine."""
UNSEALED, UNSEALED_EVERY = timedelta(days=1), 3600.0
"""The age from which on an unsealed batch is reported, and the seconds between two searches for such ones."""
MARGIN = timedelta(minutes=1)
"""How much longer than the time between two sweeps a sweep looks back for failed members."""


class _Found(NamedTuple):
    """What a look without locks has found."""

    ripe: list[str]
    broken: set[str]
    late: Collection[str] = ()


class LatchWatch:
    """Looks at the latches of one table.  The hints may come from any thread."""

    def __init__(self, spec: QueueSpec, model: LatchTable, context: WorkerContext) -> None:
        self._spec = spec
        self._model = model
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._hints: dict[str, None] = {}
        self._failed: defaultdict[QueueSpec, set[Identity]] = defaultdict(set)
        self._some = asyncio.Event()
        self._pause = 0.0
        self._rest: asyncio.TimerHandle | None = None
        """When what a look has left is looked at, if no job ends before."""
        self._due = self._earliest = time.monotonic() + random.random()
        """When the next sweep begins, and when it could if something notified of it."""
        self._swept: float | None = None
        """When the last sweep began."""
        self._searched = time.monotonic()
        """When the last search for unsealed batches began."""
        self.channel = context.database.engine(spec), model.table.fullname
        """The engine and the name of notifications that latches may be ripe of which no job of this worker tells."""
        self._unsubscribe = subscribe([model.table.fullname], lambda: soon(self._loop, self._hear))
        what = f"open the batches of {model.table.fullname}"
        self._backoff = Backoff(what, context.reports, [context.adapter(spec)])

    def note(self, job: Job) -> None:
        """Take a job that has ended, and is committed, as a hint.  Thread-safe."""
        latch = job.latch
        if latch is not None:
            if job.has_failed:
                self._failed[job.handler.spec].add(job.claim.identity)
            self._hints[latch] = None
            if not self._some.is_set():
                soon(self._loop, self._some.set)

    def _hear(self) -> None:
        self._due = min(self._due, self._earliest)
        self._some.set()

    def close(self) -> None:
        """Unsubscribe from notifications."""
        self._unsubscribe()

    async def run(self) -> None:
        """Look until cancelled, with growing pauses while that fails."""
        pauses = growing_pauses()
        while True:
            await happens_within(self._some, max(0.0, self._due - time.monotonic()))
            self._some.clear()
            try:
                if self._hints:
                    await self._look()
                if time.monotonic() >= self._due:
                    await self._sweep()
            except Exception as error:
                self._context.reports.chore_failed(f"looking at {self._model.table.fullname}", error)
                await asyncio.sleep(next(pauses).total_seconds())
            else:
                pauses = growing_pauses()

    async def _look(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        hints = dict.fromkeys(islice(tuple(self._hints), MOST))
        failed = {spec: set(keys) for spec, keys in tuple(self._failed.items())}
        for key in hints:
            self._hints.pop(key, None)
        for spec, keys in failed.items():
            self._failed[spec] -= keys
        begun = time.monotonic()
        found = await self._transact(partial(_find, among=hints, failed=failed))
        look = await self._open(found)
        self._context.reports.looked("look", time.monotonic() - begun)
        if self._hints:
            self._some.set()
        self._hints.update(dict.fromkeys(look.left))
        if look.opened:
            # the next job that ends is looked at without a pause, so that chains go on, and the rest with it or later
            self._pause = 0.0
            self._rest = self._loop.call_later(LONGEST, self._some.set)
            return
        rest = min(SHARE * (time.monotonic() - begun), PATIENCE)
        self._pause = max(min(max(2 * self._pause, SHORTEST), LONGEST), rest)
        if self._hints:
            self._some.set()
        await asyncio.sleep(self._pause)

    async def _sweep(self) -> None:
        """Look at all latches, and choose the time of the next sweep."""
        begun, before = time.monotonic(), self._swept
        self._due = begun + self._context.poll.total_seconds()  # before it reads: what is heard meanwhile counts
        # in whole seconds, so that few statements are built
        since = None if before is None else timedelta(seconds=ceil(begun - before)) + MARGIN
        found = await self._transact(partial(_find_all, since=since))
        look = await self._open(found)
        self._swept = begun
        self._context.reports.looked("sweep", time.monotonic() - begun)
        self._hints.update(dict.fromkeys(look.left))
        if self._hints:
            self._some.set()
        if begun >= self._searched + UNSEALED_EVERY:
            self._searched = begun
            await self._warn()
        has_more = len(found.ripe) >= MOST and look.opened
        self._earliest = begun if has_more else time.monotonic() + SWEEP_SHARE * (time.monotonic() - begun)
        self._due = self._earliest if has_more else max(self._due, self._earliest)

    async def _warn(self) -> None:
        """Log which batches nobody has sealed."""
        for key in await self._transact(lambda latches: latches.unsealed(UNSEALED)):
            text = "the batch %s has not been sealed for a day: seal(%s, %r) lets it end"
            logger.warning(text, key, self._spec.entity.__name__, key, extra={"batch": key})

    async def _open(self, found: _Found) -> Look:
        if not (found.ripe or found.broken or found.late):
            return Look(0)
        look = await self._transact(partial(_open, found=found), Access.SKIP)
        for key, counts in look.ended:
            if PART not in key:
                self._context.reports.batch_ended(key, counts)
        return look

    async def _transact(self, work: Callable[[Latches], R], access: Access = Access.READ) -> R:
        spec = self._spec

        def transact(session: Session) -> R:
            latches = Latches.of(session, spec, access)
            latches.begin()
            return work(latches)

        run = partial(self._context.database.run, transact, SHORTEST_MAINTENANCE)
        return await until_success(run, self._backoff)


def _find(latches: Latches, among: Collection[str], failed: Mapping[QueueSpec, Collection[Identity]]) -> _Found:
    return _Found(latches.ripe(among), latches.of_failed(failed))


def _find_all(latches: Latches, since: timedelta | None) -> _Found:
    return _Found(latches.ripe(None), latches.failing(since), latches.late(since and LATE))


def _open(latches: Latches, found: _Found) -> Look:
    above = latches.release_late(found.late) | latches.break_(found.broken)
    look = latches.open(found.ripe)
    return look._replace(left=look.left | above)


def watches_of(context: WorkerContext) -> list[LatchWatch]:
    """Return a watch for each table of latches of the worker's queues, which the jobs in flight give their hints."""
    found: dict[tuple[Engine, LatchTable], LatchWatch] = {}
    by_spec: dict[QueueSpec, LatchWatch] = {}
    for spec in context.specs:
        model = latches_of(spec)
        if model is not None:
            place = context.database.engine(spec), model
            by_spec[spec] = found.setdefault(place, found.get(place) or LatchWatch(spec, model, context))
    if by_spec:
        context.in_flight.on_end = lambda job: by_spec[job.handler.spec].note(job) if job.latch is not None else None
    return list(found.values())
