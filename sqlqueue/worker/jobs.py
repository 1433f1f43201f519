"""A claimed task in the hands of a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from ..claims import Claim, claim_made
from ..operations.attempts import Attempt
from ..spec import Identity, QueueSpec
from .config import Handler

current: ContextVar[Job] = ContextVar("sqlqueue.job")


class Job:
    """One claim and how it fares."""

    __slots__ = (
        "_awoken",
        "_interrupt",
        "attempt",
        "claim",
        "handler",
        "is_lost",
        "overdue",
        "reason",
        "seconds",
        "settling",
        "started",
        "task",
    )

    def __init__(self, handler: Handler, task: Any) -> None:
        self.handler = handler
        """The handler that is called for it."""
        self.task = task
        """The claimed instance."""
        self.claim: Claim = claim_made(task)
        """The claim on it."""
        self.attempt = Attempt.of(handler.spec, self.claim, task)
        """The facts about the attempt that the log names."""
        self.started: float | None = None
        """When its handler was called, by ``time.monotonic``."""
        self.seconds: float | None = None
        """For how long its handler ran, once it has ended."""
        self.overdue = False
        """Whether its timeout has been reported."""
        self.settling = False
        """Whether its handler is through, so that its row may change any moment by its own doing."""
        self.reason = ""
        """Why it was interrupted."""
        self.is_lost = False
        """Whether the task is no longer this worker's: it was cancelled, or taken over, or the worker gave it up."""
        self._awoken: threading.Event | None = None
        self._interrupt: Callable[[], object] | None = None

    def wait(self, seconds: float) -> bool:
        """Sleep so long, less if the task is lost; whether it is."""
        if self._awoken is None:
            self._awoken = threading.Event()
        # in this order: whoever loses it sets the event after that
        return self.is_lost or self._awoken.wait(seconds)

    def begin(self, interrupt: Callable[[], object] | None = None) -> None:
        """Its handler is called now; ``interrupt`` stops it, from whichever thread."""
        self._interrupt = interrupt
        self.started = time.monotonic()

    def end(self) -> None:
        """Its handler has ended."""
        self.settling = True
        self._interrupt = None
        if self.started is not None:
            self.seconds = time.monotonic() - self.started

    def lose(self, reason: str) -> None:
        """Stop its handler, as far as that can be done."""
        self.reason = reason
        self.is_lost = True
        if self._awoken is not None:
            self._awoken.set()
        interrupt = self._interrupt  # the handler's thread may take it away after a look at it
        if interrupt is not None:
            interrupt()

    def __repr__(self) -> str:
        return str(self.attempt)


def current_job() -> Job:
    """The job that the calling handler runs for; :class:`LookupError` outside of one.

    A long handler in a thread looks at ``current_job().is_lost`` now and then: nothing can stop it from outside.
    """
    return current.get()


class Holdings:
    """All that this worker holds, from claim to settlement."""

    def __init__(self) -> None:
        self._jobs: dict[Job, None] = {}
        self._latest: dict[tuple[QueueSpec, Identity], Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(tuple(self._jobs))

    def add(self, job: Job) -> None:
        """An older job for the same task is lost: its lease has ended, and this worker has taken it over itself."""
        key = job.handler.spec, job.claim.identity
        older = self._latest.get(key)
        self._latest[key] = job
        self._jobs[job] = None
        if older is not None and older is not job and not older.settling:
            self.remove(older)
            older.lose("its lease has ended, and the same worker has claimed it again")

    def remove(self, job: Job) -> None:
        self._jobs.pop(job, None)
        key = job.handler.spec, job.claim.identity
        if self._latest.get(key) is job:
            del self._latest[key]
