"""Statistics of a queue: task counts, ages and throughput, at a bounded cost however many tasks there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    String,
    Subquery,
    and_,
    case,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.orm import QueryableAttribute, Session
from sqlalchemy.sql.elements import SQLCoreOperations

from .._support.checks import count
from .._support.errors import ArgumentError
from .._support.private import tables_in
from ..dialects.base import Adapter
from ..kinds.limits import full_keys, slots_of
from ..kinds.recurring import is_unplanned
from ..model.declaration import QueueMixin
from ..queue.options import DUE, FINAL, Status
from ..queue.spec import Criterion, QueueSpec, Where, spec_of
from ..sql import (
    due_states,
    is_abandoned,
    is_available,
    is_due,
    is_early,
    is_held,
    only,
    picks,
    representable,
    state,
    utcnow,
)
from ..transaction import AnySession, open_, session_of, within
from .control import unserved_functions
from .paging import Window, Windows, finds_finished
from .recording import read_or

# -- counts tasks up to a cap, so that the cost of counting is bounded however many tasks there are -------------------

KNOWN = frozenset(Status)
"""All statuses; other programs may have inserted rows with others."""
CAP = 50_000
"""The maximum number of tasks counted in each of three groups: available, other unfinished, and final tasks."""


@dataclass(frozen=True, kw_only=True)
class Portion:
    """A set of tasks that is read by one index, if any, and what is counted in it."""

    rows: Criterion
    states: Sequence[Status] = ()
    """Rows are counted for each of these; if there are none, only the flags and moments are evaluated."""
    flags: Mapping[str, Criterion] = field(default_factory=dict)
    """Criteria by name: the number of rows that satisfy each is counted."""
    moments: Mapping[str, ColumnElement[Any]] = field(default_factory=dict)
    """Times by name: the earliest of each is returned, ignoring NULL."""
    order: Sequence[ColumnElement[Any]] = ()
    """The order that decides which rows are read if there are more than the cap."""
    window: Window | None = None
    """What to count instead of all that satisfy ``rows``."""
    slots: QueueSpec | None = None
    """The slots that tasks with a ``limit_key`` need, of which those that get none do not count as claimable."""


def waits(spec: QueueSpec) -> Criterion:
    """Return the criterion of rows whose status is ``available`` by default, as other programs insert them, but that
    cannot be claimed yet.
    """
    return or_(is_early(spec), is_unplanned(spec)) if spec.recurs else is_early(spec)


# -- statistics of a queue: task counts, ages and throughput. The functions lock nothing ------------------------------

V = TypeVar("V")
_ONE: ColumnElement[int] = literal_column("1")
_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The number of tasks in each state.  A task inserted as available for a later time counts as scheduled."""

    counts: Mapping[Status, int]
    """The number of tasks in each state, zeros included."""
    abandoned: int = 0
    """The number of running tasks whose lease has expired."""
    capped: frozenset[str] = frozenset()
    """The states and attribute names whose figures are lower bounds because counting stopped at the cap."""
    unserved_functions: Mapping[str, timedelta] = field(default_factory=dict)
    """The functions that no worker seems to have registered, and how long the oldest call of each has waited: it has
    been claimable for more than five minutes, and no call is running under a lease. Empty for models that do not derive
    from ``JobMixin``, and from :func:`stats_by`."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """The number of rows with each status that is not a :class:`.Status`: other programs have written it, and no claim
    finds them. They are counted in the group of the final tasks, but in no other figure; not with ``scan``."""

    def __getitem__(self, status: str) -> int:
        return self.counts[Status(status)]

    @property
    def total(self) -> int:
        """The number of all tasks."""
        return sum(self.counts.values())

    @property
    def unfinished(self) -> int:
        """The number of tasks in a state that is not final."""
        return sum(number for status, number in self.counts.items() if status not in FINAL)


@dataclass(frozen=True, slots=True)
class QueueOverview(QueueStats):
    """The most important figures of a queue for operators.  All ages are by the database's clock."""

    claimable: int = 0
    """The number of tasks that can be claimed now: available, due, or abandoned with an expired lease.  Tasks whose
    ``limit_key`` is at its limit are not among them, but those of paused queues and topics are."""
    limited: int = 0
    """The number of tasks that could be claimed if fewer with their ``limit_key`` were running."""
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


