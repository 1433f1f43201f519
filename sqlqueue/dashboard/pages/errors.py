"""The page of failures, grouped by their text."""

from __future__ import annotations

from itertools import islice

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from ...operations import ErrorGroup, errors
from ...operations.windows import SCAN
from ...queue.spec import QueueSpec
from ..site import respond, site_of

GROUPS = 50
"""The maximum number of groups shown for each queue."""
FAILURES = 10_000
"""The maximum number of failures read from each queue."""


async def show(request: Request) -> Response:
    """Show the most frequent errors of each queue."""
    site = site_of(request)
    specs = list(site.queues.values())
    found = await site.read_each("errors", _read, specs, lifetime=10)
    return respond(request, "errors.html", queues=list(zip(specs, found, strict=True)), most=FAILURES, scanned=SCAN)


def _read(session: Session, spec: QueueSpec) -> list[ErrorGroup]:
    return list(islice(errors(session, spec.entity, cap=FAILURES, scan=SCAN), GROUPS))
