"""The lock timeout of sessions."""

from __future__ import annotations

from typing import ClassVar

from ..parts.transactions import Transactions


class PostgreSQLTransactions(Transactions):
    """Standard SQL's isolation levels and savepoints."""

    ends_with_error: ClassVar[bool] = True
    impatient: ClassVar[str | None] = "SET lock_timeout = '1s'"
