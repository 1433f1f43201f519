"""What has ended: the attempts of a task, and figures over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Select,
    Subquery,
    Table,
    case,
    delete,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.orm import Session

from .._support.checks import count, duration
from .._support.errors import ArgumentError, Claim
from ..dialects.base import Adapter
from ..model.companions import History, HistoryMixin, history_of, missing_companion
from ..model.declaration import QueueMixin
from ..queue.options import FAILED, AttemptOutcome, Status
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..sql import ended, only, state, utcnow
from ..transaction import Access, AnySession, is_restricted, open_, refuse_if_restricted, row_of, session_of, within
from .filtering import identity
from .paging import finds_finished
from .recording import HASHED, Shown, moments_read, task_key

# -- the finished attempts of a task ----------------------------------------------------------------------------------

DEFAULT_LIMIT = 100
"""The number of attempts that :func:`history` returns by default."""
_OUTCOMES = {outcome.value: outcome for outcome in AttemptOutcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """A finished attempt at a task."""

    attempt: int
    """Its number, starting at 1."""
    outcome: AttemptOutcome | str
    """How it ended; the stored text if it is none of these outcomes, as a newer release may have stored it."""
    claimed_by: str | None
    """The name of the claimer; ``None`` if the settled claim did not contain it."""
    started_at: datetime | None
    """When it was claimed; ``None`` if the claim only locked the row, which records no time."""
    finished_at: datetime
    """When it ended, or was found to have crashed, by the database's clock."""
    error: str | None
    """The text of its error."""
    traceback: str | None
    """The application's frames of its exception, and its causes; never local variables."""

    @property
    def took(self) -> timedelta | None:
        """The duration of the attempt, from its claim to its end."""
        return None if self.started_at is None else self.finished_at - self.started_at


def history(session: AnySession, task: QueueMixin | Claim, *, limit: int = DEFAULT_LIMIT) -> list[PastAttempt]:
    """Return the finished attempts at a task, the latest first, at most ``limit``.

    ``task``: a task, which need not be claimed, or its :class:`.Claim`, whose row may be deleted.  Runs one query,
    which uses an index and locks nothing.  Raises :class:`.ConfigurationError` if the application has no model for
    them, see :class:`.HistoryMixin`.

    A session that sees only some tasks, because of its criteria or row-level security, sees the attempts at these,
    which takes another query, and none at tasks that were deleted.

    A primary key that is used again after its row was deleted has the attempts of both rows.
    """
    spec, key = row_of(task)
    count("limit", limit)
    table = _history_of(spec).table
    session = session_of(session)
    adapter = open_(session, spec)
    if is_restricted(session, adapter, spec):
        mine = only(spec, *within(session, spec, (spec.key(key),)))
        if not adapter.rows.exists(session, spec, mine):
            return []
    names = ("attempt", "outcome", "claimed_by", "started_at", "finished_at", "error", "traceback")
    of_task = (table.c.queue == spec.table.fullname, table.c.task == task_key(key))
    moments = ("started_at", "finished_at")

    def asked(shown: Shown) -> Select[Any]:
        columns = (shown(table.c[name]) if name in moments else table.c[name] for name in names)
        return select(*columns).where(*of_task).order_by(table.c.id.desc()).limit(limit)

    rows = moments_read(adapter, session, spec, asked)
    found = (dict(zip(names, row, strict=True)) for row in rows)
    return [
        PastAttempt(**{**values, "outcome": _OUTCOMES.get(values["outcome"], values["outcome"])}) for values in found
    ]


def prune_history(
    session: AnySession,
    entity: type[QueueMixin],
    older_than: timedelta | None = None,
    *,
    limit: int | None = None,
) -> int:
    """Delete attempts at tasks of this queue that ended longer than ``older_than`` ago; return how many.

    Without ``older_than`` the history's ``retention`` applies.  Deletes at most ``limit`` rows, to keep transactions
    short: the call runs in the session's transaction, and without a ``limit`` deletes all of them in that one.  Raises
    :class:`.ConfigurationError` if the application has no model for them, and :class:`.ArgumentError` for an
    ``older_than`` in a session that sees only some of the tasks, because of its criteria or row-level security: the
    history does not store whose attempts these are.
    """
    spec = spec_of(entity)
    table, old = _old(spec, older_than)
    if limit is not None:
        count("limit", limit)
    session = session_of(session)
    adapter = open_(session, spec, Access.CHANGE)
    if older_than is not None:
        refuse_if_restricted(session, adapter, spec, "prune_history(older_than=...)")
    attempts = replace(spec, table=table, primary_key=(table.c.id,))
    if limit is None and not adapter.rows.sweeps_by_key:
        return adapter.rows.count(session, attempts, delete(table).where(*old))
    deleted, most = 0, adapter.rows.most(attempts)
    while size := most if limit is None else min(most, limit - deleted):
        some = adapter.rows.keys(session, attempts, select(table.c.id).where(*old).limit(size))
        named = delete(table).where(adapter.rows.key_in(attempts, some))
        gone = adapter.rows.count(session, attempts, adapter.rows.by_key(attempts, named)) if some else 0
        deleted += gone
        if len(some) < size or not gone:
            break
    return deleted


