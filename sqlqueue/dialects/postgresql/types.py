"""PostgreSQL's clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, ColumnElement, Integer, Interval, case, cast, extract, func, literal_column

from ..parts.types import Types


class PostgreSQLTypes(Types):
    """SQLAlchemy's types, and PostgreSQL's time functions."""

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        # not clock_timestamp(): a volatile function cannot bound an index scan
        now = func.pg_catalog.statement_timestamp()
        parts = [literal_column("0", Integer)] * 6  # years, months, weeks, days, hours, minutes
        return now if seconds is None else now + func.pg_catalog.make_interval(*parts, seconds, type_=Interval())

    def default(self) -> ColumnElement[Any]:
        return func.current_timestamp()  # the column stores the zone

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        # rounded: some versions return seconds as floating-point numbers
        seconds = case((_is_finite(earlier) & _is_finite(later), extract("epoch", later - earlier)))
        return cast(func.pg_catalog.round(seconds * literal_column("1000000")), BigInteger)


def _is_finite(moment: ColumnElement[Any]) -> ColumnElement[bool]:
    return func.pg_catalog.isfinite(cast(moment, moment.type), type_=Boolean())
