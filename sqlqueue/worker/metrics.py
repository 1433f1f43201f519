"""Metrics for Prometheus, through its client library: those of a worker, and those of queues."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache

from prometheus_client import CollectorRegistry, Histogram, Summary, generate_latest
from prometheus_client import Counter as Count
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..operations import QueueOverview
from ..queue.spec import QueueSpec
from .jobs import OutcomeKind
from .reports import Reports

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200)
"""The buckets of the histogram of durations, in seconds."""
TASKS = ("queue", "function")
"""The labels of what happens to tasks; the function is empty for tasks that are no function jobs."""
ERROR = ("error_group", "error")
"""The labels of errors: the fingerprint, and the class of the exception."""
WATCHED = 120.0
"""Seconds after a request for the metrics for which queues are counted."""


class PrometheusMetrics(Collector):
    """The metrics of one worker, in a separate registry."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._scraped: float | None = None
        self.gauges = QueueGauges()
        self._registry = CollectorRegistry()
        counters = {
            "claimed": self._counter("sqlqueue_tasks_claimed", "Tasks claimed.", *TASKS),
            "lost": self._counter("sqlqueue_claims_lost", "Claims taken over, cancelled or deleted.", *TASKS),
            "retries": self._counter("sqlqueue_task_retries", "Handlers called again after a conflict.", *TASKS),
            "overdue": self._counter("sqlqueue_tasks_overdue", "Handlers that exceeded their timeout.", *TASKS),
            "unreadable": self._counter(
                "sqlqueue_rows_unreadable", "Rows that claims have set aside because they cannot be read.", *TASKS
            ),
            "database_errors": self._counter("sqlqueue_database_errors", "Errors of the worker's own statements."),
        }
        finished = self._counter("sqlqueue_tasks_finished", "Attempts that ended, by outcome.", *TASKS, "outcome")
        seconds = Histogram(
            "sqlqueue_task_duration_seconds",
            "Time in the handler.",
            TASKS,
            buckets=BUCKETS,
            registry=self._registry,
        )
        errors = self._counter("sqlqueue_errors", "Attempts that failed, by the group of the error.", *TASKS, *ERROR)
        # once for all tasks of a queue: the client checks labels and takes a lock on each call
        self._labelled = cache(lambda event, *labels: counters[event].labels(*labels) if labels else counters[event])
        self._finished, self._seconds = cache(finished.labels), cache(seconds.labels)
        self._errors = cache(errors.labels)
        looks = Summary("sqlqueue_look_seconds", "Time of looks at latches.", ("kind",), registry=self._registry)
        self._looks = cache(looks.labels)
        self._registry.register(self)

    def _counter(self, name: str, text: str, *labels: str) -> Count:
        return Count(name, text, labels, registry=self._registry)

    def count(self, event: str, spec: QueueSpec | None, function: str | None, number: int) -> None:
        """Count an event of a queue, or of the whole worker."""
        self._labelled(event, *(() if spec is None else (spec.name, function or ""))).inc(number)

    def count_outcome(
        self, kind: OutcomeKind, spec: QueueSpec, function: str | None, number: int, seconds: float | None
    ) -> None:
        """Count attempts that ended, and the time in the handler."""
        self._finished(spec.name, function or "", kind).inc(number)
        if seconds is not None:
            self._seconds(spec.name, function or "").observe(seconds)

    def count_error(self, spec: QueueSpec, function: str | None, group: str, name: str, number: int) -> None:
        """Count attempts that failed, by the group of their error and the name of its class."""
        self._errors(spec.name, function or "", group, name).inc(number)

    def looked(self, kind: str, seconds: float) -> None:
        """Record how long a look at latches took."""
        self._looks(kind).observe(seconds)

    def exposition(self) -> bytes:
        """Return the metrics as text for Prometheus.  Sends nothing to the database."""
        self._scraped = time.monotonic()
        return generate_latest(self._registry)

    @property
    def is_watched(self) -> bool:
        """Whether the metrics are read, so that queues have to be counted."""
        return self._scraped is not None and time.monotonic() - self._scraped < WATCHED

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, as of now."""
        slots = GaugeMetricFamily("sqlqueue_slots", "Calls of handlers that can run at a time.", labels=["queue"])
        busy = GaugeMetricFamily("sqlqueue_slots_busy", "Calls of handlers that are running.", labels=["queue"])
        totals: dict[str, Counter[str]] = {}
        for handler in self._reports.handlers():
            totals.setdefault(handler["queue"], Counter()).update(slots=handler["slots"], busy=handler["busy"])
        for queue, total in totals.items():
            slots.add_metric([queue], total["slots"])
            busy.add_metric([queue], total["busy"])
        failing = GaugeMetricFamily(
            "sqlqueue_claims_failing_seconds", "Seconds for which every claim has failed.", labels=["queue"]
        )
        liveness = self._reports.liveness
        seconds = liveness.failing_seconds
        for queue in {*totals, *seconds}:
            failing.add_metric([queue], seconds.get(queue, 0.0))
        yield failing
        stalled = "Seconds for which the event loop of the worker has been standing still; 0 if it runs."
        seconds_stalled = liveness.stalled_seconds if liveness.is_stalled else 0.0
        yield GaugeMetricFamily("sqlqueue_event_loop_stalled_seconds", stalled, seconds_stalled)
        away = "Seconds for which the database has not responded to the worker."
        yield from (slots, busy, GaugeMetricFamily("sqlqueue_database_away_seconds", away, liveness.away_seconds))
        yield from (self.gauges if self.is_watched else QueueGauges()).collect()


@dataclass(eq=False)
class QueueGauges(Collector):
    """The gauges of queues.  Figures beyond the caps of what has counted them are reported as the caps."""

    overviews: dict[str, QueueOverview] = field(default_factory=dict)
    """The figures of the queues, by the names of their tables."""
    batches: dict[str, tuple[int, timedelta | None]] = field(default_factory=dict)
    """The number of unfinished batches, and the age of the oldest, by the tables of latches."""
    keys: dict[str, dict[str, int]] = field(default_factory=dict)
    """The numbers of keys by state, by the names of the tables of queues with keys."""

    def exposition(self) -> bytes:
        """Return them as text for Prometheus."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        tasks = GaugeMetricFamily("sqlqueue_tasks", "Tasks by state, counted up to a cap.", labels=["queue", "status"])
        expired = "Running tasks whose lease has expired."
        abandoned = GaugeMetricFamily("sqlqueue_tasks_abandoned", expired, labels=["queue"])
        waits = "Seconds for which the oldest claimable task has been waiting; 0 if there is none."
        claimable = GaugeMetricFamily("sqlqueue_oldest_claimable_seconds", waits, labels=["queue"])
        runs = "Seconds since the earliest claim of a running task; 0 if there is none."
        running = GaugeMetricFamily("sqlqueue_oldest_running_seconds", runs, labels=["queue"])
        for queue, found in self.overviews.items():
            for status, number in found.counts.items():
                tasks.add_metric([queue, status.value], number)
            abandoned.add_metric([queue], found.abandoned)
            claimable.add_metric([queue], _seconds(found.oldest_claimable))
            running.add_metric([queue], _seconds(found.oldest_running))
        unfinished = GaugeMetricFamily("sqlqueue_batches_unfinished", "Batches that have not ended.", labels=["table"])
        since = "Seconds since the oldest batch that has not ended was created; 0 if there is none."
        oldest = GaugeMetricFamily("sqlqueue_oldest_batch_seconds", since, labels=["table"])
        for table, (number, age) in self.batches.items():
            unfinished.add_metric([table], number)
            oldest.add_metric([table], _seconds(age))
        keys = GaugeMetricFamily("sqlqueue_keys", "Keys by state, counted up to a cap.", labels=["queue", "state"])
        for queue, numbers in self.keys.items():
            for state, number in numbers.items():
                keys.add_metric([queue, state], number)
        yield from (tasks, abandoned, claimable, running, unfinished, oldest, keys)


def _seconds(age: timedelta | None) -> float:
    return 0.0 if age is None else age.total_seconds()
