"""The commands ``sqlqueue stats`` and ``sqlqueue errors``: how it stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from .. import operations
from ..operations import ErrorGroup, QueueStats
from ..pausing import Pause, paused
from ..spec import QueueSpec
from ..states import Status
from ._database import refusals, transact
from ._filters import Age, Equal, Ids, Statuses, Topic, criteria
from ._output import AsJson, pauses, print_json, print_table, say, shown
from ._queue import Queue, queue_of, queues_of
from ._target import Target, Url

Most = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at the most.")]

_ALWAYS = (Status.AVAILABLE, Status.RUNNING)


def stats(target: Target, *, url: Url, queue: Queue = None, as_json: AsJson = False) -> None:
    """How many tasks each queue has, by state, and what is paused.

        sqlqueue stats --url postgresql+psycopg://me@host/shop shop.models:Base

    "hung" are those of the running ones whose lease has ended: their workers have crashed or stall, and any worker
    takes them over. States that no queue has any tasks in are left out.

    With --json: an array of objects with queue (its table), model, a number for each state, hung, total, unfinished,
    and paused: an array of topic (null for the whole queue), paused_at, paused_by and reason.

    Exit status: 0; 2 for bad usage or a database that does not answer.
    """
    with refusals("stats"):
        specs = queues_of(target, queue)
        found = transact(url, lambda session: [_standing(session, spec) for spec in specs])
    if as_json:
        print_json([_counted(*each) for each in found])
        return
    present = [status for status in Status if status in _ALWAYS or any(each[status] for _, each, _ in found)]
    rows = [
        [spec.entity.__name__, *(each[status] for status in present), each.hung, _paused(stops)]
        for spec, each, stops in found
    ]
    print_table(["Queue", *present, "hung", "paused"], rows, numbers=len(present) + 1)


def _standing(session: Session, spec: QueueSpec) -> tuple[QueueSpec, QueueStats, list[Pause]]:
    return spec, operations.stats(session, spec.entity), paused(session, spec.entity)


def _counted(spec: QueueSpec, found: QueueStats, stops: list[Pause]) -> dict[str, Any]:
    return {
        "queue": spec.table.fullname,
        "model": f"{spec.entity.__module__}.{spec.entity.__qualname__}",
        **{status.value: number for status, number in found.counts.items()},
        "hung": found.hung,
        "total": found.total,
        "unfinished": found.unfinished,
        "paused": pauses(stops),
    }


def _paused(stops: Iterable[Pause]) -> str:
    return ", ".join("all" if each.topic is None else each.topic for each in stops)


def errors(
    target: Target,
    *,
    url: Url,
    queue: Queue = None,
    status: Statuses = None,
    topic: Topic = None,
    ids: Ids = None,
    older_than: Age = None,
    where: Equal = None,
    limit: Most = 20,
    as_json: AsJson = False,
) -> None:
    """The failures of a queue, those with the same text together, the most frequent first.

        sqlqueue errors --url postgresql+psycopg://me@host/shop shop.models:Email --status discarded

    Tasks that have been completed since are not counted. "example" is one of them: look at it with sqlqueue show.

    With --json: an array of objects with message, count, first_seen, last_seen (when they were claimed) and example.

    Exit status: 0, errors or not; 2 for bad usage or a database that does not answer.
    """
    with refusals("errors"):
        spec = queue_of(target, queue)
        chosen = criteria(spec, status=status, topic=topic, ids=ids, older_than=older_than, equal=where)
        found = transact(url, lambda session: operations.errors(session, spec.entity, *chosen))[:limit]
    if as_json:
        print_json([_failed(group) for group in found])
    elif found:
        rows = [[shown(each.example), each.count, each.last_seen, each.message] for each in found]
        print_table(["Example", "count", "last seen", "error"], rows, numbers=1)
    else:
        say(f"No errors of {spec.entity.__name__}.")


def _failed(group: ErrorGroup) -> dict[str, object]:
    return {
        "message": group.message,
        "count": group.count,
        "first_seen": group.first_seen,
        "last_seen": group.last_seen,
        "example": shown(group.example),
    }
