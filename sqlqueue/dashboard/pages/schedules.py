"""The page of recurring tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session, load_only
from starlette.requests import Request
from starlette.responses import Response

from ..._support.error_text import key_text
from ..._support.exc import ArgumentError
from ...lifecycle.kind import recurs
from ...operations.finding import key_of
from ...operations.paging import page
from ...queue.schedules import parse
from ...queue.spec import QueueSpec
from ..rendering import first_line
from ..site import respond, site_of

ROWS = 200
RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringTask:
    """A recurring task and its next runs."""

    key: str
    status: str
    schedule: str
    runs: Sequence[datetime]
    error: str


async def show(request: Request) -> Response:
    """Show the recurring tasks of each queue, and when they run next."""
    site = site_of(request)
    specs = [spec for spec in site.queues.values() if recurs(spec)]
    found = await site.read_each("schedules", _read, specs)
    return respond(request, "schedules.html", queues=list(zip(specs, found, strict=True)), most=ROWS)


def _read(session: Session, spec: QueueSpec) -> tuple[list[RecurringTask], bool]:
    """Return recurring tasks, and whether there may be more."""
    names = spec.attributes
    shown = load_only(*(getattr(spec.entity, names[role]) for role in ("status", "schedule", "available_at", "error")))
    found = page(session, spec.entity, spec["schedule"].is_not(None), limit=ROWS, options=[shown])
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
