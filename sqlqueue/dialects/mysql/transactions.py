"""Snapshots that a change does not fail for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from sqlalchemy.orm import Session

from ..parts.transactions import Transactions


class MySQLTransactions(Transactions):
    """REPEATABLE READ, by default, in which what is read and what is changed are different versions."""

    changes_unseen: ClassVar[bool] = True

    def tentative(self, session: Session) -> AbstractContextManager[object]:
        # a statement is undone alone; and a deadlock takes a savepoint along, whose loss would be the error then
        return nullcontext()
