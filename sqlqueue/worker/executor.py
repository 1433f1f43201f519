"""Runs handlers: in threads and as coroutines, each with its context, its session and its outcome."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import IntEnum
from functools import partial
from struct import Struct
from typing import Any, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from .. import operations
from .._support.checks import check_json
from .._support.errors import ArgumentError, Claim, ClaimLostError
from .._support.processes import CONTEXT
from ..dialects import adapter_for
from ..model.companions import history_of
from ..operations.recording import stored_traceback
from ..operations.upkeep import Crash, Started
from ..queue.retries import DEFAULT_RETRY, delay_after
from ..transaction import FIRST, carry, is_unsettled, may_have_written, running
from .database import Database
from .deadlines import Deadline, NoResponse, transaction_limit
from .handlers import Handler
from .jobs import RETURNS, Ended, Job, Outcome, completed, outcome_of, write_reports
from .reports import Reports
from .steps import AsyncSteps, Steps
from .threads import in_task, soon

# -- records of the tasks that a process is running, in memory that outlives it ---------------------------------------

MAX_STARTED = 2_048
"""The maximum number of tasks that are recorded at a time."""
SIZE = 512
"""The size of a slot in bytes."""
_NUMBER, _FLAG, _LENGTH, _RECORD = Struct("=Q"), Struct("=B"), Struct("=H"), Struct(f"={SIZE - 2}s")
_INCOMPLETE, _RECOVERED, _END, _TURN = range(_NUMBER.size, _NUMBER.size + 4)
"""The offsets of the fields that follow the worker's number."""
_FIRST = 16
_TURNS = 250


class End(IntEnum):
    """The reason that a process records for its end: exit statuses can be a handler's."""

    DIED = 0
    """The process died before it could write another reason."""
    STOPPED = 1
    LIMIT_REACHED = 2
    """It has stopped because it had reached a limit."""
    REFUSED = 3
    """A restarted process would fail the same way again."""


def shared_memory() -> Any:
    """Return memory that can be passed to a process at its start, and read once the process has died."""
    return CONTEXT.RawArray("c", _FIRST + MAX_STARTED * SIZE)


class StartedTasks:
    """The tasks that this process is running, written to ``memory`` by its threads, if there is any.

    A record is complete before its length is written, so a process may die at any moment.
    """

    def __init__(self, memory: Any = None) -> None:
        self._memory = memory
        self.is_recorded = memory is not None
        """Whether there is memory; otherwise :meth:`begin` and :meth:`end` do nothing."""
        self._free = deque(range(_FIRST, _FIRST + MAX_STARTED * SIZE, SIZE))

    def claim_by(self, worker: int) -> None:
        """Record the number in the tokens of this process's claims."""
        if self._memory is not None:
            _NUMBER.pack_into(self._memory, 0, worker)

    def recovered(self) -> None:
        """Record that the tasks of earlier processes are released."""
        if self._memory is not None:
            _FLAG.pack_into(self._memory, _RECOVERED, 1)

    def turns(self) -> None:
        """Record that the event loop runs: the supervisor sees that this is called again and again."""
        if self._memory is not None:
            _FLAG.pack_into(self._memory, _TURN, turn_of(self._memory) % _TURNS + 1)

    def rests(self) -> None:
        """Record that the event loop has ended."""
        if self._memory is not None:
            _FLAG.pack_into(self._memory, _TURN, 0)

    def begin(self, job: Job, *, counted: bool = False) -> int | None:
        """Record that ``job`` is started.  Returns what :meth:`end` needs."""
        if self._memory is None:
            return None
        claim = job.claim
        token = None if job.handler.mode == "lock" else claim.token
        record = pickle.dumps((job.handler.spec.name, claim.identity, token, counted), 5)
        if len(record) > SIZE - 2 or not self._free:
            _FLAG.pack_into(self._memory, _INCOMPLETE, 1)  # all that the process holds is suspected if it dies
            return None
        slot = self._free.popleft()
        _RECORD.pack_into(self._memory, slot + 2, record)
        _LENGTH.pack_into(self._memory, slot, len(record))
        return slot

    def end(self, slot: int | None) -> None:
        """Record that it has ended."""
        if slot is not None:
            _LENGTH.pack_into(self._memory, slot, 0)
            self._free.append(slot)


