"""The pages: each reads what it shows, and renders it.  A page changes nothing: changes are in :mod:`.actions`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy.orm import Session, load_only
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .. import operations
from .._support.texts import key_text
from ..model.companions import latches_of, worker_table
from ..operations import Bucket, ErrorGroup, Limit, Pause, QueueOverview, QueueStats, RecurringTask, WorkerInfo
from ..operations.paging import SCAN, key_of, page
from ..operations.reactivating import RUN_NOW
from ..queue.options import Status
from ..queue.spec import QueueSpec
from ..sql import present
from ..worker import HAS_PROMETHEUS, TEXT
from .charts import PERIODS, Chart, Ended, Period, Queues, counts_chart, durations_chart, period_of, read_buckets
from .rendering import first_line
from .site import CAP, LIFETIME, respond, site_of

# -- the page of all queues: what they hold now, and what ended over a period -----------------------------------------


async def show_overview(request: Request) -> Response:
    """Show all queues, and what ended in them over the period that the URL names."""
    site, period = site_of(request), period_of(request)
    specs = list(site.queues.values())
    found = await site.read_each("figures", figures_of, specs)
    read = partial(read_buckets, period=period)
    buckets = await site.read_each(period.name, read, specs, lifetime=period.lifetime)
    rows = [
        {"spec": spec, "figures": figures, "pauses": pauses, **_ended(spec, of_queue, period)}
        for spec, (figures, pauses), of_queue in zip(specs, found, buckets, strict=True)
    ]
    known = {spec.name: of_queue for spec, of_queue in zip(specs, buckets, strict=True) if of_queue is not None}
    return respond(
        request,
        "overview.html",
        queues=rows,
        total=_sum(figures for figures, _ in found),
        ended=Ended.of(chain.from_iterable(known.values())) if known else None,
        charts=_charts(known, period),
        period=period,
        periods=PERIODS,
    )


def figures_of(session: Session, spec: QueueSpec) -> tuple[QueueOverview, list[Pause]]:
    """Read the figures of a queue and its pauses, which the page of the queue shares."""
    return operations.overview(session, spec.entity, cap=CAP, scan=SCAN), operations.paused(session, spec.entity)


def _ended(spec: QueueSpec, buckets: Sequence[Bucket] | None, period: Period) -> dict[str, Any]:
    """Return what ended in the period, and its chart; ``None`` for both if nothing says it."""
    if buckets is None:
        return {"ended": None, "chart": None}
    return {"ended": Ended.of(buckets), "chart": counts_chart(spec.name, {"": buckets}, period)}


def _charts(queues: Queues, period: Period) -> list[Chart]:
    """Draw what ended, what failed, and how late tasks began, in all queues together."""
    if not queues:
        return []
    unit = Ended.of(chain.from_iterable(queues.values())).unit
    return [
        counts_chart(f"Ended {unit}", queues, period),
        counts_chart(f"Failed {unit}", queues, period, ["failed"]),
        durations_chart("Waiting time (95th percentile)", {"waiting": lambda each: each.waiting_time}, queues, period),
    ]


def _sum(queues: Iterable[QueueOverview]) -> QueueOverview:
    """Add up the figures of queues; ages are those of the oldest."""
    every = list(queues)
    waits = [each.oldest_claimable for each in every if each.oldest_claimable is not None]
    runs = [each.oldest_running for each in every if each.oldest_running is not None]
    return QueueOverview(
        {status: sum(each[status] for each in every) for status in Status},
        sum(each.abandoned for each in every),
        frozenset().union(*(each.capped for each in every)),
        claimable=sum(each.claimable for each in every),
        limited=sum(each.limited for each in every),
        oldest_claimable=max(waits, default=None),
        oldest_running=max(runs, default=None),
    )


# -- the page of workers: which there are, what they serve, and what each runs now ------------------------------------

RUNNING = 200
"""The maximum number of running tasks that are read of each queue."""
SHOWN = 10
"""How many of them are shown of each worker; the others are folded away."""
ROLES = ("status", "claimed_by", "claimed_at", "available_at", "finished_at", "task", "topic", "stage")
"""The columns that are read of a running task, as far as its queue has them."""


class RunningTask(NamedTuple):
    """A task that is running."""

    queue: str
    key: str
    by: str
    """Who claimed it."""
    own: dict[str, Any]
    """The queue's columns, by role."""


