"""Finished tasks and their durations over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Subquery,
    Table,
    case,
    func,
    literal,
    literal_column,
    select,
)

from .._support.checks import count, duration
from .._support.errors import ArgumentError
from ..dialects.base import Adapter
from ..model.declaration import QueueMixin
from ..queue.options import FAILED, AttemptOutcome, Status
from ..queue.spec import Criterion, QueueSpec, Where, spec_of
from ..sql import ended, only, state, utcnow
from ..transaction import AnySession, open_, session_of, within
from .history import attempts_of

MAX_BUCKETS = 10_000
"""The maximum number of buckets, and of days that they reach back."""

_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)
_ORIGIN = datetime(1900, 1, 1, tzinfo=UTC)
"""The origin of all buckets: a Monday, so that weeks begin on Monday."""
_ENDS = (Status.COMPLETED, Status.DISCARDED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class Durations:
    """How long tasks, or attempts, took.  The percentiles are durations that occurred, without interpolation."""

    count: int = 0
    """How many there are; if it is 0, the other attributes are ``None``."""
    mean: timedelta | None = None
    """The arithmetic mean."""
    p50: timedelta | None = None
    """The median."""
    p95: timedelta | None = None
    """The 95th percentile."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What ended between ``start`` and the start of the next bucket: attempts if the application keeps a history,
    otherwise tasks.
    """

    start: datetime
    completed: int = 0
    """The number of completed tasks, or of attempts that completed their task, stage or run."""
    failed: int = 0
    """The number of discarded tasks, given up after the last attempt or at once; or of attempts that failed, were
    discarded or crashed."""
    cancelled: int = 0
    """The number of cancelled tasks, or of attempts that were cancelled."""
    run_time: Durations = Durations()
    """How long completed attempts ran from their claim to the end, or completed tasks from their last claim."""
    waiting_time: Durations = Durations()
    """How long completed tasks waited, from their creation to their last claim; of tasks even if attempts are
    counted."""
    capped: bool = False
    """Whether it may be incomplete, see the ``cap`` of :func:`timeline`."""
    attempts: bool = False
    """Whether attempts are counted, from the history; otherwise tasks."""


def timeline(
    session: AnySession,
    entity: type[QueueMixin],
    *where: Where,
    bucket: timedelta = timedelta(hours=1),
    since: timedelta = _DAY,
    cap: int | None = None,
) -> list[Bucket]:
    """Return what ended in each ``bucket`` of time, oldest first, and how long it ran and had waited.

    The buckets range from the one that contains the time ``since`` ago, which is included in full, to the current one,
    which is not over yet; empty buckets are included.  A bucket divides a day, or is whole days (weeks begin on
    Monday), in UTC.  Times are ``finished_at`` by the database's clock.

    If the application has a :class:`.HistoryMixin`, the attempts that ended then are counted, whatever became of their
    tasks: each failure that was retried, each run of a recurring task and each stage.  Released and snoozed attempts
    are not counted.  A crashed attempt counts at the time when the crash was detected.

    Otherwise the tasks that finished then are counted. Tasks that were deleted, pruned or reactivated since then are
    not counted, nor are runs of recurring tasks, whose row is scheduled again.  The same applies with ``where``,
    criteria of the session or row-level security, and to a subclass that shares its table, because the history does not
    store the columns of tasks.

    The waiting time is that of completed tasks in both cases, up to the last attempt.  That of a task that was retried,
    or went through stages, includes its earlier attempts and the time between them; that of a scheduled task includes
    the time until it was due.

    ``cap``: the maximum number of tasks, and of attempts, to read, starting with the last to end; :attr:`Bucket.capped`
    marks the buckets that may be incomplete.

    Runs one query, or two with a history, which lock nothing.  It reads the rows that finished within ``since``, with
    an index that begins with ``finished_at`` if there is one, otherwise the whole table; attempts are read with an
    index of the history.  Raises :class:`.ArgumentError` for other buckets, or more than 10,000 of them.
    """
    spec = spec_of(entity)
    _check(bucket, since)
    if cap is not None:
        count("cap", cap)
    session = session_of(session)
    adapter, scoped = open_(session, spec), within(session, spec, where)
    history = attempts_of(session, adapter, spec, scoped)
    window = _Window(adapter, bucket, since, cap)
    rows = adapter.rows.execute(session, spec, _asked(_tasks(window, spec, scoped), ("ran", "waited"))).all()
    now: datetime = rows[0].moment
    tasks = _read(rows)
    if history is None:
        return _filled(tasks, now, window)
    attempts = _asked(_attempts(window, spec, history.table), ("ran",))
    found = _read(adapter.rows.execute(session, spec, attempts).all())
    return [_merged(*both) for both in zip(_filled(found, now, window), _filled(tasks, now, window), strict=True)]


class _Window(NamedTuple):
    adapter: Adapter
    bucket: timedelta
    since: timedelta
    cap: int | None


def _filled(found: Mapping[datetime, Bucket], now: datetime, window: _Window) -> list[Bucket]:
    """Return all buckets of the window, including empty ones, and mark those that may be incomplete."""
    bucket = window.bucket
    first, last = _start(now - window.since, bucket), _start(now, bucket)
    starts = (first + number * bucket for number in range((last - first) // bucket + 1))
    buckets = [found.get(start, Bucket(start)) for start in starts]
    if window.cap is None or sum(each.completed + each.failed + each.cancelled for each in found.values()) < window.cap:
        return buckets
    return [replace(each, capped=True) if each.start <= min(found) else each for each in buckets]


def _merged(attempts: Bucket, tasks: Bucket) -> Bucket:
    capped = attempts.capped or tasks.capped
    return replace(attempts, waiting_time=tasks.waiting_time, capped=capped, attempts=True)


def _check(bucket: timedelta, since: timedelta) -> None:
    duration("since", since)
    duration("bucket", bucket)
    if _DAY % bucket and bucket % _DAY:
        raise ArgumentError(
            f"bucket={bucket!r}: give a duration that divides a day, such as timedelta(minutes=15), or whole days"
        )
    if since // bucket > MAX_BUCKETS or max(since, bucket) > MAX_BUCKETS * _DAY:
        raise ArgumentError(
            f"since={since!r} in buckets of {bucket!r}: the maximum is {MAX_BUCKETS:,} buckets, and as many days; give"
            " a shorter since, or larger buckets"
        )


def _start(moment: datetime, bucket: timedelta) -> datetime:
    return moment - (moment - _ORIGIN) % bucket


def _asked(rows: Subquery, measured: Sequence[str]) -> Executable:
    """Return the statement that counts ``rows`` by bucket and by outcome, and measures the named durations."""
    ranked = _ranked(rows, measured)
    ends = (func.count(case((ranked.c.ended == state(end), literal_column("1")))).label(end.value) for end in _ENDS)
    measures = (measure for name in measured for measure in _measures(ranked, name))
    grouped = select(ranked.c.starts_at, *ends, *measures).group_by(ranked.c.starts_at).subquery("grouped")
    # return the time even if nothing has finished; the condition is always true, as not every engine has a bare TRUE
    clock = select(utcnow().label("moment")).subquery("clock")
    return select(clock.c.moment, *grouped.c).select_from(clock.outerjoin(grouped, grouped.c.starts_at.is_not(None)))


def _tasks(window: _Window, spec: QueueSpec, where: Sequence[Where]) -> Subquery:
    """Return each finished task with the start of its bucket and its durations, in microseconds."""
    finished, claimed, created = (spec[role] for role in ("finished_at", "claimed_at", "created_at"))
    completed, between = spec["status"] == state(Status.COMPLETED), window.adapter.types.microseconds
    rows = select(
        _starts_at(window, finished).label("starts_at"),
        spec["status"].label("ended"),
        case((completed, between(claimed, finished))).label("ran"),
        case((completed, between(created, claimed))).label("waited"),
    )
    rows = rows.where(only(spec, *_lately(window, finished), *where))
    return (rows if window.cap is None else rows.order_by(finished.desc()).limit(window.cap)).subquery("finished")


def _attempts(window: _Window, spec: QueueSpec, table: Table) -> Subquery:
    """Return the same for each finished attempt, with the status of a task that ends in the same way."""
    finished, outcome = table.c.finished_at, table.c.outcome
    completed = outcome == literal_column(f"'{AttemptOutcome.COMPLETED.value}'")
    failed = outcome.in_([literal_column(f"'{each.value}'") for each in FAILED])
    columns = {
        "starts_at": _starts_at(window, finished),
        "ended": case((failed, state(Status.DISCARDED)), else_=outcome),
        "ran": case((completed, window.adapter.types.microseconds(table.c.started_at, finished))),
    }
    outcomes = (AttemptOutcome.COMPLETED, *FAILED, AttemptOutcome.CANCELLED)
    lately = _lately(window, finished)
    return ended(table, spec.table.fullname, outcomes, columns, *lately, cap=window.cap).subquery("finished")


def _starts_at(window: _Window, finished: ColumnElement[Any]) -> ColumnElement[Any]:
    passed = window.adapter.types.microseconds(literal(_ORIGIN, finished.type), finished)
    return passed - window.adapter.types.remainder(passed, literal(window.bucket // _MICROSECOND, BigInteger()))


def _lately(window: _Window, finished: ColumnElement[Any]) -> Sequence[Criterion]:
    """Return the criteria of the requested time.

    It begins one bucket earlier than requested, because the start of the first bucket depends on the clock.  It ends,
    because other programs may insert infinity and years beyond 9999.
    """
    return (finished >= utcnow(-window.since - window.bucket), finished <= utcnow(window.bucket))


def _ranked(finished: Subquery, measured: Sequence[str]) -> Subquery:
    """Add to each duration its position within its bucket, and the number of durations there."""
    positions: list[ColumnElement[Any]] = []
    for name in measured:
        took, starts_at = finished.c[name], finished.c.starts_at
        last = case((took.is_(None), literal_column("1")), else_=literal_column("0"))  # engines sort NULL first or last
        positions.append(
            func.row_number().over(partition_by=starts_at, order_by=[last, took]).label(f"{name}_position")
        )
        positions.append(func.count(took).over(partition_by=starts_at).label(f"{name}_count"))
    return select(*finished.c, *positions).subquery("ranked")


def _measures(ranked: Subquery, name: str) -> Iterator[ColumnElement[Any]]:
    took, position, number = (ranked.c[each] for each in (name, f"{name}_position", f"{name}_count"))
    yield func.count(took).label(f"{name}_count")
    yield func.avg(took).label(f"{name}_mean")
    for percent in (50, 95):
        reached = position * literal_column("100") >= number * literal_column(str(percent))
        yield func.min(case((reached, took))).label(f"{name}_p{percent}")


def _read(rows: Sequence[Any]) -> dict[datetime, Bucket]:
    found: dict[datetime, Bucket] = {}
    for _, starts_at, completed, failed, cancelled, *measures in rows:
        if starts_at is not None:
            start = _ORIGIN + int(starts_at) * _MICROSECOND
            ran, waited = _durations(*measures[:4]), _durations(*measures[4:])
            found[start] = Bucket(start, completed, failed, cancelled, ran, waited)
    return found


def _durations(number: int = 0, *measures: Any) -> Durations:
    return Durations(number, *(None if each is None else round(each) * _MICROSECOND for each in measures))
