"""The transactions of ``mode="lock"``: claim, call the handler and settle, then commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from ... import operations
from ..._support.claim import Claim
from ..._support.exc import ArgumentError
from ...lifecycle.kind import holding_slots
from ...operations.claim_query import ClaimQuery
from ...operations.claiming import claim_matching
from ...operations.unreadable import unreadable_rows
from ...queue.spec import Identity
from ...transaction.claims import claim_of, is_settled, is_unsettled, settle
from ...transaction.ledger import has_used
from ..database.deadlines import Deadline
from ..handling.handlers import Handler
from ..handling.jobs import Job
from ..handling.outcomes import COMPLETED, Outcome, crashed_too_often, write_outcomes
from ..running.executor import Executor, close
from .context import WorkerContext
from .durations import CallDurations
from .fetcher import AHEAD

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
    started: list[Job] = field(default_factory=list)
    unwritten: list[tuple[Claim, Outcome]] = field(default_factory=list)
    """The outcomes to write before the commit."""
    reports: list[Callable[[], object]] = field(default_factory=list)
    """What to report after the commit."""

    def forget(self) -> None:
        """Forget the outcomes, since the transaction was rolled back: their tasks are run again."""
        self.unwritten.clear()
        self.reports.clear()


class LockingExecutor(Executor):
    """Runs tasks in the transactions that lock them.

    Usually, a transaction runs one task.  As long as no call has used its session, so that there are only completions
    to commit, a transaction locks several short tasks and completes them in one statement.
    """

    def __init__(self, handler: Handler, context: WorkerContext, suspect: Callable[[Identity], None]) -> None:
        super().__init__(handler, context.database, context.adapter(handler.spec), context.reports, context.started)
        self._suspect = suspect
        """Queues a task for :meth:`work_alone`."""
        self._context = context
        self._in_flight = context.in_flight
        self._runs_one = holding_slots(handler.spec) is not None
        """Whether each transaction runs one task; a limited queue would count the others as running."""
        self._durations = CallDurations()
        self.ending = self.held = False

    def work(self, found: Callable[[], bool]) -> None:
        """Run one task after the other until none is left; ``found``, called after each, returns whether to go on."""
        while not self._is_stopped and self._transact(self._context.claim_query(self.handler), self._ahead()):
            if not found():
                return

    def work_alone(self, identity: Identity) -> None:
        """Run the task of this key, a suspect, while nothing else runs in this process."""
        query = self._context.claim_query(self.handler)
        if query is not None:
            named = query.narrowed([*query.where, self.handler.spec.key(identity)], named=True)
            self._transact(named, 1, alone=True)

    @property
    def _is_stopped(self) -> bool:
        return self.ending or self.held

    def _ahead(self) -> int:
        """Return how many tasks to lock: only as many as end soon, since other workers cannot run them in the
        meantime."""
        if self._runs_one:
            return 1
        return max(1, min(self.handler.batch, self._durations.calls_within(AHEAD)))

    def _transact(self, query: ClaimQuery | None, limit: int, *, alone: bool = False) -> bool:
        """Claim and run up to ``limit`` tasks.  Returns whether to claim more at once."""
        if query is None:
            return False
        handed, session = self.database.open()
        with self.watched() as deadline:
            transaction = _Transaction(session, handed, deadline)
            try:
                tasks = claim_matching(session, query, limit, lease=None, claimed_by=self._context.name)
                self.reports.unreadable(unreadable_rows(session))
                if not tasks:
                    session.commit()  # rows that cannot be read have been postponed
                if not tasks or self.ending:  # the claim may have waited, on a thread that cannot be stopped
                    return False
                goes_on = self._run_all(transaction, tasks, alone=alone)
                write_outcomes(session, transaction.unwritten)
                session.commit()
            finally:
                for job in transaction.started:
                    self._in_flight.remove(job)
                close(session)
        for report in transaction.reports:
            report()
        return goes_on

    def _run_all(self, transaction: _Transaction, tasks: Sequence[Any], *, alone: bool) -> bool:
        """Run the tasks until one has used its session.  Returns whether to claim more at once."""
        left, has_suspects = deque(tasks), False
        while left and not (transaction.started and (self._runs_one or self._is_stopped)):
            task = left.popleft()
            getattr(task, self.handler.spec.attributes["crashes"])  # loader options may have deferred it
            job = Job(self.handler, task)
            if job.crashes >= self.handler.spec.options.max_crashes:
                self._discard_crashed(transaction, job)
            elif job.crashes and not alone:
                has_suspects = True
                self._suspect(job.claim.identity)
                settle(transaction.session, task, "released")
            else:
                self._run(transaction, job)
        for task in filter(is_unsettled, left):  # there are none if the handler has ended the transaction
            settle(transaction.session, task, "released")  # nothing is written: the commit unlocks it
        return not has_suspects

    def _discard_crashed(self, transaction: _Transaction, job: Job) -> None:
        outcome = crashed_too_often(job.task, job.crashes)
        transaction.unwritten.append((job.claim, outcome))
        transaction.reports.append(partial(self.reports.crashed_too_often, job, outcome.error or ""))

    def _run(self, transaction: _Transaction, job: Job) -> None:
        """Call the handler in a savepoint, so that the transaction that holds the row can record its failure."""
        self.reports.claimed([job])
        self._in_flight.add(job)
        transaction.started.append(job)
        job.on_lost = transaction.deadline.end_soon
        savepoint = transaction.session.begin_nested()
        job.begin()
        try:
            self._call(transaction, job, savepoint)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            job.end()
            if self._is_over(job, error):
                raise  # the whole transaction is gone, so its tasks are free again
            self._record(transaction, job, savepoint, error)
        else:
            job.end()
            transaction.reports.append(partial(self.reports.finished, job, COMPLETED))
        self._durations.add(job.seconds)

    def _call(self, transaction: _Transaction, job: Job, savepoint: SessionTransaction) -> None:
        session = transaction.session
        with transaction.deadline.suspended(self.time_limit), self.call_context(job):
            result = self.call(transaction.handed, job.task)
        is_open = session.get_nested_transaction() is savepoint
        if not is_open and not is_settled(job.task):
            raise ArgumentError(_OPEN)
        if is_open and result is None and is_unsettled(job.task) and not has_used(session, savepoint):
            transaction.unwritten.append((job.claim, COMPLETED))
        else:
            self._runs_one = True
            if is_unsettled(job.task):
                operations.complete(session, job.task, result)
        if is_open:
            savepoint.commit()

    def _record(self, transaction: _Transaction, job: Job, savepoint: SessionTransaction, error: BaseException) -> None:
        """Record the outcome of an exception, locking the task again if the handler ended the transaction."""
        session = transaction.session
        claim: Claim | None = job.claim
        if session.get_nested_transaction() is savepoint:
            self._runs_one = self._runs_one or has_used(session, savepoint)
            savepoint.rollback()
        else:
            self._runs_one = True
            transaction.forget()
            claim = self._claim_again(session, job)
        outcome = self.judge(job, error)
        if outcome is None:
            self.reports.lost(job)
        elif claim is not None:
            transaction.unwritten.append((claim, outcome))
            transaction.reports.append(partial(self.reports.finished, job, outcome, error))

    def _claim_again(self, session: Session, job: Job) -> Claim | None:
        session.rollback()
        spec, name = self.handler.spec, self._context.name
        task = operations.claim(session, self.handler.entity, spec.key(job.claim.identity), lease=None, claimed_by=name)
        return None if task is None else claim_of(task)

    def _is_over(self, job: Job, error: BaseException) -> bool:
        """Return whether the engine ended the transaction or wants it to be restarted."""
        if not isinstance(error, DBAPIError):
            return False
        if self.adapter.errors.is_transient(error):
            self._runs_one = True
            self.reports.retried(job, error)
            return True
        return self.adapter.errors.is_outage(error)
