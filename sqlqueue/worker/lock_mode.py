"""Handlers that run in the transaction of their claim: `mode="lock"`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from .. import operations
from .._support.errors import ArgumentError, Claim, ClaimLostError
from ..dialects.connections import as_driver_error
from ..operations.claiming import ClaimQuery, claim_matching
from ..queue.spec import Identity
from ..transaction import claim_of, has_used, is_settled, is_unsettled, mark_settled
from .context import WorkerContext
from .deadlines import Deadline
from .executor import CHANGED, TRIES, Executor, call_handler, close
from .fetcher import AHEAD, EVERY, BaseFetcher, CallDurations
from .handlers import Handler
from .jobs import COMPLETED, Ended, Job, crashed_too_often, load, plain_failure, write_outcomes
from .reports import logger
from .threads import DaemonThreads, happens_within, soon

# -- the transactions of `mode="lock"`: claim, call the handler and settle, then commit -------------------------------

_OPEN = (
    "a handler of mode='lock' must leave its transaction open, because nothing else holds its task: use"
    " session.begin_nested() for a part that may fail, and no commit, rollback or close"
)


@dataclass(slots=True)
class _Transaction:
    """A transaction that has locked some tasks."""

    session: Session
    handed: object
    """The session passed to the handler: this one, or the asynchronous session that contains it."""
    deadline: Deadline
    name: str
    """The worker's name, the same until all outcomes are written: if it cannot be stored, no task is to blame."""
    context: Context = field(default_factory=copy_context)
    """The context of the last call, in which the session's events run too."""
    started: list[Job] = field(default_factory=list)
    ends: dict[Job, Ended] = field(default_factory=dict)


