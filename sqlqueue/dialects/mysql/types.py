"""Moments without a zone, and texts of four bytes a character."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import BigInteger, ColumnElement, func, literal_column, text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from ...sql.clock import utc
from ...sql.key_text import key_text
from ..parts.types import Types


class MySQLTypes(Types):
    """Types with their own character set, whatever that of the database."""

    timestamp: ClassVar[TypeEngine[Any] | None] = utc(mysql.DATETIME, fsp=6)
    error_text: ClassVar[TypeEngine[Any] | None] = mysql.VARCHAR(2000, charset="utf8mb4")

    def __init__(self, *, exact: str) -> None:
        """``exact``: the collation of keys, where that of the database takes different ones for the same."""
        self.exact = exact

    def key(self, length: int) -> TypeEngine[Any] | None:
        return key_text(mysql.VARCHAR, length=length, charset="utf8mb4", collation=self.exact)

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.utc_timestamp(literal_column("6"))
        if seconds is None:
            return now
        return func.timestampadd(text("MICROSECOND"), seconds * literal_column("1000000"), now)

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return func.timestampdiff(text("MICROSECOND"), earlier, later, type_=BigInteger())
