"""The pages: each reads what it shows, and renders it.  A page changes nothing: changes are in :mod:`.actions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy.orm import Session, load_only
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .. import operations
from .._support.errors import ArgumentError, Claim
from .._support.texts import key_text
from ..model.companions import history_of, worker_table
from ..operations import ErrorGroup, Explanation, PastAttempt, Pause, QueueOverview, QueueStats, WorkerInfo
from ..operations.filtering import identity
from ..operations.paging import SCAN, Page, find_all, key_of, page, places_of
from ..queue.options import Status
from ..queue.schedules import parse
from ..queue.spec import Identity, QueueSpec
from ..transaction import open_
from ..worker import HAS_PROMETHEUS, TEXT
from .access import CELL, LONGEST, Exposure
from .charts import DAY, HOUR, Chart, Period, chart_of
from .rendering import first_line
from .requests import Filter, cursor, position
from .site import CAP, Site, respond, site_of

# -- the page of all queues -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """What the overview shows of a queue."""

    name: str
    model: str
    figures: QueueOverview
    pauses: list[Pause]
    chart: Chart | None


async def show_overview(request: Request) -> Response:
    """Show all queues."""
    site = site_of(request)
    specs = list(site.queues.values())
    found = await site.read_each("figures", figures_of, specs)
    charts = await site.read_each(
        "hour", lambda session, spec: chart_of(session, spec, HOUR), specs, lifetime=HOUR.lifetime
    )
    queues = [
        QueueSummary(name=spec.table.fullname, model=spec.entity.__name__, figures=figures, pauses=pauses, chart=chart)
        for spec, (figures, pauses), chart in zip(specs, found, charts, strict=True)
    ]
    return respond(request, "overview.html", queues=queues)


def figures_of(session: Session, spec: QueueSpec) -> tuple[QueueOverview, list[Pause]]:
    """Read the figures of a queue and its pauses, which the page of the queue shares."""
    return operations.overview(session, spec.entity, cap=CAP, scan=SCAN), operations.paused(session, spec.entity)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTable:
    """A page of tasks."""

    rows: Sequence[TaskRow] = ()
    next: str | None = None
    previous: str | None = None
    is_cut: bool = False
    """Whether more rows may match than those that were examined."""


async def show_queue(request: Request) -> Response:
    """Show a queue, and the tasks that the filter in the URL selects."""
    site = site_of(request)
    spec = site.queue(request)
    tasks = await _tasks(request, site, spec)
    return respond(
        request,
        "queue.html",
        status=200 if tasks["problem"] is None else 400,
        spec=spec,
        name=spec.table.fullname,
        states=list(Status),
        **_columns(site.exposure, spec),
        **await _figures(site, spec),
        **tasks,
    )


async def _tasks(request: Request, site: Site, spec: QueueSpec) -> dict[str, Any]:
    """Return the values that the template needs for the filter and the tasks that it selects."""
    chosen, problem = Filter.of(request.query_params, site.exposure.filters_of(spec)), None
    after, before = (request.query_params.get(name) for name in ("after", "before"))
    table = TaskTable()
    try:
        table = await _table(site, spec, chosen, after, before)
    except ArgumentError as error:
        problem = str(error)
    is_first = after is None and before is None
    return {"filter": chosen, "problem": problem, "tasks": table, "is_first": is_first, "scanned": SCAN}


async def _table(site: Site, spec: QueueSpec, chosen: Filter, after: str | None, before: str | None) -> TaskTable:
    criteria, state = chosen.criteria(spec), chosen.state

    def read(session: Session) -> TaskTable:
        adapter = open_(session, spec)
        columns = places_of(adapter, spec, state)
        start, end = (position(columns, each) for each in (after, before))
        options = [site.exposure.loading(spec, SHOWN)]
        found = page(
            session, spec.entity, *criteria, status=state, after=start, before=end, limit=ROWS, options=options
        )
        cut = site.exposure.texts(adapter, session, spec, [key_of(spec, task) for task in found.tasks], CELL)
        return _shown(site.exposure, spec, found, cut)

    key = ("tasks", spec, tuple(chosen.query.items()), after, before)
    return await site.read(key, read, spec)


def _shown(
    exposure: Exposure, spec: QueueSpec, found: Page[Any], cut: Mapping[Identity, Mapping[str, Any]]
) -> TaskTable:
    rows = []
    for task in found.tasks:
        key = key_of(spec, task)
        own = {role: getattr(task, spec.attributes[role]) for role in SHOWN if role in spec.attributes}
        named = exposure.named(spec, task, cut.get(key, {}), CELL)
        rows.append(TaskRow(key=key_text(key), own=_in_cells(own), named=_in_cells(named)))
    return TaskTable(rows=rows, next=cursor(found.next), previous=cursor(found.previous), is_cut=found.is_cut)


def _in_cells(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` as a table shows them, since they are kept for several viewers."""
    return {name: first_line(value) if isinstance(value, str) else value for name, value in values.items()}


