"""What a worker tells: log lines, counts, and whether it is alive.  Nothing here changes what a worker does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy.exc import DBAPIError

from .._support.errors import Claim
from .._support.texts import ALL_FRAMES, clear_frames, error_class, error_group, error_text, logger_of
from .._support.tracing import HAS_OPENTELEMETRY
from ..model.companions import WorkerState, worker_state
from ..operations.bulk import CRASHED
from ..operations.recording import Consequence, attempt_text, brief, given_up, retry_text, spoken, task_facts, task_name
from ..operations.upkeep import Crashed, Recovered
from ..queue.schedules import lacks_zones, unknown_here
from ..queue.spec import QueueSpec
from .jobs import Job, Outcome, OutcomeKind, is_signal

if TYPE_CHECKING:
    from .metrics import PrometheusMetrics
    from .telemetry import Telemetry

# -- the health of a worker ------------------------------------------------------------------------------------------

logger = logger_of("sqlqueue.worker")
_FAILURES = frozenset({"failed", "discarded", "suspected", "crashed"})
"""The outcomes that metrics count by the group of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a worker."""

    state: WorkerState
    """The word for it in the register of workers: ``silent`` if its database has not responded for 35 seconds."""
    alive: bool
    """Whether its event loop runs, its heartbeat thread is alive, and not all of its threads are waiting for the
    database in calls that nothing can interrupt.  If not, only a new process will help."""
    ready: bool
    """Whether its database also responds, and claims succeed: neither has failed for a lease, or for 30 seconds.  A
    worker that has met a cron schedule is not ready on a host without time zones or without cronsim."""
    stalled_seconds: float
    """Seconds since the event loop last ran."""
    away_seconds: float
    """Seconds for which the database has not responded."""
    failing_seconds: Mapping[str, float]
    """Seconds for which every claim of a handler has failed, by the table of its queue; if the last one succeeded, the
    queue is left out."""
    running: int
    """The number of tasks it holds."""
    unknown_schedules: Mapping[str, str]
    """The schedules that this host cannot evaluate, and why: their tasks are left to workers on other hosts."""
    counts: Mapping[str, int]
    """Counts since it started: ``claimed``, ``completed``, ``failed`` (to be retried), ``discarded`` (dead
    letters), ``cancelled``, ``released``, ``snoozed``, ``lost``, ``overdue``, ``retries``, ``database_errors``,
    ``unreadable`` (rows that claims have set aside because they cannot be read)."""


SHORTEST_STALL = 1.0
"""Seconds for which the event loop of a busy machine may not run, at the least, before it is said to stand still."""
STALLED = 30.0
"""Seconds without progress after which a worker is not alive, and at the latest not ready."""


class Liveness:
    """When the event loop and the database last responded."""

    def __init__(self) -> None:
        self.turned = time.monotonic()
        """When the event loop last ran, by ``time.monotonic``."""
        self.stalls_within = STALLED
        """Seconds without running after which the event loop is said to stand still."""
        self._away: float | None = None
        self._failing: dict[tuple[str, Hashable], float] = {}
        self.ready_within = STALLED
        """Seconds without a response after which a worker is not ready."""

    async def watch_loop(self, turns: Callable[[], object]) -> None:
        """Record once a second or more that the event loop runs, and call ``turns``."""
        while True:
            self.turned = time.monotonic()
            turns()
            await asyncio.sleep(self.tick)

    @property
    def tick(self) -> float:
        """Seconds between two such records."""
        return min(1.0, self.stalls_within / 4)

    @property
    def stalled_seconds(self) -> float:
        """The seconds since the event loop last ran."""
        return time.monotonic() - self.turned

    @property
    def is_stalled(self) -> bool:
        """Whether the event loop stands still."""
        return self.stalled_seconds > self.stalls_within

    @property
    def away_seconds(self) -> float:
        """The seconds for which the database has not responded; 0 if it has."""
        away = self._away  # read once: other threads change it
        return 0.0 if away is None else time.monotonic() - away

    def reached(self) -> None:
        """Record that the database responded."""
        self._away = None

    def missed(self) -> None:
        """Record that the database has not responded to a request, which may have just been sent."""
        if self._away is None:
            self._away = time.monotonic()

    @property
    def failing_seconds(self) -> dict[str, float]:
        """The seconds for which every claim of a handler has failed, by the table of its queue."""
        now, longest = time.monotonic(), dict[str, float]()
        for (queue, _), since in self._failing.copy().items():
            longest[queue] = max(now - since, longest.get(queue, 0.0))
        return longest

    def claims_fail(self, queue: str, by: Hashable) -> None:
        """Record that a claim ``by`` a handler from a queue has failed, for any reason."""
        self._failing.setdefault((queue, by), time.monotonic())

    def claims_work(self, queue: str, by: Hashable) -> None:
        """Record that a claim has succeeded, whether or not it found a task."""
        self._failing.pop((queue, by), None)

    def health(self, *, beats: bool, running: int, counts: Mapping[str, int]) -> Health:
        """Return the worker's health; ``beats``: whether its heartbeats work, ``running``: how many tasks run."""
        stalled, away, failing = self.stalled_seconds, self.away_seconds, self.failing_seconds
        alive = beats and stalled < STALLED
        return Health(
            state=worker_state(timedelta(seconds=away), is_stalled=self.is_stalled),
            alive=alive,
            ready=alive
            and max(away, *failing.values(), 0) < self.ready_within
            and not (unknown_here and lacks_zones()),
            stalled_seconds=round(stalled, 3),
            away_seconds=round(away, 3),
            failing_seconds={queue: round(seconds, 3) for queue, seconds in failing.items()},
            running=running,
            unknown_schedules=dict(unknown_here),
            counts=dict(counts),
        )


