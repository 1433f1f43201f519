"""The one clock: the database's own, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import DateTime, Float, bindparam
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from .._support.exc import ArgumentError

NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""The ``available_at`` of rows that were in a table before it became a queue: a claim that looks for due rows by an
index on that stops before them, however many they are."""


class UTCDateTime(TypeDecorator[datetime]):
    """Aware datetimes in UTC on every engine; a naive one is refused.

    What is stored is the stock type beneath.  Its classes are made by :func:`utc`.
    """

    impl = DateTime
    cache_ok = True

    def __reduce__(self) -> tuple[Any, ...]:
        # by what it stores: its class cannot be found under the name that it goes by
        kept = ("impl", "impl_instance", "_variant_mapping")
        return utc, (type(self).impl,), {name: value for name, value in self.__dict__.items() if name in kept}

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
        # as the decorator itself would do it, less one call for each of the moments that every row has
        stored = self.impl_instance.result_processor(dialect, coltype)
        return _in_utc if stored is None else lambda value: _in_utc(stored(value))


def _in_utc(value: datetime | None) -> datetime | None:
    if value is None or value.tzinfo is UTC:
        return value
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def utc(stock: type[TypeEngine[Any]], **arguments: Any) -> UTCDateTime:
    """A :class:`UTCDateTime` over ``stock`` that goes by the name of ``stock``.

    Alembic writes a type into a migration by its class's module and name.  A migration must name the type that is
    stored, and must not need this package to run.
    """
    cls = type(stock.__name__, (UTCDateTime,), {"impl": stock, "cache_ok": True, "__module__": stock.__module__})
    instance: UTCDateTime = cls(**arguments)
    return instance


def aware(value: datetime) -> datetime:
    """``value`` in UTC; :class:`.ArgumentError` if it is naive."""
    if not isinstance(value, datetime):
        raise ArgumentError(f"{value!r} is not a datetime")
    if value.tzinfo is None:
        raise ArgumentError(f"{value!r} is naive: give it a time zone, as in datetime.now(timezone.utc)")
    return value.astimezone(UTC)


class utcnow(FunctionElement[datetime]):
    """The database's clock in UTC, ``seconds`` later if given; each adapter says how.

    >>> select(Task).where(Task.available_at <= utcnow())
    """

    name = "utcnow"
    inherit_cache = True
    type = utc(DateTime, timezone=True)

    def __init__(self, seconds: ColumnElement[float] | timedelta | None = None) -> None:
        if isinstance(seconds, timedelta):
            seconds = bindparam(None, seconds.total_seconds(), type_=Float(53))
        super().__init__(*([] if seconds is None else [seconds]))

    @property
    def seconds(self) -> ColumnElement[float] | None:
        return next(iter(self.clauses), None)


class utcdefault(FunctionElement[datetime]):
    """The default of a column: what each engine fills in where an INSERT gives no moment, in its own words."""

    name = "utcdefault"
    inherit_cache = True
    type = utc(DateTime, timezone=True)
