"""The options that select tasks, shared by all commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from sqlalchemy import ColumnElement, or_

from ..queue.spec import Criterion, QueueSpec
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.selection import is_hung, state
from ._output import refusal
from ._values import age, identity, value

Statuses = Annotated[
    list[Status] | None, typer.Option("--status", "-s", help="Only tasks in this state; may be repeated.")
]
Topic = Annotated[str | None, typer.Option(help="Only tasks of this topic.")]
Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id", metavar="KEY", help="Only this task; may be repeated. For a key of several columns: 'line 1,7'."
    ),
]
ErrorLike = Annotated[
    str | None,
    typer.Option("--error", metavar="LIKE", help="Only tasks whose error matches; % matches any text: 'Timeout%'."),
]
Age = Annotated[
    timedelta | None,
    typer.Option("--older-than", metavar="AGE", parser=age, help="Only tasks created longer ago: 90s, 15m, 2h, 7d."),
]
Equal = Annotated[
    list[str] | None,
    typer.Option("--where", "-w", metavar="COLUMN=VALUE", help="Only tasks with this value; may be repeated."),
]
Hung = Annotated[bool, typer.Option("--hung", help="Only running tasks whose lease has expired.")]


def criteria(
    spec: QueueSpec,
    *,
    status: Sequence[Status] | None = None,
    topic: str | None = None,
    ids: Sequence[str] | None = None,
    error: str | None = None,
    older_than: timedelta | None = None,
    equal: Sequence[str] | None = None,
    hung: bool = False,
) -> list[Criterion]:
    """Return the criteria of the given options, all of which must hold."""
    return [
        *([spec["status"].in_([state(each) for each in status])] if status else []),
        *([_topic(spec, topic)] if topic is not None else []),
        *([or_(*(spec.key(identity(spec, each)) for each in ids))] if ids else []),
        *([spec["error"].like(error)] if error is not None else []),
        *([spec["created_at"] <= utcnow(-older_than)] if older_than is not None else []),
        *(_equal(spec, each) for each in equal or ()),
        *([is_hung(spec)] if hung else []),
    ]


def order(spec: QueueSpec, names: Iterable[str]) -> list[ColumnElement[Any]]:
    """Return ORDER BY terms: ``NAME`` ascending, ``-NAME`` descending; by default the last primary key first."""
    terms: list[ColumnElement[Any]] = [
        column(spec, name.removeprefix("-")).desc() if name.startswith("-") else column(spec, name).asc()
        for name in names
    ]
    return terms or [key.desc() for key in spec.primary_key]


def column(spec: QueueSpec, name: str) -> ColumnElement[Any]:
    """Return the model's column called ``name``; refuses unknown names."""
    columns = {prop.key: prop.columns[0] for prop in spec.mapper.column_attrs}
    if name not in columns:
        raise refusal(f"{spec.entity.__name__} has no column {name}; its columns are {', '.join(columns)}")
    return columns[name]


def _topic(spec: QueueSpec, topic: str) -> Criterion:
    if "topic" not in spec.columns:
        raise refusal(f"{spec.entity.__name__} has no topics")
    return spec["topic"] == topic


def _equal(spec: QueueSpec, text: str) -> Criterion:
    name, sign, given = text.partition("=")
    if not sign:
        raise refusal(f"{text!r} is not of the form COLUMN=VALUE")
    chosen = column(spec, name)
    criterion: Criterion = chosen == value(chosen, given)
    return criterion
