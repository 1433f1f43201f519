"""Transactions in which changes do not fail because of an old snapshot."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from sqlalchemy.orm import Session

from ..parts.transactions import Transactions


class MySQLTransactions(Transactions):
    """REPEATABLE READ by default, in which reads and changes can use different versions of a row."""

    changes_unseen: ClassVar[bool] = True
    impatient: ClassVar[str | None] = "SET SESSION innodb_lock_wait_timeout = 1"

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        # the server rolls back a failed statement alone; after a deadlock, the savepoint would be missing, which is an
        # error
        return nullcontext()
