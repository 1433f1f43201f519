"""The commands ``sqlqueue list`` and ``sqlqueue show``: single tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from .. import operations
from .._support.error_text import key_text
from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from ..sql.clock import utcnow
from ._database import refusals, transact
from ._filters import Age, Equal, ErrorLike, Hung, Ids, Statuses, Topic, criteria, order
from ._list import columns_of, print_tasks
from ._output import AsJson, print_json, print_table, say
from ._queue import Queue, queue_of
from ._target import Target, Url
from ._values import identity
from .stats import Most

OrderBy = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Order by this column, -COLUMN for descending. Default: descending key."),
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The task's primary key; for several columns: 'line 1,7'.")]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="NAMES", help="Columns to show, separated by commas. Default: as many as fit."),
]


def list_tasks(
    target: Target,
    *,
    url: Url,
    queue: Queue = None,
    status: Statuses = None,
    topic: Topic = None,
    ids: Ids = None,
    error: ErrorLike = None,
    older_than: Age = None,
    where: Equal = None,
    hung: Hung = False,
    order_by: OrderBy = None,
    limit: Most = 20,
    columns: Columns = None,
    as_json: AsJson = False,
) -> None:
    """List tasks of a queue, the last ones first.

        sqlqueue list --url postgresql+psycopg://me@host/shop shop.models:Email --status discarded --error '%timeout%'

    All filters must match. Ages use the database's clock. Each line shows a task's state, as many of the model's own
    columns as fit, and the first line of its error. sqlqueue show prints a whole task.

    With --json: an array of objects with queue (its table), key, the queue's columns by their documented names, and
    columns, an object of the model's own.

    Exit status: 0, even without tasks; 2 for bad usage or a database that does not answer.
    """
    with refusals("list"):
        spec = queue_of(target, queue)
        chosen = criteria(
            spec, status=status, topic=topic, ids=ids, error=error, older_than=older_than, equal=where, hung=hung
        )
        terms = order(spec, order_by or ())
        wanted = None if columns is None else columns_of(spec, columns)
        found = transact(
            url,
            lambda session: [
                _facts(spec, task)
                for task in operations.find(session, spec.entity, *chosen, limit=limit, order_by=terms)
            ],
        )
    if as_json:
        print_json(found)
    elif found:
        print_tasks(spec, found, wanted)
    else:
        say(f"{spec.entity.__name__} has no such tasks.")


def show(target: Target, key: Key, *, url: Url, queue: Queue = None, as_json: AsJson = False) -> None:
    """Show a whole task: its state, its lease, its last error and all columns of the model.

        sqlqueue show --url postgresql+psycopg://me@host/shop shop.models:Email 4711

    With --json: an object as in sqlqueue list; null if there is no such task.

    Exit status: 0, found or not; 2 for bad usage or a database that does not answer.
    """
    with refusals("show"):
        spec = queue_of(target, queue)
        found, now = transact(url, lambda session: _one(session, spec, [spec.key(identity(spec, key))]))
    if as_json:
        print_json(found[0] if found else None)
    elif found:
        (facts,) = found
        own = facts.pop("columns")
        print_table(["", ""], [*({**facts, "lease": _lease(facts, now)} | own).items()])
    else:
        say(f"There is no {spec.entity.__name__} {key}.")


def _one(session: Session, spec: QueueSpec, where: Sequence[Criterion]) -> tuple[list[dict[str, Any]], datetime]:
    found = [_facts(spec, task) for task in operations.find(session, spec.entity, *where)]
    return found, session.execute(select(utcnow()), bind_arguments=spec.bind_arguments).scalar_one()


def _facts(spec: QueueSpec, task: object) -> dict[str, Any]:
    """Return all columns of ``task`` as ``--json`` prints them."""
    roles = set(spec.attributes.values())
    own = [prop.key for prop in inspect(type(task)).column_attrs if prop.key not in roles]
    return {
        "queue": spec.table.fullname,
        "key": key_text(spec.identity_of(task)),
        **{role: getattr(task, name) for role, name in spec.attributes.items()},
        "columns": {name: getattr(task, name) for name in own},
    }


def _lease(facts: dict[str, Any], now: datetime) -> str:
    if facts["status"] != Status.RUNNING:
        return "none"
    left = timedelta(seconds=round((facts["available_at"] - now).total_seconds()))
    return f"expires in {left}" if left > timedelta(0) else f"expired {-left} ago: the next claim takes it over"
