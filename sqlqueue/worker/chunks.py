"""Handlers that get several tasks at a time, in one transaction: `chunk=`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from .._support.checks import check_json
from .._support.errors import ArgumentError, ClaimLostError
from ..transaction import carry, is_unsettled, may_have_written
from .executor import CoroutinePool, Executor, ThreadPool, call_handler
from .handlers import Handler
from .jobs import Ended, Job, Outcome, completed, write_outcomes
from .threads import soon

# -- calls handlers with several tasks --------------------------------------------------------------------------------


class ChunkExecutor(Executor):
    """Calls a handler with several tasks, and commits what it writes together with their outcomes.

    If the call or its commit fails, nothing is written, and each half of the tasks is passed to the handler again,
    until the failing task is alone: only its attempt counts.
    """

    def perform_chunk(self, jobs: Sequence[Job]) -> list[tuple[Job, Outcome | None]]:
        """Call the handler.  Returns each job with its outcome to write, or ``None`` if it is written already or the
        task is lost."""
        return [(job, self.report(job, ended)) for job, ended in self._attempt_all(jobs).items()]

    def attempt(self, job: Job) -> Ended:
        return self._attempt_all([job])[job]

    def _attempt_all(self, jobs: Sequence[Job]) -> dict[Job, Ended]:
        """Call the handler until all jobs have ended.

        The span of each covers all calls, also those that failed because of others.
        """
        ends: dict[Job, Ended] = {}
        spans: list[tuple[Job, AbstractContextManager[None]]] = []
        try:
            for job in jobs:  # before a rollback expires the instances, of which spans tell
                if (span := self.reports.running(job)) is not None:
                    span.__enter__()
                    spans.append((job, span))
            self._call_until_ended(jobs, ends)
        except BaseException as error:  # for example from an exporter of the application
            ends.update((job, self.failed(job, error)) for job in jobs if job not in ends)
        for job, span in reversed(spans):
            raised = ends[job].error
            with suppress(BaseException):
                span.__exit__(None if raised is None else type(raised), raised, None)
        return ends

    def _call_until_ended(self, jobs: Sequence[Job], ends: dict[Job, Ended]) -> None:
        # a task that was returned because of an outage may have caused it
        waiting = deque([[job] for job in jobs if job.returns])
        waiting.append([job for job in jobs if not job.returns])
        while waiting:
            some = waiting.popleft()
            held = [job for job in some if not job.is_lost]
            ends.update((job, Ended(None)) for job in some if job.is_lost)
            if not held:
                continue
            try:
                with self._calling_with(held):
                    ends.update(self._try(held, partial(self._in_one_session, held)))
            except BaseException as error:
                again = self._split(held, error)
                waiting.extendleft(reversed(again))
                rest = set(held).difference(*again)
                ends.update((job, self.failed(job, error)) for job in held if job in rest)

    def _split(self, jobs: Sequence[Job], error: BaseException) -> list[list[Job]]:
        """Return the parts with which the handler is called again after ``error``; the other jobs have ended."""
        claims = error.claims if isinstance(error, ClaimLostError) else ()
        kept = [job for job in jobs if not (job.is_lost or job.claim in claims)]
        if len(kept) < len(jobs):
            return [kept] if kept else []
        if len(jobs) == 1 or self.may_pass(error):
            return []
        self.reports.split(jobs, error)
        middle = len(jobs) // 2
        return [list(jobs[:middle]), list(jobs[middle:])]

    @contextmanager
    def _calling_with(self, jobs: Sequence[Job]) -> Iterator[None]:
        """A context in which the jobs are recorded as started.  Each takes an equal share of the time."""
        slots = [self.started.begin(job) for job in jobs]
        interrupt = _Interrupt() if self.handler.is_coroutine else None
        for number, job in enumerate(jobs):
            if interrupt is not None:
                job.interrupt = interrupt
                job.coroutine = interrupt.task
            job.begin()
            job.overdue = number > 0  # one line for the call
        try:
            yield
        finally:
            if interrupt is not None:
                interrupt.end()
            for job, slot in zip(jobs, slots, strict=True):
                job.end()
                job.seconds = (job.seconds or 0) / len(jobs)
                self.started.end(slot)

    def _in_one_session(self, jobs: Sequence[Job]) -> dict[Job, Ended]:
        """Commit the handler's writes and the outcomes together.

        As with one task, outcomes are left to be written with others if the handler has not used its session.
        """
        with self.transaction(jobs) as (handed, session, deadline):
            tasks = self._attach_all(session, jobs)
            with deadline.suspended(self.time_limit):
                returned = call_handler(self.handler, handed, list(tasks))
            for job in jobs:
                job.about_to_write()
            ends = dict(zip(jobs, self._ends(jobs, tasks, returned), strict=True))
            unsettled = {job for job, task in zip(jobs, tasks, strict=True) if is_unsettled(task)}
            is_left = not may_have_written(session)
            if not is_left:
                self._write(session, {job: ends[job] for job in unsettled})
            session.commit()
            return {job: ended._replace(is_written=not (is_left and job in unsettled)) for job, ended in ends.items()}

    def _attach_all(self, session: Session, jobs: Sequence[Job]) -> Sequence[Any]:
        """Return the claimed tasks as instances of the handler's session."""
        spec, options = self.handler.spec, self.handler.options
        tasks = [job.task for job in jobs]
        # the rollback of an earlier call has expired them
        if spec.is_plain and not options and not any(instance_state(task).expired_attributes for task in tasks):
            session.add_all(tasks)
            return tasks
        loaded = self.adapter.rows.load(session, spec, [job.claim.identity for job in jobs], options)
        for source, target in zip(tasks, loaded, strict=True):
            carry(source, target)
        return loaded

    def _ends(self, jobs: Sequence[Job], tasks: Sequence[Any], returned: object) -> Iterator[Ended]:
        """Yield how each task has ended according to what the handler returned."""
        values = outcomes_in(self.handler, tasks, returned)
        for job, task in zip(jobs, tasks, strict=True):
            value = values.get(id(task))
            yield self.failed(job, value) if isinstance(value, BaseException) else Ended(completed(value))

    def _write(self, session: Session, ends: Mapping[Job, Ended]) -> None:
        outcomes = [(job.claim, ended.outcome) for job, ended in ends.items() if ended.outcome is not None]
        lost = [job.claim for job, ended in ends.items() if ended.outcome is None]
        lost += write_outcomes(session, outcomes)
        if lost:
            raise ClaimLostError(lost)