def _columns(exposure: Exposure, spec: QueueSpec) -> dict[str, Any]:
    """Return the columns that tasks are filtered by, and those that the table shows."""
    return {
        "columns": exposure.filters_of(spec),
        "named": exposure.columns.get(spec.entity, ()),
        "roles": [role for role in ROLES if role in spec.columns],
    }


async def _figures(site: Site, spec: QueueSpec) -> dict[str, Any]:
    """Return the figures of the queue, its pauses and its charts."""
    figures, pauses = await site.read(("figures", spec), partial(figures_of, spec=spec), spec)
    stages = await site.read(("stages", spec), partial(by_stage, spec=spec), spec) if spec.options.stages else {}
    charts = [await _chart(site, spec, period) for period in (HOUR, DAY)]
    shown = [chart for chart in charts if chart is not None]
    return {"figures": figures, "pauses": pauses, "stages": stages, "charts": shown}


async def _chart(site: Site, spec: QueueSpec, period: Period) -> Chart | None:
    read = partial(chart_of, spec=spec, period=period)
    return await site.read((period.name, spec), read, spec, lifetime=period.lifetime)


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
    return respond(
        request, "task.html", spec=spec, name=spec.table.fullname, task=detail, rest=_rest(detail.own), times=TIMES
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
        named=exposure.named(spec, task, cut.get(key, {}), LONGEST),
        link=exposure.link_to(task),
        why=operations.why(session, claim),
        past=operations.history(session, claim, limit=ATTEMPTS) if history_of(spec.table.metadata) is not None else (),
    )


