"""The pages: each reads what it shows, and renders it.  A page changes nothing: changes are in :mod:`.actions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .. import operations
from .._support.errors import ArgumentError, Claim
from .._support.texts import key_text
from ..lifecycle.kind import Cause
from ..model.companions import history_of, worker_table
from ..operations import (
    Bucket,
    ErrorGroup,
    Explanation,
    Limit,
    PastAttempt,
    QueueOverview,
    QueueStats,
    RecurringTask,
    WorkerInfo,
)
from ..operations.filtering import identity
from ..operations.paging import SCAN, Page, find_all, key_of, page, places_of
from ..operations.reactivating import RUN_NOW
from ..queue.options import Status
from ..queue.spec import Identity, QueueSpec
from ..transaction import open_
from ..worker import HAS_PROMETHEUS, TEXT
from .access import CELL, LONGEST, Exposure
from .charts import PERIODS, Chart, Ended, Period, counts_chart, durations_chart, period_of, read_buckets
from .overview import figures_of
from .rendering import first_line
from .requests import Filter, cursor, position, possible
from .site import CAP, LIFETIME, Site, respond, site_of, viewer_of

# -- the page of a queue: its figures, and its tasks by a filter ------------------------------------------------------

ROWS = 50
ROLES = ("topic", "task", "stage", "message_key", "limit_key")
"""Columns of kinds of queues that a table of tasks shows if the queue has them."""
SHOWN = ("status", "attempt", "max_attempts", "available_at", "claimed_by", "error", *ROLES)
"""The queue's columns in a table of tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task as shown in the table, detached from its session."""

    key: str
    own: Mapping[str, Any]
    named: Mapping[str, str | None]


async def show_queue(request: Request) -> Response:
    """Show a queue, and the tasks that the filter in the URL selects."""
    site = site_of(request)
    spec, exposure = site.queue(request), site.exposure
    chosen, problem = Filter.of(request.query_params, exposure.filters_of(spec)), None
    after, before = (request.query_params.get(name) for name in ("after", "before"))
    tasks: Page[Any] = Page(tasks=(), next=None, previous=None, is_cut=False)
    try:
        tasks = await _tasks(site, spec, chosen, after, before)
    except ArgumentError as error:
        problem = str(error)
    figures, pauses = await site.read(("figures", spec), partial(figures_of, spec=spec), spec)
    stages = await site.read(("stages", spec), partial(by_stage, spec=spec), spec) if spec.options.stages else {}
    period = period_of(request)
    read = partial(read_buckets, spec=spec, period=period)
    buckets = await site.read((period.name, spec), read, spec, lifetime=period.lifetime)
    return respond(
        request,
        "queue.html",
        status=200 if problem is None else 400,
        spec=spec,
        name=spec.name,
        states=list(Status),
        columns=exposure.filters_of(spec),
        named=exposure.columns.get(spec.entity, ()),
        roles=[role for role in ROLES if role in spec.columns],
        figures=figures,
        pauses=pauses,
        stages=stages,
        ended=None if buckets is None else Ended.of(buckets),
        charts=[] if buckets is None else _charts(spec, buckets, period),
        period=period,
        periods=PERIODS,
        filter=chosen,
        problem=problem,
        tasks=tasks,
        cursor=cursor,
        is_first=after is None and before is None,
        scanned=SCAN,
    )


async def _tasks(site: Site, spec: QueueSpec, chosen: Filter, after: str | None, before: str | None) -> Page[Any]:
    criteria, state, exposure = chosen.criteria(spec), chosen.state, site.exposure

    def read(session: Session) -> Page[Any]:
        adapter = open_(session, spec)
        columns = places_of(adapter, spec, state)
        start, end = (position(columns, each) for each in (after, before))
        options = [exposure.loading(spec, SHOWN)]
        found = page(
            session, spec.entity, *criteria, status=state, after=start, before=end, limit=ROWS, options=options
        )
        cut = exposure.texts(adapter, session, spec, [key_of(spec, task) for task in found.tasks], CELL)
        return replace(found, tasks=[_row(exposure, spec, task, cut) for task in found.tasks])

    key = ("tasks", spec, tuple(chosen.query.items()), after, before)
    return await site.read(key, read, spec)


def _row(exposure: Exposure, spec: QueueSpec, task: Any, cut: Mapping[Identity, Mapping[str, Any]]) -> TaskRow:
    key = key_of(spec, task)
    own = {role: getattr(task, spec.attributes[role]) for role in SHOWN if role in spec.attributes}
    named = exposure.named(spec, task, cut.get(key, {}), CELL)
    return TaskRow(key=key_text(key), own=_in_cells(own), named=_in_cells(named))


