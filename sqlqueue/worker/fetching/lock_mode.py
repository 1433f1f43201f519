"""``mode="lock"``: claim, handler and completion in one transaction, protected by the row lock alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from ... import operations
from ..._support.claim import Claim
from ..._support.exc import ArgumentError
from ...operations.claiming import claim_wanted
from ...transaction.claims import claim_of, is_settled, is_unsettled
from ..concurrency.threads import DaemonThreads
from ..database.backoff import Patience
from ..handling.handlers import Handler
from ..handling.jobs import Job
from ..handling.outcomes import COMPLETED, write_outcomes
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
        self._executor = _LockingExecutor(handler, context)
        self._threads = DaemonThreads(handler.concurrency, handler.name)
        self._slots: list[asyncio.Task[None]] = []
        self._work, self._none = asyncio.Event(), asyncio.Event()
        self._draining = False
        self._busy = 0

    @property
    def is_idle(self) -> bool:
        return not self._busy

    def drain(self) -> None:
        self._draining = self._executor.ending = True
        self._poller.close()
        self._work.set()
        self._none.set()

    def abandon(self, reason: str) -> None:
        """Cancel coroutines, which roll back.  Threads end with the process, which rolls back their transactions."""
        for slot in self._slots:
            slot.cancel(reason)

    def close(self) -> None:
        self._poller.close()
        self._threads.shutdown()

    async def run(self) -> None:
        """Work until :meth:`drain`.  While there is nothing to do, one poller serves all loops."""
        self._work.set()
        self._slots = [asyncio.create_task(self._slot()) for _ in range(self._handler.concurrency)]
        patience = self._patience()
        while not self._draining:
            await self._none.wait()
            self._none.clear()
            try:
                await self._poller.wait()
                patience.reset()
            except Exception as error:
                await patience.bear(error)
            self._work.set()
        await asyncio.gather(*self._slots, return_exceptions=True)

    async def _slot(self) -> None:
        patience = self._patience()

        def found() -> None:
            patience.reset()
            self._poller.refresh()

        while not self._draining:
            await self._work.wait()
            self._poller.expect()
            try:
                await self._turn(found)
                patience.reset()
                self._work.clear()
                self._none.set()
            except Exception as error:
                await patience.bear(error)

    def _patience(self) -> Patience:
        return Patience(f"claim {self._handler.entity.__name__}", self._context.reports, self._executor.adapter)

    async def _turn(self, found: Callable[[], None]) -> None:
        """Claim and run tasks until none is left."""
        if self._draining:
            return
        self._busy += 1
        try:
            if self._handler.is_coroutine:
                from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415

                await greenlet_spawn(self._executor.work, self._context.name, found)
            else:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._threads, self._executor.work, self._context.name, found)
        finally:
            self._busy -= 1


class _LockingExecutor(Executor):
    def __init__(self, handler: Handler, context: WorkerContext) -> None:
        super().__init__(handler, context.database, context.adapter(handler.spec), context.reports)
        self._context = context
        self._in_flight = context.in_flight
        self.ending = False

    def work(self, claimed_by: str, found: Callable[[], None]) -> None:
        """Run one task after the other until none is left; call ``found`` after each."""
        while not self.ending and self._claim_and_perform(claimed_by):
            found()

    def _claim_and_perform(self, claimed_by: str) -> bool:
        """Claim and run one task.  Returns whether there was one."""
        wanted = self._context.wanted(self.handler)
        if wanted is None:
            return False
        handed, session = self.database.open()
        with closing(session):
            tasks = claim_wanted(session, wanted, 1, lease=None, claimed_by=claimed_by)
            if not tasks or self.ending:  # the claim may have waited, on a thread that cannot be stopped
                return False
            job = Job(self.handler, tasks[0])
            self.reports.claimed(job)
            self._in_flight.add(job)
            try:
                self._perform_locked(job, handed, session)
                session.commit()
            finally:
                self._in_flight.remove(job)
            return True

    def _perform_locked(self, job: Job, handed: object, session: Session) -> None:
        """Call the handler in a savepoint, so that the transaction that holds the row can record its failure."""
        savepoint = session.begin_nested()
        job.begin()
        try:
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
        if outcome is not None and claim is not None:
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