# -- reports of a worker: the one place that every event of a task goes through ---------------------------------------


class Reports:
    """Writes log lines, whose records carry the facts as attributes, and counts events, for its listeners too."""

    def __init__(self) -> None:
        self.liveness = Liveness()
        self.counts: Counter[str] = Counter()
        """``claimed``, an :class:`.Outcome`'s kind, ``lost``, ``overdue``, ``retries``, ``database_errors``,
        ``unreadable``."""
        self.last_claim: float | None = None
        """When the last task was claimed, by ``time.monotonic``."""
        self.handlers: Callable[[], Sequence[Mapping[str, Any]]] = tuple
        """Returns the handlers of the running worker, with ``queue``, ``slots`` and ``busy``."""
        self.functions: frozenset[str | None] = frozenset()
        """The functions that it has registered: metrics name no others, which rows could make any number of."""
        self.prometheus: PrometheusMetrics | None = None
        self.telemetry: Telemetry | None = None
        self.listeners: list[PrometheusMetrics | Telemetry] = []
        """Those of the two that are installed."""
        self._groups = set[str]()

    named = 20
    """The maximum number of tasks that are named when several have crashed, or are still running; of any more, only the
    number is logged."""

    grouped = 100
    """The maximum number of groups by which metrics count errors; those of any more are counted as ``other``."""

    def running(self, job: Job) -> AbstractContextManager[None] | None:
        """Return a context manager around the call of the handler, or ``None`` if there is nothing to do."""
        if self.telemetry is None:
            return None
        return self.telemetry.running(job, job.function if job.function in self.functions else None)

    def claimed(self, jobs: Sequence[Job]) -> None:
        """Count claimed tasks of one handler, and log each at DEBUG."""
        self.last_claim = time.monotonic()
        for function, number in Counter([job.function for job in jobs]).items():
            self._count("claimed", jobs[0].handler.spec, number, function=function)
        for job in jobs if logger.isEnabledFor(logging.DEBUG) else ():
            _say_of(job, logging.DEBUG, "%s claimed", job)

    def stopping(self, worker: str, jobs: Iterable[Job], patience: str) -> None:
        """Report that the worker stops, and the running handlers for which it waits."""
        running = [job for job in jobs if job.started is not None and job.seconds is None]
        if not running:
            logger.info("worker %s is stopping: no task is running", worker)
            return
        number = f"{len(running)} task{'s' * (len(running) != 1)}"
        names = [task_name(job.claim, job.function) for job in running[: self.named]]
        more = [f"{len(running) - self.named} more"] if len(running) > self.named else []
        shown = ", ".join([*names, *more])
        logger.info("worker %s is stopping: waiting %s for %s: %s", worker, patience, number, shown)

    def finished(self, job: Job, outcome: Outcome, error: BaseException | None = None) -> None:
        """Report the end of a handler; ``error`` is what it raised."""
        kind: OutcomeKind = outcome.kind
        if error is not None:
            kind = _say_how_it_failed(job, outcome, error)
        elif logger.isEnabledFor(logging.DEBUG):  # otherwise the line is not even formatted
            _say_of(job, logging.DEBUG, "%s %s", job, kind, outcome=kind, seconds=job.seconds)
        failed = outcome.error if kind in _FAILURES else None
        self._count_outcome(kind, job.handler.spec, function=job.function, seconds=job.seconds or 0, error=failed)

    def crashed(self, spec: QueueSpec, number: int, some: Sequence[Crashed]) -> None:
        """Report ``number`` tasks whose last attempt crashed, of which ``some`` are known."""
        known = some if number >= len(some) else ()  # another worker rescued some of them, and reports those
        for claim, again, function in known[: self.named]:
            kind, level, text, _ = given_up(recurs=again)
            line = "%s: attempt %s failed (%s), %s"
            name = task_name(claim, function)
            last = attempt_text(claim.attempt, claim.attempt)
            _say(level, line, claim, function, name, last, CRASHED, text, outcome=kind)
        if more := number - len(known[: self.named]):
            logger.error("%s: %d more tasks failed (%s)", spec.name, more, CRASHED)
        kinds: Counter[tuple[OutcomeKind, str | None]]
        kinds = Counter((given_up(recurs=each.recurs).kind, each.function) for each in known)
        kinds[given_up(recurs=spec.recurs).kind, None] += number - len(known)
        for (outcome, function), count in kinds.items():
            self._count_outcome(outcome, spec, count, function=function, error=CRASHED)

    def recovered(self, spec: QueueSpec, found: Recovered) -> None:
        """Report the tasks of a process that died."""
        ends: tuple[tuple[OutcomeKind, list[Claim]], ...] = ("suspected", found.suspects), ("crashed", found.discarded)
        for kind, claims in ends:
            for function, number in Counter(map(found.functions.get, claims)).items():
                self._count_outcome(kind, spec, number, function=function, error=found.text)
        for claim in found.suspects[: self.named]:
            function = found.functions.get(claim)
            name, text = task_name(claim, function), "%s is suspected: %s"
            _say(logging.WARNING, text, claim, function, name, found.text, outcome="suspected")
        for claim in found.discarded[: self.named]:
            _say_given_up(claim, found.functions.get(claim), found.text)
        if more := sum(max(0, len(some) - self.named) for some in (found.suspects, found.discarded)):
            logger.warning("%s: %d more tasks are suspected: %s", spec.name, more, found.text)
        if found.returned:
            logger.info("%s: %d tasks of a process that died were released", spec.name, found.returned)

    def released(self, spec: QueueSpec, worker: str, number: int) -> None:
        """Report that tasks of another worker, whose process has ended, were released."""
        text = "%s: %d tasks of %s, whose process has ended, were released"
        logger.warning(text, spec.name, number, worker)

    def unserved(self, spec: QueueSpec, name: str, age: timedelta) -> None:
        """Report a function whose calls no worker claims."""
        queue = spec.name
        text = "%s: no worker seems to have the function %s registered; its calls have been waiting for %s"
        logger.warning(text, queue, name, spoken(age), extra={"queue": queue, "function": name})

    def crashed_too_often(self, job: Job, text: str) -> None:
        """Report a task that is discarded because it has crashed too many processes."""
        self._count_outcome("crashed", job.handler.spec, function=job.function, error=text)
        _say_given_up(job.claim, job.function, text)

    def lost(self, job: Job) -> None:
        """Count and log a task that no longer belongs to this worker."""
        self._count("lost", job.handler.spec, function=job.function)
        reason = job.reason or "its lease expired, or it was cancelled, settled or deleted elsewhere"
        _say_of(job, logging.WARNING, "%s was lost, and its writes were rolled back: %s", job, reason)

    def overdue(self, job: Job) -> None:
        """Count and log a handler in a thread that exceeds its timeout."""
        self._count("overdue", job.handler.spec, function=job.function)
        text = "%s has been running for more than %s, and a thread cannot be stopped"
        _say_of(job, logging.WARNING, text, job, job.handler.timeout)

    def stalled(self, seconds: float, job: Job | None, running: Sequence[Job], stack: str) -> None:
        """Log that the event loop stands still, with the ``stack`` of its thread.

        ``job``: whose handler runs there now, if that is known; ``running``: all that have begun there.
        """
        facts: dict[str, Any] = {"seconds": seconds}
        if job is not None:
            facts |= task_facts(job.claim, job.function)
            text, subject = "%s has been blocking the event loop for %s", str(job)
        else:
            others = "; ".join(map(str, running[: self.named])) + ("; and others" if running[self.named :] else "")
            text, subject = "the event loop, with the tasks (%s), has been standing still for %s", others or "none"
        text += ". No coroutine runs, and nothing is claimed"
        arguments = (subject, spoken(timedelta(seconds=seconds)))
        record = logger.makeRecord(
            logger.name, logging.ERROR, __file__, 0, text, arguments, None, extra=facts, sinfo=stack or None
        )
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)

    def goes_on(self, seconds: float) -> None:
        """Log that the event loop goes on after it has stood still."""
        text = "the event loop goes on after it has stood still for %s"
        logger.warning(text, spoken(timedelta(seconds=seconds)), extra={"seconds": seconds})

    def unreadable(self, spec: QueueSpec, number: int) -> None:
        """Count rows that a claim has set aside, which it has logged."""
        if number:
            self._count("unreadable", spec, number)

    def expired(self, spec: QueueSpec, number: int) -> None:
        """Count tasks that a claim has cancelled because they had expired, which it has logged."""
        if number:
            self._count_outcome("cancelled", spec, number, function=None)

    def retried(self, job: Job, error: BaseException | str) -> None:
        """Report that a handler is called again because of ``error``, an exception or its text."""
        self._count("retries", job.handler.spec, function=job.function)
        text = "%s runs again immediately because its transaction lost a conflict: %s"
        _say_of(job, logging.INFO, text, job, brief(error_text(error)))

    def split(self, jobs: Sequence[Job], error: BaseException) -> None:
        """Report that a call with several tasks has failed, and is repeated with fewer."""
        text = "%s: a call with %d tasks failed (%s), each half of them is tried again"
        logger.info(text, jobs[0].handler.spec.name, len(jobs), brief(error_text(error)))

    def batch_ended(self, key: str, counts: Mapping[str, int]) -> None:
        """Report that all members of a batch have ended, as an error if some have failed."""
        failed = counts["discarded"] + counts["cancelled"]
        told = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number) or "without members"
        facts = {"batch": key, **counts}
        logger.log(logging.ERROR if failed else logging.INFO, "the batch %s has ended: %s", key, told, extra=facts)

    def looked(self, kind: Literal["look", "sweep"], seconds: float) -> None:
        """Record how long a look at latches took."""
        if self.prometheus is not None:
            self.prometheus.looked(kind, seconds)

    def database_error(self, what: str, error: BaseException, pause: timedelta) -> None:
        """Count and log an error of the worker's own statements, which are retried after ``pause``.

        Drops what the frames of its traceback refer to: a connection attempt that was abandoned stays open until then.
        """
        self.liveness.missed()
        self._count("database_errors")
        logger.warning("cannot %s, next try in %s: %s", what, spoken(pause), brief(error_text(error)))
        clear_frames(error)

    def conflict(self, what: str, error: BaseException, pause: timedelta) -> None:
        """Report that a transaction of the worker itself lost a conflict with another one.  The database responded."""
        self.liveness.reached()
        self.counts["retries"] += 1  # no handler is called again, which is what metrics count
        logger.info("cannot %s, next try in %s: %s", what, spoken(pause), brief(error_text(error)))

    def broken(self, what: str, error: BaseException) -> None:
        """Count and log an error that is not retried."""
        self._count("database_errors")
        frames = {ALL_FRAMES: not isinstance(error, DBAPIError)}  # the text of a database error is sufficient
        logger.error("cannot %s", what, exc_info=error, extra=frames)

    def chore_failed(self, name: str, error: Exception) -> None:
        """Log that the chore of this ``name`` failed, with the database's message but without the statement."""
        self._count("database_errors")
        if isinstance(error, DBAPIError):
            logger.error("%s failed: %s", name, str(error.orig).strip() or type(error.orig).__name__)
        else:
            logger.error("%s failed", name, exc_info=error)

    def _count(
        self, event: str, spec: QueueSpec | None = None, number: int = 1, *, function: str | None = None
    ) -> None:
        self.counts[event] += number
        function = function if function in self.functions else None
        for listener in self.listeners:
            listener.count(event, spec, function, number)

    def _count_outcome(
        self,
        kind: OutcomeKind,
        spec: QueueSpec,
        number: int = 1,
        *,
        function: str | None,
        seconds: float | None = None,
        error: str | None = None,
    ) -> None:
        """Count attempts that ended; ``seconds``: how long the handler ran, if one has returned; ``error``: because of
        which they failed, if they did."""
        self.counts[kind] += number
        function = function if function in self.functions else None
        for listener in self.listeners:
            listener.count_outcome(kind, spec, function, number, seconds)
        if error is not None and self.listeners:
            group, name = error_group(error), error_class(error)
            if len(self._groups) < self.grouped:
                self._groups.add(group)
            elif group not in self._groups:
                group, name = "other", ""
            for listener in self.listeners:
                listener.count_error(spec, function, group, name, number)