def stats(
    session: AnySession, entity: type[QueueMixin], *where: Where, cap: int | None = CAP, scan: int | None = None
) -> QueueStats:
    """Return the number of tasks in each state, zeros included.

    The counts are exact if fewer than ``cap`` tasks are available, fewer than ``cap`` are scheduled, retryable or
    running, and fewer than ``cap`` are final.  In a larger group, counting stops at ``cap``, and
    :attr:`QueueStats.capped` names the figures that are lower bounds.  ``cap=None`` counts all, which reads a whole
    index, or the table.

    A criterion that no index covers reads all rows, unless ``scan`` is given: then at most that many rows of each group
    are read (of final tasks, the last ones), and :attr:`QueueStats.capped` names the figures that may be too low. Tasks
    that were final before the table became a queue may then be left out.  Runs one statement, or up to six with
    ``scan``, and a few more for each function of function jobs.
    """
    spec = spec_of(entity)
    session = session_of(session)
    counting = _Count.of(session, spec, where, cap=cap, scan=scan)
    rows, limits = counting.read(counting.portions())
    return replace(_stats(_by_state(rows), limits), unserved_functions=_unserved(session, entity, where))


def stats_by(
    session: AnySession, entity: type[QueueMixin], by: SQLCoreOperations[V], *where: Where
) -> dict[V, QueueStats]:
    """Return the number of tasks in each state for each value of ``by``: ``stats_by(session, Email, Email.topic)``.

    ``by`` is a column of the model, or an expression of its columns.  The result is sorted by value and contains only
    values that occur, ``None`` included.  If one of them cannot be read, all are returned as text.  Reads all rows.
    Raises :class:`.ArgumentError` if ``by`` belongs to another
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
            case((is_abandoned(spec), _ONE)).label("abandoned"),
            case((waits(spec), _ONE)).label("waits"),
        )
        .select_from(spec.mapper.persist_selectable)
        .where(only(spec, spec["status"].is_not(None), *within(session, spec, where)))
        .subquery("each_task")
    )
    counts = func.count(), func.count(each.c.abandoned), func.count(each.c.waits)
    grouped = (each.c.divided_by, each.c.status)

    def read(value: ColumnElement[Any]) -> Sequence[Any]:
        statement = select(value, each.c.status, *counts).group_by(*grouped).order_by(each.c.divided_by)
        return adapter.rows.execute(session, spec, statement).all()

    as_text = cast(each.c.divided_by, String(255))
    found = read_or(adapter, lambda: read(each.c.divided_by), lambda: read(as_text))
    rows: dict[V, list[Any]] = {}
    for row in found:
        rows.setdefault(row[0], []).append(row[1:])
    return {found: _stats(some) for found, some in rows.items()}


def overview(
    session: AnySession, entity: type[QueueMixin], *where: Where, cap: int | None = CAP, scan: int | None = None
) -> QueueOverview:
    """Return the number of tasks in each state, how many are abandoned, how long tasks wait, and how many finished
    recently.

    For ``cap`` and ``scan`` see :func:`stats`.  Recently finished tasks are counted with an index that begins with
    ``finished_at`` (``retention`` gives a model one), up to the cap; without one, among the last ``cap`` final tasks by
    primary key.  Runs one statement, or up to six with ``scan``, and a few more for each function of function jobs.
    """
    spec = spec_of(entity)
    session = session_of(session)
    counting = _Count.of(session, spec, where, cap=cap, scan=scan)
    rows, limits = counting.read(_looking_over(counting))
    limits |= {name for name in ("finished_last_minute", "finished_last_hour") if _is_capped(name, rows, limits, cap)}
    found = _stats(_by_state(rows), limits)
    return QueueOverview(
        found.counts,
        found.abandoned,
        found.capped | ({"limited"} if spec.is_limited and "claimable" in found.capped else set()),
        claimable=sum(row.claimable for row in rows),
        limited=sum(row.limited for row in rows) if spec.is_limited else 0,
        overdue=sum(row.overdue for row in rows),
        oldest_claimable=_age(rows, "claimable_since"),
        oldest_running=_age(rows, "running_since"),
        finished_last_minute=sum(row.finished_last_minute for row in rows),
        finished_last_hour=sum(row.finished_last_hour for row in rows),
        unserved_functions=_unserved(session, entity, where),
        unknown=found.unknown,
    )


def abandoned(entity: type[QueueMixin]) -> Criterion:
    """Return the criterion of running tasks whose lease has expired: ``find(session, Email, abandoned(Email))``.

    The worker has crashed or stalled; the next claim takes the task over.
    """
    return is_abandoned(spec_of(entity))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    """The tasks to count, and up to which number."""

    adapter: Adapter
    session: Session
    spec: QueueSpec
    where: Sequence[Where]
    cap: int | None
    windows: Windows | None

    @classmethod
    def of(
        cls, session: Session, spec: QueueSpec, where: Sequence[Where], *, cap: int | None, scan: int | None
    ) -> _Count:
        for name, number in (("cap", cap), ("scan", scan)):
            if number is not None:
                count(name, number)
        adapter, criteria = open_(session, spec), within(session, spec, where)
        windows = None if scan is None else Windows(adapter=adapter, session=session, spec=spec, scan=scan)
        return cls(adapter=adapter, session=session, spec=spec, where=criteria, cap=cap, windows=windows)

    def portions(self) -> Sequence[Portion]:
        """Return the portions that make up all tasks: due tasks, available tasks, final and unknown ones.

        The order matters: the columns of a union take their types from its first part.
        """
        spec = self.spec
        # rows with an unknown status are counted with the final ones: no index contains only those either
        unfinished = [state(status) for status in (Status.AVAILABLE, *due_states(spec))]
        every = (
            Portion(rows=is_due(spec), states=due_states(spec), flags={"abandoned": is_abandoned(spec)}),
            Portion(rows=is_available(spec), states=(Status.AVAILABLE,), flags={"waits": waits(spec)}),
            Portion(rows=spec["status"].not_in(unfinished), states=FINAL),
        )
        if self.windows is None:
            return every
        whole = {status: portion for portion in every for status in portion.states}
        found = self.windows.all(self.where)
        return [replace(whole[states[0]], states=states, window=window) for states, window in found]

    def read(self, asked: Sequence[Portion]) -> tuple[Sequence[Any], set[str]]:
        """Return the rows of the statement that counts, and the states or flags whose counts are lower bounds."""
        none = cast(null(), self.spec["available_at"].type)  # instead of a time that cannot be read
        without = (replace(each, moments=dict.fromkeys(each.moments, none)) for each in asked)
        rows = read_or(self.adapter, lambda: self._rows(asked), lambda: self._rows(list(without)))
        counts: Counter[str] = Counter()
        for row in rows:
            if row.status is not None:
                # the portion that counts unknown ones
                counts[row.status if row.status in KNOWN else FINAL[0]] += row.tasks
        limits = set[str]()
        for portion in asked:
            if self.cap is not None and sum(counts[each] for each in portion.states) >= self.cap:
                limits.update(portion.states)
            if portion.window is not None and portion.window.is_cut(self.session):  # it has more rows than are read
                limits.update(portion.states or portion.flags)
        return rows, limits

    def _rows(self, asked: Sequence[Portion]) -> Sequence[Any]:
        """Execute one statement with a row per state, or per portion without states: counts, flags, moments and the
        current time.
        """
        flags = list(dict.fromkeys(name for portion in asked for name in portion.flags))
        moments = list(dict.fromkeys(name for portion in asked for name in portion.moments))
        parts = (_measured(portion, self._each_task(portion), flags, moments) for portion in asked)
        found = union_all(*parts).subquery("found")
        # read the clock once: within the subquery, SQLite would read it for each row
        shown = (representable(each).label(each.name) if each.name in moments else each for each in found.c)
        statement = select(*shown, utcnow().label("moment"))
        return self.adapter.rows.execute(self.session, self.spec, statement).all()

    def _each_task(self, portion: Portion) -> Subquery:
        flags = (case((criterion, _ONE)).label(name) for name, criterion in portion.flags.items())
        moments = (moment.label(name) for name, moment in portion.moments.items())
        key = [] if portion.slots is None else [self.spec["limit_key"].label("limit_key")]
        # leave out a status that is not needed: an engine would read the row in addition to its index
        status = [self.spec["status"].label("status")] if portion.states else []
        columns = (*status, *flags, *moments, *key)
        if portion.window is not None:
            return portion.window.select(*columns, limit=self.cap).subquery("each_task")
        rows = select(*columns).where(only(self.spec, portion.rows, *self.where))
        return (rows if self.cap is None else rows.order_by(*portion.order).limit(self.cap)).subquery("each_task")


def _measured(portion: Portion, each: Subquery, flags: Iterable[str], moments: Iterable[str]) -> Select[Any]:
    nothing: ColumnElement[int] = literal_column("0")
    source: FromClause = each
    values: dict[str, ColumnElement[Any]] = {name: each.c[name] for name in (*portion.flags, *portion.moments)}
    if portion.slots is not None:  # joined to the rows that are counted, of which there are at most as many as the cap
        full = full_keys(portion.slots).subquery("full_key")
        (key,) = full.c
        source = each.outerjoin(full, each.c.limit_key == key)
        for name in values.keys() & {"claimable", "overdue", "claimable_since"}:
            values[name] = case((key.is_(None), values[name]))
        values["limited"] = case((key.is_not(None), each.c.limited))
    columns: list[ColumnElement[Any]] = [
        func.count().label("tasks"),
        *((func.count(values[name]) if name in portion.flags else nothing).label(name) for name in flags),
        *((func.min(values[name]) if name in portion.moments else null()).label(name) for name in moments),
    ]
    status: list[ColumnElement[Any]] = [each.c.status if portion.states else null().label("status")]
    measured = select(*status, *columns).select_from(source)
    return measured.group_by(each.c.status) if portion.states else measured


def _looking_over(counting: _Count) -> list[Portion]:
    spec = counting.spec
    lately = {
        "finished_last_minute": spec["finished_at"] >= utcnow(-_MINUTE),
        "finished_last_hour": spec["finished_at"] >= utcnow(-_HOUR),
    }
    every = counting.portions()
    unfinished = [_aged(spec, portion) for portion in every if portion.states[0] not in FINAL]
    final = [portion for portion in every if portion.states[0] in FINAL]
    if not finds_finished(counting.adapter, spec):
        order = [key.desc() for key in spec.primary_key]
        return [*unfinished, *(replace(portion, flags=lately, order=order) for portion in final)]
    in_hour = Portion(rows=lately["finished_last_hour"], flags=lately, order=[spec["finished_at"].desc()])
    if counting.windows is not None:
        in_hour = replace(in_hour, window=counting.windows.finished(in_hour.rows, counting.where))
    return [*unfinished, *final, in_hour]


def _aged(spec: QueueSpec, portion: Portion) -> Portion:
    """Return a portion of unfinished tasks that also counts those that can be claimed, with the earliest time."""
    are_due = Status.AVAILABLE not in portion.states
    can_be_claimed = and_(*picks(spec, (), ())[1](1).state) if are_due else ~waits(spec)
    flags = {**portion.flags, "claimable": can_be_claimed}
    moments: dict[str, ColumnElement[Any]] = {"claimable_since": case((can_be_claimed, spec["available_at"]))}
    if are_due:
        flags["overdue"] = and_(can_be_claimed, ~is_held(spec))
        moments["running_since"] = case((is_held(spec), spec["claimed_at"]))
    if not spec.is_limited:
        return replace(portion, flags=flags, moments=moments)
    return replace(portion, flags={**flags, "limited": can_be_claimed}, moments=moments, slots=slots_of(spec))


def _unserved(session: Session, entity: type[QueueMixin], where: Sequence[Where]) -> Mapping[str, timedelta]:
    return MappingProxyType(unserved_functions(session, entity, *where))


def _is_capped(name: str, rows: Iterable[Any], limits: Container[str], cap: int | None) -> bool:
    """Return whether this count reached the cap, or was taken among final tasks whose count did."""
    lately = next((row for row in rows if row.status is None), None)
    if lately is None:
        return any(status in limits for status in FINAL)
    return cap is not None and getattr(lately, name) >= cap


def _by_state(rows: Iterable[Any]) -> Iterator[tuple[str, int, int, int]]:
    return ((row.status, row.tasks, row.abandoned, row.waits) for row in rows if row.status is not None)


def _stats(rows: Iterable[Sequence[Any]], limits: Collection[str] = ()) -> QueueStats:
    """Build statistics from rows of status, number of tasks, of abandoned ones, and of available ones that wait."""
    counts, all_abandoned = dict.fromkeys(Status, 0), 0
    unknown: dict[str, int] = {}
    for status, tasks, expired, waiting in rows:
        if status not in KNOWN:
            unknown[status] = tasks
            continue
        counts[Status(status)] += tasks - waiting
        counts[Status.SCHEDULED] += waiting
        all_abandoned += expired
    figures = frozenset(limits) | _follow(limits)
    return QueueStats(MappingProxyType(counts), all_abandoned, figures, unknown=MappingProxyType(unknown))


def _follow(limits: Collection[str]) -> set[str]:
    """Return the figures that are derived from capped states."""
    unfinished = (Status.AVAILABLE, *DUE, Status.WAITING)
    made = {
        **dict.fromkeys(("abandoned", "overdue", "oldest_running"), DUE),
        # some tasks with the status available may wait as if they were scheduled
        **dict.fromkeys((Status.SCHEDULED, "claimable", "oldest_claimable", "unfinished"), unfinished),
        "total": tuple(Status),
    }
    return {name for name, states in made.items() if not set(states).isdisjoint(limits)}


def _age(rows: Iterable[Any], name: str) -> timedelta | None:
    """Return the time since the earliest of the moments called ``name``."""
    ages = [row.moment - moment for row in rows if (moment := getattr(row, name)) is not None]
    return max(timedelta(0), *ages) if ages else None


def _own_column(spec: QueueSpec, by: object) -> ColumnElement[Any]:
    column = by.__clause_element__() if isinstance(by, QueryableAttribute) else by
    if not isinstance(column, ColumnElement) or not tables_in(column) <= {*spec.mapper.tables}:
        name = spec.entity.__name__
        raise ArgumentError(f"{by!r} is not a column of {name}: give one of its attributes, as in {name}.status")
    return column
