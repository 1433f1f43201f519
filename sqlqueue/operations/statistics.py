"""How it stands with a queue: how many, since when, and how fast.  Each is one query, which locks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, and_, case, func, literal_column, or_, select
from sqlalchemy.orm import QueryableAttribute
from sqlalchemy.sql.elements import SQLCoreOperations

from ..clock import utcnow
from ..exc import ArgumentError
from ..mixins import QueueMixin
from ..spec import Criterion, QueueSpec, Where, spec_of
from ..statements import is_held, is_hung, only, picks
from ..states import FINAL, Status
from ._connection import AnySession, open_, session_of

V = TypeVar("V")
_ONE: ColumnElement[int] = literal_column("1")
_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many tasks there are in each state."""

    counts: Mapping[Status, int]
    hung: int = 0
    """How many of those that are running have been so for longer than their lease."""

    def __getitem__(self, status: str) -> int:
        return self.counts[Status(status)]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def unfinished(self) -> int:
        return sum(count for status, count in self.counts.items() if status not in FINAL)


@dataclass(frozen=True, slots=True)
class QueueOverview(QueueStats):
    """What somebody on call asks first.  All ages are by the database's clock."""

    claimable: int = 0
    """How many a claim may take now: available, due, or left by a worker whose lease has ended."""
    overdue: int = 0
    """How many of these were scheduled, or to be tried again, for a moment that has passed."""
    oldest_claimable: timedelta | None = None
    """For how long the first of them could have been claimed: how far behind the workers are.  ``None``: none waits."""
    oldest_running: timedelta | None = None
    """How long ago the first of those that are running was claimed."""
    finished_last_minute: int = 0
    finished_last_hour: int = 0
    """How many have become final since; not those that were deleted, by ``on_complete="delete"`` or ``prune``."""


def stats(session: AnySession, entity: type[QueueMixin], *where: Where) -> QueueStats:
    """The number of tasks in each state, those without any included."""
    spec = spec_of(entity)
    session = session_of(session)
    adapter = open_(session, spec)
    counted = select(spec["status"], func.count(), _count(is_hung(spec)))
    counted = counted.where(only(spec, spec["status"].is_not(None), *where)).group_by(spec["status"])
    return _stats(adapter.execute(session, spec, counted))


def stats_by(
    session: AnySession, entity: type[QueueMixin], by: SQLCoreOperations[V], *where: Where
) -> dict[V, QueueStats]:
    """The number of tasks in each state, for each value of ``by``: ``stats_by(session, Email, Email.topic)``.

    ``by`` is a column of the model, or an expression of its columns.  In the order of its values; only those that
    there are, ``None`` included.  :class:`.ArgumentError` if it is of another table.
    """
    spec = spec_of(entity)
    value = _own_column(spec, by).label("divided_by")
    session = session_of(session)
    adapter = open_(session, spec)
    # grouped from without: an engine may take an expression with parameters for another one each time it comes
    each = (
        select(value, spec["status"].label("status"), case((is_hung(spec), _ONE)).label("hung"))
        .select_from(spec.mapper.persist_selectable)
        .where(only(spec, spec["status"].is_not(None), *where))
        .subquery("each_task")
    )
    counted = select(each.c.divided_by, each.c.status, func.count(), func.count(each.c.hung))
    grouped = counted.group_by(each.c.divided_by, each.c.status).order_by(each.c.divided_by)
    rows: dict[V, list[Any]] = {}
    for row in adapter.execute(session, spec, grouped):
        rows.setdefault(row[0], []).append(row[1:])
    return {found: _stats(some) for found, some in rows.items()}


def overview(session: AnySession, entity: type[QueueMixin], *where: Where) -> QueueOverview:
    """The number of tasks in each state, what waits for how long, what hangs, and how many were finished lately."""
    spec = spec_of(entity)
    session = session_of(session)
    adapter = open_(session, spec)
    rows: Any = adapter.execute(session, spec, _looking_over(spec, where)).all()
    found = _stats(row[:3] for row in rows)
    return QueueOverview(
        found.counts,
        found.hung,
        claimable=sum(row.claimable for row in rows),
        overdue=sum(row.overdue for row in rows),
        oldest_claimable=_age(rows, "claimable_since"),
        oldest_running=_age(rows, "running_since"),
        finished_last_minute=sum(row.last_minute for row in rows),
        finished_last_hour=sum(row.last_hour for row in rows),
    )


def hung(entity: type[QueueMixin]) -> Criterion:
    """The criterion that a task runs for longer than its lease: ``find(session, Email, hung(Email))``.

    Its worker has crashed, or stalls; the next claim takes it over.
    """
    return is_hung(spec_of(entity))


def _looking_over(spec: QueueSpec, where: Iterable[Where]) -> Select[Any]:
    ready, due = (and_(*step(1).state) for step in picks(spec, (), ()))
    measures: dict[str, ColumnElement[Any]] = {
        "tasks": func.count(),
        "hung": _count(is_hung(spec)),
        "claimable": _count(or_(ready, due)),
        "overdue": _count(and_(due, ~is_held(spec))),
        "claimable_since": func.min(case((or_(ready, due), spec["available_at"]))),
        "running_since": func.min(case((is_held(spec), spec["claimed_at"]))),
        "last_minute": _count(spec["finished_at"] >= utcnow(-_MINUTE)),
        "last_hour": _count(spec["finished_at"] >= utcnow(-_HOUR)),
        "moment": func.max(utcnow()),  # no engine minds an aggregate here
    }
    asked = select(spec["status"], *(measure.label(name) for name, measure in measures.items()))
    return asked.where(only(spec, spec["status"].is_not(None), *where)).group_by(spec["status"])


def _count(criterion: Criterion) -> ColumnElement[int]:
    return func.count(case((criterion, _ONE)))


def _stats(rows: Iterable[Any]) -> QueueStats:
    """From rows of a status, how many have it, and how many of these hang."""
    found = {Status(status): (tasks, hung) for status, tasks, hung in rows}
    counts = dict.fromkeys(Status, 0) | {status: tasks for status, (tasks, _) in found.items()}
    return QueueStats(MappingProxyType(counts), sum(hung for _, hung in found.values()))


def _age(rows: Iterable[Any], name: str) -> timedelta | None:
    """How long ago the earliest of these moments was."""
    ages = [row.moment - moment for row in rows if (moment := getattr(row, name)) is not None]
    return max(timedelta(0), *ages) if ages else None


def _own_column(spec: QueueSpec, by: object) -> ColumnElement[Any]:
    column = by.__clause_element__() if isinstance(by, QueryableAttribute) else by
    if not isinstance(column, ColumnElement) or not set(column._from_objects) <= {*spec.mapper.tables}:
        name = spec.entity.__name__
        raise ArgumentError(f"{by!r} is no column of {name}: give one of its attributes, as in {name}.status")
    return column
