"""The meaning of columns: times, states, keys, and the values that changes write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeAlias, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    DateTime,
    Delete,
    Float,
    Select,
    String,
    Table,
    Update,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from .._support.checks import text
from .._support.errors import ArgumentError
from .._support.private import cached_with
from ..queue.options import DUE, FINAL, AttemptOutcome, Status
from ..queue.spec import Criterion, QueueSpec

# -- the library's own column types, which migrations show as the SQLAlchemy types that they wrap ---------------------

T = TypeVar("T")
W = TypeVar("W", bound="WrappedType[Any]")


class WrappedType(TypeDecorator[T]):
    """A type that checks or converts values, and stores them with the SQLAlchemy type that it wraps."""

    cache_ok = True
    _wrapper: ClassVar[type[WrappedType[Any]]]
    """The class whose :meth:`wrapping` made this class."""

    @classmethod
    def wrapping(cls: type[W], stock: type[TypeEngine[Any]], **arguments: Any) -> W:
        """Return an instance that wraps ``stock``, whose class has the module and name of ``stock``.

        Alembic writes types into migrations by the module and name of their class, and a migration must not import
        this package.
        """
        names = {"impl": stock, "cache_ok": True, "__module__": stock.__module__, "_wrapper": cls}
        made: Any = type(stock.__name__, (cls,), names)
        wrapped: W = made(**arguments)
        return wrapped

    def __reduce__(self) -> tuple[Any, ...]:
        # pickled through the wrapped type, because the class cannot be imported by its name
        kept = ("impl", "impl_instance", "_variant_mapping")
        state = {name: value for name, value in self.__dict__.items() if name in kept}
        return self._wrapper.wrapping, (type(self).impl,), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        # defined here, because otherwise it would be looked up in the wrapped type, which would be cached without its
        # arguments
        self.__dict__.update(state)


# -- time: the database's clock, in UTC, and the type of time columns -------------------------------------------------

NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""The ``available_at`` of rows from before the table became a queue.  A claim that scans the index for due rows stops
before them, however many there are."""


REACH = timedelta(days=24_000)
"""Nearly the longest time that SQL Server can add to a time, in seconds of 31 bits."""


