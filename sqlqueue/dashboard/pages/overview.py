"""The page of all queues."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from ...operations import Pause, QueueOverview, overview, paused
from ...operations.windows import SCAN
from ...queue.spec import QueueSpec
from ..charts import HOUR, Chart, chart_of
from ..site import CAP, respond, site_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """What the overview shows of a queue."""

    name: str
    model: str
    figures: QueueOverview
    pauses: list[Pause]
    chart: Chart | None


async def show(request: Request) -> Response:
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
    return overview(session, spec.entity, cap=CAP, scan=SCAN), paused(session, spec.entity)
