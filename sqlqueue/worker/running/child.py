"""The main function of a child process that calls one handler, one job after another."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from contextvars import copy_context
from dataclasses import replace
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from typing import Any

from ..._support.errors import SQLQueueError
from ..._support.processes import end_soon, lead_group, resident_memory, settle_in
from ..._support.texts import error_text, traceback_text
from ..._support.tracing import within_trace
from ...dialects import adapter_for
from ..database import database_of
from ..database.checkouts import track
from ..database.deadlines import transaction_limit
from ..handling.handlers import Handler
from ..handling.jobs import Job
from ..handling.origin import Place, load
from ..handling.outcomes import Ended, is_signal, outcome_of
from ..reporting.reports import Reports, logger
from .executor import Executor
from .messages import Answer, CallHandler, Logged, Ready, Refused, Retried, Settling


class Channel:
    """The child's end of the connection, for any of its threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message to the parent process.  Thread-safe."""
        with self._lock:
            self._connection.send(message)

    def receive(self) -> Any:
        """Return the next message; ``None`` if the worker no longer needs this process."""
        try:
            return self._connection.recv()
        except EOFError:
            return None


def main(connection: Connection, place: Place, levels: Mapping[str, int]) -> None:
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


class _JobRunner:
    """Runs the jobs of one handler."""

    def __init__(self, worker: Any, handler: Handler, channel: Channel) -> None:
        self._channel = channel
        self._reports = _ChildReports(channel)
        database = database_of(worker.sessions, self._reports.liveness)
        self._handler = replace(handler, timeout=None)  # the worker kills this process
        engine = database.engine(handler.spec)
        track(engine, transaction_limit(handler.lease))
        adapter = adapter_for(engine.dialect)
        self._executor = Executor(self._handler, database, adapter, self._reports)
        self._loop_runner = asyncio.Runner() if handler.is_coroutine else None

    def run(self, call: CallHandler) -> Ended:
        self._reports.trace = call.trace
        try:
            job = _ChildJob(self._handler, pickle.loads(call.task), self._channel)
        except Exception as error:
            return Ended(outcome_of(error), error)
        job.begin()
        ended = self._attempt(job)
        if ended.error is not None and not is_signal(ended.error):
            _note_frames(ended.error)
        return ended

    def _attempt(self, job: Job) -> Ended:
        context = copy_context()  # for this job alone
        if self._loop_runner is None:
            return context.run(self._executor.attempt, job)
        return self._loop_runner.run(self._executor.attempt_coroutine(job), context=context)

    def close(self) -> None:
        if self._loop_runner is not None:
            self._loop_runner.close()


class _ChildJob(Job):
    """A job whose task the worker may lose meanwhile."""

    __slots__ = ("_channel",)

    def __init__(self, handler: Handler, task: Any, channel: Channel) -> None:
        super().__init__(handler, task)
        self._channel = channel

    def settle(self) -> None:
        self._channel.send(Settling())
        self.is_lost = not self._channel.receive()
        super().settle()


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


def _note_frames(error: BaseException) -> None:
    """Add the traceback to ``error`` as a note, because its frames do not leave this process."""
    text = traceback_text(error, whole=logger.isEnabledFor(logging.DEBUG))
    error.add_note(f"in the child process {os.getpid()}:\n{text}")


def _forward_logs(channel: Channel, levels: Mapping[str, int]) -> None:
    """Forward log records to the worker, by its ``levels``, unless the application's modules configure logging.

    Many applications configure it in their main program, which does not run here.
    """
    if logging.getLogger().handlers or logging.getLogger("sqlqueue").handlers:
        return
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addHandler(_Forwarding(channel))


class _Forwarding(QueueHandler):
    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)  # type: ignore[arg-type]
        self._channel = channel

    def enqueue(self, record: logging.LogRecord) -> None:
        self._channel.send(Logged(record))
