"""The form in which viewers change a column of a task, where the application permits it."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import Any

from sqlalchemy import JSON, null
from sqlalchemy.orm import Session, load_only
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .._support.errors import ArgumentError
from .._support.texts import key_text, logger_of, readable
from ..operations.filtering import column, value
from ..operations.paging import Damaged, find_all
from ..operations.reactivating import EDITABLE, set_value
from ..queue.spec import Identity, QueueSpec
from .access import Action
from .actions import fields_of
from .rendering import told
from .requests import Query
from .site import links_of, respond, site_of, viewer_of
from .tasks import identity_in

logger = logger_of("sqlqueue.dashboard")
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