def turn_of(memory: Any) -> int:
    """Return a number that changes while the event loop of a process runs; 0 before and after."""
    turn: int = _FLAG.unpack_from(memory, _TURN)[0]
    return turn


def note_end(memory: Any, end: End) -> None:
    """Record how this process ends."""
    _FLAG.pack_into(memory, _END, end)


def end_of(memory: Any) -> End:
    """Return how a process has ended."""
    return End(_FLAG.unpack_from(memory, _END)[0])


def has_recovered(memory: Any) -> bool:
    """Return whether the process had released the tasks of earlier ones."""
    return bool(memory[_RECOVERED] != b"\0")


def crash_of(memory: Any, how: str) -> Crash | None:
    """Return what a dead process was running, which ended as ``how`` tells; ``None`` if it had claimed nothing."""
    (worker,) = _NUMBER.unpack_from(memory, 0)
    if not worker:
        return None
    started: list[Started] = []
    for slot in range(_FIRST, _FIRST + MAX_STARTED * SIZE, SIZE):
        (length,) = _LENGTH.unpack_from(memory, slot)
        if length:
            started.append(Started(*pickle.loads(memory[slot + 2 : slot + 2 + length])))
    return Crash(worker, how, tuple(started), complete=memory[_INCOMPLETE] == b"\0")


# -- calls handlers. Coroutine handlers with a session use the same code: it runs in a greenlet, which awaits them ----

R = TypeVar("R")
_NOTHING = nullcontext()
CHANGED = (
    "a handler must neither delete its task nor change its status, attempt or claim_token, which hold its claim: to end"
    " the task, return or raise a signal; to delete it, use QueueOptions(on_complete='delete')"
)
TRIES = 4
"""How often a handler is called in one attempt if its transaction keeps losing deadlocks, or timing out on locks."""


