"""Executes SQL tasks on SQLite, with a time limit."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError, NotSupportedError, ProgrammingError

from ..parts.requests import Interrupt, Requests, StatementResult

_INSTRUCTIONS = 10_000
"""Instructions of SQLite's virtual machine between two calls of a progress handler: well under a millisecond."""
_BEYOND_THE_CONNECTION = frozenset(
    {
        # of the file, for all programs
        *("journal_mode", "schema_version", "writable_schema"),
        # of all connections of this process
        *("data_store_directory", "hard_heap_limit", "soft_heap_limit", "temp_store_directory"),
    }
)
"""PRAGMAs with an effect on others."""


class SQLiteRequests(Requests):
    """Interrupts statements from another thread, reads text that is not valid UTF-8, and opens no files but the
    database's own."""

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        """Limit the time of all statements together until :meth:`lift_limit`."""
        end = time.monotonic() + timeout.total_seconds()
        _set_progress_handler(connection, lambda: time.monotonic() > end)

    def lift_limit(self, connection: Connection) -> None:
        _set_progress_handler(connection, None)

    def interruption(self, connection: Connection) -> Interrupt:
        driver: Any = connection.connection.driver_connection
        return lambda _: driver.interrupt()

    @contextmanager
    def answer(self, connection: Connection, request: str) -> Iterator[StatementResult]:
        driver: Any = connection.connection.driver_connection
        driver.text_factory = lambda text: text.decode(errors="replace")  # stored text can be any bytes
        refused: list[str] = []
        driver.set_authorizer(partial(_authorize, refused))
        try:
            with super().answer(connection, request) as answer:
                yield answer
        except sqlite3.Warning as error:  # several statements, before Python 3.12
            raise ProgrammingError(request, None, error) from error
        except DatabaseError as error:
            if not refused:
                raise
            reason = sqlite3.NotSupportedError(f"a request cannot use {refused[0]}")
            raise NotSupportedError(request, None, reason) from error


def _authorize(refused: list[str], action: int, name: str | None, setting: str | None, *_: object) -> int:
    """Refuse an action that opens another file, as ATTACH and VACUUM INTO do, or has an effect on others."""
    if action == sqlite3.SQLITE_ATTACH and name != "":  # VACUUM attaches a temporary database, which has no name
        refused.append("ATTACH or VACUUM INTO, which open files of the worker's host")
    elif action == sqlite3.SQLITE_PRAGMA and setting is not None and str(name).lower() in _BEYOND_THE_CONNECTION:
        refused.append(f"PRAGMA {name}, which affects others")
    else:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _set_progress_handler(connection: Connection, handler: Callable[[], bool] | None) -> None:
    adapted: Any = connection.connection.dbapi_connection
    if hasattr(adapted, "run_async"):  # the asyncio driver uses its own thread
        adapted.run_async(lambda driver: driver.set_progress_handler(handler, _INSTRUCTIONS))
    else:
        adapted.set_progress_handler(handler, _INSTRUCTIONS)
