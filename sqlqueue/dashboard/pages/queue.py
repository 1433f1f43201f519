"""The page of a queue: its figures, and its tasks by a filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from ..._support.error_text import key_text
from ..._support.exc import ArgumentError
from ...operations.finding import key_of
from ...operations.paging import Page, page
from ...operations.windows import SCAN, places_of
from ...queue.spec import Identity, QueueSpec
from ...queue.status import Status
from ...transaction.connection import open_
from ..charts import DAY, HOUR, Chart, Period, chart_of
from ..exposure import CELL, Exposure
from ..filters import Filter, cursor, position
from ..rendering import first_line
from ..site import Site, respond, site_of
from .kinds import by_stage
from .overview import figures_of

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


async def show(request: Request) -> Response:
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