def count_old_attempts(session: Session, entity: type[QueueMixin], older_than: timedelta | None, *, cap: int) -> int:
    """Return how many attempts :func:`prune_history` deletes, at most ``cap``.  Runs one statement, without locks."""
    spec = spec_of(entity)
    table, old = _old(spec, older_than)
    rows = select(table.c.id).where(*old).limit(cap).subquery("old_attempts")
    found: int = open_(session, spec).rows.execute(session, spec, select(func.count()).select_from(rows)).scalar_one()
    return found


def _old(spec: QueueSpec, older_than: timedelta | None) -> tuple[Table, list[Criterion]]:
    """Return the history, and the criteria of attempts older than ``older_than``, or than its retention."""
    kept = _history_of(spec)
    age = kept.options.retention if older_than is None else duration("older_than", older_than, zero=True)
    if age is None:
        raise ArgumentError("the history has no retention: give older_than=timedelta(...), or HistoryOptions(...)")
    table = kept.table
    ways = table.c.outcome.in_([each.value for each in AttemptOutcome])  # all of them, so that the index is used
    return table, [table.c.queue == spec.table.fullname, ways, table.c.finished_at <= utcnow(-age)]


def attempts_of(session: Session, adapter: Adapter, spec: QueueSpec, where: Sequence[Where]) -> History | None:
    """Return the history whose attempts of a queue are those of the tasks that satisfy ``where``.

    ``None`` if the application has no history, or if only some of the queue's tasks are meant or seen: the history does
    not store their columns.
    """
    found = history_of(spec.table.metadata)
    if found is None or where or spec.inherited is not None:
        return None
    return None if adapter.inspection.hides_rows(session.connection(spec.bind_arguments), spec) else found


def identity_of(spec: QueueSpec, key: str) -> Identity | None:
    """Return the primary key that the history stores as ``key``; ``None`` if it cannot be recovered from the text."""
    try:
        return None if key.startswith(HASHED) else identity(spec, key)
    except ArgumentError:
        return None


def _history_of(spec: QueueSpec) -> History:
    found = history_of(spec.table.metadata)
    if found is None:
        raise missing_companion(HistoryMixin, spec, f"{spec.entity.__name__} has no history")
    return found


# -- finished tasks and their durations over time ----------------------------------------------------------------------

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
    return _timeline(session, spec, scoped, _Window(adapter, bucket, since, cap), history)


def indexed_timeline(
    session: Session, entity: type[QueueMixin], *, bucket: timedelta, since: timedelta, cap: int
) -> list[Bucket] | None:
    """Return what :func:`timeline` does for a whole queue, as far as indexes find it: never read a whole table.

    There are no waiting times if no index finds finished tasks.  ``None`` without a history if that is so, or if the
    queue deletes completed tasks.
    """
    spec = spec_of(entity)
    adapter, scoped = open_(session, spec), within(session, spec, ())
    history, is_indexed = attempts_of(session, adapter, spec, scoped), finds_finished(adapter, spec)
    if history is None and (not is_indexed or spec.options.on_complete == "delete"):
        return None
    return _timeline(session, spec, scoped, _Window(adapter, bucket, since, cap), history, waits=is_indexed)


def _timeline(
    session: Session,
    spec: QueueSpec,
    where: Sequence[Where],
    window: _Window,
    history: History | None,
    *,
    waits: bool = True,
) -> list[Bucket]:
    def read(rows: Subquery, *measured: str) -> Sequence[Any]:
        return window.adapter.rows.execute(session, spec, _asked(rows, measured)).all()

    tasks = read(_tasks(window, spec, where), "ran", "waited") if waits or history is None else []
    if history is None:
        return _filled(_read(tasks), tasks[0].moment, window)
    attempts = read(_attempts(window, spec, history.table), "ran")
    now: datetime = (tasks or attempts)[0].moment
    both = zip(_filled(_read(attempts), now, window), _filled(_read(tasks), now, window), strict=True)
    return [_merged(*each) for each in both]


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
