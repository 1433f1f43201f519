"""Jobs, and how they end: plain values that execute nothing."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_dict, instance_state

from .._support.checks import duration
from .._support.errors import ArgumentError, Claim, ClaimLostError
from .._support.texts import ascii_text, error_text, storable
from ..operations import settling
from ..operations.recording import Attempt
from ..operations.settling import Settlement, report_some, settle_some
from ..operations.upkeep import still_held, too_many_crashes
from ..queue.retries import DEFAULT_RETRY
from ..queue.spec import Identity, QueueSpec, spec_of
from ..transaction import claim_made, running
from .handlers import Handler

# -- exceptions that a handler raises to choose the outcome of its task. They are logged without a traceback ----------


class Signal(Exception):
    """Base of the exceptions that choose the outcome of a task.  The handler's writes are rolled back."""


class Retry(Signal):
    """Retry the task after ``in_``, or after the model's backoff if it is not given.

    It counts as a failed attempt and is logged as one.
    """

    def __init__(self, in_: timedelta | None = None, reason: str = "") -> None:
        if in_ is not None:
            duration("in_", in_, zero=True)
        super().__init__(reason or "to be retried")
        self.in_ = in_

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.in_, str(self)), self.__dict__


class Snooze(Signal):
    """Run the task again after ``in_``.  The attempt does not count."""

    def __init__(self, in_: timedelta) -> None:
        super().__init__(in_)
        self.in_ = duration("in_", in_, zero=True)


class Wait(Signal):
    """Run the task again when the latch ``key`` opens, or after ``in_``.  The attempt does not count."""

    def __init__(self, key: str, in_: timedelta | None) -> None:
        super().__init__(key, in_)
        self.key = key
        self.in_ = in_


