"""Times without a zone, and arithmetic on intervals by their parts."""

from __future__ import annotations

import json
from functools import reduce
from operator import add
from typing import Any, ClassVar

from sqlalchemy import BigInteger, ColumnElement, Dialect, Text, extract, func, literal_column, text, type_coerce
from sqlalchemy.dialects import oracle
from sqlalchemy.types import TypeEngine

from ...sql.rows import UTCDateTime, WrappedType
from ..parts.types import Types

_PARTS = {"day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}
"""The parts of an interval, in microseconds."""


class JSONText(WrappedType[Any]):
    """JSON stored as ASCII text."""

    impl = Text

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Return the JSON text to store for a value."""
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Return the value of stored JSON text."""
        return None if value is None else json.loads(value)


class OracleTypes(Types):
    """National character sets, and JSON as text."""

    timestamp: ClassVar[TypeEngine[Any] | None] = UTCDateTime.wrapping(oracle.TIMESTAMP)
    long_text: ClassVar[TypeEngine[Any] | None] = oracle.NCLOB()
    # SQLAlchemy supports JSON on Oracle since 2.1, and Oracle has it since 21c
    json: ClassVar[TypeEngine[Any] | None] = JSONText.wrapping(Text)

    def text(self, length: int) -> TypeEngine[Any] | None:
        return oracle.NVARCHAR2(length)

    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        now = func.sys_extract_utc(text("SYSTIMESTAMP"))
        return now if seconds is None else now + func.numtodsinterval(seconds, text("'SECOND'"))

    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        # only the parts of an interval can be extracted; the seconds contain the fraction
        terms = (extract(part, later - earlier) * literal_column(str(factor)) for part, factor in _PARTS.items())
        return type_coerce(reduce(add, terms), BigInteger())
