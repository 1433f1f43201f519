"""Runs handlers in child processes: what the parent does, what the child does, and their messages."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import timedelta
from logging.handlers import QueueHandler
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, Generic, NamedTuple, TypeVar

from .._support.errors import ArgumentError, ProcessDiedError, SQLQueueError
from .._support.private import run_exit_functions
from .._support.processes import (
    CLEANUP_LIMIT,
    CONTEXT,
    MIB,
    end_soon,
    exit_text,
    kill_group,
    lead_group,
    resident_memory,
    settle_in,
)
from .._support.texts import error_text, traceback_text
from .._support.tracing import present_trace, within_trace
from ..operations.upkeep import too_many_crashes
from .chunks import ChunkExecutor
from .database import database_of
from .deadlines import track, transaction_limit
from .executor import Executor, too_long
from .handlers import Handler, Place, load
from .jobs import Ended, Job, Outcome, Signal, is_signal, outcome_of
from .logs import handle_rest
from .reports import Reports, logger

# -- messages between a worker and the child processes that run its jobs ----------------------------------------------

V = TypeVar("V")


class CallHandler(NamedTuple):
    """To a child: call the handler."""

    task: bytes
    """Pickled separately, so that only this attempt fails if the child cannot unpickle it."""
    trace: str | None
    """The trace to continue."""


class Ready(NamedTuple):
    """From a child that has loaded the worker."""


class Refused(NamedTuple):
    """From a child that cannot load the worker."""

    reason: str


class Returned(NamedTuple):
    """From a child whose handler has returned, and which commits once the worker confirms that the task is still its
    own."""


class Retried(NamedTuple):
    """From a child that calls the handler again, in a new transaction."""

    reason: str


class Logged(NamedTuple):
    """From a child that has logged a record."""

    record: logging.LogRecord


class Reported(NamedTuple):
    """From a child whose handler has reported its progress, or a note."""

    progress: float | None
    text: str | None


class Answer(NamedTuple):
    """From a child whose handler has ended."""

    outcome: Portable[Any]
    error: Portable[Any]
    is_written: bool
    memory: int
    """The resident memory of the child in bytes."""

    @classmethod
    def of(cls, ended: Ended, memory: int) -> Answer:
        """Return the message about the end of a job, with replacements for what cannot be pickled."""
        outcome, error, is_written = ended
        plain = outcome and replace(outcome, cause=outcome.cause and Exception)
        portable = Portable.of(error, None if error is None else _plain(error))
        return cls(Portable.of(outcome, plain), portable, is_written, memory)

    def ended(self) -> Ended:
        """Return the end of the job."""
        return Ended(self.outcome.value(), self.error.value(), self.is_written)


class RemoteError(Exception):
    """An exception of a child process that cannot be pickled, as text."""


@dataclass(frozen=True, slots=True)
class Portable(Generic[V]):
    """A value that the other process may not be able to unpickle, and a plain one in its place."""

    pickled: bytes | None
    plain: V

    @classmethod
    def of(cls, value: V, plain: V) -> Portable[V]:
        """Return ``value`` in pickled form, or ``plain`` if it cannot be pickled and unpickled."""
        try:
            pickled = pickle.dumps(value)
            pickle.loads(pickled)
        except Exception:  # exceptions of applications can raise anything
            return cls(None, plain)
        return cls(pickled, plain)

    def value(self) -> V:
        """Return the value; the plain one if this process cannot unpickle it."""
        if self.pickled is None:
            return self.plain
        try:
            value: V = pickle.loads(self.pickled)
        except Exception:
            return self.plain
        return value


def _plain(error: BaseException) -> BaseException:
    plain = Signal(str(error)) if is_signal(error) else RemoteError(error_text(error))
    for note in getattr(error, "__notes__", ()):
        plain.add_note(note)
    return plain


# -- the main function of a child process that calls one handler, one job after another -------------------------------


class Channel:
    """The child's end of the connection, for any of its threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message to the parent process.  Thread-safe."""
        with self._lock:
            self._connection.send(message)

    def put_nowait(self, record: logging.LogRecord) -> None:
        """Send a log record, as a :class:`.QueueHandler` does."""
        self.send(Logged(record))

    def receive(self) -> Any:
        """Return the next message; ``None`` if the worker no longer needs this process."""
        try:
            return self._connection.recv()
        except EOFError:
            return None


def child_main(connection: Connection, place: Place, levels: Mapping[str, int]) -> None:
    """Load the worker and call its handler at ``place``, until the other end of ``connection`` is closed."""
    lead_group()
    channel = Channel(connection)
    try:
        worker, handler = load(place)
    except BaseException as error:
        channel.send(Refused(str(error) if isinstance(error, SQLQueueError) else error_text(error)))
        return
    _forward_logs(channel, levels)
    settle_in()
    with closing(_JobRunner(worker, handler, channel)) as runner:
        channel.send(Ready())
        while (call := channel.receive()) is not None:
            channel.send(Answer.of(runner.run(call), resident_memory()))
    end_soon()
    run_exit_functions()


