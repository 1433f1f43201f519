"""Finished tasks and their durations over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Executable, Subquery, case, func, literal, literal_column, select

from .._support.checks import count, duration
from .._support.exc import ArgumentError
from ..dialects.base import Adapter
from ..model.mixins import QueueMixin
from ..queue.spec import QueueSpec, Where, spec_of
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.selection import only, state
from ..transaction.connection import AnySession, open_, session_of
from .session_criteria import within

MOST = 10_000
"""The maximum number of buckets, and of days that they reach back."""

_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)
_ORIGIN = datetime(1900, 1, 1, tzinfo=UTC)
"""The origin of all buckets: a Monday, so that weeks begin on Monday."""
_ENDS = (Status.COMPLETED, Status.DISCARDED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class Durations:
    """How long tasks took.  The percentiles are durations that occurred, without interpolation."""

    count: int = 0
    """The number of tasks; if it is 0, the other attributes are ``None``."""
    mean: timedelta | None = None
    """The arithmetic mean."""
    p50: timedelta | None = None
    """The median."""
    p95: timedelta | None = None
    """The 95th percentile."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The tasks that finished between ``start`` and the start of the next bucket."""

    start: datetime
    completed: int = 0
    """The number of completed tasks."""
    failed: int = 0
    """The number of discarded tasks: given up after the last attempt, or at once."""
    cancelled: int = 0
    """The number of cancelled tasks."""
    run_time: Durations = Durations()
    """How long completed tasks ran, from their last claim to the end."""
    waiting_time: Durations = Durations()
    """How long completed tasks waited, from their creation to their last claim."""
    capped: bool = False
    """Whether tasks that finished in it may have been left out, see the ``cap`` of :func:`timeline`."""


