"""The page of the workers that have registered."""

from __future__ import annotations

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from ...model.registry import worker_table
from ...operations.registry import WorkerInfo, unserved, workers
from ..site import respond, site_of


async def show(request: Request) -> Response:
    """Show which workers are live, what they serve, and which queues no worker serves."""
    site = site_of(request)
    spec = site.first

    def read(session: Session) -> tuple[list[WorkerInfo], list[str]]:
        return workers(session, site.target), [model.__name__ for model in unserved(session, site.target)]

    found, without = await site.read("workers", read, spec)
    has_table = worker_table(spec.table.metadata) is not None
    return respond(request, "workers.html", workers=found, unserved=without, has_table=has_table)