class Discard(Signal):
    """Make the task a dead letter with ``reason`` as its error, logged at level ERROR."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Cancel(Signal):
    """Cancel the task, because its work is no longer needed."""


# -- what a handler reports about its task, as the row stores it ------------------------------------------------------

NOTES = 20
"""How many notes of a task are kept, the newest ones."""
LONGEST = 200
"""The maximum length of a text, in characters; what is longer is truncated with an ellipsis."""


class Progress:
    """What the row of one task says about its progress, and what its handler has reported since.  Thread-safe."""

    def __init__(self, stored: object, attempt: int) -> None:
        found: Mapping[str, Any] = stored if isinstance(stored, Mapping) else {}
        self._attempt = attempt
        self._value: float | None = None
        self._text: str | None = None
        self._notes: deque[Mapping[str, Any]] = deque(found.get("notes") or (), NOTES)
        self._dropped = int(found.get("dropped") or 0)
        self._number = int(found.get("value") is not None)  # that of an earlier attempt is not this one's
        self._written = 0
        self.is_held = False
        """Whether to write it with the outcome only.  Above READ COMMITTED, any other write to the row conflicts with a
        handler's transaction that has read before it."""
        self._lock = threading.Lock()

    def report(self, value: float, text: str | None) -> None:
        """Replace the value and the text."""
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ArgumentError(f"progress={value!r}: give a number from 0 to 1")
        text = None if text is None else _short(text)
        with self._lock:
            self._value, self._text = float(value), text
            self._number += 1

    def note(self, text: str) -> None:
        """Add a note; the oldest one makes room for it if there are :data:`NOTES`."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        note = {"at": now, "attempt": self._attempt, "text": _short(text)}
        with self._lock:
            self._dropped += len(self._notes) == NOTES
            self._notes.append(note)
            self._number += 1

    def unwritten(self) -> tuple[int, dict[str, Any]] | None:
        """Return what is to be written, and its number for :meth:`wrote`; ``None`` if that is already written."""
        with self._lock:
            if self._number == self._written:
                return None
            return self._number, {
                "value": self._value,
                "text": self._text,
                "attempt": self._attempt,
                "notes": list(self._notes),
                "dropped": self._dropped,
            }

    def wrote(self, number: int) -> None:
        """Record that what :meth:`unwritten` returned with this ``number`` is committed."""
        self._written = number


def _short(text: str) -> str:
    if not isinstance(text, str):
        raise ArgumentError(f"text={text!r}: give a string")
    text = storable(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


# -- jobs: claimed tasks that a worker holds --------------------------------------------------------------------------

RETURNS = 10
"""The maximum number of times in a row that a task is returned without counting the attempt."""
_RETURNED = re.compile(r" \(returned after attempt (\d{1,9}), (\d{1,9}) of \d+ times in a row\)\Z")


def load(spec: QueueSpec, tasks: Sequence[Any]) -> None:
    """Load what jobs read of the rows of claimed tasks, if loader options have deferred it."""
    names = [
        spec.attributes[role] for role in ("crashes", "error", "task", "progress", "steps") if role in spec.attributes
    ]
    if tasks and not instance_state(tasks[0]).unloaded.isdisjoint(names):
        for task in tasks:
            for name in names:
                getattr(task, name)


class Job:
    """One claim and its progress."""

    def __init__(self, handler: Handler, task: Any) -> None:
        self.handler = handler
        """The handler that is called for it."""
        self.task = task
        """The claimed instance."""
        self.claim: Claim = claim_made(task)
        """The claim on it."""
        self._loaded = instance_dict(task).copy()  # the handler may change the instance
        names = handler.spec.attributes
        self.attempt: int = self.claim.attempt
        """The number of the attempt, as in the row."""
        self.function: str | None = self._loaded.get(names.get("task", ""))
        """The name of the function that the task calls; ``None`` if it is not a function job."""
        self.crashes: int = self._loaded.get(names["crashes"]) or 0
        """The number of processes that crashed while they ran the task; if there were any, it is a suspect."""
        self.progress = Progress(self._loaded.get(names["progress"]), self.attempt) if "progress" in names else None
        """What the handler reports; ``None`` if the model does not derive from ``ProgressMixin``."""
        self.steps: Any = self._loaded.get(names["steps"]) if "steps" in names else None
        """What its row kept of its steps when it was claimed."""
        self.is_counted = False
        """Whether a crash of the process that runs it has been counted in advance."""
        self.queued = 0.0
        """When it was queued to wait for others of its chunk, by ``time.monotonic``."""
        self.started: float | None = None
        """When the handler was called, by ``time.monotonic``."""
        self.seconds: float | None = None
        """How long the handler ran, once it has ended."""
        self.overdue = False
        """Whether exceeding the timeout has been reported."""
        self.has_failed = False
        """Whether the handler has raised an exception."""
        self.has_returned = False
        """Whether the handler has returned, so that the job itself may change its row at any moment."""
        self.reason = ""
        """Why it was interrupted."""
        self.is_lost = False
        """Whether the task no longer belongs to this worker: it was cancelled, taken over or given up."""
        self.on_lost: Callable[[], object] | None = None
        """Called when the task is lost, so that the handler does not wait for the database forever."""
        self.coroutine: asyncio.Task[Any] | None = None
        """The task of the event loop in which the handler runs, if it is a coroutine."""
        self.interrupt: Callable[[], object] | None = None
        """Stops the handler, from any thread, while it runs."""
        self._awoken: threading.Event | None = None

    @property
    def latch(self) -> str | None:
        """The latch to which the task reports, if it belongs to a batch."""
        return self._loaded.get(self.handler.spec.attributes.get("reports_to", ""))

    @property
    def described(self) -> Attempt:
        """The attempt, as log lines describe it."""
        return Attempt.of(self.handler.spec, self.claim, self._loaded)

    @property
    def returns(self) -> int:
        """How often the task was returned just before, in one attempt after the other, because of errors that are not
        its fault.  The error of its row tells, which nothing else removes."""
        error = self._loaded.get(self.handler.spec.attributes["error"])
        found = _RETURNED.search(error) if error else None
        return int(found[2]) if found and int(found[1]) == self.claim.attempt - 1 else 0

    def returned(self, error: BaseException) -> str:
        """Return the text of an error because of which the task is returned once more."""
        return error_text(
            error, f" (returned after attempt {self.claim.attempt}, {self.returns + 1} of {RETURNS} times in a row)"
        )

    def report(self, progress: float, text: str | None = None) -> None:
        """Report how far the task is, from 0 to 1, with a short text such as ``"page 3 of 8"``.

        The model derives from :class:`.ProgressMixin`.  Nothing is sent here: the worker writes the newest report once
        a second at the most, outside of the handler's transaction, and the last one with the outcome of the attempt.
        A report for a lost task is ignored.  Thread-safe.
        """
        self._reported.report(progress, text)

    def note(self, text: str) -> None:
        """Add a short line to the notes of the task, of which the newest 20 are kept.  Written as by :meth:`report`."""
        self._reported.note(text)

    @property
    def _reported(self) -> Progress:
        if self.progress is None:
            model = self.handler.entity.__name__
            raise ArgumentError(f"{model} has no column for what handlers report: derive it from ProgressMixin")
        return self.progress

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until the task is lost.  Returns whether it is lost."""
        if self._awoken is None:
            self._awoken = threading.Event()
        # in this order: lose() sets the event after is_lost
        return self.is_lost or self._awoken.wait(seconds)

    @property
    def is_on_loop(self) -> bool:
        """Whether its handler runs on the event loop now."""
        return self.coroutine is not None and self.started is not None and self.seconds is None

    def begin(self) -> None:
        """Record that the handler is called now."""
        self.started = time.monotonic()
        self.has_returned = False

    def about_to_write(self) -> None:
        """Record that the job itself is about to change its row.  Raises :class:`.ClaimLostError` if the task is
        lost."""
        self.has_returned = True
        if self.is_lost:  # its handler may have returned early
            raise ClaimLostError([self.claim])

    def end(self) -> None:
        """Record that the handler has ended."""
        self.has_returned = True
        self.interrupt = None
        if self.started is not None:
            self.seconds = time.monotonic() - self.started

    def lose(self, reason: str) -> None:
        """Mark the task as lost, and stop its handler as far as possible."""
        self.reason = reason
        self.is_lost = True
        if self._awoken is not None:
            self._awoken.set()
        interrupt = self.interrupt  # read once: the handler's thread may clear it
        if interrupt is not None:
            interrupt()
        if self.on_lost is not None:
            self.on_lost()

    def __repr__(self) -> str:
        return str(self.described)


