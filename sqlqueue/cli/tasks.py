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
    typer.Option(metavar="COLUMN", help="By this column, -COLUMN for the largest first; else the last key first."),
]
Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Its primary key; one of several columns with commas: 'line 1,7'.")
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="NAMES", help="Show these, by name, with commas; else what there is room for."),
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
    """Tasks of a queue, the last ones first.

        sqlqueue list --url postgresql+psycopg://me@host/shop shop.models:Email --status discarded --error '%timeout%'

    All filters must hold. Ages are by the database's clock. Each task is a line: how it stands, as many of the model's
    own columns as there is room for, and the first line of its error. sqlqueue show has all of a task.

    With --json: an array of objects with queue (its table), key, the columns of the queue by the names that they have
    in the documentation, and columns, an object of the model's own.

    Exit status: 0, tasks or not; 2 for bad usage or a database that does not answer.
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
        say(f"No such task of {spec.entity.__name__}.")


def show(target: Target, key: Key, *, url: Url, queue: Queue = None, as_json: AsJson = False) -> None:
    """One task, whole: its state, its lease, its last error and all columns of the model.

        sqlqueue show --url postgresql+psycopg://me@host/shop shop.models:Email 4711

    With --json: an object as in sqlqueue list; null if there is no such task.

    Exit status: 0, there or not; 2 for bad usage or a database that does not answer.
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
    """All that the database has of a task."""
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
    return f"ends in {left}" if left > timedelta(0) else f"ended {-left} ago: the next claim takes it over"