def _rest(own: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """Return the columns that are shown as a plain list."""
    apart = {"status", "error", "claim_token", *TIMES}
    return [(role, value) for role, value in own.items() if role not in apart and value is not None]


# -- the page of failures, grouped by their text ----------------------------------------------------------------------

GROUPS = 50
"""The maximum number of groups shown for each queue."""
FAILURES = 10_000
"""The maximum number of failures read from each queue."""


async def show_errors(request: Request) -> Response:
    """Show the most frequent errors of each queue."""
    site = site_of(request)
    specs = list(site.queues.values())
    found = await site.read_each("errors", _read_errors, specs, lifetime=10)
    return respond(request, "errors.html", queues=list(zip(specs, found, strict=True)), most=FAILURES, scanned=SCAN)


def _read_errors(session: Session, spec: QueueSpec) -> list[ErrorGroup]:
    return list(islice(operations.errors(session, spec.entity, cap=FAILURES, scan=SCAN), GROUPS))


# -- the pages of outboxes and of pipelines: the figures of queues of one kind, in all and by stage -------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """A queue's figures, in all and by stage."""

    name: str
    model: str
    figures: QueueOverview
    stages: Mapping[str, QueueStats]


async def show_outboxes(request: Request) -> Response:
    """Show how far behind each relay is."""
    return await _show_kind(request, "outbox.html", "message_key")


async def show_pipelines(request: Request) -> Response:
    """Show how many tasks are in each stage, and in which state."""
    return await _show_kind(request, "pipelines.html", "stage")


async def _show_kind(request: Request, template: str, role: str) -> Response:
    site = site_of(request)
    specs = [spec for spec in site.queues.values() if role in spec.columns]
    found = await site.read_each(template, _read_figures, specs)
    return respond(request, template, queues=found, states=list(Status))


def _read_figures(session: Session, spec: QueueSpec) -> QueueFigures:
    return QueueFigures(
        name=spec.table.fullname,
        model=spec.entity.__name__,
        figures=operations.overview(session, spec.entity, cap=CAP, scan=SCAN),
        stages=by_stage(session, spec),
    )


def by_stage(session: Session, spec: QueueSpec) -> dict[str, QueueStats]:
    """Return the figures of each stage; none for a queue without stages."""
    stages = spec.options.stages
    scan = SCAN // max(len(stages), 1)  # no index covers the final tasks of a stage
    return {
        stage: operations.stats(session, spec.entity, spec["stage"] == stage, cap=CAP, scan=scan) for stage in stages
    }


# -- the page of recurring tasks --------------------------------------------------------------------------------------

SCHEDULE_ROWS = 200
RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringTask:
    """A recurring task and its next runs."""

    key: str
    status: str
    schedule: str
    runs: Sequence[datetime]
    error: str


async def show_schedules(request: Request) -> Response:
    """Show the recurring tasks of each queue, and when they run next."""
    site = site_of(request)
    specs = [spec for spec in site.queues.values() if spec.recurs]
    found = await site.read_each("schedules", _read_schedules, specs)
    return respond(request, "schedules.html", queues=list(zip(specs, found, strict=True)), most=SCHEDULE_ROWS)


def _read_schedules(session: Session, spec: QueueSpec) -> tuple[list[RecurringTask], bool]:
    """Return recurring tasks, and whether there may be more."""
    names = spec.attributes
    shown = load_only(*(getattr(spec.entity, names[role]) for role in ("status", "schedule", "available_at", "error")))
    found = page(session, spec.entity, spec["schedule"].is_not(None), limit=SCHEDULE_ROWS, options=[shown])
    tasks = [
        RecurringTask(
            key=key_text(key_of(spec, task)),
            status=getattr(task, names["status"]),
            schedule=(schedule := getattr(task, names["schedule"])),
            runs=list(_runs(schedule, getattr(task, names["status"]), getattr(task, names["available_at"]))),
            error=first_line(getattr(task, names["error"])),
        )
        for task in reversed(found.tasks)
    ]
    return tasks, found.next is not None


def _runs(schedule: str, status: str, moment: datetime) -> Iterator[datetime]:
    """Yield the next runs of a waiting task."""
    if status not in ("scheduled", "available", "retryable") or not isinstance(moment, datetime):
        return
    with suppress(ArgumentError):  # another program may have stored an invalid schedule
        for _ in range(RUNS):
            yield moment
            moment = parse(schedule).after(moment)


# -- the page of limits -----------------------------------------------------------------------------------------------

LIMIT_ROWS = 500


async def show_limits(request: Request) -> Response:
    """Show how many tasks of each key are running, and how many may."""
    site = site_of(request)
    specs = [spec for spec in site.queues.values() if spec.is_limited]
    found = await site.read_each(
        "limits", lambda session, spec: operations.limits(session, spec.entity, first=LIMIT_ROWS), specs
    )
    return respond(request, "limits.html", queues=list(zip(specs, found, strict=True)), most=LIMIT_ROWS)


# -- the page of the workers that have registered ---------------------------------------------------------------------


async def show_workers(request: Request) -> Response:
    """Show which workers are live, what they serve, and which queues no worker serves."""
    site = site_of(request)
    spec = site.first

    def read(session: Session) -> tuple[list[WorkerInfo], list[str]]:
        unserved = operations.unserved(session, site.target)
        return operations.workers(session, site.target), [model.__name__ for model in unserved]

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
