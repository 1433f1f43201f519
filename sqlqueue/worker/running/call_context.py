"""The context in which a handler is called."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import Token
from types import TracebackType

from ..handling.jobs import Job, current
from ..reporting.reports import Reports
from .started import StartedTasks


class CallContext:
    """A context in which :func:`.current_job` returns ``job``, and the job is recorded as started."""

    __slots__ = ("_job", "_reporting", "_slot", "_started", "_token")

    def __init__(self, job: Job, reports: Reports, started: StartedTasks) -> None:
        self._job = job
        self._started = started
        self._reporting: AbstractContextManager[None] | None = reports.running(job)
        self._slot: int | None = None
        self._token: Token[Job] | None = None

    def __enter__(self) -> None:
        if self._started.is_recorded:
            self._slot = self._started.begin(self._job)
        if self._reporting is not None:
            try:
                self._reporting.__enter__()
            except BaseException:
                self._started.end(self._slot)
                raise
        self._token = current.set(self._job)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._reporting is not None:
                self._reporting.__exit__(kind, error, traceback)
        finally:
            if self._slot is not None:
                self._started.end(self._slot)
            if self._token is not None:
                current.reset(self._token)
