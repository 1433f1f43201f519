"""The pages of outboxes and of pipelines: the figures of queues of one kind, in all and by stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from ...operations import QueueOverview, QueueStats, overview, stats
from ...operations.windows import SCAN
from ...queue.spec import QueueSpec
from ...queue.status import Status
from ..site import CAP, respond, site_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """A queue's figures, in all and by stage."""

    name: str
    model: str
    figures: QueueOverview
    stages: Mapping[str, QueueStats]


async def outboxes(request: Request) -> Response:
    """Show how far behind each relay is."""
    return await _show(request, "outbox.html", "message_key")


async def pipelines(request: Request) -> Response:
    """Show how many tasks are in each stage, and in which state."""
    return await _show(request, "pipelines.html", "stage")


async def _show(request: Request, template: str, role: str) -> Response:
    site = site_of(request)
    specs = [spec for spec in site.queues.values() if role in spec.columns]
    found = await site.read_each(template, _read, specs)
    return respond(request, template, queues=found, states=list(Status))


def _read(session: Session, spec: QueueSpec) -> QueueFigures:
    return QueueFigures(
        name=spec.table.fullname,
        model=spec.entity.__name__,
        figures=overview(session, spec.entity, cap=CAP, scan=SCAN),
        stages=by_stage(session, spec),
    )


def by_stage(session: Session, spec: QueueSpec) -> dict[str, QueueStats]:
    """Return the figures of each stage; none for a queue without stages."""
    stages = spec.options.stages
    scan = SCAN // max(len(stages), 1)  # no index covers the final tasks of a stage
    return {stage: stats(session, spec.entity, spec["stage"] == stage, cap=CAP, scan=scan) for stage in stages}
