"""Statistics of a queue: task counts, ages and throughput.  The functions lock nothing."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, and_, case, func, literal_column, select
from sqlalchemy.orm import QueryableAttribute
from sqlalchemy.sql.elements import SQLCoreOperations

from .._support.checks import count
from .._support.exc import ArgumentError
from ..dialects.base import Adapter
from ..model.mixins import QueueMixin
from ..queue.spec import Criterion, QueueSpec, Where, spec_of
from ..queue.status import DUE, FINAL, Status
from ..sql.clock import utcnow
from ..sql.selection import is_held, is_hung, only, picks
from ..transaction.connection import AnySession, open_, session_of
from .counting import CAP, Portion, capped, counted, portions, waits
from .session_criteria import within
from .unserved_functions import unserved_functions

V = TypeVar("V")
_ONE: ColumnElement[int] = literal_column("1")
_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The number of tasks in each state.  A task inserted as available for a later time counts as scheduled."""

    counts: Mapping[Status, int]
    """The number of tasks in each state, zeros included."""
    hung: int = 0
    """The number of running tasks whose lease has expired."""
    capped: frozenset[str] = frozenset()
    """The states and attribute names whose figures are lower bounds because counting stopped at the cap."""

    def __getitem__(self, status: str) -> int:
        return self.counts[Status(status)]

    @property
    def total(self) -> int:
        """The number of all tasks."""
        return sum(self.counts.values())

    @property
    def unfinished(self) -> int:
        """The number of tasks in a state that is not final."""
        return sum(count for status, count in self.counts.items() if status not in FINAL)


@dataclass(frozen=True, slots=True)
class QueueOverview(QueueStats):
    """The first figures to look at on call.  All ages are by the database's clock."""

    claimable: int = 0
    """The number of tasks that can be claimed now: available, due, or abandoned with an expired lease."""
    overdue: int = 0
    """The number of these that were scheduled, or to be retried, at a time that has passed."""
    oldest_claimable: timedelta | None = None
    """How long the oldest of them has been claimable: how far the workers are behind.  ``None`` if none is waiting."""
    oldest_running: timedelta | None = None
    """How long ago the running task with the earliest claim was claimed."""
    finished_last_minute: int = 0
    """The number of tasks that became final within the last minute."""
    finished_last_hour: int = 0
    """The same for the last hour.  Neither counts rows deleted by ``on_complete="delete"`` or ``prune``."""
    unserved_functions: Mapping[str, timedelta] = field(default_factory=dict)
    """How long calls have waited of functions that no worker seems to know, by function: the oldest call has been
    claimable for more than five minutes, and none is running under a lease.  Empty for models that are not of
    ``JobMixin``."""


def stats(session: AnySession, entity: type[QueueMixin], *where: Where, cap: int | None = CAP) -> QueueStats:
    """Return the number of tasks in each state, zeros included.

    Exact while fewer than ``cap`` tasks are available, fewer than ``cap`` are scheduled, retryable or running, and
    fewer than ``cap`` are final.  In a larger group, counting stops at ``cap``, and :attr:`QueueStats.capped` names the
    figures that are lower bounds.  ``cap=None`` counts all, which reads a whole index, or the table.  A criterion that
    no index covers reads all rows in any case.
    """
    spec = spec_of(entity)
    session = session_of(session)
    _check(cap)
    adapter = open_(session, spec)
    asked = portions(spec)
    rows: Any = adapter.rows.execute(session, spec, counted(spec, within(session, spec, where), asked, cap)).all()
    return _stats(_by_state(rows), capped(rows, asked, cap))


def stats_by(
    session: AnySession, entity: type[QueueMixin], by: SQLCoreOperations[V], *where: Where
) -> dict[V, QueueStats]:
    """Return the number of tasks in each state for each value of ``by``: ``stats_by(session, Email, Email.topic)``.

    ``by`` is a column of the model, or an expression of its columns.  The result is sorted by value and contains only
    values that occur, ``None`` included.  Reads all rows.  Raises :class:`.ArgumentError` if ``by`` belongs to another
    table.
    """
    spec = spec_of(entity)
    value = _own_column(spec, by).label("divided_by")
    session = session_of(session)
    adapter = open_(session, spec)
    # grouped outside of the subquery: an engine may consider repeated expressions with parameters to be different
    each = (
        select(
            value,
            spec["status"].label("status"),
            case((is_hung(spec), _ONE)).label("hung"),
            case((waits(spec), _ONE)).label("waits"),
        )
        .select_from(spec.mapper.persist_selectable)
        .where(only(spec, spec["status"].is_not(None), *within(session, spec, where)))
        .subquery("each_task")
    )
    tasks, hung, waiting = func.count(), func.count(each.c.hung), func.count(each.c.waits)
    by_value = select(each.c.divided_by, each.c.status, tasks, hung, waiting)
    grouped = by_value.group_by(each.c.divided_by, each.c.status).order_by(each.c.divided_by)
    rows: dict[V, list[Any]] = {}
    for row in adapter.rows.execute(session, spec, grouped):
        rows.setdefault(row[0], []).append(row[1:])
    return {found: _stats(some) for found, some in rows.items()}


