"""Claims on SQLite: whether one would have to wait, and whether a row's numbers are numbers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from ...queue.spec import Identity
from ...sql.selection import Pick
from ..parts.claims import Claims, Taking
from ..parts.rows import Unreadable


class SQLiteClaims(Claims):
    """Claims on SQLite, where the lock of a row is the lock of the whole database."""

    def is_free(self, session: Session, pick: Pick) -> bool:
        connection = session.connection(pick.spec.bind_arguments)
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except OperationalError as error:
            if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    def _load(self, session: Session, taking: Taking, identities: Sequence[Identity]) -> list[Any]:
        """Load the instances, but for rows whose numbers are texts; an assignment makes numbers of them."""
        tasks = super()._load(session, taking, identities)
        return tasks if taking.assignments else [task for task in tasks if _is_counted(session, taking, task)]


def _is_counted(session: Session, taking: Taking, task: Any) -> bool:
    """Return whether the numbers of a task are numbers; if not, its row cannot be read."""
    spec = taking.pick.spec
    for role in ("attempt", "claim_token"):
        value = getattr(task, spec.attributes[role])
        if not isinstance(value, int):
            error = TypeError(f"{role} is {value!r}, which is not an integer")
            taking.unreadable.append(Unreadable(spec.identity_of(task), error))
            session.expunge(task)
            return False
    return True
