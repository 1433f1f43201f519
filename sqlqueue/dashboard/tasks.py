"""The pages of tasks: those of a queue, those that a search finds in all queues, and a single one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from .. import operations
from .._support.errors import ArgumentError, Claim
from .._support.texts import key_text
from ..lifecycle.kind import Cause
from ..model.companions import history_of, latches_of
from ..operations import AWAITED, Around, Bucket, Explanation, KeyState, PastAttempt, around, reported
from ..operations.filtering import exactly, identity, value, written
from ..operations.paging import SCAN, Page, find_all, key_of, page
from ..operations.reactivating import EDITABLE
from ..queue.options import Status
from ..queue.spec import Identity, QueueSpec
from ..sql import COUNTED, present
from ..transaction import open_
from .access import CELL, LONGEST, Action, Exposure
from .charts import PERIODS, Chart, Ended, Period, counts_chart, durations_chart, period_of, read_buckets
from .pages import by_stage, figures_of
from .rendering import first_line, heading
from .requests import Filter, Query, Sort, cursor, position, possible
from .site import links_of, places_of, respond, site_of, viewer_of

# -- a list of tasks by a filter --------------------------------------------------------------------------------------

ROWS = 50
SORTED = 5_000
"""The maximum number of tasks of a group of states that are sorted for a list without a filter, if no index has the
order: fewer than a filter examines, since the page may be refreshed often."""
ROLES = ("topic", "task", "stage", "message_key", "limit_key", "unique_key")
"""Columns of kinds of queues that a table of tasks shows if the queue has them."""
_OF_STATE = ("status", "priority", "available_at", "claimed_at", "finished_at", "created_at", "attempt", "max_attempts")
SHOWN = (*_OF_STATE, "claimed_by", "error", *ROLES)
"""The queue's columns in a table of tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task as shown in the table, detached from its session."""

    key: str
    own: Mapping[str, Any]
    named: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList:
    """A page of tasks."""

    spec: QueueSpec
    page: Page[Any]
    now: datetime
    """The time of the database's clock, to which ages refer."""
    named: Sequence[str]
    """The columns of the application that are shown."""
    scanned: int
    """The number of tasks of a group of states after which examining ended."""

    @property
    def roles(self) -> Sequence[str]:
        """The columns of the queue's kind that are shown."""
        return [role for role in ROLES if role in self.spec.columns]


def read_list(
    session: Session,
    exposure: Exposure,
    spec: QueueSpec,
    chosen: Filter,
    *,
    sort: Sort,
    after: str | None = None,
    before: str | None = None,
    limit: int = ROWS,
) -> TaskList:
    """Read a page of tasks.  On the first page of a search, those that have the text as a key come first."""
    adapter, state = open_(session, spec), chosen.state
    scan = SORTED if chosen.query.keys() <= {"status"} else SCAN
    order = sort.order(spec)
    start, end = (position([term.column for term in order], each) for each in (after, before))
    options = [exposure.loading(spec, SHOWN)]
    found = page(
        session,
        spec.entity,
        *chosen.criteria(spec),
        status=state,
        order=order,
        by_state=bool(chosen.search),
        scan=scan,
        after=start,
        before=end,
        limit=limit,
        options=options,
    )
    tasks = found.tasks
    if chosen.search and start is None and end is None:
        others = replace(chosen, search="").criteria(spec)
        named = find_all(session, spec.entity, exactly(spec, chosen.search), *others, limit=limit, options=options)
        matching = [task for task in named if state is None or getattr(task, spec.attributes["status"]) == state]
        tasks = list({key_of(spec, task): task for task in (*matching, *tasks)}.values())
    cut = exposure.texts(adapter, session, spec, [key_of(spec, task) for task in tasks], CELL)
    rows = [row_of(exposure, spec, task, cut) for task in tasks]
    now = present(session, spec)
    shown = replace(found, tasks=rows)
    return TaskList(spec=spec, page=shown, now=now, named=exposure.columns.get(spec.entity, ()), scanned=scan)


def row_of(exposure: Exposure, spec: QueueSpec, task: Any, cut: Mapping[Identity, Mapping[str, Any]]) -> TaskRow:
    """Return a task as a table shows it; ``cut``: the beginnings of long values."""
    key = key_of(spec, task)
    own = {role: getattr(task, spec.attributes[role]) for role in SHOWN if role in spec.attributes}
    named = exposure.named(spec, task, cut.get(key, {}), CELL)
    return TaskRow(key=key_text(key), own=_in_cells(own), named=_in_cells(named))