def overview(session: AnySession, entity: type[QueueMixin], *where: Where, cap: int | None = CAP) -> QueueOverview:
    """Return the number of tasks in each state, how long tasks wait, how many hang, and how many finished recently.

    For ``cap`` see :func:`stats`.  Recently finished tasks are counted by an index that begins with ``finished_at``
    (``retention`` gives a model one), up to the cap; without one, among the last ``cap`` final tasks by primary key.
    One statement, and for function jobs a few more for each function.
    """
    spec = spec_of(entity)
    session = session_of(session)
    _check(cap)
    adapter = open_(session, spec)
    asked = _looking_over(adapter, spec)
    rows: Any = adapter.rows.execute(session, spec, counted(spec, within(session, spec, where), asked, cap)).all()
    limits = capped(rows, asked, cap)
    limits |= {name for name in ("finished_last_minute", "finished_last_hour") if _is_capped(name, rows, limits, cap)}
    found = _stats(_by_state(rows), limits)
    return QueueOverview(
        found.counts,
        found.hung,
        found.capped,
        claimable=sum(row.claimable for row in rows),
        overdue=sum(row.overdue for row in rows),
        oldest_claimable=_age(rows, "claimable_since"),
        oldest_running=_age(rows, "running_since"),
        finished_last_minute=sum(row.finished_last_minute for row in rows),
        finished_last_hour=sum(row.finished_last_hour for row in rows),
        unserved_functions=MappingProxyType(unserved_functions(session, entity, *where)),
    )


def hung(entity: type[QueueMixin]) -> Criterion:
    """Return the criterion of running tasks whose lease has expired: ``find(session, Email, hung(Email))``.

    The worker has crashed or stalled; the next claim takes the task over.
    """
    return is_hung(spec_of(entity))


def _looking_over(adapter: Adapter, spec: QueueSpec) -> list[Portion]:
    _, step = picks(spec, (), ())
    can_be_claimed = and_(*step(1).state)
    lately = {
        "finished_last_minute": spec["finished_at"] >= utcnow(-_MINUTE),
        "finished_last_hour": spec["finished_at"] >= utcnow(-_HOUR),
    }
    due, ready, final = portions(spec)
    found = [
        replace(
            due,
            flags={**due.flags, "claimable": can_be_claimed, "overdue": and_(can_be_claimed, ~is_held(spec))},
            moments={
                "claimable_since": case((can_be_claimed, spec["available_at"])),
                "running_since": case((is_held(spec), spec["claimed_at"])),
            },
        ),
        replace(
            ready,
            flags={**ready.flags, "claimable": ~waits(spec)},
            moments={"claimable_since": case((~waits(spec), spec["available_at"]))},
        ),
    ]
    if finds_finished(adapter, spec):
        in_hour = Portion(rows=lately["finished_last_hour"], flags=lately, order=[spec["finished_at"].desc()])
        return [*found, final, in_hour]
    return [*found, replace(final, flags=lately, order=[key.desc() for key in spec.primary_key])]


def finds_finished(adapter: Adapter, spec: QueueSpec) -> bool:
    """Whether an index begins with ``finished_at``.  The index of due tasks does not count if it is partial."""
    partial = {spec.index_name("due")} if adapter.schema.partial_index is not None else set[str]()
    return any(
        next(iter(index.columns), None) is spec["finished_at"]
        for index in spec.table.indexes
        if index.name not in partial
    )


def _is_capped(name: str, rows: Iterable[Any], limits: Container[str], cap: int | None) -> bool:
    """Whether this count reached the cap, or was taken among final tasks whose count did."""
    lately = next((row for row in rows if row.status is None), None)
    if lately is None:
        return Status.COMPLETED in limits
    return cap is not None and getattr(lately, name) >= cap


def _by_state(rows: Iterable[Any]) -> Iterator[tuple[str, int, int, int]]:
    return ((row.status, row.tasks, row.hung, row.waits) for row in rows if row.status is not None)


def _stats(rows: Iterable[Sequence[Any]], limits: Collection[str] = ()) -> QueueStats:
    """Build statistics from rows of status, number of tasks, number of hung ones, number of waiting available ones."""
    counts, all_hung = dict.fromkeys(Status, 0), 0
    for status, tasks, hung, waiting in rows:
        counts[Status(status)] += tasks - waiting
        counts[Status.SCHEDULED] += waiting
        all_hung += hung
    return QueueStats(MappingProxyType(counts), all_hung, frozenset(limits) | _follow(limits))


def _follow(limits: Collection[str]) -> set[str]:
    """Return the figures that are derived from capped states."""
    unfinished = (Status.AVAILABLE, *DUE)
    made = {
        **dict.fromkeys(("hung", "overdue", "oldest_running"), DUE),
        # some tasks with the status available may wait as if they were scheduled
        **dict.fromkeys((Status.SCHEDULED, "claimable", "oldest_claimable", "unfinished"), unfinished),
        "total": tuple(Status),
    }
    return {name for name, states in made.items() if not set(states).isdisjoint(limits)}


def _check(cap: int | None) -> None:
    if cap is not None:
        count("cap", cap)


def _age(rows: Iterable[Any], name: str) -> timedelta | None:
    """Return the time since the earliest of the moments called ``name``."""
    ages = [row.moment - moment for row in rows if (moment := getattr(row, name)) is not None]
    return max(timedelta(0), *ages) if ages else None


def _own_column(spec: QueueSpec, by: object) -> ColumnElement[Any]:
    column = by.__clause_element__() if isinstance(by, QueryableAttribute) else by
    if not isinstance(column, ColumnElement) or not set(column._from_objects) <= {*spec.mapper.tables}:
        name = spec.entity.__name__
        raise ArgumentError(f"{by!r} is not a column of {name}: give one of its attributes, as in {name}.status")
    return column