class _JobRunner:
    """Runs the jobs of one handler."""

    def __init__(self, worker: Any, handler: Handler, channel: Channel) -> None:
        self._channel = channel
        self._reports = _ChildReports(channel)
        database = database_of(worker.sessions, self._reports.liveness)
        self._handler = replace(handler, timeout=None)  # the worker kills this process
        track(database.engine(handler.spec), transaction_limit(handler.lease))
        kind = Executor if handler.chunk is None else ChunkExecutor
        self._executor = kind(self._handler, database, self._reports)
        self._loop_runner = asyncio.Runner() if handler.is_coroutine else None

    def run(self, call: CallHandler) -> Ended:
        self._reports.trace = call.trace
        try:
            job = _ChildJob(self._handler, pickle.loads(call.task), self._channel)
        except Exception as error:
            return Ended(outcome_of(error), error)
        context = copy_context()  # for this job alone
        if self._loop_runner is None:
            ended = context.run(self._executor.attempt, job)
        else:
            ended = self._loop_runner.run(self._executor.attempt_coroutine(job), context=context)
        if ended.error is not None and not is_signal(ended.error):
            # its frames do not leave this process
            text = traceback_text(ended.error, whole=logger.isEnabledFor(logging.DEBUG))
            ended.error.add_note(f"in the child process {os.getpid()}:\n{text}")
        return ended

    def close(self) -> None:
        if self._loop_runner is not None:
            self._loop_runner.close()


class _ChildJob(Job):
    """A job whose task the worker may lose meanwhile."""

    def __init__(self, handler: Handler, task: Any, channel: Channel) -> None:
        super().__init__(handler, task)
        self._channel = channel

    def report(self, progress: float, text: str | None = None) -> None:
        super().report(progress, text)
        self._channel.send(Reported(progress, text))

    def note(self, text: str) -> None:
        super().note(text)
        self._channel.send(Reported(None, text))

    def about_to_write(self) -> None:
        self._channel.send(Returned())
        self.is_lost = not self._channel.receive()
        super().about_to_write()


class _ChildReports(Reports):
    """Reports of a child process, which leave the reports about tasks to the worker."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self.trace: str | None = None

    def running(self, job: Job) -> AbstractContextManager[None]:
        return within_trace(self.trace)

    def retried(self, job: Job, error: BaseException | str) -> None:
        self._channel.send(Retried(error_text(error)))


def _forward_logs(channel: Channel, levels: Mapping[str, int]) -> None:
    """Forward log records to the worker, by its ``levels``, with their task, unless the application's modules configure
    logging.

    Many applications configure it in their main program, which does not run here.
    """
    if handle_rest(QueueHandler(channel)):  # type: ignore[arg-type]
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


# -- calls handlers in child processes --------------------------------------------------------------------------------


@dataclass(eq=False)
class IsolatedExecutor(Executor):
    """Runs each job in a child process, which commits a handler's writes and the completion itself."""

    children: Children = field(kw_only=True)

    def attempt(self, job: Job) -> Ended:  # it begins when a child is ready
        ended: Ended | None = None
        try:
            with self.reports.running(job) or nullcontext():
                ended = self.children.run(job)
                if ended.error is not None:
                    raise ended.error
        except BaseException as error:
            ended = ended or self.failed(job, error)
        if job.is_lost and not job.has_returned:  # just when the child had ended
            ended = Ended(None)
        job.end()
        return ended

    def judge(self, job: Job, error: BaseException) -> Outcome | None:
        if isinstance(error, BlamelessError) and not job.is_lost and self.may_return(job):
            return self.uncounted(job, error)
        if isinstance(error, ProcessDiedError) and not job.is_lost:
            if job.crashes >= self.handler.spec.options.max_crashes:
                return Outcome("crashed", too_many_crashes(job.crashes, str(error)))
            return Outcome("suspected", str(error))
        return super().judge(job, error)


# -- child processes that run jobs: killed when a job takes too long, and replaced when they die or have grown --------

STARTING = 120.0
"""Seconds within which a child has to load the worker."""
_PRELOADED = [__name__]
_ONE_AT_A_TIME = threading.Lock()
"""A lock for starting and ending processes: only one thread can read an exit status."""


class BlamelessError(Exception):
    """A failure that is not attributed to the task."""