class LockingTransactions:
    """Runs tasks in the transactions that lock them.

    Usually, a transaction runs one task.  As long as no call has used its session, so that there are only completions
    to commit, a transaction locks several short tasks and completes them in one statement.

    If such a transaction fails, its tasks are free again, with nothing written.  Each is then locked once more, and its
    outcome written in a transaction of its own.
    """

    def __init__(
        self,
        handler: Handler,
        context: WorkerContext,
        suspect: Callable[[Identity], None],
        claimed: Callable[[], None],
    ) -> None:
        self.handler = handler
        self._executor = Executor(handler, context.database, context.reports, context.started)
        self._suspect = suspect
        """Queues a task for :meth:`work_alone`."""
        self._claimed = claimed
        """Called after each claim that has found tasks, before these are run."""
        self._context = context
        self._runs_one = handler.spec.is_limited
        """Whether each transaction runs one task; a limited queue would count the others as running."""
        self._durations = CallDurations()
        self.ending = self.held = False
        self.abandoned = False
        """Whether coroutines are being cancelled."""

    def work(self, found: Callable[[], bool]) -> None:
        """Run one task after the other until none is left; ``found``, called after each, returns whether to go on."""
        while not self._is_stopped and self._transact(self._context.claim_query(self.handler), self._ahead()):
            if not found():
                return

    def work_alone(self, identity: Identity) -> None:
        """Run the task of this key, a suspect, while nothing else runs in this process."""
        self._transact(self._named(identity), 1, alone=True)

    def _named(self, identity: Identity) -> ClaimQuery | None:
        """Return the query for the task of this key."""
        query = self._context.claim_query(self.handler)
        return query and query.narrowed([*query.where, self.handler.spec.key(identity)], named=True)

    @property
    def _is_stopped(self) -> bool:
        return self.ending or self.held

    def _ahead(self) -> int:
        """Return how many tasks to lock: only as many as end soon, since other workers cannot run them in the
        meantime."""
        if self._runs_one:
            return 1
        return max(1, min(self.handler.batch, self._durations.calls_within(AHEAD)))

    def _transact(self, query: ClaimQuery | None, limit: int, *, alone: bool = False, tries: int = TRIES) -> bool:
        """Claim and run up to ``limit`` tasks.  Returns whether to claim more at once."""
        if query is None:
            return False
        handed, session = self._context.database.open()
        transaction = _Transaction(session, handed, self._executor.watched(), self._context.name)
        try:
            with transaction.deadline:
                goes_on = self._claim_and_run(transaction, query, limit, alone=alone)
        except BaseException as error:
            if self._cancels(transaction, error) or not (transaction.ends or transaction.started):
                raise
            self._recover(transaction, error, alone=alone, tries=tries)
            return True
        finally:
            for job in transaction.started:
                self._context.in_flight.remove(job)
        for job, ended in transaction.ends.items():
            self._report(job, ended)
        return goes_on

    def _claim_and_run(self, transaction: _Transaction, query: ClaimQuery, limit: int, *, alone: bool) -> bool:
        session = transaction.session
        try:
            tasks = claim_matching(session, query, limit, lease=None, claimed_by=transaction.name)
            set_aside = self._context.note_claim(self.handler, session)
            if not tasks:
                session.commit()  # rows that cannot be read have been postponed
                return set_aside
            if self.ending:  # the claim may have waited, on a thread that cannot be stopped
                return False
            self._claimed()
            goes_on = self._run_all(transaction, tasks, alone=alone)
            if transaction.started or transaction.ends:  # otherwise, a commit would leave a suspect's slot held
                ends = [(job.claim, ended) for job, ended in transaction.ends.items()]
                transaction.context.run(_commit, session, ends)
            return goes_on
        except BaseException:
            session.rollback()  # close() alone would return a connection whose transaction a failed commit left open
            raise
        finally:
            close(session)

    def _run_all(self, transaction: _Transaction, tasks: Sequence[Any], *, alone: bool) -> bool:
        """Run the tasks until one has used its session.  Returns whether to claim more at once."""
        left, suspects = deque(tasks), list[Any]()
        load(self.handler.spec, tasks)  # before a savepoint, which this would use
        while left and not (transaction.started and (self._runs_one or self._is_stopped)):
            task = left.popleft()
            load(self.handler.spec, [task])
            job = Job(self.handler, task)
            if job.crashes >= self.handler.spec.options.max_crashes:
                transaction.ends[job] = Ended(crashed_too_often(job.task, job.crashes))
            elif job.crashes and not alone:
                suspects.append(task)
                self._suspect(job.claim.identity)
            else:
                self._run(transaction, job)
        for task in filter(is_unsettled, (*suspects, *left)):  # there are none if the handler has ended the transaction
            mark_settled(transaction.session, task, "released")  # nothing is written: the commit unlocks it
        return not suspects

    def _run(self, transaction: _Transaction, job: Job) -> None:
        """Call the handler in a savepoint, so that the transaction that holds the row can record its failure."""
        self._context.reports.claimed([job])
        self._context.in_flight.add(job)
        transaction.started.append(job)
        job.on_lost = transaction.deadline.end_soon
        # one that no call has used is still open
        savepoint = transaction.session.get_nested_transaction() or transaction.session.begin_nested()
        try:
            with self._executor.calling(job):
                ended = self._call(transaction, job, savepoint)
        except BaseException as error:
            if self._cancels(transaction, error) or self._is_over(error):
                raise  # the whole transaction is gone, so its tasks are free again
            if transaction.session.get_nested_transaction() is not savepoint:
                self._runs_one = True
                raise  # the handler has ended the transaction, so its tasks are free again
            self._runs_one = self._runs_one or has_used(transaction.session, savepoint)
            savepoint.rollback()
            ended = self._failed(job, error)
        transaction.ends[job] = ended
        self._durations.add(job.seconds)

    def _call(self, transaction: _Transaction, job: Job, savepoint: SessionTransaction) -> Ended:
        with transaction.deadline.suspended(self._executor.time_limit):
            transaction.context = copy_context()
            result = call_handler(self.handler, transaction.handed, job.task, context=transaction.context)
        return transaction.context.run(self._complete, transaction.session, job, savepoint, result)

    def _complete(self, session: Session, job: Job, savepoint: SessionTransaction, result: object) -> Ended:
        """Complete the task, unless its handler has not used the session: that is left to be done with others."""
        is_open, unsettled = session.get_nested_transaction() is savepoint, is_unsettled(job.task)
        if not is_open and not is_settled(job.task):
            raise ArgumentError(_OPEN)
        is_left = is_open and result is None and unsettled and not has_used(session, savepoint)
        if not is_left:
            self._runs_one = True
            if unsettled:
                operations.complete(session, job.task, result)
            if is_open:
                savepoint.commit()
        return Ended(COMPLETED, is_written=not is_left)

    def _failed(self, job: Job, error: BaseException) -> Ended:
        """Return the end of a job that failed.  While its row is locked, only its handler can have changed it."""
        if isinstance(error, ClaimLostError) and job.claim in error.claims and not job.is_lost:
            error = ArgumentError(CHANGED)
        return self._executor.failed(job, error)

    def _cancels(self, transaction: _Transaction, error: BaseException) -> bool:
        """Return whether the worker has cancelled the call; otherwise, something that the handler awaited was."""
        return isinstance(error, asyncio.CancelledError) and (self.abandoned or transaction.deadline.is_silent)

    def _is_over(self, error: BaseException) -> bool:
        """Return whether the engine may have ended the transaction, or wants it to be restarted."""
        return as_driver_error(error) is not None and self._executor.may_pass(error)

    def _recover(self, transaction: _Transaction, error: BaseException, *, alone: bool, tries: int) -> None:
        """Write the outcomes of tasks whose transaction has failed.

        Those that used nothing of it keep theirs; the last one may have caused the failure.  After a conflict, it is
        run again at once.  Raises an error if the database does not respond: the tasks are free, and will be run again.
        """
        culprit: Job | None = transaction.started[-1] if transaction.started else None
        if culprit in transaction.ends and not transaction.ends[culprit].is_written:
            culprit = None
        for job, ended in transaction.ends.items():
            if not ended.is_written:
                self._write_apart(transaction.name, job, ended)
        if culprit is None:
            return
        if tries > 1 and isinstance(error, DBAPIError) and self._executor.adapter.connections.is_transient(error):
            self._runs_one = True
            self._executor.run_again(culprit, error, 1 + TRIES - tries)
            self._transact(self._named(culprit.claim.identity), 1, alone=alone, tries=tries - 1)
            return
        self._write_apart(transaction.name, culprit, self._failed(culprit, error))

    def _write_apart(self, name: str, job: Job, ended: Ended) -> None:
        """Lock the task again, and write and report how it ended; a plain failure if that cannot be written."""
        try:
            is_held = ended.outcome is not None and self._is_written_apart(name, job, ended)
        except Exception as error:
            if ended.outcome is None or self._executor.may_pass(error):
                raise
            ended = Ended(plain_failure(ended.outcome, error, job.described.number), error)
            is_held = self._is_written_apart(name, job, ended)
        self._report(job, ended if is_held else Ended(None))

    def _is_written_apart(self, name: str, job: Job, ended: Ended) -> bool:
        """Write the outcome of a task that is free.  Returns false if another worker has run it in the meantime."""
        _, session = self._context.database.open()
        with self._executor.watched():
            try:
                named = self.handler.spec.key(job.claim.identity)
                task = operations.claim(session, self.handler.entity, named, lease=None, claimed_by=name)
                if task is None or claim_of(task).attempt != job.claim.attempt:
                    return False
                _commit(session, [(claim_of(task), ended)])
                return True
            except BaseException:
                session.rollback()
                raise
            finally:
                close(session)

    def _report(self, job: Job, ended: Ended) -> None:
        if ended.outcome is not None and ended.outcome.kind == "crashed":
            self._context.reports.crashed_too_often(job, ended.outcome.error or "")
        else:
            self._executor.report(job, ended)


