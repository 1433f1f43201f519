"""Metrics for Prometheus, through its client library: those of a worker, and those of queues."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as Count
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..operations import QueueOverview
from ..operations.upkeep import Crashed, Recovered
from ..queue.spec import QueueSpec
from .jobs import Job, Outcome, OutcomeKind
from .reports import Reports

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200)
"""The buckets of the histogram of durations, in seconds."""
WATCHED = 120.0
"""Seconds after a request for the metrics for which queues are counted."""


class _Metrics:
    """Counters that are updated as events happen."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        claimed = self._count("sqlqueue_tasks_claimed", "Tasks claimed.", "queue")
        finished = self._count("sqlqueue_tasks_finished", "Attempts that ended, by outcome.", "queue", "outcome")
        self.lost = self._count("sqlqueue_claims_lost", "Claims taken over, cancelled or deleted.", "queue")
        self.retries = self._count("sqlqueue_task_retries", "Handlers called again after a conflict.", "queue")
        self.overdue = self._count("sqlqueue_tasks_overdue", "Handlers that exceeded their timeout.", "queue")
        text = "Rows that claims have set aside because they cannot be read."
        self.unreadable = self._count("sqlqueue_rows_unreadable", text, "queue")
        self.errors = self._count("sqlqueue_database_errors", "Errors of the worker's own statements.")
        seconds = Histogram(
            "sqlqueue_task_duration_seconds", "Time in the handler.", ["queue"], buckets=BUCKETS, registry=self.registry
        )
        # once for all tasks of a queue: the client checks labels and takes a lock on each call
        self.claimed, self.finished, self.seconds = cache(claimed.labels), cache(finished.labels), cache(seconds.labels)

    def _count(self, name: str, text: str, *labels: str) -> Count:
        return Count(name, text, labels, registry=self.registry)


