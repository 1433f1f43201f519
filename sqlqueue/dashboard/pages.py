"""The pages: each reads what it shows, and renders it.  A page changes nothing: changes are in :mod:`.actions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .. import operations
from ..operations import (
    ErrorGroup,
    Limit,
    QueueOverview,
    QueueStats,
    RecurringTask,
)
from ..operations.paging import SCAN
from ..operations.reactivating import RUN_NOW
from ..queue.options import Status
from ..queue.spec import QueueSpec
from ..sql import utcnow
from ..worker import HAS_PROMETHEUS, TEXT
from .charts import PERIODS, Ended, period_of, read_buckets
from .overview import figures_of
from .rendering import first_line
from .site import CAP, LIFETIME, respond, site_of

# -- pages that show all queues of a kind -----------------------------------------------------------------------------


async def _show_each(
    request: Request,
    template: str,
    read: Callable[[Session, QueueSpec], object],
    *,
    role: str | None = None,
    lifetime: float = LIFETIME,
    **content: Any,
) -> Response:
    """Show what ``read`` returns for each queue, or for each that has a column ``role``."""
    site = site_of(request)
    specs = [spec for spec in site.queues.values() if role is None or role in spec.columns]
    found = await site.read_each(template, read, specs, lifetime=lifetime)
    return respond(request, template, queues=list(zip(specs, found, strict=True)), **content)


# -- the page of failures, in groups ----------------------------------------------------------------------------------

GROUPS = 50
"""The maximum number of groups shown for each queue."""


async def show_errors(request: Request) -> Response:
    """Show the most frequent errors of each queue."""
    return await _show_each(request, "errors.html", _read_errors, lifetime=10, scanned=SCAN)


def _read_errors(session: Session, spec: QueueSpec) -> tuple[Sequence[ErrorGroup], int, int, datetime]:
    """Return the groups to show, the number of others, the number of their tasks, and the database's time."""
    found = operations.errors(session, spec.entity, cap=SCAN)
    now = session.execute(select(utcnow()), bind_arguments=spec.bind_arguments).scalar_one()
    return found[:GROUPS], len(found[GROUPS:]), sum(group.tasks for group in found[GROUPS:]), now


# -- the pages of outboxes and of pipelines: the figures of queues of one kind, in all and by stage -------------------


async def show_outboxes(request: Request) -> Response:
    """Show how far behind each relay is, and how much it published."""
    site, period = site_of(request), period_of(request)
    specs = [spec for spec in site.queues.values() if "message_key" in spec.columns]
    found = await site.read_each("figures", figures_of, specs)
    read = partial(read_buckets, period=period)
    buckets = await site.read_each(period.name, read, specs, lifetime=period.lifetime)
    ended = [None if each is None else Ended.of(each) for each in buckets]
    queues = [(spec, figures, each) for spec, (figures, _), each in zip(specs, found, ended, strict=True)]
    return respond(request, "outbox.html", queues=queues, period=period, periods=PERIODS)


async def show_pipelines(request: Request) -> Response:
    """Show how many tasks are in each stage, and in which state."""
    return await _show_each(request, "pipelines.html", _read_figures, role="stage", states=list(Status))


def _read_figures(session: Session, spec: QueueSpec) -> tuple[QueueOverview, dict[str, QueueStats]]:
    return operations.overview(session, spec.entity, cap=CAP, scan=SCAN), by_stage(session, spec)


def by_stage(session: Session, spec: QueueSpec) -> dict[str, QueueStats]:
    """Return the figures of each stage; none for a queue without stages."""
    stages = spec.options.stages
    scan = SCAN // max(len(stages), 1)  # no index covers the final tasks of a stage
    return {
        stage: operations.stats(session, spec.entity, spec["stage"] == stage, cap=CAP, scan=scan) for stage in stages
    }


# -- the page of recurring tasks --------------------------------------------------------------------------------------

SCHEDULE_ROWS = 200
"""The maximum number of recurring tasks that are shown of each queue."""


async def show_schedules(request: Request) -> Response:
    """Show the recurring tasks of each queue, and when they run next."""
    waiting = {status.value for status in RUN_NOW.states}
    return await _show_each(request, "schedules.html", _read_schedules, role="schedule", scanned=SCAN, waiting=waiting)


def _read_schedules(session: Session, spec: QueueSpec) -> tuple[list[RecurringTask], bool]:
    """Return recurring tasks, and whether there may be more."""
    found, more = operations.recurring_tasks(session, spec.entity, first=SCAN, limit=SCHEDULE_ROWS)
    return [replace(task, error=first_line(task.error) if task.error else None) for task in found], more


# -- the page of limits -----------------------------------------------------------------------------------------------

LIMIT_ROWS = 500


async def show_limits(request: Request) -> Response:
    """Show how many tasks of each key are running, and how many may."""
    return await _show_each(request, "limits.html", _read_limits, role="limit_key", most=LIMIT_ROWS)


def _read_limits(session: Session, spec: QueueSpec) -> list[Limit]:
    return operations.limits(session, spec.entity, first=LIMIT_ROWS)


# -- the metrics of all queues, for Prometheus ------------------------------------------------------------------------

COUNTED = 20_000
"""The maximum number of tasks counted in each group of states."""
METRICS_LIFETIME = 15.0
"""Seconds for which figures are reused: the interval at which workers count their queues."""


async def show_metrics(request: Request) -> Response:
    """Respond with the gauges of all queues, read once for all scrapers; 404 without the extra ``prometheus``."""
    if not HAS_PROMETHEUS:
        return PlainTextResponse("Metrics need an extra: pip install 'sqlalchemy-queue[prometheus]'\n", 404)
    from ..worker.metrics import queue_exposition  # noqa: PLC0415

    site = site_of(request)
    queues = site.queues
    found = await site.read_each("metrics", _gauges, list(queues.values()), lifetime=METRICS_LIFETIME)
    return Response(queue_exposition(dict(zip(queues, found, strict=True))), media_type=TEXT)


def _gauges(session: Session, spec: QueueSpec) -> QueueOverview:
    return operations.overview(session, spec.entity, cap=COUNTED, scan=SCAN)