class UTCDateTime(WrappedType[datetime]):
    """The type of aware datetimes in UTC on every engine; naive ones raise :class:`.ArgumentError`."""

    impl = DateTime

    @property
    def python_type(self) -> type[datetime]:
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment = aware(value)
        return moment if getattr(self.impl_instance, "timezone", False) else moment.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return _in_utc(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        # like TypeDecorator, but with one call fewer for each value
        stored = self.impl_instance.result_processor(dialect, coltype)
        return _in_utc if stored is None else lambda value: _in_utc(stored(value))


def _in_utc(value: datetime | None) -> datetime | None:
    if value is None or value.tzinfo is UTC:
        return value
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def aware(value: datetime) -> datetime:
    """Return ``value`` in UTC.  Raises :class:`.ArgumentError` if it is naive or not a datetime."""
    if not isinstance(value, datetime):
        raise ArgumentError(f"{value!r} is not a datetime")
    if value.tzinfo is None:
        raise ArgumentError(f"{value!r} is naive: give it a time zone, as in datetime.now(timezone.utc)")
    return value.astimezone(UTC)


clock_ahead: ContextVar[float] = ContextVar("sqlqueue.clock_ahead", default=0.0)
"""The seconds by which :class:`utcnow` is later than the database's clock, in tests."""


class utcnow(FunctionElement[datetime]):
    """The database's current time in UTC, plus ``seconds`` if given; each adapter compiles it for its engine.

    >>> select(Task).where(Task.available_at <= utcnow())
    """

    name = "utcnow"
    inherit_cache = True
    _traverse_internals = cached_with("_ahead")
    type = UTCDateTime.wrapping(DateTime, timezone=True)

    def __init__(self, seconds: ColumnElement[float] | timedelta | None = None) -> None:
        if isinstance(seconds, timedelta):
            seconds = bindparam(None, seconds.total_seconds(), type_=Float(53))
        super().__init__(*([] if seconds is None else [seconds]))

    @property
    def seconds(self) -> ColumnElement[float] | None:
        """The seconds to add to the database's clock; ``None`` if there are none."""
        given: ColumnElement[float] | None = next(iter(self.clauses), None)
        if self._ahead is None:
            return given
        ahead = literal_column(repr(self._ahead), Float(53))
        return ahead if given is None else ahead + given

    @property
    def _ahead(self) -> float | None:
        """The value of ``clock_ahead``; a part of the key under which compiled statements are cached."""
        return clock_ahead.get() or None


class utcinsertion(utcnow):
    """The default of a column, which is not part of that key: always the database's clock."""

    inherit_cache = True

    @property
    def _ahead(self) -> None:
        return None


class utcdefault(FunctionElement[datetime]):
    """The server default of a time column: the current time in UTC, as each engine's DDL expresses it."""

    name = "utcdefault"
    inherit_cache = True
    type = UTCDateTime.wrapping(DateTime, timezone=True)


def representable(moment: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return ``moment``, or the nearest time within 65 years: other programs may insert infinity, zero dates and years
    beyond 9999, which some engines store and Python has not."""
    first, last = utcnow(-REACH), utcnow(REACH)
    return case((moment < first, first), (moment > last, last), else_=moment)


# -- text keys, which every engine compares exactly -------------------------------------------------------------------


class KeyText(WrappedType[str]):
    """The type of text keys.  It rejects text that engines cannot store or search for, before a statement is sent."""

    impl = String

    def __repr__(self) -> str:
        # Alembic writes the repr into migrations; SQLAlchemy 2.0 omits the collation of a decorated type
        return repr(self.impl_instance)

    @property
    def python_type(self) -> type[str]:
        return str

    def check(self, values: Iterable[object]) -> None:
        """Raise :class:`.ArgumentError` for values that cannot be searched for on every engine."""
        for value in values:
            text("a key", value)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else text("a key", value)

    def literal_processor(self, dialect: Dialect) -> Any:
        # SQLAlchemy does not resolve a variant's type through the dialect, and SQL Server needs N'...' for wide text
        write = self.impl_instance.dialect_impl(dialect).literal_processor(dialect)
        return write and (lambda value: write(text("a key", value)))


# -- what the columns of a row mean: its status, its time, its attempts and the claim that holds it --------------------
#
# Some columns have several meanings, which depend on the status; only the functions of this section compare them.
#
# - ``available_at``: of a task that waits, when it is due; of a running one, when its lease ends; of a final one, when
#   it became final.
# - ``claim_token``: negative if a worker made the claim, see :class:`.WorkerTokens`; 0 in rows that were never claimed.
# - ``claimed_at``: NULL in a running row says that the task was enqueued again while it ran.
# - ``max_attempts``: the number of the last attempt.  ``attempt`` never decreases, so an attempt that is not to count
#   raises ``max_attempts`` as well.


Assignment: TypeAlias = tuple[Column[Any], Any]
LARGEST = 2**31 - 1
"""The largest number that an integer column holds on every engine."""


def state(status: Status) -> ColumnElement[str]:
    """Return ``status`` as a literal: with a bind parameter, planners would not use partial indexes."""
    return literal_column(f"'{status.value}'")


def is_available(spec: QueueSpec) -> Criterion:
    """Return whether the row's status is ``available``; its time may be in the future."""
    return spec["status"] == state(Status.AVAILABLE)


def present_status(spec: QueueSpec) -> ColumnElement[str]:
    """Return the status as an expression that optimizers do not match against the predicates of partial indexes.

    They might choose such an index and read all scheduled rows; or fail to see that an index named by a hint contains
    all the rows, which is SQL Server's error 8622.
    """
    return func.coalesce(spec["status"], literal_column("''"))


def has_come(spec: QueueSpec) -> Criterion:
    """Return whether the row's ``available_at`` has passed."""
    return spec["available_at"] <= utcnow()


def is_ready(spec: QueueSpec) -> Criterion:
    """Return whether the row is available now.

    Other programs may insert rows with a later ``available_at`` and leave the status to its default.
    """
    return and_(is_available(spec), has_come(spec))


def is_early(spec: QueueSpec) -> Criterion:
    """Return whether the row is available only from a later time on."""
    return and_(is_available(spec), spec["available_at"] > utcnow())


def is_due(spec: QueueSpec) -> Criterion:
    """Return whether the row has a status that comes due: retryable, scheduled or running.  Does not compare times."""
    return spec["status"].in_([state(status) for status in DUE])


def is_held(spec: QueueSpec) -> Criterion:
    """Return whether the row's status is ``running``; its lease may have ended."""
    return spec["status"] == state(Status.RUNNING)


def is_held_by_worker(spec: QueueSpec) -> Criterion:
    """Return whether a worker has claimed the row, with a lease."""
    return and_(present_status(spec) == state(Status.RUNNING), spec["claim_token"] < literal_column("0"))


def is_token_of_worker(token: int) -> bool:
    """Return whether a ``claim_token`` is that of a worker's claim."""
    return token < 0


def is_enqueued_again(spec: QueueSpec) -> Criterion:
    """Return whether a running row was enqueued again while it ran, see :func:`enqueued_again`."""
    return spec["claimed_at"].is_(None)


def enqueued_again(spec: QueueSpec, running: Criterion) -> Assignment:
    """Return the assignment that makes ``running`` tasks run again after this run."""
    return spec["claimed_at"], case((running, null()), else_=spec["claimed_at"])


def leased(spec: QueueSpec, lease: timedelta) -> Assignment:
    """Return the assignment that makes the lease of a running row end ``lease`` from now."""
    return spec["available_at"], utcnow(lease)


def raised(number: ColumnElement[int], by: int = 1) -> ColumnElement[int]:
    """Return ``number + by``, or the largest integer if that is more: other programs may insert any number."""
    most: ColumnElement[int] = literal_column(str(LARGEST - by))
    return case((number > most, literal_column(str(LARGEST))), else_=number + literal_column(str(by)))


def uncounted(spec: QueueSpec) -> ColumnElement[int]:
    """Return the ``max_attempts`` with which the present attempt does not count."""
    return raised(spec["max_attempts"])


def all_attempts_after(spec: QueueSpec, attempt: ColumnElement[int]) -> ColumnElement[int]:
    """Return the ``max_attempts`` with which a task has all its attempts again after the one of this number."""
    return raised(attempt, spec.options.max_attempts)


def is_final(spec: QueueSpec) -> Criterion:
    """Return whether the row is completed, cancelled or discarded."""
    return spec["status"].in_([state(status) for status in FINAL])


def is_adopted(spec: QueueSpec) -> Criterion:
    """Return whether the row is final without having been finished: it is from before the table became a queue."""
    return and_(is_final(spec), spec["finished_at"].is_(None))


def has_attempts(spec: QueueSpec) -> Criterion:
    """Return whether the row may be claimed again: attempts are left, or it is held by a worker, whose crash does not
    count as an attempt."""
    return or_(spec["attempt"] < spec["max_attempts"], is_held_by_worker(spec))


def come_due(spec: QueueSpec) -> tuple[Criterion, ...]:
    """Return the conditions of rows that a claim takes once their time has come: waiting ones and expired leases."""
    return (
        spec["finished_at"].is_(None),
        has_come(spec),
        is_due(spec),
        has_attempts(spec),
    )


def is_hung(spec: QueueSpec) -> Criterion:
    """Return whether the lease of the row's claimer has ended without a settlement."""
    return and_(has_come(spec), is_held(spec))


def is_exhausted(spec: QueueSpec) -> Criterion:
    """Return whether the last lease has ended and no attempts are left; never true of rows claimed by workers."""
    return and_(is_held(spec), *used_up(spec))


def used_up(spec: QueueSpec) -> tuple[Criterion, ...]:
    """Return the conditions of :func:`is_exhausted`, except that the row is running."""
    return (
        spec["finished_at"].is_(None),
        has_come(spec),
        is_due(spec),
        spec["attempt"] >= spec["max_attempts"],
        spec["claim_token"] >= literal_column("0"),
    )


# -- statements that change or delete the rows of a queue, and the values that they are built from --------------------


@dataclass(frozen=True, eq=False)
class UniqueBy:
    """A unique key on which an insert may conflict with an existing row."""

    columns: tuple[Column[Any], ...]
    predicate: Criterion | None = None
    """The predicate of its index, if that is partial."""

    def is_row(self, row: Mapping[str, Any]) -> Criterion:
        """Return whether a row has the same key as ``row``."""
        return and_(*(column == row[column.name] for column in self.columns))


def write(spec: QueueSpec, criterion: Criterion, assignments: Sequence[Assignment]) -> Update:
    """Return the UPDATE of the rows that satisfy ``criterion``, with the assignments in the given order."""
    return update(spec.table).where(criterion).ordered_values(*assignments)


def remove(spec: QueueSpec, criterion: Criterion) -> Delete:
    """Return the DELETE of the rows that satisfy ``criterion``."""
    return delete(spec.table).where(criterion)


# -- finished attempts of a queue, read from the history with an index, up to a cap -----------------------------------


def ended(
    table: Table,
    queue: str,
    outcomes: Sequence[AttemptOutcome],
    columns: Mapping[str, ColumnElement[Any]],
    *criteria: Criterion,
    cap: int | None,
) -> Select[Any]:
    """Return ``columns`` of the attempts at tasks of ``queue`` with one of ``outcomes``: all, or the last ``cap``.

    With a cap, each outcome is read separately, from the end of its range in the index; a single range for all of them
    would have to be sorted.
    """
    named = [column.label(name) for name, column in columns.items()]
    mine = (table.c.queue == queue, *criteria)
    if cap is None:
        return select(*named).where(*mine, table.c.outcome.in_([each.value for each in outcomes]))
    moment = table.c.finished_at
    parts = [
        select(*named, moment.label("ended_at"))
        .where(*mine, table.c.outcome == each.value)
        .order_by(moment.desc())
        .limit(cap)
        .subquery(f"ended_{each.value}")
        for each in outcomes
    ]
    found = union_all(*(select(*part.c) for part in parts)).subquery("ended")
    return select(*(found.c[name] for name in columns)).order_by(found.c.ended_at.desc()).limit(cap)
