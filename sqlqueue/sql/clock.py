"""Time: the database's clock, in UTC, and the type of time columns."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import DateTime, Float, bindparam, case, literal_column
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.visitors import InternalTraversal

from .._support.exc import ArgumentError
from .wrapped_types import WrappedType

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
    _traverse_internals = [*FunctionElement._traverse_internals, ("_ahead", InternalTraversal.dp_plain_obj)]  # noqa: RUF012
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
