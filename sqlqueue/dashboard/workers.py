"""The page of workers: which there are, what they serve, and what each runs now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, load_only
from starlette.requests import Request
from starlette.responses import Response

from .. import operations
from .._support.texts import key_text
from ..model.companions import worker_table
from ..operations import WorkerInfo
from ..operations.paging import key_of, page
from ..queue.options import Status
from ..queue.spec import QueueSpec
from ..sql import utcnow
from ..transaction import open_
from .site import respond, site_of

RUNNING = 200
"""The maximum number of running tasks that are read of each queue."""
SHOWN = 10
"""How many of them are shown of each worker; the others are folded away."""
ROLES = ("status", "claimed_by", "claimed_at", "available_at", "finished_at", "task", "topic", "stage")
"""The columns that are read of a running task, as far as its queue has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A task that is running."""

    queue: str
    key: str
    by: str
    """Who claimed it."""
    own: dict[str, Any]
    """The queue's columns, by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
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
    tasks = [
        RunningTask(
            queue=spec.name,
            key=key_text(key_of(spec, task)),
            by=str(getattr(task, names["claimed_by"])),
            own={role: getattr(task, name) for role, name in names.items()},
        )
        for task in found.tasks
    ]
    at: datetime = open_(session, spec).rows.execute(session, spec, select(utcnow())).scalar_one()
    return Running(queue=spec.name, tasks=tasks, more=found.next is not None, at=at)


def _by_claimer(queues: Iterable[Running]) -> dict[str, list[RunningTask]]:
    """Return the running tasks by claimer, those that began first before others."""
    found: defaultdict[str, list[RunningTask]] = defaultdict(list)
    for each in queues:
        for task in each.tasks:
            found[task.by].append(task)
    return {name: sorted(found[name], key=lambda task: str(task.own["claimed_at"])) for name in sorted(found)}
