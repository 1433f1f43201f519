"""Counts tasks up to a cap, so that the cost of counting is bounded however many tasks there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, case, func, literal_column, null, or_, select, union_all
from sqlalchemy.orm import Session

from ..dialects.base import Adapter
from ..lifecycle.kind import kinds_of
from ..queue.spec import Criterion, QueueSpec, Where
from ..queue.status import DUE, FINAL, Status
from ..sql.clock import representable, utcnow
from ..sql.criteria import only
from ..sql.states import is_available, is_due, is_early, is_hung, state
from .windows import Window, Windows

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


def waits(spec: QueueSpec) -> Criterion:
    """Return the criterion of rows whose status is ``available`` by default, as other programs insert them, but that
    cannot be claimed yet.
    """
    others = (kind.unplanned(spec) for kind in kinds_of(spec))
    return or_(is_early(spec), *(criterion for criterion in others if criterion is not None))


def portions(spec: QueueSpec) -> tuple[Portion, Portion, Portion]:
    """Return the portions that make up all tasks: due tasks, available tasks, final and unknown ones.

    The order matters: the columns of a union take their types from its first part.
    """
    # rows with an unknown status are counted with the final ones: no index contains only those either
    unfinished = [state(status) for status in (Status.AVAILABLE, *DUE)]
    return (
        Portion(rows=is_due(spec), states=DUE, flags={"hung": is_hung(spec)}),
        Portion(rows=is_available(spec), states=(Status.AVAILABLE,), flags={"waits": waits(spec)}),
        Portion(rows=spec["status"].not_in(unfinished), states=FINAL),
    )


def windowed(windows: Windows, where: Sequence[Where]) -> Iterator[Portion]:
    """Yield the portions of tasks that satisfy ``where``, like :func:`portions`, each read through a window."""
    whole = {status: portion for portion in portions(windows.spec) for status in portion.states}
    for states, window in windows.all(where):
        yield replace(whole[states[0]], states=states, window=window)


def cut(adapter: Adapter, session: Session, asked: Iterable[Portion]) -> set[str]:
    """Return the states, or flags, whose counts are lower bounds because their windows have more rows than are read."""
    found = (portion for portion in asked if portion.window is not None and portion.window.is_cut(session))
    return {name for portion in found for name in portion.states or portion.flags}


def counted(spec: QueueSpec, where: Iterable[Where], asked: Sequence[Portion], cap: int | None) -> Select[Any]:
    """Return one statement with a row per state, or per portion without states: counts, flags, moments and the current
    time.
    """
    criteria = tuple(where)
    flags = list(dict.fromkeys(name for portion in asked for name in portion.flags))
    moments = list(dict.fromkeys(name for portion in asked for name in portion.moments))
    found = union_all(
        *(_measured(portion, _looked_at(spec, portion, criteria, cap), flags, moments) for portion in asked)
    ).subquery("found")
    # read the clock once: within the subquery, SQLite would read it for each row
    shown = (representable(each).label(each.name) if each.name in moments else each for each in found.c)
    return select(*shown, utcnow().label("moment"))


def _looked_at(spec: QueueSpec, portion: Portion, where: Sequence[Where], cap: int | None) -> Subquery:
    flags = (case((criterion, literal_column("1"))).label(name) for name, criterion in portion.flags.items())
    moments = (moment.label(name) for name, moment in portion.moments.items())
    # leave out a status that is not needed: an engine would read the row in addition to its index
    status = [spec["status"].label("status")] if portion.states else []
    columns = (*status, *flags, *moments)
    if portion.window is not None:
        return portion.window.select(*columns, limit=cap).subquery("each_task")
    rows = select(*columns).where(only(spec, portion.rows, *where))
    return (rows if cap is None else rows.order_by(*portion.order).limit(cap)).subquery("each_task")


def _measured(portion: Portion, each: Subquery, flags: Iterable[str], moments: Iterable[str]) -> Select[Any]:
    nothing: ColumnElement[int] = literal_column("0")
    columns: list[ColumnElement[Any]] = [
        func.count().label("tasks"),
        *((func.count(each.c[name]) if name in portion.flags else nothing).label(name) for name in flags),
        *((func.min(each.c[name]) if name in portion.moments else null()).label(name) for name in moments),
    ]
    status: list[ColumnElement[Any]] = [each.c.status if portion.states else null().label("status")]
    measured = select(*status, *columns).select_from(each)
    return measured.group_by(each.c.status) if portion.states else measured


def capped(rows: Iterable[Any], asked: Iterable[Portion], cap: int | None) -> set[str]:
    """Return the states whose counts are lower bounds because counting their portion stopped at the cap."""
    counts: Counter[str] = Counter()
    for row in rows:
        if row.status is not None:
            counts[row.status if row.status in KNOWN else FINAL[0]] += row.tasks  # the portion that counts unknown ones
    full = (p.states for p in asked if cap is not None and sum(counts[each] for each in p.states) >= cap)
    return {status for states in full for status in states}