class Children:
    """The child processes of one handler: as many as are needed at a time, each for one job at a time."""

    def __init__(self, place: Place, handler: Handler, reports: Reports) -> None:
        self._place = place
        self._handler = handler
        self._reports = reports
        self._idle: deque[_Child] = deque()
        self._closed = False

    def prepare(self) -> None:
        """Prepare one child.  Raises :class:`.ArgumentError` if it cannot load the worker."""
        try:
            self._idle.append(_Child(self._place))
        except BlamelessError as error:
            raise ArgumentError(str(error)) from error

    def run(self, job: Job) -> Ended:
        """Run ``job`` in a child, and return the end of its handler.  Losing the task kills the child.

        Raises :class:`TimeoutError` if the child was killed at the handler's timeout, :class:`.ProcessDiedError` if it
        died otherwise, and :class:`BlamelessError` if no child could be started, or it could not commit.
        """
        process = self._take()
        job.interrupt = process.kill
        job.begin()
        if job.is_lost:  # before the child could be killed for it
            process.kill()
        try:
            ended, memory = process.call(job, self._reports)
        except BaseException:
            process.kill()
            raise
        if self._closed or self._has_reached_limit(process, memory):
            process.retire()
        else:
            self._idle.append(process)
        return ended

    def close(self) -> None:
        """End idle children.  Busy children end after their jobs."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().retire()

    def _take(self) -> _Child:
        with suppress(IndexError):
            while True:
                process = self._idle.pop()
                if process.is_alive:
                    return process
        return _Child(self._place)

    def _has_reached_limit(self, process: _Child, memory: int) -> bool:
        tasks, size = self._handler.max_tasks, self._handler.max_memory
        return (tasks is not None and process.calls >= tasks) or (size is not None and memory > size * MIB)


class _Child:
    """One process and the connection to it, used by one thread at a time."""

    def __init__(self, place: Place) -> None:
        """Start the process.  Raises :class:`BlamelessError` if it cannot load the worker."""
        self._place = place
        self.calls = 0
        self._connection, far_end = CONTEXT.Pipe()
        self._process = CONTEXT.Process(
            target=child_main, args=(far_end, place, _levels()), name=f"sqlqueue-{place.name}"
        )
        with _ONE_AT_A_TIME:
            CONTEXT.set_forkserver_preload(_PRELOADED)
            self._process.start()
        far_end.close()  # so that the death of the child ends the connection
        self._wait_until_ready()

    @property
    def is_alive(self) -> bool:
        return not connection.wait([self._process.sentinel], 0)

    def kill(self) -> None:
        """Kill the process and those it has started.  Thread-safe."""
        if self.is_alive:
            kill_group(self._process)

    def retire(self) -> None:
        """Tell the process to end, which it does within a few seconds."""
        self._connection.close()

    def _wait_until_ready(self) -> None:
        try:
            message = self._receive(time.monotonic() + STARTING)
        except ProcessDiedError as error:
            raise BlamelessError(f"a child process cannot load {self._place.origin}: {error}") from error
        match message:
            case Ready():
                return
            case Refused(reason):
                raise BlamelessError(f"a child process cannot load {self._place.origin}: {reason}")
        self.kill()
        raise BlamelessError(f"a child process has not loaded {self._place.origin} within {STARTING:.0f} s")

    def call(self, job: Job, reports: Reports) -> tuple[Ended, int]:
        """Make the child call the handler. Returns the end of the call, and the resident memory of the child in
        bytes."""
        self.calls += 1
        deadline = self._deadline(job.handler.timeout)
        self._send(CallHandler(pickle.dumps(job.task), present_trace()))
        while True:
            message = self._receive(deadline)
            match message:
                case Returned():
                    job.has_returned = True
                    deadline = self._deadline(job.handler.lease)
                    self._send(not job.is_lost)
                case Retried(reason):
                    job.has_returned = False
                    deadline = self._deadline(job.handler.timeout)
                    reports.retried(job, reason)
                    if job.progress is not None:
                        job.progress.is_held = True
                case Logged(record):
                    _log(record)
                case Reported(None, str(text)):
                    job.note(text)
                case Reported(float() | int() as progress, text):
                    job.report(progress, text)
                case Answer():
                    return message.ended(), message.memory
                case None:
                    raise self._late(job)

    def _late(self, job: Job) -> Exception:
        if job.has_returned:
            return BlamelessError(f"its transaction was not committed within {job.handler.lease}")
        assert job.handler.timeout is not None
        return too_long(job.handler.timeout)

    def _deadline(self, limit: timedelta | None) -> float | None:
        return None if limit is None else time.monotonic() + limit.total_seconds()

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError:
            raise self._death() from None

    def _receive(self, deadline: float | None) -> Any:
        """Return the next message, or ``None`` at the deadline.  Raises :class:`.ProcessDiedError`."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._connection.poll(left):
            return None
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise self._death() from None

    def _death(self) -> ProcessDiedError:
        with _ONE_AT_A_TIME:
            self._process.join(CLEANUP_LIMIT)
            status: int | None = self._process.exitcode
        return ProcessDiedError(f"its process {exit_text(status)}", status=status)


def _levels() -> dict[str, int]:
    """Return the levels of this process's loggers, by name."""
    known = tuple(logging.root.manager.loggerDict.items())
    levels = {name: each.level for name, each in known if isinstance(each, logging.Logger) and each.level}
    return {"root": logging.root.level, **levels}


def _log(record: logging.LogRecord) -> None:
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
