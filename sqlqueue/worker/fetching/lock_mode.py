"""``mode="lock"``: claim, handler and completion in one transaction, protected by the row lock alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from ... import operations
from ..._support.claim import Claim
from ..._support.exc import ArgumentError
from ...operations.claiming import claim_wanted
from ...operations.wanted import Wanted
from ...queue.spec import Identity
from ...transaction.claims import claim_of, is_settled, is_unsettled
from ..concurrency.event_loop import soon
from ..concurrency.threads import DaemonThreads
from ..database.backoff import Backoff
from ..database.deadlines import Deadline
from ..handling.handlers import Handler
from ..handling.jobs import Job
from ..handling.outcomes import COMPLETED, convicted, write_outcomes
from ..running.executor import Executor, closing
from .context import WorkerContext
from .poller import Poller

_OPEN = (
    "a handler of mode='lock' must leave its transaction open, for nothing else holds its task: use"
    " session.begin_nested() for a part that may fail, and no commit, rollback or close"
)


class LockModeFetcher:
    """Runs one handler in ``concurrency`` loops, each of which claims for itself."""

    def __init__(self, handler: Handler, context: WorkerContext) -> None:
        self._handler = handler
        self._context = context
        self._poller = Poller(handler, context)
        self._executor = _LockingExecutor(handler, context, self._suspect)
        self._loop = asyncio.get_running_loop()
        self._threads = DaemonThreads(handler.concurrency, handler.name)
        self._slots: dict[int, asyncio.Task[None]] = {}
        self.slots = handler.concurrency
        """How many calls run at a time."""
        self._work, self._none = asyncio.Event(), asyncio.Event()
        self._draining = False
        self._busy = 0

    @property
    def is_idle(self) -> bool:
        """Whether no loop is claiming or running a task."""
        return not self._busy

    @property
    def is_still(self) -> bool:
        """Whether no loop is claiming or running a task."""
        return not self._busy

    def hold(self) -> None:
        """Start no further tasks until :meth:`resume`."""
        self._executor.held = True

    def resume(self) -> None:
        """Start tasks again after :meth:`hold`."""
        self._executor.held = False
        self._work.set()

    def resize(self, slots: int) -> None:
        """Run so many calls at a time.  Running calls continue."""
        self.slots = slots
        self._threads.grow(slots)
        if self._slots and not self._draining:
            self._start()
            self._work.set()

    def drain(self) -> None:
        """Claim nothing more; running tasks continue."""
        self._draining = self._executor.ending = True
        self._poller.close()
        self._work.set()
        self._none.set()

    def abandon(self, reason: str) -> None:
        """Cancel coroutines, which roll back.  Threads end with the process, which rolls back their transactions."""
        for slot in self._slots.values():
            slot.cancel(reason)

    def close(self) -> None:
        """End the threads."""
        self._poller.close()
        self._threads.shutdown()

    async def run(self) -> None:
        """Work until :meth:`drain`.  While there is nothing to do, one poller serves all loops."""
        self._work.set()
        self._start()
        backoff = self._backoff()
        while not self._draining:
            await self._none.wait()
            self._none.clear()
            try:
                await self._poller.wait()
                backoff.reset()
            except Exception as error:
                await backoff.pause_after(error)
            self._work.set()
        await asyncio.gather(*self._slots.values(), return_exceptions=True)

    def _start(self) -> None:
        """Start the loops that are missing."""
        for number in range(self.slots):
            if number not in self._slots or self._slots[number].done():
                self._slots[number] = asyncio.create_task(self._slot(number))

    async def _slot(self, number: int) -> None:
        backoff = self._backoff()

        def found() -> bool:
            backoff.reset()
            self._poller.refresh()
            return number < self.slots

        while not self._draining and number < self.slots:
            await self._work.wait()
            self._poller.expect()
            try:
                await self._turn(found)
                backoff.reset()
                self._work.clear()
                self._none.set()
            except Exception as error:
                await backoff.pause_after(error)

    def _backoff(self) -> Backoff:
        return Backoff(f"claim {self._handler.entity.__name__}", self._context.reports, self._executor.adapter)

    async def _turn(self, found: Callable[[], bool]) -> None:
        """Claim and run tasks until none is left."""
        await self._perform(partial(self._executor.work, found))

    async def _run_alone(self, identity: Identity) -> None:
        """Run a suspect, if it is still there."""
        await self._perform(partial(self._executor.work_alone, identity))

    def _suspect(self, identity: Identity) -> None:
        """Have a task run alone.  Thread-safe."""
        soon(self._loop, partial(self._context.suspects.put, partial(self._run_alone, identity)))

    async def _perform(self, work: Callable[[], object]) -> None:
        if self._draining:
            return
        self._busy += 1
        try:
            if self._handler.is_coroutine:
                from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415

                await greenlet_spawn(work)
            else:
                await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._busy -= 1


class _LockingExecutor(Executor):
    def __init__(self, handler: Handler, context: WorkerContext, suspect: Callable[[Identity], None]) -> None:
        super().__init__(handler, context.database, context.adapter(handler.spec), context.reports, context.started)
        self._suspect = suspect
        """Has a task run by :meth:`work_alone`."""
        self._context = context
        self._in_flight = context.in_flight
        self.ending = self.held = False

    def work(self, found: Callable[[], bool]) -> None:
        """Run one task after the other until none is left; ``found``, called after each, returns whether to go on."""
        while not (self.ending or self.held) and self._claim_and_perform(self._context.wanted(self.handler)):
            if not found():
                return

    def work_alone(self, identity: Identity) -> None:
        """Run the task of this key, a suspect, while nothing else runs in this process."""
        wanted = self._context.wanted(self.handler)
        if wanted is not None:
            named = wanted.narrowed([*wanted.where, self.handler.spec.key(identity)], named=True)
            self._claim_and_perform(named, alone=True)

    def _claim_and_perform(self, wanted: Wanted | None, *, alone: bool = False) -> bool:
        """Claim and run one task.  Returns whether there was one."""
        if wanted is None:
            return False
        handed, session = self.database.open()
        with self.watched() as deadline, closing(session):
            tasks = claim_wanted(session, wanted, 1, lease=None, claimed_by=self._context.name)
            if not tasks or self.ending:  # the claim may have waited, on a thread that cannot be stopped
                return False
            getattr(tasks[0], self.handler.spec.attributes["crashes"])  # loader options may have deferred it
            job = Job(self.handler, tasks[0])
            if job.crashes >= self.handler.spec.options.max_crashes:
                self._convict(job, session)
                return True
            if job.crashes and not alone:
                self._suspect(job.claim.identity)
                return False
            self.reports.claimed(job)
            self._in_flight.add(job)
            try:
                job.on_lost = deadline.end_soon
                self._perform_locked(job, handed, session, deadline)
                session.commit()
            finally:
                self._in_flight.remove(job)
            return True

    def _convict(self, job: Job, session: Session) -> None:
        outcome = convicted(job.task, job.crashes)
        write_outcomes(session, [(job.claim, outcome)])
        session.commit()
        self.reports.convicted(job, outcome.error or "")

    def _perform_locked(self, job: Job, handed: object, session: Session, deadline: Deadline) -> None:
        """Call the handler in a savepoint, so that the transaction that holds the row can record its failure."""
        savepoint = session.begin_nested()
        job.begin()
        try:
            with deadline.suspended(self.time_limit):
                result = self.known(job, lambda: self.call(handed, job.task))
            if session.get_nested_transaction() is not savepoint and not is_settled(job.task):
                raise ArgumentError(_OPEN)
            if is_unsettled(job.task):
                operations.complete(session, job.task, result)
            _commit(session, savepoint)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            job.end()
            if self._is_over(job, error):
                raise  # the whole transaction is gone, so the task is free again
            self._record(job, session, savepoint, error)
        else:
            job.end()
            self.reports.finished(job, COMPLETED)

    def _record(self, job: Job, session: Session, savepoint: SessionTransaction, error: BaseException) -> None:
        """Record the outcome of an exception, locking the task again if the handler ended the transaction."""
        claim: Claim | None = job.claim
        if session.get_nested_transaction() is savepoint:
            savepoint.rollback()
        else:
            session.rollback()
            spec = self.handler.spec
            again = operations.claim(
                session, self.handler.entity, spec.key(job.claim.identity), lease=None, claimed_by=self._context.name
            )
            claim = None if again is None else claim_of(again)
        outcome = self.judge(job, error)
        if outcome is None:
            self.reports.lost(job)
        elif claim is not None:
            write_outcomes(session, [(claim, outcome)])
            self.reports.finished(job, outcome, error)

    def _is_over(self, job: Job, error: BaseException) -> bool:
        """Return whether the engine ended the transaction or wants it to be restarted."""
        if not isinstance(error, DBAPIError):
            return False
        if self.adapter.errors.is_transient(error):
            self.reports.retried(job, error)
            return True
        return self.adapter.errors.is_outage(error)


def _commit(session: Session, savepoint: SessionTransaction) -> None:
    if session.get_nested_transaction() is savepoint:
        savepoint.commit()