@dataclass(eq=False)
class Executor:
    """Runs jobs with one handler."""

    handler: Handler
    database: Database
    reports: Reports
    started: StartedTasks = field(default_factory=StartedTasks)

    def __post_init__(self) -> None:
        handler, engine = self.handler, self.database.engine(self.handler.spec)
        self.adapter = adapter_for(engine.dialect)
        self.time_limit = handler.timeout if handler.is_coroutine else None
        """The time after which the handler is cancelled, and must not keep waiting for the database."""
        self.first = self.adapter.connections.level_of_handlers(engine)
        """The statement with which the handler's transactions begin at a server of another isolation level."""
        within = transaction_limit(handler.lease)
        self.watched = partial(Deadline, within, self.database.engines, is_async=handler.is_coroutine)
        """Returns a context in which the library's own statements have a deadline."""

    def perform(self, job: Job) -> Outcome | None:
        """Call the handler.  Returns the outcome to write, or ``None`` if it is written already or the task is lost."""
        # it may have been lost while it was queued
        return self.report(job, Ended(None) if job.is_lost else self.attempt(job))

    async def perform_coroutine(self, job: Job) -> Outcome | None:
        """Call a coroutine handler as :meth:`perform` does.  Losing the task cancels it."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        job.interrupt = lambda: soon(loop, task.cancel)
        return self.report(job, Ended(None) if job.is_lost else await self.attempt_coroutine(job))

    def report(self, job: Job, ended: Ended) -> Outcome | None:
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
            with self.calling(job):
                if self.handler.takes_session:
                    return self._try([job], partial(self._in_session, job))
                if self.handler.takes_steps:
                    steps = Steps(job, self.in_transaction)
                    result = call_handler(self.handler, steps, job.task)
                    steps.end()
                else:
                    result = call_handler(self.handler, job.task)
                job.about_to_write()
                return Ended(completed(result))
        except BaseException as error:
            return self.failed(job, error)

    async def attempt_coroutine(self, job: Job) -> Ended:
        """Call a coroutine handler as :meth:`attempt` does: in a greenlet if it takes a session, which needs one."""
        if self.handler.takes_session:
            from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415

            in_greenlet: Ended = await greenlet_spawn(self.attempt, job)
            return in_greenlet
        try:
            with self.calling(job):
                if self.handler.takes_steps:
                    steps = Steps(job, self.in_transaction)
                    result = _stored(self.handler, await _invoke(self.handler, AsyncSteps(steps), job.task))
                    steps.end()
                else:
                    result = _stored(self.handler, await _invoke(self.handler, job.task))
                job.about_to_write()
                return Ended(completed(result))
        except BaseException as error:
            return self.failed(job, error)

    @contextmanager
    def calling(self, job: Job) -> Iterator[None]:
        """A context in which :func:`.current_job` returns ``job``, and the job is recorded as started."""
        slot = self.started.begin(job) if self.started.is_recorded else None
        token = running.set(job)
        if self.handler.is_coroutine:
            job.coroutine = asyncio.current_task()
        job.begin()
        try:
            with self.reports.running(job) or _NOTHING:
                yield
        finally:
            job.end()
            running.reset(token)
            if slot is not None:
                self.started.end(slot)

    def failed(self, job: Job, error: BaseException) -> Ended:
        """Return the end of a job whose handler, or its commit, raised ``error``."""
        job.has_failed = True
        try:
            return Ended(self.judge(job, error), error)
        except BaseException as broken:  # whatever it is, the failure is recorded
            with suppress(Exception):
                self.reports.broken(f"determine the outcome of {job}", broken)
            text = f"{type(error).__name__}; determining the outcome raised {type(broken).__name__}"
            return Ended(Outcome("failed", ascii(text)[1:-1], DEFAULT_RETRY(job.described.number)), error)

    def _try(self, jobs: Sequence[Job], call: Callable[[], R]) -> R:
        """Call a handler with a session, and again after a deadlock."""
        for left in reversed(range(TRIES)):
            try:
                return call()
            except DBAPIError as error:
                if not left or not self.adapter.connections.is_transient(error):
                    raise
                for job in jobs:
                    job.has_returned = False
                self.run_again(jobs[0], error, TRIES - left)
        raise AssertionError

    @contextmanager
    def transaction(self, jobs: Sequence[Job]) -> Iterator[tuple[Any, Session, Deadline]]:
        """A context with a new session, as handlers get it and as a sync one, whose transaction has begun, and with the
        deadline of the library's own statements.  Rolls back what the block has not committed."""
        handed, session = self.database.open()
        with self.watched() as deadline:
            for job in jobs:
                job.on_lost = deadline.end_soon
            try:
                session.info[FIRST] = self.first
                if not session.in_transaction():
                    session.begin()  # autobegin=False
                yield handed, session, deadline
            except BaseException as error:
                session.rollback()  # close() alone would leave the instances as the handler changed them
                if isinstance(error, ClaimLostError) and not any(job.is_lost for job in jobs):
                    _check_lost(session, [job.claim for job in jobs if job.claim in error.claims])
                raise
            finally:
                close(session)

    def _in_session(self, job: Job) -> Ended:
        """Commit the handler's writes and the completion together.

        If the handler has not used its session, there is nothing to commit with the completion, which is left to be
        written with others.
        """
        with self.transaction([job]) as (handed, session, deadline):
            task = self._attach(session, job)
            with deadline.suspended(self.time_limit):
                result = call_handler(self.handler, handed, task)
            job.about_to_write()
            is_left = False
            if is_unsettled(task):
                is_left = not may_have_written(session)
                if not is_left:
                    if job.progress is not None:
                        write_reports(session, [job])
                    operations.complete(session, task, result)
            session.commit()
            return Ended(completed(result), is_written=not is_left)

    def in_transaction(
        self,
        job: Job,
        work: Callable[[Any, Session], R],
        writing: Callable[[Session, R], AbstractContextManager[None]],
    ) -> R:
        """Commit what a step does and what is recorded of it, see :class:`.Transact`."""

        def transact() -> R:
            with self.transaction([job]) as (handed, session, deadline):
                with deadline.suspended(self.time_limit):
                    result = work(handed, session)
                with writing(session, result):
                    session.commit()
                return result

        return self._try([job], transact)

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

    def run_again(self, job: Job, error: BaseException, tries: int) -> None:
        """Report that the transaction of a job lost a conflict, which happened ``tries`` times, and pause."""
        self.reports.retried(job, error)
        if job.progress is not None:
            job.progress.is_held = True
        seconds = random.uniform(0, 0.1 * tries)
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
        outcome, history = (
            outcome_of(error, is_last=job.described.is_last),
            history_of(self.handler.spec.table.metadata),
        )
        if history is None or outcome.cause is None:
            return outcome
        return replace(outcome, traceback=stored_traceback(error, history.options))

    def may_pass(self, error: BaseException) -> bool:
        """Return whether an error is due to other transactions, or looks like an outage of the database.

        It may be another database's, or the outage may be caused by the task itself, for example by a statement that is
        too large for the server.
        """
        connections = self.adapter.connections
        is_conflict = isinstance(error, DBAPIError) and connections.is_transient(error)
        return is_conflict or connections.is_outage(error) or isinstance(error, (PoolTimeoutError, NoResponse))

    def may_return(self, job: Job) -> bool:
        """Return whether the task may be handed back without counting the attempt."""
        return job.returns < RETURNS

    def uncounted(self, job: Job, error: BaseException) -> Outcome:
        """Return the outcome for an error that is not the task's fault; with a delay, in case it is after all.
        Its text tells how often the task was returned for such errors in a row.
        """
        spec = self.handler.spec
        return Outcome("snoozed", job.returned(error), delay_after(spec.options.retry, 1, spec.entity.__name__))


