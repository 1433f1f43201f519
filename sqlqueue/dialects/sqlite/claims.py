"""Detects whether a claim on SQLite would have to wait."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from ...sql.selection import Pick
from ..parts.claims import Claims


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
