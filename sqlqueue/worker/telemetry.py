"""Spans and metrics of a worker through OpenTelemetry's API; the application's SDK exports them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .._support.texts import error_text, key_text, traceback_text
from .._support.tracing import HEADER
from ..operations import QueueStats
from ..queue.spec import QueueSpec
from .jobs import Job, OutcomeKind, is_signal

_COUNTERS = {
    "lost": ("sqlqueue.claims.lost", "Claims taken over, cancelled or deleted."),
    "retries": ("sqlqueue.tasks.retries", "Handlers called again after a conflict."),
    "database_errors": ("sqlqueue.database.errors", "Errors of the worker's own statements."),
    "unreadable": ("sqlqueue.rows.unreadable", "Rows that claims have set aside because they cannot be read."),
}
_SILENT = (trace.__name__, metrics.__name__)


class Telemetry:
    """Records:

    a span for each call of a handler, within the trace in which the task was enqueued, and linked to the span there
    (``TraceMixin``);
    ``sqlqueue.task.wait`` and ``sqlqueue.task.duration``: seconds from creation to start, and in the handler;
    ``sqlqueue.tasks``: how many have ended, by outcome; ``sqlqueue.claims.lost``; ``sqlqueue.tasks.retries``: handlers
    called again because their transaction lost a conflict; ``sqlqueue.database.errors``; ``sqlqueue.rows.unreadable``:
    rows that claims have set aside because they cannot be read; ``sqlqueue.depth``: tasks by status, sampled
    periodically.
    """

    def __init__(self) -> None:
        self._asked = -math.inf
        self._heard = False
        self._tracer = trace.get_tracer("sqlqueue")
        meter = metrics.get_meter("sqlqueue")
        self._wait = meter.create_histogram("sqlqueue.task.wait", "s", "Time from a task's creation to its start.")
        self._duration = meter.create_histogram("sqlqueue.task.duration", "s", "Time in the handler.")
        self._tasks = meter.create_counter("sqlqueue.tasks", description="Tasks that ended, by outcome.")
        self._counters = {
            event: meter.create_counter(name, description=text) for event, (name, text) in _COUNTERS.items()
        }
        self._errors = meter.create_counter("sqlqueue.errors", description="Attempts that failed, by error.")
        self._depth = meter.create_gauge("sqlqueue.depth", description="Tasks by status.")

    def _is_heard(self) -> bool:
        """Return whether an SDK is installed, as of the last second.  Without one nothing is recorded."""
        now = time.monotonic()
        if now >= self._asked + 1:
            self._asked = now
            providers = trace.get_tracer_provider(), metrics.get_meter_provider()
            self._heard = not all(type(each).__module__.startswith(_SILENT) for each in providers)
        return self._heard

    def running(self, job: Job, function: str | None) -> AbstractContextManager[None] | None:
        """Return a context manager that records the call of the handler, or ``None`` if there is nothing to record."""
        return self._traced(job, function) if self._is_heard() else None

    @contextmanager
    def _traced(self, job: Job, function: str | None) -> Iterator[None]:
        spec, columns = job.handler.spec, job.handler.spec.attributes
        started, created = (getattr(job.task, columns[role]) for role in ("claimed_at", "created_at"))
        if started is not None:
            self._wait.record((started - created).total_seconds(), _labels(spec, function))
        header = getattr(job.task, columns["trace_context"]) if "trace_context" in columns else None
        context = TraceContextTextMapPropagator().extract({HEADER: header}) if header else None
        links = [trace.Link(trace.get_current_span(context).get_span_context())] if context else None
        with self._tracer.start_as_current_span(
            f"process {spec.name}" + (f" {function}" if function else ""),
            context,
            SpanKind.CONSUMER,
            _attributes(job),
            links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                with suppress(BaseException):  # an error that cannot be described must not be replaced by another
                    self._record(span, error)
                raise

    def _record(self, span: trace.Span, error: Exception) -> None:
        if is_signal(error):
            return
        # without the SQL and its parameters, which str() of the exception contains
        text = {"exception.message": error_text(error), "exception.stacktrace": traceback_text(error, whole=True)}
        span.record_exception(error, text)
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))

    def count(self, event: str, spec: QueueSpec | None, function: str | None, number: int) -> None:
        """Count an event of a queue, or of the whole worker."""
        if event in self._counters:
            self._counters[event].add(number, {} if spec is None else _labels(spec, function))

    def count_outcome(
        self, kind: OutcomeKind, spec: QueueSpec, function: str | None, number: int, seconds: float | None
    ) -> None:
        """Count attempts that ended, and the time in the handler."""
        if self._is_heard():
            labels = _labels(spec, function)
            self._tasks.add(number, labels | {"sqlqueue.outcome": kind})
            if seconds is not None:
                self._duration.record(seconds, labels)

    def count_error(self, spec: QueueSpec, function: str | None, group: str, name: str, number: int) -> None:
        """Count attempts that failed, by the group of their error and the name of its class."""
        self._errors.add(number, _labels(spec, function) | {"sqlqueue.error_group": group, "error.type": name})

    def depth(self, spec: QueueSpec, stats: QueueStats) -> None:
        """Record the number of tasks by status."""
        for status, count in stats.counts.items():
            self._depth.set(count, _labels(spec, None) | {"sqlqueue.status": status.value})


def _labels(spec: QueueSpec, function: str | None) -> dict[str, Any]:
    return {"sqlqueue.queue": spec.name} | ({"sqlqueue.function": function} if function else {})


def _attributes(job: Job) -> dict[str, Any]:
    return {
        "messaging.system": "sqlqueue",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": job.handler.spec.name,
        "messaging.message.id": key_text(job.claim.identity),
        "sqlqueue.attempt": job.attempt,
    } | ({"sqlqueue.function": job.function} if job.function else {})