def _commit(session: Session, ends: Sequence[tuple[Claim, Ended]]) -> None:
    """Write the outcomes that are left to write, and commit."""
    if (savepoint := session.get_nested_transaction()) is not None:
        savepoint.commit()
    write_outcomes(session, [(claim, end.outcome) for claim, end in ends if end.outcome and not end.is_written])
    session.commit()


# -- `mode="lock"`: claim, handler and completion in one transaction, protected by the row lock alone -----------------


class LockModeFetcher(BaseFetcher):
    """Runs one handler in ``concurrency`` loops, each of which claims its own tasks."""

    def __init__(self, handler: Handler, context: WorkerContext) -> None:
        super().__init__(handler, context)
        self._transactions = LockingTransactions(handler, context, self._suspect, self._wake_another)
        self._threads = DaemonThreads(handler.concurrency, handler.name)
        self._slots: dict[int, asyncio.Task[None]] = {}
        self._turn = asyncio.Semaphore(0)
        """What a loop waits for that has found no task: one loop claims, and each that finds tasks wakes another."""
        self._waiting = 0
        """How many loops wait for their turn."""
        self._none = asyncio.Event()
        """Whether a loop has found no task."""
        self._claims = False
        """Whether tasks have been claimed since they were last promoted."""
        self._busy = 0
        self._failure: BaseException | None = None
        """The error of a loop that has failed."""

    @property
    def is_idle(self) -> bool:
        """Whether no loop is claiming or running a task."""
        return not self._busy

    def hold(self) -> None:
        self._transactions.held = True

    def resume(self) -> None:
        self._transactions.held = False
        self._wake()

    def resize(self, slots: int) -> None:
        self.slots = slots
        self._threads.grow(slots)
        if self._slots and not self._draining:
            self._start()
            self._wake()

    def drain(self) -> None:
        self._transactions.ending = True
        super().drain()
        for _ in self._slots:
            self._turn.release()
        self._none.set()

    def abandon(self, reason: str) -> None:
        """Cancel coroutines, which roll back.  Threads end with the process, which rolls back their transactions."""
        self._transactions.abandoned = True
        for slot in self._slots.values():
            slot.cancel(reason)

    def close(self) -> None:
        self._poller.close()
        self._threads.shutdown()

    async def run(self) -> None:
        """Work until :meth:`drain`.  While there is nothing to do, one poller serves all loops.

        Raises the error of a loop that has failed.
        """
        self._start()
        self._wake()
        backoff = self._context.claim_backoff(self.handler)
        while not self._draining:
            none = await happens_within(self._none, EVERY)
            if self._failure is not None:
                raise self._failure
            try:
                # a key at its limit has available tasks even if a claim found none
                if self._claims and (self.handler.spec.is_limited or not none):
                    self._claims = False
                    await self._poller.promote()
                if none:
                    await self._poller.wait()
                backoff.reset()
            except Exception as error:
                await backoff.pause_after(error)
            self._none.clear()  # what has ended until now claims again
            self._poller.expect()
            self._wake()
        await asyncio.gather(*self._slots.values(), return_exceptions=True)

    def _start(self) -> None:
        """Start the loops that are missing."""
        for number in range(self.slots):
            if number not in self._slots or self._slots[number].done():
                self._slots[number] = slot = asyncio.create_task(self._slot(number))
                slot.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, slot: asyncio.Task[None]) -> None:
        """Start a loop again that something has cancelled; let :meth:`run` raise the error of one that has failed."""
        if not slot.cancelled():
            self._failure = self._failure or slot.exception()
            self._none.set()
        elif not self._draining:
            logger.error("a slot of the handler %s was cancelled, and is started again", self.handler.name)
            self._start()
            self._wake()

    def _wake(self) -> None:
        """Let one loop claim that waits, or the next that would."""
        if self._turn.locked():
            self._turn.release()

    def _wake_another(self) -> None:
        """Let another loop claim.  Thread-safe."""
        if self._waiting:
            soon(self._loop, self._wake)

    async def _slot(self, number: int) -> None:
        backoff = self._context.claim_backoff(self.handler)

        def found() -> bool:
            backoff.reset()
            self._poller.refresh()
            self._claims = True
            return number < self.slots

        while not self._draining and number < self.slots:
            self._waiting += 1
            try:
                await self._turn.acquire()
            finally:
                self._waiting -= 1
            try:
                await self._perform(partial(self._transactions.work, found))
                backoff.reset()
                self._none.set()
                self._poller.look_again()
            except Exception as error:
                await backoff.pause_after(error)
                self._wake()

    def _suspect(self, identity: Identity) -> None:
        """Queue a task to be run alone.  Thread-safe."""
        run = partial(self._perform, partial(self._transactions.work_alone, identity))
        soon(self._loop, partial(self._context.suspects.put_nowait, run))

    async def _perform(self, work: Callable[[], object]) -> None:
        if self._draining:
            return
        self._busy += 1
        try:
            if self.handler.is_coroutine:
                from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415

                await greenlet_spawn(work)
            else:
                await self._loop.run_in_executor(self._threads, copy_context().run, work)
        finally:
            self._busy -= 1
