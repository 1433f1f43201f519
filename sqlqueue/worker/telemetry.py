"""Spans and metrics of a worker through OpenTelemetry's API; the application's SDK exports them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .._support.texts import error_text, traceback_text
from .._support.tracing import HEADER
from ..operations import QueueStats
from ..operations.upkeep import Crashed
from ..queue.spec import QueueSpec
from .jobs import Job, Outcome, OutcomeKind, is_signal
from .reports import Reports

_SILENT = (trace.__name__, metrics.__name__)


class Telemetry(Reports):
    """Does what :class:`.Reports` does, and records:

    a span for each call of a handler, within the trace in which the task was enqueued (``TraceMixin``);
    ``sqlqueue.task.wait`` and ``sqlqueue.task.duration``: seconds from creation to start, and in the handler;
    ``sqlqueue.tasks``: how many have ended, by outcome; ``sqlqueue.claims.lost``; ``sqlqueue.tasks.retries``: handlers
    called again because their transaction lost a conflict; ``sqlqueue.database.errors``; ``sqlqueue.rows.unreadable``:
    rows that claims have set aside because they cannot be read; ``sqlqueue.depth``: tasks by status, sampled
    periodically.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked = -math.inf
        self._heard = False
        self._tracer = trace.get_tracer("sqlqueue")
        meter = metrics.get_meter("sqlqueue")
        self._wait = meter.create_histogram("sqlqueue.task.wait", "s", "Time from a task's creation to its start.")
        self._duration = meter.create_histogram("sqlqueue.task.duration", "s", "Time in the handler.")
        self._tasks = meter.create_counter("sqlqueue.tasks", description="Tasks that ended, by outcome.")
        self._lost = meter.create_counter(
            "sqlqueue.claims.lost", description="Claims taken over, cancelled or deleted."
        )
        self._retries = meter.create_counter(
            "sqlqueue.tasks.retries", description="Handlers called again after a conflict."
        )
        self._errors = meter.create_counter(
            "sqlqueue.database.errors", description="Errors of the worker's own statements."
        )
        self._unreadable = meter.create_counter(
            "sqlqueue.rows.unreadable", description="Rows that claims have set aside because they cannot be read."
        )
        self._depth = meter.create_gauge("sqlqueue.depth", description="Tasks by status.")

    wants_depth = True

    def _is_heard(self) -> bool:
        """Return whether an SDK is installed, as of the last second.  Without one nothing is recorded."""
        now = time.monotonic()
        if now >= self._asked + 1:
            self._asked = now
            providers = trace.get_tracer_provider(), metrics.get_meter_provider()
            self._heard = not all(type(each).__module__.startswith(_SILENT) for each in providers)
        return self._heard

    def running(self, job: Job) -> AbstractContextManager[None] | None:
        return self._traced(job) if self._is_heard() else super().running(job)

    @contextmanager
    def _traced(self, job: Job) -> Iterator[None]:
        table, columns = job.handler.spec.table.fullname, job.handler.spec.attributes
        started, created = (getattr(job.task, columns[role]) for role in ("claimed_at", "created_at"))
        if started is not None:
            self._wait.record((started - created).total_seconds(), {"sqlqueue.queue": table})
        header = getattr(job.task, columns["trace_context"]) if "trace_context" in columns else None
        context = TraceContextTextMapPropagator().extract({HEADER: header}) if header else None
        with self._tracer.start_as_current_span(
            f"process {table}",
            context,
            SpanKind.CONSUMER,
            _attributes(job, table),
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

    def finished(self, job: Job, outcome: Outcome, error: BaseException | None = None) -> OutcomeKind:
        kind = super().finished(job, outcome, error)
        if self._is_heard():
            queue = {"sqlqueue.queue": job.handler.spec.table.fullname}
            self._tasks.add(1, queue | {"sqlqueue.outcome": kind})
            self._duration.record(job.seconds or 0, queue)
        return kind

    def crashed(self, spec: QueueSpec, number: int, some: Sequence[Crashed]) -> Counter[OutcomeKind]:
        kinds = super().crashed(spec, number, some)
        for kind, count in kinds.items():
            self._tasks.add(count, {"sqlqueue.queue": spec.table.fullname, "sqlqueue.outcome": kind})
        return kinds

    def lost(self, job: Job) -> None:
        super().lost(job)
        self._lost.add(1, {"sqlqueue.queue": job.handler.spec.table.fullname})

    def unreadable(self, spec: QueueSpec, number: int) -> None:
        super().unreadable(spec, number)
        if number:
            self._unreadable.add(number, {"sqlqueue.queue": spec.table.fullname})

    def retried(self, job: Job, error: BaseException | str) -> None:
        super().retried(job, error)
        self._retries.add(1, {"sqlqueue.queue": job.handler.spec.table.fullname})

    def database_error(self, what: str, error: BaseException, pause: timedelta) -> None:
        super().database_error(what, error, pause)
        self._errors.add(1)

    def broken(self, what: str, error: BaseException) -> None:
        super().broken(what, error)
        self._errors.add(1)

    def depth(self, spec: QueueSpec, stats: QueueStats) -> None:
        for status, count in stats.counts.items():
            self._depth.set(count, {"sqlqueue.queue": spec.table.fullname, "sqlqueue.status": status.value})


def _attributes(job: Job, table: str) -> dict[str, Any]:
    return {
        "messaging.system": "sqlqueue",
        "messaging.operation.type": "process",
        "messaging.destination.name": table,
        "messaging.message.id": ",".join(map(str, job.claim.identity)),
        "sqlqueue.attempt": job.claim.attempt,
    }
