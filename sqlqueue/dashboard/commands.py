"""Commands for workers, which are confirmed, checked for permission and logged like actions on queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .._support.error_text import readable
from .._support.logs import logger_of
from ..diagnostics.check import Target
from ..operations.registry import WorkerInfo, drain_workers, set_concurrency, stop_workers, workers
from .access import ON_WORKERS, Action
from .filters import Query
from .forms import fields_of, whole_number
from .requested import permitted
from .site import links_of, respond, site_of, viewer_of

logger = logger_of("sqlqueue.dashboard")
FEW = 5
"""The maximum number of worker names in a log line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """A command, and the workers to send it to."""

    action: Action
    worker: str | None
    """The ``id`` of one worker; ``None`` for all."""
    number: str
    """The number of calls at a time, as entered; if empty, as many as the handlers were registered with."""


async def confirm(request: Request) -> Response:
    """Show which workers would receive a command, and the form that sends it."""
    command = _command(request, request.query_params)
    return respond(request, "command.html", command=command, told=await _concerned(request, command))


async def act(request: Request) -> Response:
    """Send the command of a confirmed form to workers, and redirect to the page of workers."""
    command = _command(request, await fields_of(request))
    site, viewer = site_of(request), viewer_of(request)
    told = await _concerned(request, command)
    logger.info("%s: %s", viewer.name, _in_words(command, told))
    if not await site.change(_work(command, site.target)):
        raise HTTPException(409, "This worker is no longer live.")
    return RedirectResponse(links_of(request)("workers"), 303)


def _command(request: Request, fields: Query) -> WorkerCommand:
    """Return the requested command; 400 if the request names neither a worker nor all of them."""
    action = permitted(request, ON_WORKERS)
    worker = fields.get("worker", "").strip() or None
    if worker is None and fields.get("scope") != "all":
        raise HTTPException(400, "Select a worker first.")
    return WorkerCommand(action=action, worker=worker, number=fields.get("number", "").strip())


async def _concerned(request: Request, command: WorkerCommand) -> list[WorkerInfo]:
    """Return the live workers that would receive a command."""
    site = site_of(request)
    found = await site.database.run(site.time_limited(lambda session: workers(session, site.target), site.first))
    return [each for each in found if each.is_live and command.worker in (None, each.id)]


def _work(command: WorkerCommand, target: Target) -> Callable[[Session], int]:
    match command.action:
        case Action.DRAIN_WORKERS:
            return lambda session: drain_workers(session, target, command.worker)
        case Action.STOP_WORKERS:
            return lambda session: stop_workers(session, target, command.worker)
    number = whole_number(command.number) if command.number else None
    return lambda session: set_concurrency(session, target, number, command.worker)


def _in_words(command: WorkerCommand, told: list[WorkerInfo]) -> str:
    names = ", ".join(each.name for each in told[:FEW]) + (" …" if len(told) > FEW else "")
    number = f" {command.number or 'as registered'}" if command.action is Action.SET_CONCURRENCY else ""
    return readable(f"{command.action}{number}: {'all, ' if command.worker is None else ''}{names or 'none is live'}")