class PrometheusReports(Reports):
    """Does what :class:`.Reports` does, and keeps the metrics of one worker in a separate registry.

    Derive from this class and another kind of reports for both.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scraped: float | None = None
        self._overviews: dict[str, QueueOverview] = {}
        self._metrics = _Metrics()
        self._metrics.registry.register(_State(self))

    def exposition(self) -> bytes:
        """Return the metrics as text for Prometheus.  Sends nothing to the database."""
        self._scraped = time.monotonic()
        return generate_latest(self._metrics.registry)

    @property
    def wants_overview(self) -> bool:
        return self._scraped is not None and time.monotonic() - self._scraped < WATCHED

    def overview(self, spec: QueueSpec, found: QueueOverview) -> None:
        self._overviews[spec.table.fullname] = found

    def state(self) -> Iterator[Metric]:
        """Yield the gauges, as of now."""
        slots = GaugeMetricFamily("sqlqueue_slots", "Calls of handlers that can run at a time.", labels=["queue"])
        busy = GaugeMetricFamily("sqlqueue_slots_busy", "Calls of handlers that are running.", labels=["queue"])
        totals: dict[str, Counter[str]] = {}
        for handler in self.handlers():
            totals.setdefault(handler["queue"], Counter()).update(slots=handler["slots"], busy=handler["busy"])
        for queue, total in totals.items():
            slots.add_metric([queue], total["slots"])
            busy.add_metric([queue], total["busy"])
        failing = GaugeMetricFamily(
            "sqlqueue_claims_failing_seconds", "Seconds for which every claim has failed.", labels=["queue"]
        )
        seconds = self.liveness.failing_seconds
        for queue in {*totals, *seconds}:
            failing.add_metric([queue], seconds.get(queue, 0.0))
        yield failing
        away = "Seconds for which the database has not responded to the worker."
        yield from (slots, busy, GaugeMetricFamily("sqlqueue_database_away_seconds", away, self.liveness.away_seconds))
        yield from queue_metrics(self._overviews if self.wants_overview else {})

    def claimed(self, jobs: Sequence[Job]) -> None:
        super().claimed(jobs)
        self._metrics.claimed(_queue(jobs[0])).inc(len(jobs))

    def finished(self, job: Job, outcome: Outcome, error: BaseException | None = None) -> OutcomeKind:
        kind = super().finished(job, outcome, error)
        self._metrics.finished(_queue(job), kind).inc()
        self._metrics.seconds(_queue(job)).observe(job.seconds or 0)
        return kind

    def crashed(self, spec: QueueSpec, number: int, some: Sequence[Crashed]) -> Counter[OutcomeKind]:
        kinds = super().crashed(spec, number, some)
        for kind, count in kinds.items():
            self._metrics.finished(spec.table.fullname, kind).inc(count)
        return kinds

    def recovered(self, spec: QueueSpec, found: Recovered) -> None:
        super().recovered(spec, found)
        for kind, claims in (("suspected", found.suspects), ("crashed", found.discarded)):
            self._metrics.finished(spec.table.fullname, kind).inc(len(claims))

    def crashed_too_often(self, job: Job, text: str) -> None:
        super().crashed_too_often(job, text)
        self._metrics.finished(_queue(job), "crashed").inc()

    def unreadable(self, spec: QueueSpec, number: int) -> None:
        super().unreadable(spec, number)
        if number:
            self._metrics.unreadable.labels(spec.table.fullname).inc(number)

    def lost(self, job: Job) -> None:
        super().lost(job)
        self._metrics.lost.labels(_queue(job)).inc()

    def overdue(self, job: Job) -> None:
        super().overdue(job)
        self._metrics.overdue.labels(_queue(job)).inc()

    def retried(self, job: Job, error: BaseException | str) -> None:
        super().retried(job, error)
        self._metrics.retries.labels(_queue(job)).inc()

    def database_error(self, what: str, error: BaseException, pause: timedelta) -> None:
        super().database_error(what, error, pause)
        self._metrics.errors.inc()

    def broken(self, what: str, error: BaseException) -> None:
        super().broken(what, error)
        self._metrics.errors.inc()

    def chore_failed(self, name: str, error: Exception) -> None:
        super().chore_failed(name, error)
        self._metrics.errors.inc()


class _State(Collector):
    def __init__(self, reports: PrometheusReports) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        return self._reports.state()


class _Queues(Collector):
    def __init__(self, overviews: Mapping[str, QueueOverview]) -> None:
        self._overviews = overviews

    def collect(self) -> Iterator[Metric]:
        return queue_metrics(self._overviews)


def queue_exposition(overviews: Mapping[str, QueueOverview]) -> bytes:
    """Return :func:`queue_metrics` as text for Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Queues(overviews))
    return generate_latest(registry)


def queue_metrics(overviews: Mapping[str, QueueOverview]) -> Iterator[Metric]:
    """Yield the gauges of queues, by the names of their tables.  Figures beyond the cap of ``overview`` are reported as
    the cap."""
    tasks = GaugeMetricFamily("sqlqueue_tasks", "Tasks by state, counted up to a cap.", labels=["queue", "status"])
    hung = GaugeMetricFamily("sqlqueue_tasks_hung", "Running tasks whose lease has expired.", labels=["queue"])
    waits = "Seconds for which the oldest claimable task has been waiting; 0 if there is none."
    claimable = GaugeMetricFamily("sqlqueue_oldest_claimable_seconds", waits, labels=["queue"])
    runs = "Seconds since the earliest claim of a running task; 0 if there is none."
    running = GaugeMetricFamily("sqlqueue_oldest_running_seconds", runs, labels=["queue"])
    for queue, found in overviews.items():
        for status, number in found.counts.items():
            tasks.add_metric([queue, status.value], number)
        hung.add_metric([queue], found.hung)
        claimable.add_metric([queue], _seconds(found.oldest_claimable))
        running.add_metric([queue], _seconds(found.oldest_running))
    return iter((tasks, hung, claimable, running))


def _seconds(age: timedelta | None) -> float:
    return 0.0 if age is None else age.total_seconds()


def _queue(job: Job) -> str:
    return job.handler.spec.table.fullname
