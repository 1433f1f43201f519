"""Jobs: claimed tasks that a worker holds."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from sqlalchemy.orm.attributes import instance_dict, instance_state

from ..._support.errors import Claim, ClaimLostError
from ..._support.texts import error_text
from ...operations.recording import Attempt
from ...queue.spec import Identity, QueueSpec
from ...transaction.ledger import claim_made
from .handlers import Handler

current: ContextVar[Job] = ContextVar("sqlqueue.job")

RETURNS = 10
"""The maximum number of times in a row that a task is returned without counting the attempt."""
_RETURNED = re.compile(r" \(returned after attempt (\d{1,9}), (\d{1,9}) of \d+ times in a row\)\Z")


def load(spec: QueueSpec, tasks: Sequence[Any]) -> None:
    """Load what jobs read of the rows of claimed tasks, if loader options have deferred it."""
    names = [spec.attributes[role] for role in ("crashes", "error")]
    if tasks and not instance_state(tasks[0]).unloaded.isdisjoint(names):
        for task in tasks:
            for name in names:
                getattr(task, name)


class Job:
    """One claim and its progress."""

    __slots__ = (
        "_awoken",
        "_interrupt",
        "_loaded",
        "claim",
        "crashes",
        "handler",
        "is_counted",
        "is_lost",
        "on_lost",
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
        self._loaded = instance_dict(task).copy()  # the handler may change the instance
        self.crashes: int = self._loaded.get(handler.spec.attributes["crashes"]) or 0
        """The number of processes that crashed while they ran the task; if there were any, it is a suspect."""
        self.is_counted = False
        """Whether a crash of the process that runs it has been counted in advance."""
        self.started: float | None = None
        """When the handler was called, by ``time.monotonic``."""
        self.seconds: float | None = None
        """How long the handler ran, once it has ended."""
        self.overdue = False
        """Whether exceeding the timeout has been reported."""
        self.settling = False
        """Whether the handler has returned, so that the job itself may change its row at any moment."""
        self.reason = ""
        """Why it was interrupted."""
        self.is_lost = False
        """Whether the task no longer belongs to this worker: it was cancelled, taken over or given up."""
        self.on_lost: Callable[[], object] | None = None
        """Called when the task is lost, so that the handler does not wait for the database forever."""
        self._awoken: threading.Event | None = None
        self._interrupt: Callable[[], object] | None = None

    @property
    def attempt(self) -> Attempt:
        """The attempt, as log lines describe it."""
        return Attempt.of(self.handler.spec, self.claim, self._loaded)

    @property
    def returns(self) -> int:
        """How often the task was returned just before, in one attempt after the other, because of errors that are not
        its fault.  The error of its row tells, which nothing else removes."""
        found = _RETURNED.search(self._loaded.get(self.handler.spec.attributes["error"]) or "")
        return int(found[2]) if found and int(found[1]) == self.claim.attempt - 1 else 0

    def returned(self, error: BaseException) -> str:
        """Return the text of an error because of which the task is returned once more."""
        return error_text(
            error, f" (returned after attempt {self.claim.attempt}, {self.returns + 1} of {RETURNS} times in a row)"
        )

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until the task is lost.  Returns whether it is lost."""
        if self._awoken is None:
            self._awoken = threading.Event()
        # in this order: lose() sets the event after is_lost
        return self.is_lost or self._awoken.wait(seconds)

    def begin(self, interrupt: Callable[[], object] | None = None) -> None:
        """Record that the handler is called now; ``interrupt`` stops it from any thread."""
        self._interrupt = interrupt
        self.started = time.monotonic()

    def settle(self) -> None:
        """Record that the job itself is about to change its row.  Raises :class:`.ClaimLostError` if the task is
        lost."""
        self.settling = True
        if self.is_lost:  # its handler may have returned early
            raise ClaimLostError([self.claim])

    def end(self) -> None:
        """Record that the handler has ended."""
        self.settling = True
        self._interrupt = None
        if self.started is not None:
            self.seconds = time.monotonic() - self.started

    def lose(self, reason: str) -> None:
        """Mark the task as lost, and stop its handler as far as possible."""
        self.reason = reason
        self.is_lost = True
        if self._awoken is not None:
            self._awoken.set()
        interrupt = self._interrupt  # read once: the handler's thread may clear it
        if interrupt is not None:
            interrupt()
        if self.on_lost is not None:
            self.on_lost()

    def __repr__(self) -> str:
        return str(self.attempt)


def current_job() -> Job:
    """Return the job of the calling handler.  Raises :class:`LookupError` outside of a handler.

    A long-running handler in a thread should check ``current_job().is_lost``: nothing can stop it from outside.
    """
    job = current.get(None)
    if job is None:
        raise LookupError("current_job() is called outside of a handler: only a task that a worker runs has a job")
    return job


class InFlight:
    """All jobs that this worker holds, from claim to settlement."""

    def __init__(self) -> None:
        self._jobs: dict[Job, None] = {}
        self._latest: dict[tuple[QueueSpec, Identity], Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return job in self._jobs

    def __iter__(self) -> Iterator[Job]:
        return iter(tuple(self._jobs))

    def add(self, job: Job) -> None:
        """Add a job.  An older job for the same task is lost: its lease ended and this worker claimed it again."""
        key = job.handler.spec, job.claim.identity
        older = self._latest.get(key)
        self._latest[key] = job
        self._jobs[job] = None
        if older is not None and older is not job and not older.settling:
            self.remove(older)
            older.lose("its lease expired, and the same worker has claimed it again")

    def remove(self, job: Job) -> None:
        """Forget a job that has ended."""
        self._jobs.pop(job, None)
        key = job.handler.spec, job.claim.identity
        if self._latest.get(key) is job:
            del self._latest[key]
