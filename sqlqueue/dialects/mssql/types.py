"""Times without a zone, and Unicode keys compared character by character."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import BigInteger, ColumnElement, func, literal_column, text
from sqlalchemy.dialects import mssql
from sqlalchemy.types import TypeEngine

from ...sql.rows import KeyText, UTCDateTime
from ..parts.types import Types

_EXACT = "Latin1_General_100_BIN2"


class SQLServerTypes(Types):
    """Unicode types, independent of the database's collation."""

    timestamp: ClassVar[TypeEngine[Any] | None] = UTCDateTime.wrapping(mssql.DATETIME2, precision=6)
    long_text: ClassVar[TypeEngine[Any] | None] = mssql.NVARCHAR()

    def key(self, length: int) -> TypeEngine[Any] | None:
        return KeyText.wrapping(mssql.NVARCHAR, length=length, collation=_EXACT)

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.sysutcdatetime()
        if seconds is None:
            return now
        # DATEADD takes an int, whose seconds cover 68 years only: whole minutes first, then the remaining microseconds
        minutes = func.floor(seconds.op("/")(literal_column("60")))
        micros = (seconds - minutes * literal_column("60")) * literal_column("1000000")
        return func.dateadd(text("microsecond"), micros, func.dateadd(text("minute"), minutes, now))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        return func.datediff_big(text("microsecond"), earlier, later, type_=BigInteger())

    def beginning(self, text: ColumnElement[str], length: int) -> ColumnElement[str]:
        return func.substring(text, 1, length, type_=text.type)
