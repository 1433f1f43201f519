"""The options that choose tasks, the same for all commands."""

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
    list[Status] | None, typer.Option("--status", "-s", help="Only those in this state; may be given several times.")
]
Topic = Annotated[str | None, typer.Option(help="Only those of this topic.")]
Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id", metavar="KEY", help="Only this one; may be given several times. A key of several columns: 'line 1,7'."
    ),
]
ErrorLike = Annotated[
    str | None,
    typer.Option("--error", metavar="LIKE", help="Only those with such an error; % stands for anything: 'Timeout%'."),
]
Age = Annotated[
    timedelta | None,
    typer.Option("--older-than", metavar="AGE", parser=age, help="Only those created longer ago: 90s, 15m, 2h, 7d."),
]
Equal = Annotated[
    list[str] | None,
    typer.Option(
        "--where", "-w", metavar="COLUMN=VALUE", help="Only those with this value; may be given several times."
    ),
]
Hung = Annotated[bool, typer.Option("--hung", help="Only those that run for longer than their lease.")]


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
    """What tasks have to satisfy, all of it."""
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
    """``NAME``, or ``-NAME`` for the largest first; the last by primary key if none is given."""
    terms: list[ColumnElement[Any]] = [
        column(spec, name.removeprefix("-")).desc() if name.startswith("-") else column(spec, name).asc()
        for name in names
    ]
    return terms or [key.desc() for key in spec.primary_key]


def column(spec: QueueSpec, name: str) -> ColumnElement[Any]:
    """The column of the model that has this name."""
    columns = {prop.key: prop.columns[0] for prop in spec.mapper.column_attrs}
    if name not in columns:
        raise refusal(f"{spec.entity.__name__} has no column {name}: it has {', '.join(columns)}")
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
