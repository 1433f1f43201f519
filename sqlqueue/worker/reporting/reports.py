"""Reports of a worker: the one place that every event of a task goes through."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError

from ..._support.errors import Claim
from ..._support.texts import ALL_FRAMES, clear_frames, error_text, logger_of
from ...operations import QueueOverview, QueueStats
from ...operations.bulk import CRASHED
from ...operations.recording import Consequence, brief, given_up, retry_text, spoken, task_name
from ...operations.upkeep import Crashed, Recovered
from ...queue.spec import QueueSpec
from ..handling.jobs import Job
from ..handling.outcomes import Outcome, OutcomeKind, is_signal
from .health import Liveness

logger = logger_of("sqlqueue.worker")


class Reports:
    """Writes log lines, whose records carry the facts as attributes, and counts events."""

    def __init__(self) -> None:
        self.liveness = Liveness()
        self.counts: Counter[str] = Counter()
        """``claimed``, an :class:`.Outcome`'s kind, ``lost``, ``overdue``, ``retries``, ``database_errors``,
        ``unreadable``."""
        self.last_claim: float | None = None
        """When the last task was claimed, by ``time.monotonic``."""
        self.handlers: Callable[[], Sequence[Mapping[str, Any]]] = tuple
        """Returns the handlers of the running worker, with ``queue``, ``slots`` and ``busy``."""

    named = 20
    """The maximum number of crashed tasks that are logged one by one; of any more, only the number is logged."""
    wants_depth = False
    """Whether :meth:`depth` uses what it is given."""

    def running(self, job: Job) -> AbstractContextManager[None] | None:
        """Return a context manager around the call of the handler, or ``None`` if there is nothing to do."""
        return None

    @property
    def wants_overview(self) -> bool:
        """Whether :meth:`overview` uses what it is given now."""
        return False

    def overview(self, spec: QueueSpec, found: QueueOverview) -> None:
        """Report the figures of a queue."""

    def exposition(self) -> bytes | None:
        """Return metrics as text for Prometheus, or ``None`` if its client library is not installed."""
        return None

    def depth(self, spec: QueueSpec, stats: QueueStats) -> None:
        """Report the number of tasks by status."""

    def claimed(self, jobs: Sequence[Job]) -> None:
        """Count claimed tasks of one handler, and log each at DEBUG."""
        self.counts["claimed"] += len(jobs)
        self.last_claim = time.monotonic()
        for job in jobs if logger.isEnabledFor(logging.DEBUG) else ():
            self._say(logging.DEBUG, "%s claimed", job)

    def finished(self, job: Job, outcome: Outcome, error: BaseException | None = None) -> OutcomeKind:
        """Report the end of a handler; ``error`` is what it raised.  Returns the resulting outcome of the task."""
        if error is not None:
            return self._ended_early(job, outcome, error)
        self.counts[outcome.kind] += 1
        if logger.isEnabledFor(logging.DEBUG):  # otherwise the line is not even formatted
            self._say(logging.DEBUG, "%s %s", job, outcome.kind, outcome=outcome.kind, seconds=job.seconds)
        return outcome.kind

    def _ended_early(self, job: Job, outcome: Outcome, error: BaseException) -> OutcomeKind:
        """Log a retry as a warning and a dead letter as an error; signals without a traceback."""
        kind: OutcomeKind = outcome.kind
        level, text, retry_in = logging.DEBUG, str(kind), outcome.delay
        raised = None if is_signal(error) else error
        if job.handler.mode == "at-most-once":
            kind, level, text, retry_in = _completed_before(outcome)
        elif outcome.kind == "failed":
            kind, level, text, retry_in = job.attempt.failing(outcome.cause, outcome.delay)
        elif outcome.kind == "discarded":
            level = logging.ERROR
        elif outcome.kind == "crashed":
            level, text, raised = logging.ERROR, "given up", None
        elif outcome.kind == "suspected":
            level, text, raised = logging.WARNING, "suspected", None
        elif raised is not None:  # an outage: a traceback would add nothing to its text
            level, text, raised = logging.WARNING, f"does not count, {retry_text(retry_in)}", None
        self.counts[kind] += 1
        facts: dict[str, Any] = {"outcome": kind, "seconds": job.seconds, "retry_in": retry_in}
        if level == logging.DEBUG:
            self._say(level, "%s %s", job, text, **facts)
        else:
            reason = brief(outcome.error or error_text(error))
            self._say(level, "%s failed (%s), %s", job, reason, text, exc_info=raised, **facts)
        return kind

    def crashed(self, spec: QueueSpec, number: int, some: Sequence[Crashed]) -> Counter[OutcomeKind]:
        """Report ``number`` tasks whose last attempt crashed, of which ``some`` are known.  Returns their outcomes."""
        known = some if number >= len(some) else ()  # another worker rescued some of them, and reports those
        for claim, tries, again in known[: self.named]:
            kind, level, text, _ = given_up(recurs=again)
            line = "%s: attempt %d/%d failed (%s), %s"
            self._note(level, line, claim, tries, tries, CRASHED, text, outcome=kind)
        if more := number - len(known[: self.named]):
            logger.error("%s: %d more tasks failed (%s)", spec.entity.__name__, more, CRASHED)
        kinds: Counter[OutcomeKind] = Counter(given_up(recurs=each.recurs).kind for each in known)
        kinds[given_up(recurs=spec.recurs).kind] += number - len(known)
        self.counts.update(kinds)
        return kinds

    def recovered(self, spec: QueueSpec, found: Recovered) -> None:
        """Report the tasks of a process that died."""
        self.counts.update(suspected=len(found.suspects), crashed=len(found.discarded))
        for claim in found.suspects[: self.named]:
            self._note(logging.WARNING, "%s is suspected: %s", claim, found.text, outcome="suspected")
        for claim in found.discarded[: self.named]:
            self._given_up(claim, found.text)
        if more := sum(max(0, len(some) - self.named) for some in (found.suspects, found.discarded)):
            logger.warning("%s: %d more tasks are suspected: %s", spec.entity.__name__, more, found.text)
        if found.returned:
            logger.info("%s: %d tasks of a process that died were released", spec.entity.__name__, found.returned)

    def unserved(self, spec: QueueSpec, name: str, age: timedelta) -> None:
        """Report a function whose calls no worker claims."""
        queue = spec.entity.__name__
        text = "%s: no worker seems to have the function %s registered; its calls have been waiting for %s"
        logger.warning(text, queue, name, spoken(age), extra={"queue": queue, "function": name})

    def crashed_too_often(self, job: Job, text: str) -> None:
        """Report a task that is discarded because it has crashed too many processes."""
        self.counts["crashed"] += 1
        self._given_up(job.claim, text)

    def _given_up(self, claim: Claim, text: str) -> None:
        self._note(logging.ERROR, "%s is given up: %s", claim, text, outcome="crashed")

    def _note(self, level: int, message: str, claim: Claim, *arguments: Any, **facts: Any) -> None:
        logger.log(level, message, task_name(claim), *arguments, extra=_facts(claim) | facts)

    def lost(self, job: Job) -> None:
        """Count and log a task that no longer belongs to this worker."""
        self.counts["lost"] += 1
        reason = job.reason or "its lease expired, or it was cancelled, settled or deleted elsewhere"
        self._say(logging.WARNING, "%s was lost, and its writes were rolled back: %s", job, reason)

    def overdue(self, job: Job) -> None:
        """Count and log a handler in a thread that exceeds its timeout."""
        self.counts["overdue"] += 1
        limit = job.handler.timeout
        self._say(logging.WARNING, "%s has been running for more than %s, and a thread cannot be stopped", job, limit)

    def unreadable(self, spec: QueueSpec, number: int) -> None:
        """Count rows that a claim has set aside, which it has logged."""
        if number:
            self.counts["unreadable"] += number

    def retried(self, job: Job, error: BaseException | str) -> None:
        """Report that a handler is called again because of ``error``, an exception or its text."""
        self.counts["retries"] += 1
        said = brief(error_text(error))
        self._say(logging.INFO, "%s runs again immediately because its transaction lost a conflict: %s", job, said)

    def database_error(self, what: str, error: BaseException, pause: timedelta) -> None:
        """Count and log an error of the worker's own statements, which are retried after ``pause``.

        Drops what the frames of its traceback refer to: a connection attempt that was abandoned stays open until then.
        """
        self.liveness.missed()
        self.counts["database_errors"] += 1
        logger.warning("cannot %s, next try in %s: %s", what, spoken(pause), brief(error_text(error)))
        clear_frames(error)

    def conflict(self, what: str, error: BaseException, pause: timedelta) -> None:
        """Report that a transaction of the worker itself lost a conflict with another one.  The database responded."""
        self.liveness.reached()
        self.counts["retries"] += 1
        logger.info("cannot %s, next try in %s: %s", what, spoken(pause), brief(error_text(error)))

    def broken(self, what: str, error: BaseException) -> None:
        """Count and log an error that is not retried."""
        self.counts["database_errors"] += 1
        frames = {ALL_FRAMES: not isinstance(error, DBAPIError)}  # the text of a database error is sufficient
        logger.error("cannot %s", what, exc_info=error, extra=frames)

    def chore_failed(self, name: str, error: Exception) -> None:
        """Log that the chore of this ``name`` failed, with the database's message but without the statement."""
        self.counts["database_errors"] += 1
        if isinstance(error, DBAPIError):
            logger.error("%s failed: %s", name, str(error.orig).strip() or type(error.orig).__name__)
        else:
            logger.error("%s failed", name, exc_info=error)

    def _say(self, level: int, message: str, job: Job, *arguments: Any, exc_info: Any = None, **facts: Any) -> None:
        if logger.isEnabledFor(level):
            logger.log(level, message, job, *arguments, exc_info=exc_info, extra=_facts(job.claim) | facts)


def _completed_before(outcome: Outcome) -> Consequence:
    """Return what an outcome means for a task that was completed before its handler was called: it stays completed."""
    if outcome.kind in ("failed", "discarded"):
        return Consequence("failed", logging.ERROR, "not retried: it was completed before its handler was called")
    return Consequence("completed", logging.DEBUG, "stays completed")


def _facts(claim: Claim) -> dict[str, Any]:
    return {"queue": claim.entity.__name__, "identity": claim.identity, "attempt": claim.attempt}
