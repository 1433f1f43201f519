"""The page of limits."""

from __future__ import annotations

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from ...lifecycle.kind import holding_slots
from ...operations import Limit, limits
from ...queue.spec import QueueSpec
from ..site import respond, site_of

ROWS = 500


async def show(request: Request) -> Response:
    """Show how many tasks of each key are running, and how many may."""
    site = site_of(request)
    specs = [spec for spec in site.queues.values() if holding_slots(spec) is not None]
    found = await site.read_each("limits", _read, specs)
    return respond(request, "limits.html", queues=list(zip(specs, found, strict=True)), most=ROWS)


def _read(session: Session, spec: QueueSpec) -> list[Limit]:
    return limits(session, spec.entity, first=ROWS)
