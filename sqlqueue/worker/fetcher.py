"""Finds out when there is work, and claims as much of it as can be run."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from .._support.errors import ArgumentError
from ..operations.claiming import ClaimQuery, claim_matching, consume_matching
from ..operations.settling import CRASH_COUNTED, settle_some
from ..operations.upkeep import Poll, poll, postpone, promote
from ..transaction import channel_of, ledger_of, subscribe
from .children import IsolatedExecutor
from .chunks import ChunkCoroutinePool, ChunkExecutor, ChunkThreadPool
from .context import WorkerContext
from .database import Backoff, growing_pauses, keep_running, until_success
from .deadlines import transaction_limit
from .executor import CoroutinePool, Done, Executor, Pool, ThreadPool
from .handlers import Handler
from .jobs import RELEASED, UNCOUNTED, Job, Outcome, crashed_too_often, load
from .reports import logger
from .threads import DaemonThreads, happens_within, soon

# -- waits for work: for a notification, for the time at which a task is due, and at the latest for the next query ----

EVERY = 1.0
"""Seconds between two calls of :meth:`Poller.promote` that change anything."""
MAX_CHANGES = 1_000
"""The maximum number of tasks that one transaction promotes or postpones."""
FIRST_LOOK = 0.1
"""Seconds after which an idle worker queries again; the pauses grow from there."""
WAKE_UPS = 10
"""How many wake-ups in a row may find nothing before the next ones are delayed: anyone may send notifications."""
WAKE_UP_EVERY = 0.05
"""Seconds between further wake-ups, on average."""
NOW = timedelta(0)
SETTLING_PAUSE = 0.005
"""A pause in seconds after a claim: handlers can start, and a notification in the meantime saves the query."""


class Poller:
    """Waits for work for one handler, by queries that lock nothing.

    Rows found ``available`` before their time become ``scheduled``, so that later claims do not read past them.
    """

    def __init__(self, handler: Handler, context: WorkerContext) -> None:
        self._handler = handler
        self._context = context
        self._news, self._changed = asyncio.Event(), asyncio.Event()
        """Whether there may be work, and whether there is anything to look at since the last query, such as that."""
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._looks = self._pauses()
        self._promoted = time.monotonic()
        """When due tasks were last promoted."""
        self._in_vain = False
        """Whether a claim found nothing although the query saw work, because others have locked it."""
        self._saw_nothing = False
        self._woken = 0.0
        """When the recent wake-ups that found nothing would have ended if each had taken :data:`WAKE_UP_EVERY`."""
        self._unsubscribe = subscribe([channel_of(handler.spec)], self.wake)

    def wake(self) -> None:
        """Signal that there may be work.  Thread-safe."""
        soon(self._loop, self._hear)

    def _hear(self) -> None:
        self._news.set()
        self._changed.set()

    def close(self) -> None:
        """Wake :meth:`wait` permanently."""
        self._closed = True
        self._unsubscribe()
        self._hear()

    def look_again(self) -> None:
        """Have :meth:`wait` query again: a claim has ended, and what it has found or written may come due sooner."""
        self._changed.set()

    def expect(self) -> bool:
        """Forget earlier notifications.  Call it before claims, and not during :meth:`wait`.

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
        query = self._context.claim_query(self._handler)
        if query is not None and len(query.looked_at) < len(query.where):
            await self.promote()  # claims would read past the due tasks of the keys that they exclude
        await self._wait()
        if self._news.is_set() and not self._closed:
            now = self._loop.time()
            self._woken = max(self._woken, now) + WAKE_UP_EVERY
            await asyncio.sleep(self._woken - now - WAKE_UPS * WAKE_UP_EVERY)  # a negative pause is none

    async def promote(self) -> None:
        """Promote tasks that have come due or whose worker has crashed, and postpone those that are available too
        early: once a second, or at every call while a full transaction's worth is left, unless the queue is paused.

        While enough tasks are available, claims do not reach the due ones; once promoted, these compete by priority.
        Every claim would have to read past tasks that are available before their time.
        """
        query, began = self._context.claim_query(self._handler), time.monotonic()
        if query is None or began - self._promoted < EVERY:
            return
        spec, where = self._handler.spec, query.looked_at

        def sort(session: Session) -> int:
            promoted = promote(session, spec.entity, *where, limit=MAX_CHANGES)
            return max(promoted, postpone(session, spec.entity, *where, limit=MAX_CHANGES))

        if await self._context.database.run(sort, transaction_limit(spec.options.lease)) < MAX_CHANGES:
            self._promoted = began

    async def _wait(self) -> None:
        while not await happens_within(self._news, SETTLING_PAUSE):
            self._changed.clear()
            seen, asked = await self._look()
            was_in_vain, self._in_vain = self._in_vain, seen.due == NOW
            if seen.due == NOW and not was_in_vain:
                return
            pause = next(self._looks)
            becomes_due = seen.due is not None and seen.due <= pause
            first = seen.due or seen.later  # what is available waits for another task, or a rate, which may come sooner
            if first and first <= pause:
                pause = first - timedelta(seconds=time.monotonic() - asked)
            elif first:
                pause = min(pause, first / 2)  # a query shortly before that time would delay the claim
            has_changed = await happens_within(self._changed, pause.total_seconds())
            if not has_changed and becomes_due:
                self._saw_nothing = seen.of_rate  # anything else has become due
                return

    async def _look(self) -> tuple[Poll, float]:
        """Return what a query has found, and when, by the monotonic clock."""
        query = self._context.claim_query(self._handler)
        if query is None:
            return Poll(None, early=False, later=None), time.monotonic()
        entity, where, used_up = self._handler.entity, query.looked_at, self._context.used_up.get(self._handler, ())
        run = partial(self._context.database.run, within=transaction_limit(self._handler.lease))
        seen, asked = await run(lambda session: (poll(session, entity, *where, used_up=used_up), time.monotonic()))
        self._saw_nothing = seen.due != NOW
        self._context.reports.liveness.reached()
        some = MAX_CHANGES if seen.early else 0
        while some == MAX_CHANGES and not self._news.is_set():
            some = await run(lambda session: postpone(session, entity, *where, limit=MAX_CHANGES))
        return seen, asked

    def _pauses(self) -> Iterator[timedelta]:
        return growing_pauses(FIRST_LOOK, self._context.poll.total_seconds())