def call_handler(handler: Handler, *arguments: Any, context: Context | None = None) -> object:
    """Call a handler, in this context if one is given.  Returns what the model stores of its result.

    A coroutine handler is awaited: the caller runs in one of SQLAlchemy's greenlets.
    """
    result = _invoke(handler, *arguments) if context is None else context.run(_invoke, handler, *arguments)
    if handler.is_coroutine:
        from sqlalchemy.util import await_only  # noqa: PLC0415

        result = await_only(result if context is None else in_task(result, context))
    return _stored(handler, result)


def _invoke(handler: Handler, *arguments: Any) -> Any:
    """Call the handler.  Returns its result, to be awaited if it is a coroutine."""
    result: Any = handler.function(*arguments)
    is_awaitable = result is not None and inspect.isawaitable(result)
    if is_awaitable != handler.is_coroutine:
        _refuse(handler, result)
    return _within(result, handler.timeout) if is_awaitable and handler.timeout else result


def _stored(handler: Handler, result: object) -> object:
    """Return what the model stores of a result; with ``chunk``, all that the handler returned."""
    if handler.chunk is not None:
        return result
    if not handler.spec.keeps_results:
        return None
    check_json("result", result)  # now, so that it fails this attempt and not a batch of others
    return result


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


def _check_lost(session: Session, claims: Sequence[Claim]) -> None:
    """Raise :class:`.ArgumentError` if the rollback has restored ``claims``: only the handler had changed the rows."""
    if not claims:
        return  # the handler has lost tasks that it claimed itself
    if not session.in_transaction():
        session.begin()  # autobegin=False
    try:
        operations.heartbeat(session, claims)
    except ClaimLostError:
        return
    finally:
        session.rollback()
    raise ArgumentError(CHANGED) from None


def close(session: Session) -> None:
    """Close the session, even if its savepoints are gone after a deadlock."""
    try:
        session.close()
    except DBAPIError:
        session.close()  # after a deadlock that removed a savepoint, the first call fails