def _say(
    level: int, message: str, claim: Claim, function: str | None, *arguments: Any, exc_info: Any = None, **facts: Any
) -> None:
    """Log a line about a claimed task."""
    if logger.isEnabledFor(level):
        logger.log(level, message, *arguments, exc_info=exc_info, extra=task_facts(claim, function) | facts)


def _say_of(job: Job, level: int, message: str, *arguments: Any, **facts: Any) -> None:
    _say(level, message, job.claim, job.function, *arguments, **facts)


def _say_given_up(claim: Claim, function: str | None, text: str) -> None:
    _say(logging.ERROR, "%s is given up: %s", claim, function, task_name(claim, function), text, outcome="crashed")


def _say_how_it_failed(job: Job, outcome: Outcome, error: BaseException) -> OutcomeKind:
    """Log a retry as a warning and a dead letter as an error; signals without a traceback.  Returns the resulting
    outcome of the task."""
    kind: OutcomeKind = outcome.kind
    level, text, retry_in = logging.DEBUG, str(kind), outcome.delay
    raised = None if is_signal(error) else error
    if job.handler.mode == "at-most-once":
        kind, level, text, retry_in = _completed_before(outcome)
    elif outcome.kind == "failed":
        kind, level, text, retry_in = job.described.failing(outcome.cause, outcome.delay)
    elif outcome.kind == "discarded":
        level = logging.ERROR
    elif outcome.kind == "crashed":
        level, text, raised = logging.ERROR, "given up", None
    elif outcome.kind == "suspected":
        level, text, raised = logging.WARNING, "suspected", None
    elif raised is not None:  # an outage: a traceback would add nothing to its text
        level, text, raised = logging.WARNING, f"does not count, {retry_text(retry_in)}", None
    facts: dict[str, Any] = {"outcome": kind, "seconds": job.seconds, "retry_in": retry_in}
    if level == logging.DEBUG:
        _say_of(job, level, "%s %s", job, text, **facts)
    else:
        reason = brief(outcome.error or error_text(error))
        facts["error_group"] = error_group(outcome.error or error_text(error))
        _say_of(job, level, "%s failed (%s), %s", job, reason, text, exc_info=raised, **facts)
    return kind


def _completed_before(outcome: Outcome) -> Consequence:
    """Return what an outcome means for a task that was completed before its handler was called: it stays completed."""
    if outcome.kind in ("failed", "discarded"):
        return Consequence("failed", logging.ERROR, "not retried: it was completed before its handler was called")
    return Consequence("completed", logging.DEBUG, "stays completed")


TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The format of Prometheus."""
HAS_PROMETHEUS = find_spec("prometheus_client") is not None


def make_reports() -> Reports:
    """Return the reports of a worker: for Prometheus and OpenTelemetry too, if these are installed."""
    reports = Reports()
    if HAS_PROMETHEUS:
        from .metrics import PrometheusMetrics  # noqa: PLC0415

        reports.prometheus = PrometheusMetrics(reports)
        reports.listeners.append(reports.prometheus)
    if HAS_OPENTELEMETRY:
        from .telemetry import Telemetry  # noqa: PLC0415

        reports.telemetry = Telemetry()
        reports.listeners.append(reports.telemetry)
    return reports