# -- the interface between fetchers and the other parts of a run ------------------------------------------------------


class BaseFetcher(ABC):
    """Claims the tasks of one handler, and has the handler called.  All methods must be called on the event loop of the
    run."""

    def __init__(self, handler: Handler, context: WorkerContext) -> None:
        self.handler = handler
        self.slots = handler.concurrency
        """How many calls run at a time."""
        self._context = context
        self._poller = Poller(handler, context)
        self._loop = asyncio.get_running_loop()
        self._draining = False

    @abstractmethod
    async def run(self) -> None:
        """Claim until :meth:`drain`, through outages of the database."""

    def drain(self) -> None:
        """Claim nothing more; running tasks continue."""
        self._draining = True
        self._poller.close()

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether no task is held and no claim is under way."""

    @property
    def is_still(self) -> bool:
        """Whether nothing that it has started is running, apart from suspects."""
        return self.is_idle

    @abstractmethod
    def hold(self) -> None:
        """Start no further tasks until :meth:`resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Start tasks again after :meth:`hold`."""

    @abstractmethod
    def resize(self, slots: int) -> None:
        """Run ``slots`` calls at a time from now on.  Running calls continue."""

    @abstractmethod
    def abandon(self, reason: str) -> None:
        """Stop running tasks as far as possible."""

    @abstractmethod
    def close(self) -> None:
        """Give up the remaining tasks, and end the threads."""

    async def _claimed(self, claim: Callable[[Session], Sequence[Any]]) -> list[Job]:
        """Call ``claim`` in a transaction, and return the jobs of the tasks that it returns."""

        def take(session: Session) -> Sequence[Any]:
            tasks = claim(session)
            if self._context.note_claim(self.handler, session):
                self._poller.refresh()
            load(self.handler.spec, tasks)
            return tasks

        tasks = await self._context.database.run(take, transaction_limit(self.handler.lease))
        jobs = [Job(self.handler, task) for task in tasks]
        if jobs:
            self._context.reports.claimed(jobs)
        for job in jobs:
            self._context.in_flight.add(job)
        return jobs


# -- how long calls of a handler take, which decides how many tasks are claimed at a time -----------------------------

_SHORTEST = 1e-6


class CallDurations:
    """The mean duration of a handler's calls, in which recent calls weigh more."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self.added = 0
        """A number that changes whenever a call ends."""

    def add(self, seconds: float | None) -> None:
        """Take the duration of a call into account; ``None`` if it was never started.  Thread-safe."""
        self.added += 1
        if seconds is not None:
            self._mean = seconds if self._mean is None else 0.9 * self._mean + 0.1 * seconds

    def calls_within(self, seconds: float) -> int:
        """Return how many calls, one after another, end within ``seconds``; 0 as long as none has ended."""
        return 0 if self._mean is None else int(seconds / max(self._mean, _SHORTEST))

    def forget(self) -> None:
        """Forget the calls that have ended."""
        self._mean = None


# -- runs suspects: tasks that may have crashed a process. Each runs alone, so that the next crash has one cause ------

PLACES = 4
"""The number of suspects of one handler that run at a time, in child processes."""
TICK = 0.005
"""Seconds between two checks whether the running tasks have ended."""


class SuspectProcesses:
    """Child processes for the suspects of one handler, each for one of them at a time."""

    def __init__(self, executor: IsolatedExecutor, done: Done) -> None:
        self._executor = executor
        self._done = done
        self._threads = DaemonThreads(PLACES, "suspects")
        self._checked: asyncio.Task[bool] | None = None
        self.places = asyncio.Semaphore(PLACES)

    def run(self, job: Job) -> None:
        """Run a suspect in one of the processes, from a thread."""
        context = copy_context()
        self._threads.submit(lambda: self._done(job, context.run(self._executor.perform, job)))

    async def can_start(self) -> bool:
        """Return whether child processes can load the worker.  The first call starts one."""
        if self._checked is None:
            self._checked = asyncio.create_task(self._check())
        return await self._checked

    async def _check(self) -> bool:
        try:
            await asyncio.to_thread(self._executor.children.prepare)
        except ArgumentError as error:
            logger.warning("suspects run alone in this process: %s", error)
            return False
        return True

    def close(self) -> None:
        """End the threads; does not wait for running jobs."""
        self._threads.shutdown()


async def run_suspects(context: WorkerContext, fetchers: Sequence[BaseFetcher], backoff: Backoff) -> None:
    """Run suspects one after the other, while all fetchers are held and this process runs nothing else; until
    cancelled.

    An error ends none but the suspect that it is about, whose row is found again.
    """

    async def turn() -> None:
        run = await context.suspects.get()
        for fetcher in fetchers:
            fetcher.hold()
        try:
            await until(lambda: all(fetcher.is_still for fetcher in fetchers))
            await run()
            while not context.suspects.empty():
                await context.suspects.get_nowait()()
        finally:
            for fetcher in fetchers:
                fetcher.resume()  # before the pause after an error, so that the others run meanwhile

    await keep_running(turn, lambda: False, backoff)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds."""
    while not condition():
        await asyncio.sleep(TICK)


# -- claims tasks for one handler, as many as it can run --------------------------------------------------------------

AHEAD = 0.1
"""Seconds of work claimed ahead.  Short tasks are claimed in large batches; long ones do not wait here while another
worker is idle."""
AHEAD_OF_WRITERS = 5
"""How many times as much is claimed ahead on an engine with one writer: a claim waits there for its turn as a job does,
and calls seem long because they wait for theirs, the longer the more processes compete."""
STANDSTILL = 1.0
"""Seconds without the end of a call after which the jobs claimed ahead are released."""

UNSETTLED = 2_000
"""The number of unwritten outcomes at which claiming stops: a crash would repeat all of them."""
PAUSE = 0.1
"""Seconds until a fetcher that has stopped for this reason checks again."""
GATHER = 0.003
"""Seconds for which free slots wait for others if nothing is claimed ahead, so that a claim fills several."""


class Fetcher(BaseFetcher):
    """Claims tasks for one handler and hands them to its pool."""

    def __init__(self, handler: Handler, context: WorkerContext) -> None:
        super().__init__(handler, context)
        self._adapter = context.adapter(handler.spec)
        self._completer = context.completers[handler.spec]
        self._room = asyncio.Event()
        self._told = False
        """Whether the loop has been told of room since it last checked: each call from another thread wakes it."""
        self._claiming = False
        self._has_lease = handler.mode == "lease"
        self._further = AHEAD_OF_WRITERS if self._adapter.connections.one_writer else 1
        self._jobs: set[Job] = set()
        spec = handler.spec
        is_more = spec.is_limited or spec.recurs or spec.expires or spec.lane is not None or spec.sequence is not None
        self._claims_alone = not is_more
        """Whether a claim of available rows is one statement, if the engine has one for it."""
        self._held: list[Job] | None = None
        """The jobs that wait until suspects have run; ``None`` if none need to."""
        self._suspects: set[Job] = set()
        """The jobs that wait to be run alone."""
        self._durations = CallDurations()
        self._is_watched = False
        self._enough = 0
        """The number of jobs left at which claiming more is worth a statement."""
        self._is_limited = handler.spec.is_limited
        self._has_rates = handler.spec.options.rate is not None
        """Whether keys have rates: nothing is claimed ahead, so that a claim is the start of a call."""
        parts = handler, context.database, context.reports
        apart = context.apart.get(handler)
        children = None if handler.isolation is None else apart
        self._capacity = handler.chunk or 1
        """The number of tasks in one call."""
        self._pool: Pool
        if handler.chunk is not None:
            chunks = ChunkExecutor(*parts, context.started)
            self._pool = (ChunkCoroutinePool if handler.is_coroutine else ChunkThreadPool)(chunks, self._done)
        elif children is not None:
            self._pool = ThreadPool(IsolatedExecutor(*parts, children=children), self._done)
        else:
            executor = Executor(*parts, context.started)
            self._pool = (CoroutinePool if handler.is_coroutine else ThreadPool)(executor, self._done)
        self._apart = None if apart is None else SuspectProcesses(IsolatedExecutor(*parts, children=apart), self._done)
        self._running: set[asyncio.Task[None]] = set()

    def drain(self) -> None:
        """Claim nothing more and release the jobs that have not started; jobs without a lease are still run."""
        super().drain()
        self._room.set()
        for job in (*self._pool.withdraw(), *(self._held or ()), *self._suspects) if self._has_lease else ():
            self._release(job)

    @property
    def is_still(self) -> bool:
        return self._jobs <= {*(self._held or ()), *self._suspects}

    def hold(self) -> None:
        self._held = self._pool.withdraw()

    def resume(self) -> None:
        held, self._held = self._held or (), None
        self._pool.put([job for job in held if job in self._jobs])  # the others have been released in the meantime

    def resize(self, slots: int) -> None:
        """Run this many calls at a time. Tasks that are already claimed are run, or released by :meth:`drain`."""
        self.slots = slots
        self._pool.resize(slots)
        self._room.set()

    @property
    def is_idle(self) -> bool:
        return not self._jobs and not self._claiming

    def abandon(self, reason: str) -> None:
        """Stop running jobs as far as possible, and release them."""
        for job in tuple(self._jobs):
            if not job.has_returned:
                job.lose(reason)
                self._release(job)

    def close(self) -> None:
        """Abandon the remaining jobs, and shut down the pool."""
        for job in tuple(self._jobs):
            job.lose("the worker stopped, and the database did not respond")
        self._poller.close()
        self._pool.close()
        if self._apart is not None:
            self._apart.close()

    async def run(self) -> None:
        """Claim until :meth:`drain`, through outages; return when no coroutine is running."""
        await keep_running(self._turn, lambda: self._draining, self._context.claim_backoff(self.handler))
        await self._pool.ended()

    async def _turn(self) -> None:
        wanted = await self._room_for_claim()
        if self._draining:
            return
        only_ready = self._poller.expect()
        self._claiming = True
        try:
            jobs = await self._claim(wanted, only_ready=only_ready)
            if jobs:
                self._start(jobs)
        finally:
            self._claiming = False
        if jobs:
            self._poller.refresh()
        if self._draining:
            return
        # a key at its limit has available tasks even if a claim found too few
        if len(jobs) == wanted or self._is_limited:
            await self._poller.promote()
        if len(jobs) < wanted:
            await self._poller.wait()

    async def _room_for_claim(self) -> int:
        """Wait until claiming is worth a statement.  Returns how many tasks to claim."""
        while True:
            self._room.clear()
            self._told = False  # before the jobs are counted: one that ends after this tells the loop again
            ahead = self._ahead()
            most = self.slots * self._capacity + ahead
            self._enough = most - max(1, ahead // 2 or self._freed_soon())
            left = len(self._jobs)
            wanted = min(most - left, self.handler.batch)
            if self._draining:
                return wanted
            if self._completer.backlog >= UNSETTLED:
                await asyncio.sleep(PAUSE)
            elif left <= self._enough:
                return wanted
            else:
                await self._room.wait()

    def _ahead(self) -> int:
        if not self._has_lease or self._has_rates:
            return 0
        # two batches: one runs while the next is claimed
        return min(2 * self.handler.batch, self._durations.calls_within(self.slots * AHEAD * self._further))

    def _freed_soon(self) -> int:
        """Return how many slots become free in a moment if all are busy."""
        return min(self.slots * self._capacity, self._durations.calls_within(self.slots * GATHER))

    async def _claim(self, limit: int, *, only_ready: bool) -> list[Job]:
        query = self._context.claim_query(self.handler)
        if query is None:
            return []
        return await self._claimed(partial(self._take, query=query.ready if only_ready else query, limit=limit))

    def _take(self, session: Session, query: ClaimQuery, limit: int) -> Sequence[Any]:
        name, tokens = self._context.name, self._context.tokens
        if self.handler.mode == "at-most-once":
            return consume_matching(session, query, limit, claimed_by=name)
        alone = self._claims_alone and len(query.steps) == 1
        lease = self.handler.lease
        tasks = claim_matching(session, query, limit, lease=lease, claimed_by=name, tokens=tokens, alone=alone)
        self._has_rates = self._has_rates or ledger_of(session).has_rates
        return tasks

    def _start(self, jobs: Sequence[Job]) -> None:
        self._jobs.update(jobs)
        admitted = [job for job in jobs if self._admit(job)]
        if self._held is not None:
            self._held += admitted
        else:
            self._pool.put(admitted)
        self._watch()

    def _watch(self) -> None:
        """Check after a while whether calls still end, if jobs wait for that."""
        if not self._is_watched and self._has_lease and len(self._jobs) > self.slots * self._capacity:
            self._is_watched = True
            self._loop.call_later(STANDSTILL, self._check, self._durations.added)

    def _check(self, added: int) -> None:
        """Release the jobs claimed ahead if no call has ended since then: another worker may be idle."""
        self._is_watched = False
        if self._durations.added != added or self._held is not None:
            self._watch()
            return
        self._durations.forget()  # they have not predicted this, so nothing is claimed ahead until the next end
        for job in self._pool.withdraw():
            self._release(job)

    def _admit(self, job: Job) -> bool:
        """Return whether a claimed job can be queued; otherwise release it, discard it, or run it as a suspect."""
        if self._draining and self._has_lease:
            self._release(job)
        elif not job.crashes:
            return True
        elif job.crashes >= self.handler.spec.options.max_crashes:
            self._discard_crashed(job)
        else:
            self._suspects.add(job)
            self._isolate(job)
        return False

    def _discard_crashed(self, job: Job) -> None:
        outcome = crashed_too_often(job.task, job.crashes)
        self._context.reports.crashed_too_often(job, outcome.error or "")
        self._completer.put(job, outcome)
        self._jobs.discard(job)

    def _isolate(self, job: Job) -> None:
        """Run a suspect in a child process or, if child processes are not possible, alone in this one."""
        if self._apart is None:
            self._context.suspects.put_nowait(partial(self._run_suspect, job, lambda one: self._pool.put([one])))
            return
        running = asyncio.create_task(self._run_apart(job, self._apart))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _run_apart(self, job: Job, apart: SuspectProcesses) -> None:
        async with apart.places:
            if await apart.can_start():
                await self._run_suspect(job, apart.run)
                return
        self._apart = None
        self._isolate(job)

    async def _run_suspect(self, job: Job, run: Callable[[Job], None]) -> None:
        """Run a suspect, with its crash counted in advance, until its outcome is written."""
        if job not in self._jobs or not await self._count_crash(job):
            return
        slot = self._context.started.begin(job, counted=True)
        try:
            self._suspects.discard(job)
            run(job)
            await until(lambda: job not in self._jobs and job not in self._context.in_flight)
        finally:
            self._context.started.end(slot)

    async def _count_crash(self, job: Job) -> bool:
        """Count a crash of the task in advance.  Returns whether the task still belongs to this worker."""
        reports, reason = self._context.reports, "its lease expired, or it was cancelled or deleted"
        run = partial(self._context.database.run, within=transaction_limit(self.handler.lease))
        count_crash = partial(settle_some, tasks=[job.claim], settlement=CRASH_COUNTED)
        try:
            backoff = Backoff(f"suspect {job}", reports, [self._adapter], writes_rows=True)
            lost = await until_success(lambda: run(count_crash), backoff)
        except Exception as error:  # for example the rejection by a trigger: the row is found again when its lease ends
            reports.broken(f"suspect {job}", error)
            lost, reason = [job.claim], "it could not be suspected"
        if not lost:
            job.crashes, job.is_counted = job.crashes + 1, True
            return job in self._jobs
        job.lose(reason)
        reports.lost(job)
        self._suspects.discard(job)
        self._jobs.discard(job)
        self._context.in_flight.remove(job)
        return False

    def _release(self, job: Job) -> None:
        self._jobs.discard(job)
        self._suspects.discard(job)
        outcome = UNCOUNTED if job.is_counted else RELEASED
        self._completer.put(job, outcome if self._has_lease else None)

    def _done(self, job: Job, outcome: Outcome | None) -> None:
        """Settle a finished job.  Called on any thread."""
        self._durations.add(job.seconds)
        self._completer.put(job, outcome if self._has_lease else None)
        self._jobs.discard(job)  # last: the completer is not closed before the fetcher is idle
        if len(self._jobs) <= self._enough and not self._told:
            self._told = True
            soon(self._loop, self._room.set)
