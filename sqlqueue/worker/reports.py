"""What a worker says of itself: one place, through which everything that happens to a task goes."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

from ..operations import QueueStats
from ..spec import QueueSpec
from ..tracing import HAS_OPENTELEMETRY
from .health import Pulse
from .jobs import Job
from .outcomes import Outcome, is_signal

logger = logging.getLogger("sqlqueue.worker")
_NOTHING = nullcontext()


class Reports:
    """Log lines, each with its facts as attributes of the record, and counts of what has happened."""

    def __init__(self) -> None:
        self.pulse = Pulse()
        self.counts: Counter[str] = Counter()
        """``claimed``, an :class:`.Outcome`'s kind, ``lost``, ``overdue``, ``retries``, ``database_errors``."""

    wants_depth = False
    """Whether :meth:`depth` does anything with what it is told."""

    def running(self, job: Job) -> AbstractContextManager[None]:
        """The handler is called within."""
        return _NOTHING

    def depth(self, spec: QueueSpec, stats: QueueStats) -> None:
        """How many tasks there are."""

    def claimed(self, job: Job) -> None:
        self.counts["claimed"] += 1
        if _is_wordy():
            self._say(logging.DEBUG, "%s is claimed", job)

    def finished(self, job: Job, outcome: Outcome, error: BaseException | None = None) -> None:
        self.counts[outcome.kind] += 1
        if error is not None and not is_signal(error):
            facts = {"outcome": outcome.kind, "seconds": job.seconds}
            self._say(logging.ERROR, "%s has failed", job, exc_info=error, **facts)
        elif _is_wordy():
            self._say(logging.DEBUG, "%s is %s", job, outcome.kind, outcome=outcome.kind, seconds=job.seconds)

    def lost(self, job: Job) -> None:
        self.counts["lost"] += 1
        reason = job.reason or "its lease ended, or it was cancelled, settled or deleted elsewhere"
        self._say(logging.WARNING, "%s is lost, and what it did is dropped: %s", job, reason)

    def overdue(self, job: Job) -> None:
        self.counts["overdue"] += 1
        self._say(
            logging.WARNING, "%s runs for longer than %s, and a thread cannot be stopped", job, job.handler.timeout
        )

    def retried(self, job: Job, error: BaseException) -> None:
        self.counts["retries"] += 1
        self._say(logging.INFO, "%s is run again, its transaction was the victim of another: %s", job, error)

    def reached(self) -> None:
        """The database does what it is asked."""
        self.pulse.reached()

    def database_error(self, what: str, error: BaseException, pause: timedelta) -> None:
        self.pulse.missed()
        self.counts["database_errors"] += 1
        said = str(error).partition("\n")[0]
        logger.warning("cannot %s, next try in %.1f s: %s", what, pause.total_seconds(), said)

    def broken(self, what: str, error: BaseException) -> None:
        self.counts["database_errors"] += 1
        logger.error("cannot %s", what, exc_info=error)

    def _say(self, level: int, message: str, job: Job, *arguments: Any, exc_info: Any = None, **facts: Any) -> None:
        if logger.isEnabledFor(level):
            named = {"queue": job.claim.entity.__name__, "identity": job.claim.identity, "attempt": job.claim.attempt}
            logger.log(level, message, job, *arguments, exc_info=exc_info, extra={**named, **facts})


def _is_wordy() -> bool:
    """Whether to say what there is to say of every job; it is not even put together otherwise."""
    return logger.isEnabledFor(logging.DEBUG)


def make_reports() -> Reports:
    """With OpenTelemetry where its API is installed."""
    if not HAS_OPENTELEMETRY:
        return Reports()
    from .telemetry import Telemetry  # noqa: PLC0415

    return Telemetry()
