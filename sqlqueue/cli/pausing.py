"""The commands ``sqlqueue pause`` and ``sqlqueue resume``."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from .._support.error_text import ascii_text, host_name, readable
from ..model.columns import LONGEST_NAME
from ..operations import pausing
from ..operations.pausing import Pause
from ..queue.spec import QueueSpec
from ._database import refusals, transact
from ._output import AsJson, pauses, plain, print_json, say
from ._queue import Queue, queue_of
from ._target import Target, Url

Topic = Annotated[str | None, typer.Option(help="Only this topic. Default: the whole queue.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="The reason, for others who find the queue paused.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who pauses it. Default: this account.")]


def pause(
    target: Target,
    *,
    url: Url,
    queue: Queue = None,
    topic: Topic = None,
    reason: Reason = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Pause a queue for all workers, until sqlqueue resume.

        sqlqueue pause --url postgresql+psycopg://me@host/shop shop.models:Email --reason 'the mail server is down'

    Within seconds, workers stop claiming its tasks; running tasks are not interrupted. Pauses are stored in the table
    of a model that derives from PauseMixin, which the application must have.

    With --json: an object of queue, topic, changed (false if it was already paused) and paused, an array of topic (null
    for the whole queue), paused_at, paused_by and reason.

    Exit status: 0, changed or not; 2 for bad usage, no such model, or a database that does not respond.
    """
    with refusals("pause"):
        spec = queue_of(target, queue)
        who = _account() if by is None else by
        changed = _change(
            url,
            spec,
            topic,
            lambda session: pausing.pause(session, spec.entity, topic, reason=reason, paused_by=who),
            as_json=as_json,
        )
    if not as_json and not changed:
        say("It was already paused.")


def resume(target: Target, *, url: Url, queue: Queue = None, topic: Topic = None, as_json: AsJson = False) -> None:
    """Resume a paused queue.

        sqlqueue resume --url postgresql+psycopg://me@host/shop shop.models:Email

    A topic that was paused separately is resumed separately, with --topic.

    With --json: the same object as sqlqueue pause; changed is false if it was not paused.

    Exit status: 0, changed or not; 2 for bad usage, no such model, or a database that does not respond.
    """
    with refusals("resume"):
        spec = queue_of(target, queue)
        changed = _change(
            url, spec, topic, lambda session: pausing.resume(session, spec.entity, topic), as_json=as_json
        )
    if not as_json and not changed:
        say("It was not paused.")


def _change(url: str, spec: QueueSpec, topic: str | None, change: Callable[[Session], bool], *, as_json: bool) -> bool:
    changed, found = transact(url, lambda session: (change(session), pausing.paused(session, spec.entity)))
    if as_json:
        print_json({"queue": spec.table.fullname, "topic": topic, "changed": changed, "paused": pauses(found)})
    else:
        for each in found:
            say(_described(spec, each))
        if not found:
            say(f"{spec.entity.__name__} is not paused.")
    return changed


def _described(spec: QueueSpec, found: Pause) -> str:
    what = spec.entity.__name__ if found.topic is None else f"{spec.entity.__name__}, topic {found.topic},"
    why = f": {found.reason}" if found.reason else ""
    return readable(f"{what} has been paused since {plain(found.paused_at)} by {found.paused_by}{why}.")


def _account() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # e.g. in a container whose user has no name
        user = "unknown"
    return ascii_text(f"{user}@{host_name()}")[:LONGEST_NAME]
