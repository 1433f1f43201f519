"""Statements that are not the library's own, which SQL tasks execute: their time, their rows and their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import URL, Connection

from ..._support.exc import ArgumentError

Interrupt: TypeAlias = Callable[[bool], None]
"""Ends the statement that a connection executes, from another thread; given true, the connection with it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement returned.  Rows come as they are asked for, one at a time."""

    columns: Sequence[tuple[str, str]] | None
    """Names and types, the type empty if the driver says none; ``None`` if the statement returns no rows."""
    rows: Iterable[Sequence[Any]]
    row_count: int
    """How many rows a statement changed that returns none."""


class Requests:
    """Runs SQL of others."""

    request_drivers: ClassVar[Mapping[str, Mapping[str, Any]] | None] = None
    """The drivers that execute one statement and no more, with the arguments to connect by; ``None``: all of them."""

    def connect_arguments(self, url: URL) -> dict[str, Any]:
        """How to connect for one request; :class:`.ArgumentError` for a driver that cannot be used for it."""
        driver, dialect = url.get_driver_name(), url.get_dialect()
        if dialect.is_async:
            raise ArgumentError(f"{url.drivername} is an asyncio driver: requests are executed in threads")
        if self.request_drivers is None:
            return {}
        if driver not in self.request_drivers:
            known = ", ".join(f"{url.get_backend_name()}+{name}" for name in self.request_drivers)
            raise ArgumentError(f"{url.drivername} does not refuse several statements in one request: use {known}")
        return dict(self.request_drivers[driver])

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        """Let the server, or the driver, end any statement that takes longer, as far as it can.

        For a connection that serves one request and is closed then.  The statement itself may lift what the server is
        told here: see :meth:`interruption`.
        """

    def interruption(self, connection: Connection) -> Interrupt | None:
        """What ends a statement whatever it has set; ``None`` where it cannot lift what :meth:`limit_time` sets."""
        return None

    def answer(self, connection: Connection, request: str) -> AbstractContextManager[Answer]:
        """Execute one statement, and read its rows without keeping those that have been read.

        Raises SQLAlchemy's errors, also while rows are read.
        """
        return _answer(connection, request, self.type_name)

    def type_name(self, code: Any) -> str:
        """What the driver says of the type of a column of a result."""
        return str(getattr(code, "name", None) or getattr(code, "__name__", None) or ("" if code is None else code))


@contextmanager
def _answer(connection: Connection, request: str, type_name: Callable[[Any], str]) -> Iterator[Answer]:
    # a % in it is a %; and where a driver would read all rows at once, it is told not to
    streaming = connection.execution_options(no_parameters=True, stream_results=True, max_row_buffer=1)
    with streaming.exec_driver_sql(request) as result:
        if not result.returns_rows or result.cursor is None:
            yield Answer(None, (), result.rowcount)
            return
        columns = [(name, type_name(code)) for name, code, *_ in result.cursor.description]
        yield Answer(columns, result, 0)


def milliseconds(timeout: timedelta) -> int:
    """At least one: nought stands for no limit everywhere."""
    return max(int(timeout.total_seconds() * 1000), 1)