def _in_cells(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` as a table shows them, since they are kept for several viewers."""
    return {name: first_line(value) if isinstance(value, str) else value for name, value in values.items()}


def _charts(spec: QueueSpec, buckets: Sequence[Bucket], period: Period) -> list[Chart]:
    queues = {spec.name: buckets}
    times = {"running": lambda each: each.run_time, "waiting": lambda each: each.waiting_time}
    return [
        counts_chart(f"Ended {Ended.of(buckets).unit}", queues, period),
        durations_chart("Run and wait times (95th percentile)", times, queues, period),
    ]


# -- the page of a task -----------------------------------------------------------------------------------------------

ATTEMPTS = 50
TIMES = ("created_at", "claimed_at", "available_at", "finished_at", "scheduled_for")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """A task as shown on its page, detached from its session."""

    key: str
    own: Mapping[str, Any]
    named: Mapping[str, str | None]
    link: str | None
    why: Explanation
    past: Sequence[PastAttempt]
    """The finished attempts, the latest first; none without a :class:`.HistoryMixin`."""


async def show_task(request: Request) -> Response:
    """Show a task: what it is, what happened to it, and why it is not running."""
    site = site_of(request)
    spec = site.queue(request)
    key = identity_in(request, spec)
    detail = await site.read(("task", spec, key), lambda session: _read_task(session, site.exposure, spec, key), spec)
    if detail is None:
        raise HTTPException(404, "There is no such task: it was deleted or never existed.")
    abandoned = any(reason.cause is Cause.LEASE_EXPIRED for reason in detail.why.reasons)
    return respond(
        request,
        "task.html",
        spec=spec,
        name=spec.name,
        task=detail,
        actions=possible(viewer_of(request), detail.own["status"], abandoned=abandoned),
        rest=_rest(detail.own),
        moments=TIMES,
    )


def identity_in(request: Request, spec: QueueSpec) -> Identity:
    """Return the primary key in a URL; 404 for text that cannot be one."""
    try:
        return identity(spec, request.query_params.get("key", ""))
    except ArgumentError as error:
        raise HTTPException(404, str(error)) from error


def _read_task(session: Session, exposure: Exposure, spec: QueueSpec, key: Identity) -> Detail | None:
    found = find_all(session, spec.entity, spec.key(key), options=[exposure.loading(spec, spec.attributes)])
    if not found:
        return None
    (task,), claim = found, Claim(spec.entity, key, attempt=0)
    cut = exposure.texts(open_(session, spec), session, spec, [key], LONGEST)
    return Detail(
        key=key_text(key),
        own=exposure.own(spec, task),
        named=exposure.named(spec, task, cut.get(key, {}), LONGEST, indent=2),
        link=exposure.link_to(task),
        why=operations.why(session, claim),
        past=operations.history(session, claim, limit=ATTEMPTS) if history_of(spec.table.metadata) is not None else (),
    )


def _rest(own: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """Return the columns that are shown as a plain list."""
    apart = {"status", "error", "claim_token", *TIMES}
    return [(role, value) for role, value in own.items() if role not in apart and value is not None]


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


# -- the page of failures, grouped by their text ----------------------------------------------------------------------

GROUPS = 50
"""The maximum number of groups shown for each queue."""
FAILURES = 10_000
"""The maximum number of failures read from each queue."""


async def show_errors(request: Request) -> Response:
    """Show the most frequent errors of each queue."""
    return await _show_each(request, "errors.html", _read_errors, lifetime=10, most=FAILURES, scanned=SCAN)


def _read_errors(session: Session, spec: QueueSpec) -> list[ErrorGroup]:
    return list(islice(operations.errors(session, spec.entity, cap=FAILURES, scan=SCAN), GROUPS))


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


# -- the page of the workers that have registered ---------------------------------------------------------------------


async def show_workers(request: Request) -> Response:
    """Show which workers are live, what they serve, and which queues no worker serves."""
    site = site_of(request)
    spec = site.first

    def read(session: Session) -> tuple[list[WorkerInfo], list[str]]:
        unserved = operations.unserved(session, site.target)
        return operations.workers(session, site.target), [model.__queue_spec__.name for model in unserved]

    found, without = await site.read("workers", read, spec)
    has_table = worker_table(spec.table.metadata) is not None
    return respond(request, "workers.html", workers=found, unserved=without, has_table=has_table)


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
