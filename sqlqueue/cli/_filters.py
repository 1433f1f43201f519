"""The options that select tasks, shared by all commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Annotated, Any

import typer
from sqlalchemy import ColumnElement

from ..operations import filtering
from ..operations.filtering import column
from ..queue.options import Status
from ..queue.spec import Criterion, QueueSpec
from ._output import age, refusal

Statuses = Annotated[
    list[Status] | None, typer.Option("--status", "-s", help="Only tasks in this state; may be repeated.")
]
Topic = Annotated[str | None, typer.Option(help="Only tasks of this topic.")]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="KEY", help="Only this task; may be repeated. For a composite key: 'line 1,7'."),
]
ErrorLike = Annotated[
    str | None,
    typer.Option("--error", metavar="LIKE", help="Only tasks whose error matches; % matches any text: 'Timeout%'."),
]
Age = Annotated[
    timedelta | None,
    typer.Option(
        "--older-than", metavar="AGE", parser=age, help=("Only tasks created longer ago than this: 90s, 15m, 2h, 7d.")
    ),
]
Equal = Annotated[
    list[str] | None,
    typer.Option("--where", "-w", metavar="COLUMN=VALUE", help="Only tasks with this value; may be repeated."),
]
Hung = Annotated[bool, typer.Option("--hung", help="Only running tasks whose lease has expired.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The options that select tasks, as they were given."""

    status: Sequence[Status] | None = None
    topic: str | None = None
    ids: Sequence[str] | None = None
    error: str | None = None
    older_than: timedelta | None = None
    where: Sequence[str] | None = None
    """Each as ``COLUMN=VALUE``."""
    hung: bool = False

    def criteria(self, spec: QueueSpec) -> list[Criterion]:
        """Return the criteria of the options, all of which must hold; rejects filters that do not apply to the
        queue."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "where"}
        found = filtering.criteria(spec, **given)
        for text in self.where or ():
            found += filtering.criteria(spec, equal=_equal(text))
        return found


def order(spec: QueueSpec, names: Iterable[str]) -> list[ColumnElement[Any]]:
    """Return ORDER BY terms: ``NAME`` ascending, ``-NAME`` descending; by default descending primary keys."""
    terms: list[ColumnElement[Any]] = [
        column(spec, name.removeprefix("-")).desc() if name.startswith("-") else column(spec, name).asc()
        for name in names
    ]
    return terms or [key.desc() for key in spec.primary_key]


def _equal(text: str) -> dict[str, str]:
    name, sign, given = text.partition("=")
    if not sign:
        raise refusal(f"{text!r} is not of the form COLUMN=VALUE")
    return {name: given}