def current_job() -> Job:
    """Return the job of the calling handler.  Raises :class:`LookupError` outside of a handler.

    A long-running handler in a thread should check ``current_job().is_lost``: nothing can stop it from outside.
    """
    job: Job | None = running.get(None)
    if job is None:
        raise LookupError("current_job() is called outside of a handler: only a task that a worker runs has a job")
    return job


class InFlight:
    """All jobs that this worker holds, from claim to settlement."""

    def __init__(self) -> None:
        self.on_end: Callable[[Job], object] | None = None
        """Called for each job that has ended, on any thread, if tasks can belong to batches."""
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
        if older is not None and older is not job and not older.has_returned:
            self.remove(older)
            older.lose("its lease expired, and the same worker has claimed it again")

    def remove(self, job: Job) -> None:
        """Forget a job that has ended."""
        self._jobs.pop(job, None)
        key = job.handler.spec, job.claim.identity
        if self._latest.get(key) is job:
            del self._latest[key]
        if self.on_end is not None:
            self.on_end(job)


def write_reports(session: Session, jobs: Iterable[Job], *, waits: bool = True) -> None:
    """Write what handlers have reported and is not committed yet, in the transaction that writes their outcomes."""
    for job in jobs:
        if job.progress is not None and (left := job.progress.unwritten()):
            report_some(session, [(job.claim, left[1])], waits=waits)


# -- the outcomes of attempts, and how they are written ---------------------------------------------------------------

OutcomeKind = Literal[
    "completed", "failed", "discarded", "cancelled", "released", "snoozed", "uncounted", "suspected", "crashed"
]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The return value of a handler.  No two are equal, so each is written separately."""

    value: object


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt."""

    kind: OutcomeKind
    error: str | None = None
    delay: timedelta | None = None
    cause: type[BaseException] | None = None
    """The class of the exception, for retry policies."""
    result: Result | None = None
    traceback: str | None = None
    """For the history."""
    latch: str | None = None
    """The key of the latch for which a task waits that is snoozed."""
    is_last: bool = field(default=False, compare=False)
    """Whether no attempt is left after this one, so that a failure needs no delay."""

    def __hash__(self) -> int:
        if self.error is None and self.result is None:  # nearly always one of two objects
            return hash(self.kind)
        return hash((self.kind, self.error, self.delay, self.cause, self.result))


COMPLETED = Outcome("completed")
RELEASED = Outcome("released")
UNCOUNTED = Outcome("uncounted")
"""The outcome of a suspect that is released although it was started."""


def crashed_too_often(task: object, crashes: int) -> Outcome:
    """Return the outcome of a task that has crashed the maximum number of processes."""
    error = instance_state(task).dict.get(spec_of(type(task)).attributes["error"])
    return Outcome("crashed", too_many_crashes(crashes, error))


class Ended(NamedTuple):
    """The end of one call of a handler."""

    outcome: Outcome | None
    """The outcome of the attempt, or ``None`` if the task is lost."""
    error: BaseException | None = None
    """What the handler raised."""
    is_written: bool = False
    """Whether the handler's transaction has written the outcome."""


