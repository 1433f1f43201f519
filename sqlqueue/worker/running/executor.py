"""Calls handlers.  Coroutine handlers with a session use the same code: it runs in a greenlet, which awaits them."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from ... import operations
from ..._support.checks import check_json
from ..._support.errors import ArgumentError, ClaimLostError
from ...dialects.base import Adapter
from ...model.companions import history_of
from ...operations.recording import stored_traceback
from ...queue.retries import DEFAULT_RETRY, delay_after
from ...transaction.ledger import carry, is_unsettled, may_have_written
from ..concurrency.event_loop import soon
from ..database.base import Database
from ..database.deadlines import Deadline, NoResponse, transaction_limit
from ..handling.handlers import Handler
from ..handling.jobs import RETURNS, Job
from ..handling.outcomes import Ended, Outcome, completed, outcome_of
from ..reporting.reports import Reports
from .call_context import CallContext
from .started import StartedTasks

TRIES = 4
"""How often a handler is called in one attempt if its transaction keeps losing deadlocks, or timing out on locks."""


class Executor:
    """Runs jobs with one handler."""

    def __init__(
        self,
        handler: Handler,
        database: Database,
        adapter: Adapter,
        reports: Reports,
        started: StartedTasks | None = None,
    ) -> None:
        self.handler = handler
        self.database = database
        self.adapter = adapter
        self.reports = reports
        self._started = started or StartedTasks()
        self._keeps_results = handler.spec.keeps_results
        self._within = transaction_limit(handler.lease)

    async def perform_coroutine(self, job: Job) -> Outcome | None:
        """Call a coroutine handler as :meth:`perform` does.  Losing the task cancels it."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        job.begin(lambda: soon(loop, task.cancel))
        return self._reported(job, Ended(None) if job.is_lost else await self.attempt_coroutine(job))

    def perform(self, job: Job) -> Outcome | None:
        """Call the handler.  Returns the outcome to write, or ``None`` if it is written already or the task is lost."""
        job.begin()
        return self._perform(job)

    def _perform(self, job: Job) -> Outcome | None:
        # it may have been lost while it was queued
        return self._reported(job, Ended(None) if job.is_lost else self.attempt(job))

    def _reported(self, job: Job, ended: Ended) -> Outcome | None:
        """Report the end of a job.  Returns the outcome that is left to write."""
        try:
            if ended.outcome is None:
                self.reports.lost(job)
            else:
                self.reports.finished(job, ended.outcome, ended.error)
        except Exception as error:  # for example from an exporter of the application
            with suppress(Exception):
                self.reports.broken(f"report the end of {job}", error)
        return None if ended.is_written else ended.outcome

    def attempt(self, job: Job) -> Ended:
        """Call the handler, and return the outcome of the task, without reporting it."""
        try:
            with self.call_context(job):
                ended = self._try(job) if self.handler.takes_session else self._ended(job, self.call(job.task))
        except BaseException as error:
            return self._raised(job, error)
        job.end()
        return ended

    async def attempt_coroutine(self, job: Job) -> Ended:
        """Call a coroutine handler as :meth:`attempt` does: in a greenlet if it takes a session, which needs one."""
        if self.handler.takes_session:
            from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415

            in_greenlet: Ended = await greenlet_spawn(self.attempt, job)
            return in_greenlet
        try:
            with self.call_context(job):
                ended = self._ended(job, self._stored(await self._invoke(job.task)))
        except BaseException as error:
            return self._raised(job, error)
        job.end()
        return ended

    def call_context(self, job: Job) -> CallContext:
        """Return the context around a call of the handler."""
        return CallContext(job, self.reports, self._started)

    def _ended(self, job: Job, result: object) -> Ended:
        job.settle()
        return Ended(completed(result))

    def _raised(self, job: Job, error: BaseException) -> Ended:
        job.end()
        try:
            return Ended(self.judge(job, error), error)
        except BaseException as broken:  # whatever it is, the failure is recorded
            with suppress(Exception):
                self.reports.broken(f"determine the outcome of {job}", broken)
            text = f"{type(error).__name__}; determining the outcome raised {type(broken).__name__}"
            return Ended(Outcome("failed", ascii(text)[1:-1], DEFAULT_RETRY(job.attempt.number)), error)

    def _try(self, job: Job) -> Ended:
        """Call the handler with a session, and again after a deadlock."""
        for left in reversed(range(TRIES)):
            try:
                return self._in_session(job)
            except DBAPIError as error:
                if not left or not self.adapter.errors.is_transient(error):
                    raise
                job.settling = False
                self.reports.retried(job, error)
                self._sleep(random.uniform(0, 0.1 * (TRIES - left)))
        raise AssertionError

    def _in_session(self, job: Job) -> Ended:
        """Commit the handler's writes and the completion together.

        If the handler has not used its session, there is nothing to commit with the completion, which is left to be
        written with others.
        """
        handed, session = self.database.open()
        with self.watched() as deadline:
            job.on_lost = deadline.end_soon
            try:
                if not session.in_transaction():
                    session.begin()  # autobegin=False
                task = self._attach(session, job)
                with deadline.suspended(self.time_limit):
                    result = self.call(handed, task)
                _refuse_deletion(session, task)
                job.settle()
                unsettled = is_unsettled(task)
                is_left = unsettled and not may_have_written(session)
                if unsettled and not is_left:
                    operations.complete(session, task, result)
                session.commit()
                return Ended(completed(result), is_written=not is_left)
            except BaseException:
                session.rollback()  # close() alone would leave the instances as the handler changed them
                raise
            finally:
                close(session)

    def watched(self) -> Deadline:
        """Return a context in which the library's own statements have a deadline."""
        return Deadline(self._within, self.database.engines, is_async=self.handler.is_coroutine)

    @property
    def time_limit(self) -> timedelta | None:
        """The time after which the handler is cancelled, and must not keep waiting for the database."""
        return self.handler.timeout if self.handler.is_coroutine else None

    def _attach(self, session: Session, job: Job) -> Any:
        """Return the claimed task as an instance of the handler's session."""
        spec, options = job.handler.spec, job.handler.options
        if spec.is_plain and not options:
            session.add(job.task)
            if instance_state(job.task).expired_attributes:  # expired by the rollback of the previous try
                session.refresh(job.task)
            return job.task
        # objects loaded with it may be shared with other jobs, and cannot be in two sessions
        (task,) = self.adapter.rows.load(session, spec, [job.claim.identity], options)
        carry(job.task, task)
        return task

    def call(self, *arguments: Any) -> object:
        """Call the handler.  Returns its result if the model stores results, else ``None``."""
        result = self._invoke(*arguments)
        if self.handler.is_coroutine:
            from sqlalchemy.util import await_only  # noqa: PLC0415

            result = await_only(result)
        return self._stored(result)

    def _invoke(self, *arguments: Any) -> Any:
        """Call the handler.  Returns its result, to be awaited if it is a coroutine."""
        result: Any = self.handler.function(*arguments)
        is_awaitable = result is not None and inspect.isawaitable(result)
        if is_awaitable != self.handler.is_coroutine:
            _refuse(self.handler, result)
        return _within(result, self.handler.timeout) if is_awaitable and self.handler.timeout else result

    def _stored(self, result: object) -> object:
        """Return what the model stores of a result."""
        if not self._keeps_results:
            return None
        check_json("result", result)  # now, so that it fails this attempt and not a batch of others
        return result

    def _sleep(self, seconds: float) -> None:
        if self.handler.is_coroutine:
            from sqlalchemy.util import await_only  # noqa: PLC0415

            await_only(asyncio.sleep(seconds))
        else:
            time.sleep(seconds)

    def judge(self, job: Job, error: BaseException) -> Outcome | None:
        """Return the outcome that ``error`` stands for, or ``None`` if the task is lost."""
        if job.is_lost or (isinstance(error, ClaimLostError) and job.claim in error.claims):
            return None
        if self.may_pass(error) and self.may_return(job):
            return self.uncounted(job, error)
        return self._traced(outcome_of(error, is_last=job.attempt.is_last), error)

    def may_pass(self, error: BaseException) -> bool:
        """Return whether an error is due to other transactions, or looks like an outage of the database.

        It may be another database's, or the outage may be caused by the task itself, for example by a statement that is
        too large for the server.
        """
        errors = self.adapter.errors
        is_conflict = isinstance(error, DBAPIError) and errors.is_transient(error)
        return is_conflict or errors.is_outage(error) or isinstance(error, (PoolTimeoutError, NoResponse))

    def may_return(self, job: Job) -> bool:
        """Return whether the task may be handed back without counting the attempt."""
        return job.returns < RETURNS

    def _traced(self, outcome: Outcome, error: BaseException) -> Outcome:
        """Add the traceback of a failure if the application has a history."""
        history = history_of(self.handler.spec.table.metadata)
        if history is None or outcome.cause is None:
            return outcome
        return replace(outcome, traceback=stored_traceback(error, history.options))

    def uncounted(self, job: Job, error: BaseException) -> Outcome:
        """Return the outcome for an error that is not the task's fault; with a delay, in case it is after all.
        Its text tells how often the task was returned for such errors in a row.
        """
        spec = self.handler.spec
        return Outcome("snoozed", job.returned(error), delay_after(spec.options.retry, 1, spec.entity.__name__))


