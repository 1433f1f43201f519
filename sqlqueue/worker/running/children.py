"""Child processes that run jobs: killed when a job takes too long, and replaced when they die or have grown."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from multiprocessing import connection
from typing import Any

from ..._support.errors import ArgumentError, ProcessDiedError
from ..._support.processes import CLEANUP_LIMIT, CONTEXT, MIB, exit_text, kill_group
from ..._support.tracing import present_trace
from ..handling.handlers import Handler
from ..handling.jobs import Job
from ..handling.origin import Place
from ..handling.outcomes import Ended
from ..reporting.reports import Reports
from . import child
from .executor import too_long
from .messages import Answer, CallHandler, Logged, Ready, Refused, Retried, Settling

STARTING = 120.0
"""Seconds within which a child has to load the worker."""
_PRELOADED = [child.__name__]
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
            self._idle.append(self._start())
        except BlamelessError as error:
            raise ArgumentError(str(error)) from error

    def run(self, job: Job) -> Ended:
        """Run ``job`` in a child, and return the end of its handler.  Losing the task kills the child.

        Raises :class:`TimeoutError` if the child was killed at the handler's timeout, :class:`.ProcessDiedError` if it
        died otherwise, and :class:`BlamelessError` if no child could be started, or it could not commit.
        """
        process = self._take()
        job.begin(process.kill)
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
        return self._start()

    def _start(self) -> _Child:
        process = _Child(self._place)
        process.wait_until_ready()
        return process

    def _has_reached_limit(self, process: _Child, memory: int) -> bool:
        tasks, size = self._handler.max_tasks, self._handler.max_memory
        return (tasks is not None and process.calls >= tasks) or (size is not None and memory > size * MIB)


class _Child:
    """One process and the connection to it, used by one thread at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.calls = 0
        self._connection, far_end = CONTEXT.Pipe()
        self._process = CONTEXT.Process(
            target=child.main, args=(far_end, place, _levels()), name=f"sqlqueue-{place.name}"
        )
        with _ONE_AT_A_TIME:
            CONTEXT.set_forkserver_preload(_PRELOADED)
            self._process.start()
        far_end.close()  # so that the death of the child ends the connection

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

    def wait_until_ready(self) -> None:
        """Raise :class:`BlamelessError` if the child cannot load the worker."""
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
                case Settling():
                    job.settling = True
                    deadline = self._deadline(job.handler.lease)
                    self._send(not job.is_lost)
                case Retried(reason):
                    job.settling = False
                    deadline = self._deadline(job.handler.timeout)
                    reports.retried(job, reason)
                case Logged(record):
                    _log(record)
                case Answer():
                    return message.ended(), message.memory
                case None:
                    raise self._late(job)

    def _late(self, job: Job) -> Exception:
        if job.settling:
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
