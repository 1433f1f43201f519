"""Actions of viewers: each is confirmed, checked for permission, logged, and carried out by the library's
operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .._support.error_text import readable
from .._support.logs import logger_of
from ..operations import pause, reschedule, resume, set_limit, stats
from ..operations.windows import SCAN
from .access import ON_TASKS, Action, Viewer
from .changes import Change
from .forms import fields_of, whole_number
from .requested import RequestedAction, checked, requested_action
from .site import CAP, links_of, respond, site_of, viewer_of

logger = logger_of("sqlqueue.dashboard")
LONGEST_NAME = 128


async def confirm(request: Request) -> Response:
    """Show what an action would change, and the form that confirms it."""
    what = requested_action(request, request.query_params)
    number, parts, is_capped = await _counted(request, what) if what.action in ON_TASKS else (None, [], False)
    return respond(
        request,
        "confirm.html",
        what=what,
        name=what.spec.table.fullname,
        number=number,
        parts=parts,
        is_capped=is_capped,
        scanned=SCAN,
        hidden=[(name, text) for name, text in request.query_params.multi_items() if name not in ("reason",)],
        back=_back(request, what),
    )


async def act(request: Request) -> Response:
    """Carry out a confirmed action, and redirect to the page that it came from."""
    what = requested_action(request, await fields_of(request))
    if what.action in ON_TASKS:
        return await _change_tasks(request, what)
    site, viewer = site_of(request), viewer_of(request)
    logger.info("%s: %s", viewer.name, _in_words(what))
    await site.change(_work(what, viewer))
    return RedirectResponse(_back(request, what), 303)


async def stop(request: Request) -> Response:
    """Stop a change after its current batch."""
    site, viewer = site_of(request), viewer_of(request)
    change = site.changes.find(request.path_params["id"], viewer)
    if change is None:
        raise HTTPException(404, "Nothing was stopped: the change is not running in this server process. Try again.")
    change.stop = True
    logger.info("%s: stop: %s", viewer.name, change.what)
    return RedirectResponse(f"{links_of(request)()}?change={change.id}", 303)


async def _change_tasks(request: Request, what: RequestedAction) -> Response:
    site, viewer, where = site_of(request), viewer_of(request), checked(what)
    number, _, is_capped = await _counted(request, what)
    change = Change(what=_in_words(what), by=viewer, total=None if is_capped else number)
    batches = partial(what.change.in_batches, spec=what.spec, where=where)
    await site.changes.begin(change, site.database, batches, site.snapshots.forget)
    return RedirectResponse(_back(request, what, change.id), 303)


async def _counted(request: Request, what: RequestedAction) -> tuple[int, list[tuple[str, int]], bool]:
    """Return how many tasks would be changed, by state, and whether counting stopped at the cap."""
    site, spec, change, where = site_of(request), what.spec, what.change, checked(what)

    def read(session: Session) -> tuple[int, list[tuple[str, int]], bool]:
        scan = None if what.keys else SCAN  # keys are found by the primary key
        found = stats(session, spec.entity, *where, change.affected(spec), cap=CAP, scan=scan)
        states = [(str(status), number) for status, number in found.counts.items() if number]
        possible = what.change.states if what.filter.state is None else {what.filter.state}
        return found.total, states, not found.capped.isdisjoint(possible)

    return await site.database.run(site.time_limited(read, spec))


def _work(what: RequestedAction, viewer: Viewer) -> Callable[[Session], object]:
    entity, topic, key = what.spec.entity, what.text("topic") or None, what.text("limit_key")
    reason, by = what.text("reason") or None, viewer.name[:LONGEST_NAME]
    match what.action:
        case Action.PAUSE:
            return lambda session: pause(session, entity, topic, reason=reason, paused_by=by)
        case Action.RESUME:
            return lambda session: resume(session, entity, topic)
        case Action.SET_LIMIT:
            number = whole_number(what.text("limit"))
            return lambda session: set_limit(session, entity, key, number)
    where, schedule = checked(what), what.text("schedule") or None
    if not what.keys:
        raise HTTPException(400, "Select tasks first.")
    return lambda session: reschedule(session, entity, *where, schedule=schedule)


def _back(request: Request, what: RequestedAction, change: str | None = None) -> str:
    """Return the page to which an action redirects: never a URL from the request."""
    link, name = links_of(request), what.spec.table.fullname
    match what.action:
        case Action.SET_LIMIT:
            return link("limits")
        case Action.RESCHEDULE:
            return link("schedules")
        case Action.PAUSE | Action.RESUME:
            return link("queue", name)
    if len(what.keys) == 1:
        return link("queue", name, "task", key=what.keys[0], change=change)
    return link("queue", name, **what.filter.query, change=change)


def _in_words(what: RequestedAction) -> str:
    name = what.spec.entity.__name__
    if what.action not in ON_TASKS:
        told = {key: text for key, text in what.texts.multi_items() if text}
        return readable(f"{what.action} {name}: {told}")
    tasks = f"{', '.join(what.keys[:5])}{' …' if len(what.keys) > 5 else ''}" if what.keys else f"{what.filter.query}"  # noqa: PLR2004
    reason = f": {what.text('reason')}" if what.text("reason") else ""
    return readable(f"{what.action} {name} {tasks or 'all'}{reason}")
