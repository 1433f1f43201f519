"""Actions on queues and commands for workers: confirmed, checked for permission, logged, and carried out."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote

from sqlalchemy import JSON, null
from sqlalchemy.orm import Session, load_only
from starlette.datastructures import MultiDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .. import operations
from .._support.errors import ArgumentError
from .._support.texts import key_text, logger_of, readable
from ..model.declaration import Target
from ..operations import WorkerInfo, WorkerState
from ..operations.filtering import age, column, value
from ..operations.paging import SCAN, Damaged, find_all
from ..operations.reactivating import EDITABLE, set_value
from ..queue.options import Rate
from ..queue.spec import Identity, QueueSpec
from .access import ON_WORKERS, Action, Viewer
from .rendering import told
from .requests import CHANGES, Query, RequestedAction, permitted, requested_action
from .site import CAP, THEME, THEMES, Change, links_of, respond, site_of, viewer_of
from .tasks import identity_in

# -- actions on queues and tasks: each is confirmed, checked for permission, logged, and carried out ------------------

logger = logger_of("sqlqueue.dashboard")
LONGEST_NAME = 128
FEW = 5
"""The maximum number of tasks or workers that a log line names."""


_ENTERED = ("reason", "priority", "time")
"""The fields of a form that say how tasks are to be changed."""


async def confirm(request: Request) -> Response:
    """Show what an action would change, and the form that confirms it."""
    what = requested_action(request, request.query_params)
    number, parts, is_capped = await _counted(request, what) if what.action in CHANGES else (None, [], False)
    return respond(
        request,
        "confirm.html",
        what=what,
        name=what.spec.name,
        number=number,
        parts=parts,
        is_capped=is_capped,
        scanned=SCAN,
        hidden=[(name, text) for name, text in request.query_params.multi_items() if name not in _ENTERED],
        back=_back(request, what),
    )


async def act(request: Request) -> Response:
    """Carry out a confirmed action, and redirect to the page that it came from."""
    what = requested_action(request, await fields_of(request))
    if what.action in CHANGES:
        return await _change_tasks(request, what)
    site, viewer = site_of(request), viewer_of(request)
    logger.info("%s: %s", viewer.name, _action_text(what))
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
    site, viewer = site_of(request), viewer_of(request)
    batches = partial(what.change.in_batches, chosen=what.chosen)
    number, _, is_capped = await _counted(request, what)
    change = Change(what=_action_text(what), by=viewer, total=None if is_capped else number)
    await site.begin(change, batches)
    return RedirectResponse(_back(request, what, change.id), 303)


async def _counted(request: Request, what: RequestedAction) -> tuple[int, list[tuple[str, int]], bool]:
    """Return how many tasks would be changed, by state, and whether counting stopped at the cap."""
    site, change, chosen = site_of(request), CHANGES[what.action], what.chosen

    def read(session: Session) -> tuple[int, list[tuple[str, int]], bool]:
        scan = None if what.keys else SCAN  # keys are found by the primary key
        possible = change.states if what.filter.state is None else {what.filter.state}
        counts, is_capped = Counter[str](), False
        for spec, where in chosen.items():
            found = operations.stats(session, spec.entity, *where, change.affected(spec), cap=CAP, scan=scan)
            counts.update({str(status): number for status, number in found.counts.items()})
            is_capped |= not found.capped.isdisjoint(possible)
        return counts.total(), [(status, number) for status, number in counts.items() if number], is_capped

    return await site.database.run(site.time_limited(read, what.spec))


def _work(what: RequestedAction, viewer: Viewer) -> Callable[[Session], object]:
    entity, topic, key = what.spec.entity, what.text("topic") or None, what.text("limit_key")
    reason, by = what.text("reason") or None, viewer.name[:LONGEST_NAME]
    match what.action:
        case Action.PAUSE:
            part = _key_to_pause(what)
            return lambda session: operations.pause(session, entity, topic, key=part, reason=reason, paused_by=by)
        case Action.RESUME:
            part = _key_to_pause(what)
            return lambda session: operations.resume(session, entity, topic, key=part)
        case Action.SET_LIMIT:
            number = whole_number(what.text("limit"))
            return lambda session: operations.set_limit(session, entity, key, number)
        case Action.SET_RATE:
            starts, per = what.text("starts"), what.text("per")
            return lambda session: operations.set_rate(session, entity, key, _rate(starts, per))
    where, schedule = what.chosen[what.spec], what.text("schedule") or None
    if not what.keys:
        raise HTTPException(400, "Select tasks first.")
    if what.action is Action.UNSCHEDULE:
        return lambda session: operations.unschedule(session, entity, *where)
    return lambda session: operations.reschedule(session, entity, *where, schedule=schedule)


def _rate(starts: str, per: str) -> Rate | None:
    return Rate(whole_number(starts), per=age(per)) if starts or per else None


def _key_to_pause(what: RequestedAction) -> Any:
    """Return the key of the queue that the form gives, or the ellipsis if it gives none; 400 if it is not one."""
    text, column = what.texts.get("of_key"), what.spec.keyed_by
    try:
        return value(column, text) if text and column is not None else text or ...
    except ArgumentError as error:
        raise HTTPException(400, str(error)) from error


def _back(request: Request, what: RequestedAction, change: str | None = None) -> str:
    """Return the page to which an action redirects: never a URL from the request."""
    link, name = links_of(request), what.spec.name
    match what.action:
        case Action.SET_LIMIT | Action.SET_RATE:
            return link("limits")
        case Action.RESCHEDULE | Action.UNSCHEDULE:
            return link("schedules")
        case Action.PAUSE | Action.RESUME:
            return link("queue", name)
    if len(what.keys) == 1:
        return link("queue", name, "task", key=what.keys[0], change=change)
    if what.whole:
        return link("batch", key=what.filter.batch, change=change)
    return link("queue", name, **what.filter.query, change=change)


def _action_text(what: RequestedAction) -> str:
    name = what.name
    if what.action not in CHANGES:
        return readable(f"{what.action} {name}: {_pairs(what.texts.multi_items())}")
    if what.keys:
        tasks = f" {', '.join(what.keys[:FEW])}{' …' if len(what.keys) > FEW else ''}"
    elif what.whole:
        tasks = ""
    else:
        tasks = f" where {_pairs(what.filter.query.items())}" if what.filter.query else " all"
    given = next((text for field in _ENTERED if (text := what.text(field))), "")
    return readable(f"{what.action} {name}{tasks}{': ' if given else ''}{given}")


def _pairs(texts: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{key} = {text}" for key, text in texts if text)


# -- commands for workers, which are confirmed, checked for permission and logged like actions on queues --------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """A command, and the workers to send it to."""

    action: Action
    worker: str | None
    """The ``id`` of one worker; ``None`` for all."""
    number: str
    """The number of calls at a time, as entered; if empty, as many as the handlers were registered with."""

    @property
    def releases(self) -> bool:
        """Whether it releases the tasks of a silent worker, instead of being sent to one that is not."""
        return self.action is Action.RELEASE_WORKERS


async def confirm_command(request: Request) -> Response:
    """Show which workers a command concerns, and the form that sends it."""
    command = _command(request, request.query_params)
    return respond(request, "command.html", command=command, told=await _concerned(request, command))


async def send_command(request: Request) -> Response:
    """Send the command of a confirmed form to workers, and redirect to the page of workers."""
    command = _command(request, await fields_of(request))
    site, viewer = site_of(request), viewer_of(request)
    told = await _concerned(request, command)
    logger.info("%s: %s", viewer.name, _command_text(command, told))
    if not told:
        raise HTTPException(409, "This worker is not silent." if command.releases else "This worker is no longer live.")
    await site.change(_sending(command, site.target))
    return RedirectResponse(links_of(request)("workers"), 303)


def _command(request: Request, fields: Query) -> WorkerCommand:
    """Return the requested command; 400 if the request names neither a worker nor all of them."""
    action = permitted(request, ON_WORKERS)
    worker = fields.get("worker", "").strip() or None
    if worker is None and (fields.get("scope") != "all" or action is Action.RELEASE_WORKERS):
        raise HTTPException(400, "Select a worker first.")
    return WorkerCommand(action=action, worker=worker, number=fields.get("number", "").strip())


async def _concerned(request: Request, command: WorkerCommand) -> list[WorkerInfo]:
    """Return the workers that a command concerns: silent ones whose tasks it releases, or others that receive it."""
    site = site_of(request)
    read = site.time_limited(lambda session: operations.workers(session, site.target), site.first)
    found = await site.database.run(read)
    named = (each for each in found if command.worker in (None, each.id))
    return [each for each in named if (each.state is WorkerState.SILENT) is command.releases]


_SENDING: Mapping[Action, Callable[[Session, Target, Any], int]] = {
    Action.DRAIN_WORKERS: operations.drain_workers,
    Action.STOP_WORKERS: operations.stop_workers,
    Action.RELEASE_WORKERS: operations.release_workers,
}


def _sending(command: WorkerCommand, target: Target) -> Callable[[Session], int]:
    if (send := _SENDING.get(command.action)) is not None:
        return lambda session: send(session, target, command.worker)
    number = whole_number(command.number) if command.number else None
    return lambda session: operations.set_concurrency(session, target, number, command.worker)


def _command_text(command: WorkerCommand, told: list[WorkerInfo]) -> str:
    names = ", ".join(each.name for each in told[:FEW]) + (" …" if len(told) > FEW else "")
    number = f" {command.number or 'as registered'}" if command.action is Action.SET_CONCURRENCY else ""
    return readable(f"{command.action}{number}: {'all, ' if command.worker is None else ''}{names or 'none'}")


# -- the colours that a viewer chooses, which only this browser stores -------------------------------------------------

YEAR = 365 * 86_400
"""Seconds for which a browser keeps the choice."""


async def choose_theme(request: Request) -> Response:
    """Store the chosen colours in a cookie, and redirect to the page that the form was on."""
    root = links_of(request)()
    _, _, address = request.headers.get("referer", "").partition("//")
    path = "/" + quote(address.partition("/")[2], safe="/%?&=+")
    is_own = path.startswith(root) and not path.startswith("//")  # which would name another host
    response = RedirectResponse(path if is_own else root, 303)
    theme = (await fields_of(request)).get("theme", "")
    response.set_cookie(THEME, theme if theme in THEMES else "", YEAR, path=root, httponly=True, samesite="lax")
    return response


# -- the form in which viewers change a column of a task, where the application permits it ----------------------------

INDENT = 2


async def edit(request: Request) -> Response:
    """Show the form, or store the value that was entered there."""
    site, viewer = site_of(request), viewer_of(request)
    spec = site.queue(request)
    fields: Query = await fields_of(request) if request.method == "POST" else request.query_params
    name = fields.get("column", "")
    if Action.EDIT not in viewer.may or name not in site.exposure.editable_of(spec):
        raise HTTPException(403, "You are not allowed to change this.")
    key = identity_in(fields, spec)
    if request.method != "POST":
        text = await site.database.run(partial(_text, spec=spec, key=key, name=name))
        if readable(text, lines=True) != text:
            raise HTTPException(409, "This value has characters that a form cannot show.")
        return _form(request, spec, key, name=name, text=text, was=_digest(text))
    text, was = fields.get("value", "").replace("\r\n", "\n"), fields.get("was", "")
    try:
        changed = _parsed(spec, name, text)
    except ArgumentError as error:
        return _form(request, spec, key, name=name, text=text, was=was, problem=str(error))
    logger.info("%s: %s", viewer.name, readable(f"edit {spec.name} {key_text(key)}: {name}"))
    await site.change(lambda session: _store(session, spec, key, name=name, changed=changed, was=was))
    return RedirectResponse(links_of(request)("queue", spec.name, "task", key=key_text(key)), 303)


def _form(
    request: Request, spec: QueueSpec, key: Identity, *, name: str, text: str, was: str, problem: str | None = None
) -> Response:
    is_json = isinstance(column(spec, name).type, JSON)
    shown = {"column": name, "text": text, "was": was, "problem": problem, "is_json": is_json}
    status = 200 if problem is None else 400
    return respond(request, "edit.html", status=status, name=spec.name, key=key_text(key), **shown)


def _store(session: Session, spec: QueueSpec, key: Identity, *, name: str, changed: Any, was: str) -> None:
    """Store a value; 409 if the task has another one than the form showed, or cannot be changed any more."""
    if _digest(_text(session, spec, key, name)) != was or not set_value(
        session, spec.entity, spec.key(key), name=name, value=changed
    ):
        raise HTTPException(409, "The task has changed since this form was opened. Nothing was stored.")


def _text(session: Session, spec: QueueSpec, key: Identity, name: str) -> str:
    """Return the value of a task as a text that stands for it; 404 if there is no such task, 409 if it cannot be
    changed."""
    status = spec.attributes["status"]
    shown = load_only(*(getattr(spec.entity, each) for each in (status, name)))
    found = find_all(session, spec.entity, spec.key(key), options=[shown])
    if not found:
        raise HTTPException(404, "There is no such task: it was deleted or never existed.")
    if isinstance(found[0], Damaged) or getattr(found[0], status) not in EDITABLE:
        raise HTTPException(409, "A task that is running or completed cannot be changed.")
    value = getattr(found[0], name)
    if value is None or not isinstance(column(spec, name).type, JSON):
        return told(value)
    text = json.dumps(value, ensure_ascii=False, indent=INDENT)
    return text if readable(text, lines=True) == text else json.dumps(value, indent=INDENT)


def _parsed(spec: QueueSpec, name: str, text: str) -> Any:
    """Return the value that a text stands for: empty text for NULL, JSON for a column of JSON."""
    stored: Any = column(spec, name)
    if stored.nullable and not text.strip():
        return null()
    if not isinstance(stored.type, JSON):
        return value(stored, text)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"this is not JSON: {error}") from error
    if name == spec.attributes.get("arguments") and not isinstance(found, dict):
        raise ArgumentError("arguments are an object, by the names of the function's parameters")
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# -- the fields of a form that a browser has sent ---------------------------------------------------------------------

LARGEST = 1_000_000
"""Maximum bytes of a form; selecting a whole page of tasks takes far fewer."""
_DIGITS = 18


def whole_number(text: str) -> int:
    """Return the number in a field of a form; 400 if there is none."""
    if not text.isdecimal() or len(text) > _DIGITS:
        raise HTTPException(400, f"{text[:_DIGITS]!r} is not a whole number of reasonable size.")
    return int(text)


async def fields_of(request: Request) -> MultiDict:
    """Return the fields of a form; 413 if it is too large, 400 if it is not a form."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise HTTPException(413, "This form is too large.")
    try:
        return MultiDict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10_000))
    except ValueError as error:
        raise HTTPException(400, "This is not a form.") from error