def completed(result: object) -> Outcome:
    """Return the outcome of a completion with the return value of the handler."""
    return COMPLETED if result is None else Outcome("completed", result=Result(result))


def outcome_of(error: BaseException, *, is_last: bool = False) -> Outcome:
    """Return the outcome that an exception of a handler stands for.

    ``is_last``: whether it was the last attempt.
    """
    match error:
        case Retry():
            return Outcome("failed", error_text(_reason(error)), error.in_, is_last=is_last)
        case Snooze():
            return Outcome("snoozed", delay=error.in_)
        case Wait():
            return Outcome("snoozed", delay=error.in_, latch=error.key)
        case Discard():
            return Outcome("discarded", error_text(_reason(error)))
        case Cancel():
            return Outcome("cancelled")
    return Outcome("failed", error_text(error), cause=type(error), is_last=is_last)


def _reason(signal: Signal) -> str:
    return str(signal) if str(signal).strip() else type(signal).__name__


def plain_failure(outcome: Outcome, error: BaseException, attempt: int) -> Outcome:
    """Return what to write instead of ``outcome``, which cannot be written because of ``error``.

    It is a failure that every database can store, and depends on nothing that the application provides: the text is
    ASCII, the delay is that of the default policy, and there is no traceback.  An error that does not count as an
    attempt keeps its delay, and still does not count.
    """
    if outcome.kind == "snoozed" and outcome.error is not None:
        return Outcome("snoozed", ascii_text(outcome.error), outcome.delay)
    kind: OutcomeKind = outcome.kind if outcome.kind in _OF_ERROR else "failed"
    text = ascii_text(outcome.error or error_text(error))
    return Outcome(kind, text, DEFAULT_RETRY(attempt) if kind == "failed" else None)


def is_signal(error: BaseException) -> bool:
    """Return whether ``error`` is a signal of a handler, such as :class:`.Retry`, instead of a failure."""
    return isinstance(error, Signal)


def write_outcomes(session: Session, outcomes: Iterable[tuple[Claim, Outcome]], *, waits: bool = True) -> list[Claim]:
    """Settle the claims in the session's transaction, equal outcomes in one statement.  Returns the lost claims.

    A lost claim changes nothing and does not keep the others from being settled.  Without ``waits``, claims whose rows
    others have locked are returned as well.
    """
    alike: defaultdict[tuple[Any, Outcome], list[Claim]] = defaultdict(list)
    last: list[Claim] = []
    for claim, outcome in outcomes:
        alike[claim.entity, outcome].append(claim)
        if outcome.is_last:
            last.append(claim)
    spent = frozenset(last)
    return [
        claim
        for (_, outcome), claims in alike.items()
        for claim in settle_some(session, claims, _settlement(outcome, spent), waits=waits)
    ]


def _settlement(outcome: Outcome, last: frozenset[Claim]) -> Settlement:
    """Return what an outcome writes; ``last``: claims that have no attempt left."""
    error, delay, traceback = outcome.error or "", outcome.delay, outcome.traceback
    if outcome.kind == "completed":
        return settling.completed(outcome.result and outcome.result.value)
    if outcome.kind == "failed":
        return settling.failed(error, cause=outcome.cause, retry_in=delay, traceback=traceback, last=last)
    if outcome.latch is not None:
        return settling.waiting(outcome.latch, delay)
    if outcome.kind == "snoozed":
        return settling.snoozed(delay or timedelta(0), outcome.error)
    if outcome.kind in _OF_ERROR:
        return _OF_ERROR[outcome.kind](error)
    return _ALWAYS_ALIKE[outcome.kind]


_OF_ERROR: dict[OutcomeKind, Callable[[str], Settlement]] = {
    "discarded": settling.discarded,
    "suspected": settling.released_after_crash,
    "crashed": settling.discarded_after_crashes,
}
"""Outcomes, besides failures, that consist of an error text alone."""
_ALWAYS_ALIKE: dict[OutcomeKind, Settlement] = {
    "cancelled": settling.CANCELLED,
    "released": settling.RETURNED,
    "uncounted": settling.CLEARED,
}


class Written(NamedTuple):
    """The claims whose outcomes could not be written."""

    lost: set[Claim]
    locked: set[Claim]
    """Claims whose rows other transactions have locked; nothing was written."""


def write_what_is_free(session: Session, outcomes: Sequence[tuple[Claim, Outcome]]) -> Written:
    """Call :func:`write_outcomes` for leased claims of one queue, without waiting for locks."""
    rest = write_outcomes(session, outcomes, waits=False)
    locked = still_held(session, rest)
    return Written(set(rest) - locked, locked)
