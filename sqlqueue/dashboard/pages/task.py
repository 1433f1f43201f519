"""The page of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..._support.claim import Claim
from ..._support.error_text import key_text
from ..._support.exc import ArgumentError
from ...model.history import history_of
from ...operations import Explanation, why
from ...operations.finding import find_all
from ...operations.history import PastAttempt, history
from ...operations.text_values import identity
from ...queue.spec import Identity, QueueSpec
from ...transaction.connection import open_
from ..exposure import LONGEST, Exposure
from ..site import respond, site_of

ATTEMPTS = 50
TIMES = ("created_at", "claimed_at", "available_at", "finished_at", "scheduled_for")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """A task as shown on its page, detached from its session."""

    key: str
    own: Mapping[str, Any]
    named: Mapping[str, str | None]
    link: str | None
    why: Explanation
    past: Sequence[PastAttempt]
    """The finished attempts, the latest first; none without a :class:`.HistoryMixin`."""


async def show(request: Request) -> Response:
    """Show a task: what it is, what happened to it, and why it is not running."""
    site = site_of(request)
    spec = site.queue(request)
    key = identity_in(request, spec)
    detail = await site.read(("task", spec, key), lambda session: _read(session, site.exposure, spec, key), spec)
    if detail is None:
        raise HTTPException(404, "There is no such task: it was deleted or never existed.")
    return respond(
        request, "task.html", spec=spec, name=spec.table.fullname, task=detail, rest=_rest(detail.own), times=TIMES
    )


def identity_in(request: Request, spec: QueueSpec) -> Identity:
    """Return the primary key in a URL; 404 for text that cannot be one."""
    try:
        return identity(spec, request.query_params.get("key", ""))
    except ArgumentError as error:
        raise HTTPException(404, str(error)) from error


def _read(session: Session, exposure: Exposure, spec: QueueSpec, key: Identity) -> Detail | None:
    found = find_all(session, spec.entity, spec.key(key), options=[exposure.loading(spec, spec.attributes)])
    if not found:
        return None
    (task,), claim = found, Claim(spec.entity, key, attempt=0)
    cut = exposure.texts(open_(session, spec), session, spec, [key], LONGEST)
    return Detail(
        key=key_text(key),
        own=exposure.own(spec, task),
        named=exposure.named(spec, task, cut.get(key, {}), LONGEST),
        link=exposure.link_to(task),
        why=why(session, claim),
        past=history(session, claim, limit=ATTEMPTS) if history_of(spec.table.metadata) is not None else (),
    )


def _rest(own: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """Return the columns that are shown as a plain list."""
    apart = {"status", "error", "claim_token", *TIMES}
    return [(role, value) for role, value in own.items() if role not in apart and value is not None]