def timeline(
    session: AnySession,
    entity: type[QueueMixin],
    *where: Where,
    bucket: timedelta = timedelta(hours=1),
    since: timedelta = _DAY,
    cap: int | None = None,
) -> list[Bucket]:
    """Return the tasks that finished in each ``bucket`` of time, oldest first, and how long they ran and had waited.

    The buckets range from the one that contains the time ``since`` ago, which is counted whole, to the current one,
    which is not over yet; empty buckets are included.  A bucket divides a day, or is whole days (weeks begin on
    Monday), in UTC.  Times are ``finished_at`` by the database's clock.

    Both durations refer to the last attempt of completed tasks.  The waiting time of a task that was retried, or went
    through stages, includes its earlier attempts and the time between them; that of a scheduled task includes the time
    until it was due.  Tasks that were deleted, pruned or reactivated since are not counted, nor are runs of recurring
    tasks, whose row is scheduled again.

    ``cap``: read at most so many tasks, the last that finished; :attr:`Bucket.capped` names the buckets that may be
    incomplete.

    One query, which locks nothing.  It reads the rows that finished within ``since`` by an index that begins with
    ``finished_at``, if there is one, else the table.  Raises :class:`.ArgumentError` for other buckets, or more than
    10,000 of them.
    """
    spec = spec_of(entity)
    _check(bucket, since)
    if cap is not None:
        count("cap", cap)
    session = session_of(session)
    adapter, scoped = open_(session, spec), within(session, spec, where)
    rows = adapter.rows.execute(session, spec, _asked(adapter, spec, scoped, bucket=bucket, since=since, cap=cap)).all()
    now: datetime = rows[0].moment
    found = {each.start: each for each in _read(rows)}
    first, last = _start(now - since, bucket), _start(now, bucket)
    starts = (first + number * bucket for number in range((last - first) // bucket + 1))
    buckets = [found.get(start, Bucket(start)) for start in starts]
    if cap is None or sum(each.completed + each.failed + each.cancelled for each in found.values()) < cap:
        return buckets
    return [replace(each, capped=True) if each.start <= min(found) else each for each in buckets]


def _check(bucket: timedelta, since: timedelta) -> None:
    duration("since", since)
    duration("bucket", bucket)
    if _DAY % bucket and bucket % _DAY:
        raise ArgumentError(
            f"bucket={bucket!r}: give a duration that divides a day, such as timedelta(minutes=15), or whole days"
        )
    if since // bucket > MOST or max(since, bucket) > MOST * _DAY:
        raise ArgumentError(
            f"since={since!r} in buckets of {bucket!r}: the maximum is {MOST:,} buckets, and as many days; give a"
            " shorter since, or larger buckets"
        )


def _start(moment: datetime, bucket: timedelta) -> datetime:
    return moment - (moment - _ORIGIN) % bucket


def _asked(
    adapter: Adapter, spec: QueueSpec, where: Sequence[Where], *, bucket: timedelta, since: timedelta, cap: int | None
) -> Executable:
    ranked = _ranked(_finished(adapter, spec, where, bucket=bucket, since=since, cap=cap))
    ends = (func.count(case((ranked.c.status == state(end), literal_column("1")))).label(end.value) for end in _ENDS)
    measures = (measure for name in ("ran", "waited") for measure in _measures(ranked, name))
    grouped = select(ranked.c.starts_at, *ends, *measures).group_by(ranked.c.starts_at).subquery("grouped")
    # return the time even if nothing has finished; the condition is always true, as not every engine has a bare TRUE
    clock = select(utcnow().label("moment")).subquery("clock")
    return select(clock.c.moment, *grouped.c).select_from(clock.outerjoin(grouped, grouped.c.starts_at.is_not(None)))


def _finished(
    adapter: Adapter, spec: QueueSpec, where: Sequence[Where], *, bucket: timedelta, since: timedelta, cap: int | None
) -> Subquery:
    """Return each finished row with the start of its bucket and its durations, in microseconds.

    Reads one bucket more than asked for, because the start of the first one depends on the clock.
    """
    finished, claimed, created = (spec[role] for role in ("finished_at", "claimed_at", "created_at"))
    completed = spec["status"] == state(Status.COMPLETED)
    passed = adapter.types.microseconds(literal(_ORIGIN, finished.type), finished)
    rows = select(
        (passed - passed % literal(bucket // _MICROSECOND, BigInteger())).label("starts_at"),
        spec["status"].label("status"),
        case((completed, adapter.types.microseconds(claimed, finished))).label("ran"),
        case((completed, adapter.types.microseconds(created, claimed))).label("waited"),
    )
    rows = rows.where(only(spec, finished >= utcnow(-since - bucket), *where))
    return (rows if cap is None else rows.order_by(finished.desc()).limit(cap)).subquery("finished")


def _ranked(finished: Subquery) -> Subquery:
    """Add to each duration its position within its bucket, and the number of durations there."""
    positions: list[ColumnElement[Any]] = []
    for name in ("ran", "waited"):
        took, starts_at = finished.c[name], finished.c.starts_at
        last = case((took.is_(None), literal_column("1")), else_=literal_column("0"))  # engines sort NULL first or last
        positions.append(
            func.row_number().over(partition_by=starts_at, order_by=[last, took]).label(f"{name}_position")
        )
        positions.append(func.count(took).over(partition_by=starts_at).label(f"{name}_count"))
    return select(*finished.c, *positions).subquery("ranked")


def _measures(ranked: Subquery, name: str) -> Iterator[ColumnElement[Any]]:
    took, position, count = (ranked.c[each] for each in (name, f"{name}_position", f"{name}_count"))
    yield func.count(took).label(f"{name}_count")
    yield func.avg(took).label(f"{name}_mean")
    for percent in (50, 95):
        reached = position * literal_column("100") >= count * literal_column(str(percent))
        yield func.min(case((reached, took))).label(f"{name}_p{percent}")


def _read(rows: Sequence[Any]) -> Iterator[Bucket]:
    for _, starts_at, completed, failed, cancelled, *measures in rows:
        if starts_at is not None:
            ran, waited = _durations(*measures[:4]), _durations(*measures[4:])
            yield Bucket(_ORIGIN + int(starts_at) * _MICROSECOND, completed, failed, cancelled, ran, waited)


def _durations(count: int, *measures: Any) -> Durations:
    return Durations(count, *(None if each is None else round(each) * _MICROSECOND for each in measures))
