"""PostgreSQL's clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Interval, and_, case, cast, extract, func, literal_column

from ..parts.types import Types

_SECOND = literal_column("INTERVAL '1 second'", Interval())


class PostgreSQLTypes(Types):
    """SQLAlchemy's types, and PostgreSQL's time functions."""

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        # not clock_timestamp(): a volatile function cannot bound an index scan
        now = func.pg_catalog.statement_timestamp()
        # not make_interval(), which CockroachDB lacks; both round the product to the nearest microsecond
        return now if seconds is None else now + seconds * _SECOND

    def default(self) -> ColumnElement[Any]:
        return func.current_timestamp()  # the column stores the zone

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        # rounded: some versions return seconds as floating-point numbers
        seconds = case((_is_finite(earlier) & _is_finite(later), extract("epoch", later - earlier)))
        return cast(func.pg_catalog.round(seconds * literal_column("1000000")), BigInteger)


def _is_finite(moment: ColumnElement[Any]) -> ColumnElement[bool]:
    given = cast(moment, moment.type)  # not isfinite(), which CockroachDB lacks
    return and_(given > literal_column("'-infinity'"), given < literal_column("'infinity'"))