class Running(NamedTuple):
    """The running tasks of a queue."""

    queue: str
    tasks: Sequence[RunningTask]
    more: bool
    """Whether there may be others."""
    at: datetime
    """When they were read, by the database's clock."""


async def show_workers(request: Request) -> Response:
    """Show which workers are live, what they serve and run, and which queues no worker serves."""
    site = site_of(request)

    def read(session: Session) -> tuple[list[WorkerInfo], list[str]]:
        unserved = operations.unserved(session, site.target)
        return operations.workers(session, site.target), [model.__queue_spec__.name for model in unserved]

    workers, unserved = await site.read("workers", read, site.first)
    running = await site.read_each("running", read_running, list(site.queues.values()))
    by_claimer = _by_claimer(running)
    return respond(
        request,
        "workers.html",
        workers=[(each, by_claimer.get(each.name, ())) for each in workers],
        others={name: tasks for name, tasks in by_claimer.items() if name not in {each.name for each in workers}},
        cut=[each.queue for each in running if each.more],
        shown=SHOWN,
        at=max(each.at for each in running),
        unserved=unserved,
        has_table=worker_table(site.first.table.metadata) is not None,
    )


def read_running(session: Session, spec: QueueSpec) -> Running:
    """Read the running tasks of a queue, those whose lease ends first before others."""
    names = {role: spec.attributes[role] for role in ROLES if role in spec.attributes}
    shown = load_only(*(getattr(spec.entity, name) for name in names.values()))
    found = page(session, spec.entity, status=Status.RUNNING, limit=RUNNING, options=[shown])
    owns = ({role: getattr(task, name) for role, name in names.items()} for task in found.tasks)
    tasks = [
        RunningTask(spec.name, key_text(key_of(spec, task)), str(own["claimed_by"]), own)
        for task, own in zip(found.tasks, owns, strict=True)
    ]
    return Running(spec.name, tasks, found.next is not None, present(session, spec))


def _by_claimer(queues: Iterable[Running]) -> dict[str, list[RunningTask]]:
    """Return the running tasks by claimer, those that began first before others."""
    found: defaultdict[str, list[RunningTask]] = defaultdict(list)
    for each in queues:
        for task in each.tasks:
            found[task.by].append(task)
    return {name: sorted(found[name], key=lambda task: str(task.own["claimed_at"])) for name in sorted(found)}


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
    named = {spec.entity.__name__: spec.name for spec in site_of(request).queues.values()}
    return await _show_each(request, "errors.html", _read_errors, lifetime=10, scanned=SCAN, named=named)


def _read_errors(session: Session, spec: QueueSpec) -> tuple[Sequence[ErrorGroup], int, int, datetime]:
    """Return the groups to show, the number of others, the number of their tasks, and the database's time."""
    found = operations.errors(session, spec.entity, cap=SCAN)
    now = present(session, spec)
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
    from ..worker.metrics import QueueGauges  # noqa: PLC0415

    site = site_of(request)
    queues, read = site.queues, partial(site.read_each, lifetime=METRICS_LIFETIME)
    overviews = await read("metrics", _overview, list(queues.values()))
    flows = {found.table.fullname: spec for spec in queues.values() if (found := latches_of(spec)) is not None}
    batches = await read("metrics of batches", _unfinished_batches, list(flows.values()))
    gauges = QueueGauges(dict(zip(queues, overviews, strict=True)), dict(zip(flows, batches, strict=True)))
    return Response(gauges.exposition(), media_type=TEXT)


def _overview(session: Session, spec: QueueSpec) -> QueueOverview:
    return operations.overview(session, spec.entity, cap=COUNTED, scan=SCAN)


def _unfinished_batches(session: Session, spec: QueueSpec) -> tuple[int, timedelta | None]:
    return operations.unfinished_batches(session, spec.entity)
