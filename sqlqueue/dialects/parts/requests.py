"""Executes the statements of SQL tasks, which users write: time limits, rows and interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import URL, Connection
from sqlalchemy.exc import SQLAlchemyError

from ..._support.errors import ArgumentError

Interrupt: TypeAlias = Callable[[bool], None]
"""A function that ends the statement that a connection is executing, from another thread; if called with true, it
closes the connection as well."""

FORMER = "sqlqueue_former_timeout"
"""The key in a connection's ``info`` of the driver's timeout, which an application may have set, before a limit."""


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of a statement.  Rows are read one at a time, on demand."""

    columns: Sequence[tuple[str, str]] | None
    """Names and types; the type is empty if the driver gives none.  ``None`` if the statement returns no rows."""
    rows: Iterable[Sequence[Any]]
    """The rows, read from the server during iteration."""
    row_count: int
    """The number of rows that a statement without a result changed."""


class Requests:
    """Executes SQL statements of users."""

    request_drivers: ClassVar[Mapping[str, Mapping[str, Any]] | None] = None
    """The drivers that reject several statements in one request, with their connect arguments; ``None``: all."""

    def connect_arguments(self, url: URL) -> dict[str, Any]:
        """Return the connect arguments for one request; raise :class:`.ArgumentError` for an unsuitable driver."""
        driver, dialect = url.get_driver_name(), url.get_dialect()
        if dialect.is_async:
            raise ArgumentError(f"{url.drivername} is an asyncio driver: requests are executed in threads")
        if self.request_drivers is None:
            return {}
        if driver not in self.request_drivers:
            known = ", ".join(f"{url.get_backend_name()}+{name}" for name in self.request_drivers)
            raise ArgumentError(f"{url.drivername} does not reject several statements in one request: use {known}")
        return dict(self.request_drivers[driver])

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        """Make the server or the driver end statements that take longer than ``timeout``, as far as possible.

        The connection serves one request and is then closed. The statement itself can change the server's setting: see
        :meth:`interruption`.
        """

    def lift_limit(self, connection: Connection) -> None:
        """Undo :meth:`limit_time`, unless the end of the transaction does."""

    @contextmanager
    def time_limit(self, connection: Connection, timeout: timedelta) -> Iterator[None]:
        """Return a context in which :meth:`limit_time` applies, for a connection that others use afterwards."""
        self.limit_time(connection, timeout)
        try:
            yield
        finally:
            try:
                self.lift_limit(connection)
            except SQLAlchemyError:  # the connection is lost: the pool must not hand it out with the limit
                connection.invalidate()

    def interruption(self, connection: Connection) -> Interrupt | None:
        """Return a function that ends the statement, whatever settings it has changed.

        Return ``None`` if statements cannot change the limit that :meth:`limit_time` sets.
        """
        return None

    def answer(self, connection: Connection, request: str) -> AbstractContextManager[StatementResult]:
        """Execute one statement, and stream its rows.

        Raises SQLAlchemy's errors, including while rows are read.
        """
        return _answer(connection, request, self.type_name)

    def type_name(self, code: Any) -> str:
        """Return the name of a result column's type, from the driver's type code."""
        return str(getattr(code, "name", None) or getattr(code, "__name__", None) or ("" if code is None else code))


@contextmanager
def _answer(connection: Connection, request: str, type_name: Callable[[Any], str]) -> Iterator[StatementResult]:
    # no parameters, so that % is not special; streaming, so that the driver does not read all rows at once
    streaming = connection.execution_options(no_parameters=True, stream_results=True, max_row_buffer=1)
    with streaming.exec_driver_sql(request) as result:
        if not result.returns_rows or result.cursor is None:
            yield StatementResult(None, (), result.rowcount)
            return
        columns = [(name, type_name(code)) for name, code, *_ in result.cursor.description]
        yield StatementResult(columns, result, 0)


def milliseconds(timeout: timedelta) -> int:
    """Convert to milliseconds, at least 1: engines read 0 as unlimited."""
    return max(int(timeout.total_seconds() * 1000), 1)
