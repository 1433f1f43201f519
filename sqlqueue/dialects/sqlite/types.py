"""The types of columns on SQLite, and its clock."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import BigInteger, ColumnElement, Integer, cast, func, literal_column
from sqlalchemy.types import TypeEngine

from ..parts.types import Types

_MOMENT: ColumnElement[str] = literal_column("'%Y-%m-%d %H:%M:%f000'")
"""The format in which SQLAlchemy stores times; the clock has milliseconds."""
_NOW: ColumnElement[str] = literal_column("'now'")

_SECONDS = len("2026-01-01 00:00:00")


class SQLiteTypes(Types):
    """Times as text in UTC, and INTEGER keys, the only ones that SQLite generates."""

    serial: ClassVar[TypeEngine[Any] | None] = Integer()

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        if seconds is None:
            return func.strftime(_MOMENT, _NOW)
        return func.strftime(_MOMENT, _NOW, func.printf(literal_column("'%+.6f seconds'"), seconds))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return _since_epoch(later) - _since_epoch(earlier)


def _since_epoch(moment: ColumnElement[Any]) -> ColumnElement[int]:
    """Return a time in microseconds since the epoch.  SQLite's functions would round to milliseconds or seconds."""
    whole = cast(func.strftime("%s", func.substr(moment, 1, _SECONDS)), BigInteger)
    fraction = cast(func.substr(moment, _SECONDS + 2), BigInteger)
    return whole * literal_column("1000000") + fraction