# -- pools in which handlers run: threads for functions, event loop tasks for coroutines ------------------------------
#
# Each job has its own copy of the context in which the pool was created: variables that a handler sets are not seen by
# the next one.

Done = Callable[[Job, "Outcome | None"], None]
"""Called on any thread with a finished job and the outcome that is left to write."""


class Pool(ABC):
    """Runs a limited number of jobs at a time and queues the others."""

    def __init__(self, executor: Executor, done: Done) -> None:
        self._executor = executor
        self._done = done
        self._jobs: deque[Job] = deque()
        self._context = copy_context()

    @abstractmethod
    def put(self, jobs: Sequence[Job]) -> None:
        """Queue jobs.  Thread-safe."""

    def withdraw(self) -> list[Job]:
        """Remove and return the jobs that have not started."""
        jobs: list[Job] = []
        with suppress(IndexError):
            while True:
                jobs.append(self._jobs.popleft())  # one by one: threads take jobs meanwhile
        return jobs

    @abstractmethod
    def resize(self, count: int) -> None:
        """Run ``count`` jobs at a time.  Running jobs continue, and surplus ones are not replaced when they end."""

    @abstractmethod
    async def ended(self) -> None:
        """Wait for the running jobs that can be stopped."""

    def close(self) -> None:
        """Start no more jobs; threads end after their current ones."""
        self.resize(0)


class ThreadPool(Pool):
    """Runs handlers in daemon threads: one that never returns does not keep the process alive."""

    def __init__(self, executor: Executor, done: Done) -> None:
        super().__init__(executor, done)
        self._name = executor.handler.name
        self._changed = threading.Condition(threading.Lock())
        """Notified of new jobs and of changes to the number of threads.  Held to wait, to notify, and to change that
        number."""
        self._count = self._alive = 0
        self.resize(executor.handler.concurrency)

    def put(self, jobs: Sequence[Job]) -> None:
        self._jobs.extend(jobs)
        with self._changed:
            self._changed.notify(len(jobs))

    def resize(self, count: int) -> None:
        with self._changed:
            self._count = count
            self._changed.notify_all()
            while self._alive < count:
                threading.Thread(target=self._work, name=f"sqlqueue-{self._name}-{self._alive}", daemon=True).start()
                self._alive += 1

    async def ended(self) -> None:
        """Return at once: threads cannot be waited for, since one may never end."""

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._done(job, self._context.copy().run(self._executor.perform, job))

    def _next(self) -> Job | None:
        """Wait for a job.  Returns ``None`` if there are too many threads, so that the calling one has to end."""
        while True:
            if self._alive <= self._count:
                try:
                    return self._jobs.popleft()  # without the lock, while there is enough to do
                except IndexError:
                    pass
            with self._changed:
                if self._alive > self._count:
                    self._alive -= 1
                    return None
                if not self._jobs:
                    self._changed.wait()


class CoroutinePool(Pool):
    """Runs coroutine handlers in tasks of the event loop."""

    def __init__(self, executor: Executor, done: Done) -> None:
        super().__init__(executor, done)
        self._count = self._free = executor.handler.concurrency
        self._running: set[asyncio.Task[None]] = set()

    def put(self, jobs: Sequence[Job]) -> None:
        self._jobs.extend(jobs)
        self._start()

    def resize(self, count: int) -> None:
        self._free += count - self._count
        self._count = count
        self._start()

    async def ended(self) -> None:
        while self._running:
            ended, _ = await asyncio.wait(self._running)
            self._running -= ended  # a task that is cancelled before it begins does not remove itself

    def _start(self) -> None:
        while self._free > 0 and self._jobs:
            self._free -= 1
            work = self._work(self._jobs.popleft())
            self._running.add(asyncio.create_task(work, context=self._context.copy()))

    async def _work(self, job: Job) -> None:
        try:
            self._done(job, await self._executor.perform_coroutine(job))
        finally:
            self._ended()

    def _ended(self) -> None:
        """Start the next job in place of the one whose asyncio task is calling."""
        self._running.discard(asyncio.current_task())
        self._free += 1
        self._start()
