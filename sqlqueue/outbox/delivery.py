"""Delivery of messages to the application's publisher."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any, TypeAlias

from .._support.error_text import error_text
from .._support.exc import ArgumentError
from ..operations.attempts import brief
from ..worker.concurrency.event_loop import in_task
from ..worker.concurrency.threads import DaemonThreads
from ..worker.handling.jobs import Job
from ..worker.handling.outcomes import COMPLETED, Outcome, outcome_of
from ..worker.reporting.reports import Reports, logger

Publish: TypeAlias = Callable[[list[Any]], object]
"""A function or coroutine function that takes a list of messages."""


class Delivery:
    """Publishes messages together; if that fails, one by one, so that a bad message does not hold back other keys."""

    def __init__(self, publish: Publish, *, is_coroutine: bool, reports: Reports) -> None:
        self._publish = publish
        self._is_coroutine = is_coroutine
        self._reports = reports
        self._threads = DaemonThreads(1, "relay")
        self.stopping = False
        """Whether the publisher must not be called again."""

    def close(self) -> None:
        """Release the publisher's thread."""
        self._threads.shutdown()

    async def deliver(self, jobs: Sequence[Job], outcomes: dict[Job, Outcome]) -> None:
        """Publish ``jobs`` and store the outcomes of those that were tried in ``outcomes``.

        The messages of a key are published in order; after one that fails, no more of its key are published.
        """
        error = await self._try(jobs)
        if error is None or len(jobs) == 1:
            for job in jobs:
                self._note(job, error, outcomes)
            return
        said = brief(error_text(error))
        logger.warning("publishing %d messages together failed, publishing them one by one: %s", len(jobs), said)
        for line in _lines(jobs):
            await self._deliver_line(line, outcomes)

    async def _deliver_line(self, line: Sequence[Job], outcomes: dict[Job, Outcome]) -> None:
        for job in line:
            if self.stopping or job.is_lost:
                return
            error = await self._try([job])
            self._note(job, error, outcomes)
            if error is not None:
                return

    async def _try(self, jobs: Sequence[Job]) -> BaseException | None:
        messages = [job.task for job in jobs]
        for job in jobs:
            job.begin()
        running = self._reports.running(jobs[0]) if len(jobs) == 1 else None
        with running or nullcontext():
            context = copy_context()
            if not self._is_coroutine:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, lambda: context.run(self._call, messages))
            try:
                await in_task(context.run(self._publish, messages), context)  # type: ignore[arg-type]
            except BaseException as error:
                if _cancels(error):
                    raise
                return error
            return None

    def _call(self, messages: list[Any]) -> BaseException | None:
        try:
            result = self._publish(messages)
        except BaseException as error:
            return error
        if not inspect.isawaitable(result):
            return None
        if inspect.iscoroutine(result):
            result.close()
        return ArgumentError(f"{self._publish!r} returns an awaitable, which is not awaited: make it async def")

    def _note(self, job: Job, error: BaseException | None, outcomes: dict[Job, Outcome]) -> None:
        job.end()
        outcomes[job] = COMPLETED if error is None else outcome_of(error, is_last=job.attempt.is_last)
        self._reports.finished(job, outcomes[job], error)


def _cancels(error: BaseException) -> bool:
    """Return whether the calling task is to end; otherwise, something that the publisher awaited was cancelled."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _lines(jobs: Sequence[Job]) -> Iterable[list[Job]]:
    """Return the jobs of each key, compared exactly, as some engines do not; each job without a key separately."""
    lines: dict[object, list[Job]] = {}
    for job in jobs:
        message_key = getattr(job.task, job.handler.spec.attributes["message_key"])
        lines.setdefault(job if message_key is None else message_key, []).append(job)
    return lines.values()