def _refuse_deletion(session: Session, task: Any) -> None:
    state = instance_state(task)
    if task in session.deleted or state.deleted or state.was_deleted:
        raise ArgumentError("a handler must not delete its task: use QueueOptions(on_complete='delete')")


def _refuse(handler: Handler, result: Any) -> None:
    """Raise :class:`.ArgumentError`: a decorator may return a different kind of function than the one that it wraps."""
    if inspect.iscoroutine(result):
        result.close()
    if handler.is_coroutine:
        text = "seems to be a coroutine function but returned nothing to await: define it with def"
    else:
        text = "seems to be a function but returned an awaitable: define it with async def"
    raise ArgumentError(f"{handler.name} {text}")


async def _within(awaitable: Any, timeout: timedelta) -> object:
    limit = asyncio.timeout(timeout.total_seconds())
    try:
        async with limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            raise too_long(timeout) from None
        raise


def too_long(timeout: timedelta) -> TimeoutError:
    """Return the error of a handler that exceeded its ``timeout``."""
    return TimeoutError(f"its handler ran for longer than {timeout}")


def close(session: Session) -> None:
    """Close the session, even if its savepoints are gone after a deadlock."""
    try:
        session.close()
    except DBAPIError:
        session.close()  # after a deadlock that removed a savepoint, the first call fails
