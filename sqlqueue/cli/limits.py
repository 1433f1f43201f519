"""The commands ``sqlqueue limits`` and ``sqlqueue set-limit``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from .. import operations
from .._support.checks import MOST_AT_ONCE
from ..lifecycle.kind import holding_slots
from ..operations import Limit
from ..queue.spec import QueueSpec
from ._database import refusals, transact
from ._output import AsJson, Yes, confirm, print_json, print_table, refusal, say
from ._queue import Queue, queues_of
from ._target import Target, Url

Key = Annotated[str, typer.Argument(metavar="KEY", help="The limit_key of the tasks.")]
Number = Annotated[
    int,
    typer.Argument(
        metavar="N", min=0, max=MOST_AT_ONCE, help="How many of them may run at once, at most 10,000; 0 stops the key."
    ),
]


def limits(target: Target, *, url: Url, queue: Queue = None, as_json: AsJson = False) -> None:
    """Show the limit of each key in use: how many of its tasks may run at once, and how many do.

        sqlqueue limits --url postgresql+psycopg://me@host/shop shop.models:Base

    After a limit has been lowered, more tasks may be running than it allows: no more tasks with that key are claimed
    until enough of them have ended.

    With --json: an array of objects with queue (its table), key, limit and running.

    Exit status: 0, even without keys; 2 for bad usage, a queue without limits, or a database that does not respond.
    """
    with refusals("limits"):
        specs = _limited(target, queue)
        found = transact(url, lambda session: [(spec, operations.limits(session, spec.entity)) for spec in specs])
    rows = [(spec, each) for spec, its in found for each in its]
    if as_json:
        print_json([_facts(*row) for row in rows])
    elif rows:
        shown = [[spec.entity.__name__, each.limit, each.running, each.key] for spec, each in rows]
        print_table(["Queue", "limit", "running", "key"], shown, numbers=2)
    else:
        say(f"No limit_key of {', '.join(spec.entity.__name__ for spec in specs)} has been used yet.")


def set_limit(
    target: Target,
    key: Key,
    number: Number,
    *,
    url: Url,
    queue: Queue = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set how many tasks with this key may run at once, across all workers.

        sqlqueue set-limit --url postgresql+psycopg://me@host/shop shop.models:Crawl a.org 3

    Running tasks continue. If they exceed the limit, no more tasks with the key are claimed until enough of them have
    ended. The command asks for confirmation of a limit of 0, which stops the key, and of a key that no task has used
    yet.

    With --json: an object of queue (its table), key, limit, before (null for an unknown key) and running.

    Exit status: 0, changed or not; 1 if you answer no; 2 for bad usage, a queue without limits, a database that does
    not respond, or a missing --yes without a terminal.
    """
    with refusals("set-limit"):
        specs = _limited(target, queue)
        if len(specs) > 1:
            names = ", ".join(spec.entity.__name__ for spec in specs)
            raise refusal(f"{target} has {len(specs)} queues with limits: use --queue with one of {names}")
        (spec,) = specs
        before = transact(url, lambda session: _limit(session, spec, key))
        if number == 0 and (before is None or before.limit):
            confirm(f"stop all tasks of {spec.entity.__name__} with the key {key!r}", yes=yes)
        elif before is None:
            confirm(f"set a limit for {key!r}, a key that no task of {spec.entity.__name__} has used yet", yes=yes)
        after = transact(url, lambda session: _set(session, spec, key, number))
    if as_json:
        print_json({**_facts(spec, after), "before": None if before is None else before.limit})
    else:
        was = "" if before is None else f" (it was {before.limit})"
        say(f"{spec.entity.__name__}, key {key}: the limit is {after.limit}{was}, {after.running} running.")


def _limited(target: str, name: str | None) -> list[QueueSpec]:
    found = queues_of(target, name)
    limited = [spec for spec in found if holding_slots(spec) is not None]
    if not limited:
        names = ", ".join(spec.entity.__name__ for spec in found)
        raise refusal(f"the queues have no limits: derive {names} from LimitMixin")
    return limited


def _set(session: Session, spec: QueueSpec, key: str, number: int) -> Limit:
    operations.set_limit(session, spec.entity, key, number)
    return _limit(session, spec, key) or Limit(key, number, 0)


def _limit(session: Session, spec: QueueSpec, key: str) -> Limit | None:
    return next((each for each in operations.limits(session, spec.entity) if each.key == key), None)


def _facts(spec: QueueSpec, found: Limit) -> dict[str, Any]:
    return {"queue": spec.table.fullname, "key": found.key, "limit": found.limit, "running": found.running}
