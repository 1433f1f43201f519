"""Times without a zone, and utf8mb4 text."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import BigInteger, ColumnElement, func, literal_column, text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from ...sql.rows import KeyText, UTCDateTime
from ..parts.types import Types


class MySQLTypes(Types):
    """Types with an explicit character set, independent of the database's."""

    timestamp: ClassVar[TypeEngine[Any] | None] = UTCDateTime.wrapping(mysql.DATETIME, fsp=6)
    long_text: ClassVar[TypeEngine[Any] | None] = mysql.TEXT(charset="utf8mb4")

    def __init__(self, *, exact: str) -> None:
        """``exact``: the collation of keys, since the database's may equate different keys."""
        self.exact = exact

    def text(self, length: int) -> TypeEngine[Any] | None:
        return mysql.VARCHAR(length, charset="utf8mb4")

    def key(self, length: int) -> TypeEngine[Any] | None:
        return KeyText.wrapping(mysql.VARCHAR, length=length, charset="utf8mb4", collation=self.exact)

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.utc_timestamp(literal_column("6"))
        if seconds is None:
            return now
        return func.timestampadd(text("MICROSECOND"), seconds * literal_column("1000000"), now)

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return func.timestampdiff(text("MICROSECOND"), earlier, later, type_=BigInteger())

    def remainder(self, number: ColumnElement[int], divisor: ColumnElement[int]) -> ColumnElement[int]:
        return func.mod(number, divisor, type_=BigInteger())  # % is no operator in MariaDB's sql_mode=ORACLE