def outcomes_in(handler: Handler, tasks: Sequence[Any], returned: object) -> dict[int, object]:
    """Return the exceptions and results in what the handler returned, by the ``id`` of their tasks.

    Raises :class:`.ArgumentError` if it is not a mapping of some of ``tasks``, or a result is not JSON.
    """
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise ArgumentError(
            f"{handler.name}: a handler with chunk= returns None, or a mapping of tasks to exceptions or results, not"
            f" {type(returned).__name__}"
        )
    values = {id(task): value for task, value in returned.items()}
    if not values.keys() <= set(map(id, tasks)):
        raise ArgumentError(f"{handler.name}: it returned an outcome for something that is not a task of this call")
    for number, value in values.items():
        if isinstance(value, type) and issubclass(value, BaseException):
            raise ArgumentError(f"{handler.name}: it returned the class {value.__name__}: return an instance of it")
        if not isinstance(value, BaseException):
            values[number] = value if handler.spec.keeps_results else None
            check_json("result", values[number])
    return values


class _Interrupt:
    """Cancels a call of a coroutine once, from any thread, as long as the call runs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.task = asyncio.current_task()
        self._is_over = self._has_cancelled = False

    def __call__(self) -> None:
        soon(self._loop, self._cancel)

    def _cancel(self) -> None:
        if not self._is_over and self.task is not None:
            self._is_over = self._has_cancelled = True
            self.task.cancel()

    def end(self) -> None:
        """Record that the call has ended: what follows in the same asyncio task is not cancelled."""
        self._is_over = True
        if self._has_cancelled and self.task is not None:
            self.task.uncancel()


# -- pools that pass several jobs to each call ------------------------------------------------------------------------


def seconds_left(handler: Handler, jobs: deque[Job]) -> float:
    """Return for how many seconds the queued jobs wait for others before the handler is called."""
    if not jobs or len(jobs) >= (handler.chunk or 1):
        return 0.0
    return jobs[0].queued + handler.chunk_wait.total_seconds() - time.monotonic()


class ChunkThreadPool(ThreadPool):
    """Calls handlers in threads, with up to ``chunk`` tasks."""

    _executor: ChunkExecutor

    def put(self, jobs: Sequence[Job]) -> None:
        _stamp(jobs)
        super().put(jobs)

    def _work(self) -> None:
        while jobs := self._next_chunk():
            for job, outcome in self._context.copy().run(self._executor.perform_chunk, jobs):
                self._done(job, outcome)

    def _next_chunk(self) -> list[Job]:
        """Wait for jobs.  Returns none if there are too many threads, so that the calling one has to end."""
        with self._changed:
            while True:
                if self._alive > self._count:
                    self._alive -= 1
                    return []
                with suppress(IndexError):  # jobs are withdrawn without the lock
                    left = seconds_left(self._executor.handler, self._jobs)
                    if left <= 0 and (jobs := _take(self._executor.handler, self._jobs)):
                        return jobs
                    self._changed.wait(left if left > 0 else None)


class ChunkCoroutinePool(CoroutinePool):
    """Calls coroutine handlers with up to ``chunk`` tasks."""

    _executor: ChunkExecutor
    _timer: asyncio.TimerHandle | None = None

    def put(self, jobs: Sequence[Job]) -> None:
        _stamp(jobs)
        super().put(jobs)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        handler = self._executor.handler
        while self._free > 0 and self._jobs:
            left = seconds_left(handler, self._jobs)
            if left > 0:
                self._timer = asyncio.get_running_loop().call_later(left, self._start)
                return
            self._free -= 1
            work = self._work_on(_take(handler, self._jobs))
            self._running.add(asyncio.create_task(work, context=self._context.copy()))

    async def _work_on(self, jobs: Sequence[Job]) -> None:
        from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415

        try:
            for job, outcome in await greenlet_spawn(self._executor.perform_chunk, jobs):
                self._done(job, outcome)
        finally:
            self._ended()


def _stamp(jobs: Sequence[Job]) -> None:
    now = time.monotonic()
    for job in jobs:
        job.queued = now


def _take(handler: Handler, jobs: deque[Job]) -> list[Job]:
    """Remove and return the jobs of the next call."""
    taken: list[Job] = []
    with suppress(IndexError):
        while len(taken) < (handler.chunk or 1):
            taken.append(jobs.popleft())
    return taken
