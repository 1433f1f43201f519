"""The metrics of all queues, for Prometheus."""

from __future__ import annotations

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ...operations import QueueOverview, overview
from ...operations.windows import SCAN
from ...queue.spec import QueueSpec
from ...worker import reporting
from ...worker.reporting.health import TEXT
from ..site import site_of

COUNTED = 20_000
"""The maximum number of tasks counted in each group of states."""
LIFETIME = 15.0
"""Seconds for which figures are reused: the interval at which workers count their queues."""


async def show(request: Request) -> Response:
    """Respond with the gauges of all queues, read once for all scrapers; 404 without the extra ``prometheus``."""
    if not reporting.HAS_PROMETHEUS:
        return PlainTextResponse("Metrics need an extra: pip install 'sqlalchemy-queue[prometheus]'\n", 404)
    from ...worker.reporting.metrics import queue_exposition  # noqa: PLC0415

    site = site_of(request)
    queues = site.queues
    found = await site.read_each("metrics", _figures, list(queues.values()), lifetime=LIFETIME)
    return Response(queue_exposition(dict(zip(queues, found, strict=True))), media_type=TEXT)


def _figures(session: Session, spec: QueueSpec) -> QueueOverview:
    return overview(session, spec.entity, cap=COUNTED, scan=SCAN)