def _in_cells(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` as a table shows them, since they are kept for several viewers."""
    return {name: first_line(value) if isinstance(value, str) else value for name, value in values.items()}


# -- the page of a queue: its figures, and its tasks by a filter ------------------------------------------------------


KEYS = 10
"""The maximum number of keys shown of a queue."""


def read_keys(session: Session, spec: QueueSpec, after: str | None) -> list[KeyState]:
    """Return the keys of a queue that come after one, given as text: one more than a page shows."""
    start = value(spec.keyed_by, after) if after and spec.keyed_by is not None else None
    return operations.keys(session, spec.entity, first=KEYS + 1, after=start)


async def show_queue(request: Request) -> Response:
    """Show a queue, and the tasks that the filter in the URL selects."""
    site, query = site_of(request), request.query_params
    spec, exposure = site.queue(request), site.exposure
    roles = {name: role for role, name in spec.attributes.items()}
    chosen, sort, problem = Filter.of(query, exposure.filters_of(spec)), Sort(), None
    after, before = (query.get(name) for name in ("after", "before"))
    tasks: TaskList | None = None
    keys: list[KeyState] = []
    after_key = query.get("after_key")
    try:
        sort = Sort.of(query)
        if spec.keyed_by is not None:
            keys = await site.read(("keys", spec, after_key), partial(read_keys, spec=spec, after=after_key), spec)
        read = partial(read_list, exposure=exposure, spec=spec, chosen=chosen, sort=sort, after=after, before=before)
        tasks = await site.read(("tasks", spec, tuple(chosen.query.items()), sort, after, before), read, spec)
    except ArgumentError as error:
        problem = str(error)
    figures, pauses = await site.read(("figures", spec), partial(figures_of, spec=spec), spec)
    stages = await site.read(("stages", spec), partial(by_stage, spec=spec), spec) if spec.options.stages else {}
    period = period_of(request)
    read_all = partial(read_buckets, spec=spec, period=period)
    buckets = await site.read((period.name, spec), read_all, spec, lifetime=period.lifetime)
    return respond(
        request,
        "queue.html",
        status=200 if problem is None else 400,
        spec=spec,
        name=spec.name,
        states=list(Status),
        columns=[(name, heading(roles[name]) if name in roles else name) for name in exposure.filters_of(spec)],
        figures=figures,
        pauses=pauses,
        stages=stages,
        keys=keys[:KEYS],
        next_key=written(keys[KEYS - 1].key) if len(keys) > KEYS else None,
        after_key=after_key,
        counted=COUNTED,
        written=written,
        key_text=key_text,
        ended=None if buckets is None else Ended.of(buckets),
        charts=[] if buckets is None else _charts(spec, buckets, period),
        period=period,
        periods=PERIODS,
        filter=chosen,
        sort=sort,
        path=partial(links_of(request), "queue", spec.name, **chosen.query),
        actions=possible(viewer_of(request), chosen.state, abandoned=chosen.is_of_abandoned),
        problem=problem,
        tasks=tasks,
        cursor=cursor,
        is_first=after is None and before is None,
    )


def _charts(spec: QueueSpec, buckets: Sequence[Bucket], period: Period) -> list[Chart]:
    queues = {spec.name: buckets}
    times = {"running": lambda each: each.run_time, "waiting": lambda each: each.waiting_time}
    return [
        counts_chart(f"Ended {Ended.of(buckets).unit}", queues, period),
        durations_chart("Run and wait times (95th percentile)", times, queues, period),
    ]


# -- the page of a search in all queues -------------------------------------------------------------------------------

FOUND = 10
"""The maximum number of tasks shown of each queue."""


async def show_search(request: Request) -> Response:
    """Show the tasks of all queues that have a text in their key, a column of the queue's kind, their error, or a
    column that the application permits filtering by."""
    site, query = site_of(request), request.query_params
    text, specs = query.get("search", "").strip(), list(site.queues.values())
    found: list[TaskList] = []
    problem = None

    def read(session: Session, spec: QueueSpec) -> TaskList:
        chosen = Filter.of(query, site.exposure.filters_of(spec))
        return read_list(session, site.exposure, spec, chosen, sort=Sort(), limit=FOUND)

    try:
        found = await site.read_each(f"search {text}", read, specs) if text else []
    except ArgumentError as error:
        problem = str(error)
    return respond(
        request,
        "search.html",
        status=200 if problem is None else 400,
        text=text,
        problem=problem,
        found=found,
        most=FOUND,
        scanned=SCAN,
    )


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
    around: Around | None
    """What it waits for, and what waits for it."""


async def show_task(request: Request) -> Response:
    """Show a task: what it is, what happened to it, and why it is not running."""
    site = site_of(request)
    spec = site.queue(request)
    key = identity_in(request.query_params, spec)
    detail = await site.read(("task", spec, key), lambda session: _read_task(session, site.exposure, spec, key), spec)
    if detail is None:
        raise HTTPException(404, "There is no such task: it was deleted or never existed.")
    abandoned = any(reason.cause is Cause.LEASE_EXPIRED for reason in detail.why.reasons)
    may_edit = Action.EDIT in viewer_of(request).may and detail.own["status"] in EDITABLE
    return respond(
        request,
        "task.html",
        spec=spec,
        name=spec.name,
        task=detail,
        actions=possible(viewer_of(request), detail.own["status"], abandoned=abandoned),
        editable=site.exposure.editable_of(spec) if may_edit else (),
        progress=reported(detail.own.get("progress")),
        places=places_of(request),
        awaited=AWAITED,
        rest=_rest(detail.own),
        moments=TIMES,
    )


def identity_in(query: Query, spec: QueueSpec) -> Identity:
    """Return the primary key in a URL or a form; 404 for text that cannot be one."""
    try:
        return identity(spec, query.get("key", ""))
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
        around=around(session, claim) if latches_of(spec) is not None else None,
    )


def _rest(own: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """Return the columns that are shown as a plain list."""
    apart = {"status", "error", "claim_token", "progress", *TIMES}
    return [(role, value) for role, value in own.items() if role not in apart and value is not None]
