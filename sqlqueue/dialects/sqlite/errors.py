"""SQLite's result codes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy.exc import DBAPIError

from ..parts.errors import Errors


class SQLiteErrors(Errors):
    """Extended result codes, which contain the primary code in the lowest byte."""

    def __init__(self) -> None:
        super().__init__(
            # busy, locked
            transient=(5, 6),
            # disk error, disk full, cannot be opened
            outages=(10, 13, 14),
            duplicates=(1555, 2067),
            references=(787, 1811),  # 1811 with ON DELETE RESTRICT
        )

    def code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlite_errorcode", None)

    def codes(self, error: DBAPIError) -> Collection[int]:
        code = self.code(error) or 0
        return (code, code & 0xFF)

    def has_lost(self, error: DBAPIError) -> bool:
        return any(code in self.outages for code in self.codes(error))
