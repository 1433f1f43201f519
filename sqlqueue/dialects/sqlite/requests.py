"""Executes SQL tasks on SQLite, with a time limit."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from ..parts.requests import Interrupt, Requests, StatementResult

_INSTRUCTIONS = 10_000
"""Instructions of SQLite's virtual machine between two calls of a progress handler: well under a millisecond."""


class SQLiteRequests(Requests):
    """Interrupts statements from another thread, and reads text that is not valid UTF-8."""

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
        try:
            with super().answer(connection, request) as answer:
                yield answer
        except sqlite3.Warning as error:  # several statements, before Python 3.12
            raise ProgrammingError(request, None, error) from error


def _set_progress_handler(connection: Connection, handler: Callable[[], bool] | None) -> None:
    adapted: Any = connection.connection.dbapi_connection
    if hasattr(adapted, "run_async"):  # the asyncio driver uses its own thread
        adapted.run_async(lambda driver: driver.set_progress_handler(handler, _INSTRUCTIONS))
    else:
        adapted.set_progress_handler(handler, _INSTRUCTIONS)
