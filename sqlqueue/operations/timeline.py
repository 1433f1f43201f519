"""What became of tasks, and how fast, over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Executable, Subquery, case, func, literal, literal_column, select

from .._support.checks import duration
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
"""Buckets, and days that they go back."""

_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)
_ORIGIN = datetime(1900, 1, 1, tzinfo=UTC)
"""Where the first bucket of all begins: a Monday, so that weeks begin on one."""
_ENDS = (Status.COMPLETED, Status.DISCARDED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class Durations:
    """How long tasks took.  The percentiles are durations that occurred."""

    count: int = 0
    """How many they are; if none, the rest is ``None``."""
    mean: timedelta | None = None
    """The arithmetic mean."""
    p50: timedelta | None = None
    """The median."""
    p95: timedelta | None = None
    """What 95 of 100 did not exceed."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The tasks that finished between ``start`` and the start of the next bucket."""

    start: datetime
    completed: int = 0
    """Tasks that were completed."""
    failed: int = 0
    """Discarded: given up after the last attempt, or at once."""
    cancelled: int = 0
    """Tasks that were cancelled."""
    run_time: Durations = Durations()
    """Of those that were completed, from their last claim on."""
    waiting_time: Durations = Durations()
    """Of those that were completed, from their creation to their last claim."""


def timeline(
    session: AnySession,
    entity: type[QueueMixin],
    *where: Where,
    bucket: timedelta = timedelta(hours=1),
    since: timedelta = _DAY,
) -> list[Bucket]:
    """Return the tasks that finished in each ``bucket`` of time, oldest first, and how long they ran and had waited.

    The buckets range from the one that contains the time ``since`` ago, which is counted whole, to the current one,
    which is not over yet; empty buckets are included.  A bucket divides a day, or is whole days (weeks begin on
    Monday), in UTC.  Times are ``finished_at`` by the database's clock.

    Both durations are those of the last attempt of completed tasks.  The waiting time of a task that was retried, or
    went through stages, includes its earlier attempts and the time between them; that of a scheduled task the time
    until it was due.  Tasks that were deleted, pruned or reactivated since are not counted, and so runs of recurring
    tasks are not: their row is scheduled again.

    One query, which locks nothing.  It reads the rows that finished within ``since`` by an index that begins with
    ``finished_at``, if there is one, else the table.  Raises :class:`.ArgumentError` for other buckets, or more than
    10,000 of them.
    """
    spec = spec_of(entity)
    _check(bucket, since)
    session = session_of(session)
    adapter, scoped = open_(session, spec), within(session, spec, where)
    rows = adapter.rows.execute(session, spec, _asked(adapter, spec, scoped, bucket, since)).all()
    now: datetime = rows[0].moment
    found = {each.start: each for each in _read(rows)}
    first, last = _start(now - since, bucket), _start(now, bucket)
    starts = (first + number * bucket for number in range((last - first) // bucket + 1))
    return [found.get(start, Bucket(start)) for start in starts]


def _check(bucket: timedelta, since: timedelta) -> None:
    duration("since", since)
    duration("bucket", bucket)
    if _DAY % bucket and bucket % _DAY:
        raise ArgumentError(f"bucket={bucket!r}: give what divides a day, such as timedelta(minutes=15), or whole days")
    if since // bucket > MOST or max(since, bucket) > MOST * _DAY:
        raise ArgumentError(
            f"since={since!r} in buckets of {bucket!r}: at most {MOST:,} buckets, and as many days; give a shorter"
            " since, or larger buckets"
        )


def _start(moment: datetime, bucket: timedelta) -> datetime:
    return moment - (moment - _ORIGIN) % bucket


def _asked(
    adapter: Adapter, spec: QueueSpec, where: Sequence[Where], bucket: timedelta, since: timedelta
) -> Executable:
    ranked = _ranked(_finished(adapter, spec, where, bucket, since))
    ends = (func.count(case((ranked.c.status == state(end), literal_column("1")))).label(end.value) for end in _ENDS)
    measures = (measure for name in ("ran", "waited") for measure in _measures(ranked, name))
    grouped = select(ranked.c.starts_at, *ends, *measures).group_by(ranked.c.starts_at).subquery("grouped")
    # the moment is told even if nothing was finished; all of grouped is joined, but not every engine takes a bare true
    clock = select(utcnow().label("moment")).subquery("clock")
    return select(clock.c.moment, *grouped.c).select_from(clock.outerjoin(grouped, grouped.c.starts_at.is_not(None)))


def _finished(
    adapter: Adapter, spec: QueueSpec, where: Sequence[Where], bucket: timedelta, since: timedelta
) -> Subquery:
    """Each row with the start of its bucket and its durations, in microseconds.

    A bucket more than is asked for: where the first one begins depends on the clock.
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
    return rows.where(only(spec, finished >= utcnow(-since - bucket), *where)).subquery("finished")


def _ranked(finished: Subquery) -> Subquery:
    """Beside each duration its position among those of its bucket, and how many these are."""
    positions: list[ColumnElement[Any]] = []
    for name in ("ran", "waited"):
        took, starts_at = finished.c[name], finished.c.starts_at
        last = case((took.is_(None), literal_column("1")), else_=literal_column("0"))  # wherever the engine has NULL
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
