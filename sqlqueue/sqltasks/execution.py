"""Executes the statement of a SQL task with a time limit, and returns its result as JSON.

Numbers, booleans and text are JSON values, integers with all their digits.  Values that JSON cannot represent are
text: ``NaN``, ``Infinity`` and ``-Infinity``, bytes in hexadecimal, and everything else as the database or its driver
writes it.  Lone surrogates are replaced by U+FFFD.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from .._support.checks import count, database_url, duration, parsed_url
from .._support.errors import SQLQueueError
from .._support.sockets import Socket
from .._support.texts import logger_of
from ..dialects import adapter_for
from ..dialects.base import Adapter
from ..dialects.connections import Interrupt, StatementResult

# -- the result of a statement as JSON --------------------------------------------------------------------------------


def response(answer: StatementResult, limit: int) -> str:
    """Return the result as JSON, with the rows that fit in ``limit`` characters.

    The others are read too, so that the statement runs to its end.
    """
    if answer.columns is None:
        return _json({"row_count": answer.row_count})
    rows: list[str] = []
    kinds: list[str] = []
    size, fits = 0, True
    for row in answer.rows:
        fits = fits and sum(len(each) for each in row if isinstance(each, (str, bytes))) <= limit
        if not fits:
            continue
        kinds = kinds or [type(value).__name__ for value in row]
        text = _json(list(row))
        size += len(text) + 1
        fits = size <= limit
        if fits:
            rows.append(text)
    shown = kinds or [""] * len(answer.columns)
    # in SQLite only values have types
    columns = [[name, type_name or kind] for (name, type_name), kind in zip(answer.columns, shown, strict=True)]
    head, tail = _json({"columns": columns}), _json({"row_count": len(rows), "truncated": not fits})
    return f'{head[:-1]},"rows":[{",".join(rows)}],{tail[1:]}'


def _json(value: Any) -> str:
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(value: Any) -> Any:
    """Return ``value`` converted to values that JSON can represent."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return str(value)


_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


# -- interruption of requests that take too long ----------------------------------------------------------------------

PAUSE = 1.0
"""Seconds between two attempts to interrupt."""
CANCELLATIONS = 3
"""Number of attempts that cancel the statement before its connection is closed."""
CLOSING = (CANCELLATIONS + 2) * PAUSE
"""Seconds after the timeout until the connection is closed without the server, which may not respond."""
logger = logger_of("sqlqueue")


class RequestFailed(SQLQueueError):
    """Raised for a request that the database rejected or ended.  Its text begins with the database's ``code``."""

    def __init__(self, message: str, *, code: object) -> None:
        super().__init__(message)
        self.code = code


class Watchdog:
    """A context manager that interrupts the work within it once ``timeout`` has passed, repeatedly until it ends.

    The interruption comes from another connection or from the driver, so the statement's session settings do not
    affect it.  A statement may catch its cancellation, so after a few attempts the server is told to close its
    connection.  It may not do so, so in the end the connection is closed on this side.
    """

    def __init__(self, timeout: timedelta) -> None:
        self.timeout = timeout
        self.interrupt: Interrupt | None = None
        """Ends the statement by means of the server or the driver."""
        self.close: Callable[[], object] | None = None
        """Closes the connection on this side, which wakes the thread that waits for it; must not wait itself."""
        self._done = Event()
        self._end = time.monotonic() + timeout.total_seconds()
        self._threads: list[Thread] = []

    @property
    def is_up(self) -> bool:
        """Whether the timeout has passed."""
        return time.monotonic() >= self._end

    def check(self, cause: RequestFailed | None = None) -> None:
        """Raise :class:`RequestFailed` with the code ``timeout`` if the timeout has passed."""
        if self.is_up:
            seconds, why = self.timeout.total_seconds(), "" if cause is None else f" ({cause})"
            raise RequestFailed(f"timeout: stopped after {seconds:g} s{why}", code="timeout")

    def __enter__(self) -> Self:
        self._start(self._watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching; after this returns, nothing is interrupted, unless a server has not responded for long."""
        self._done.set()
        for thread in self._threads:
            thread.join(CLOSING)

    def _start(self, work: Callable[[], None]) -> None:
        thread = Thread(target=work, name="sqlqueue-watchdog", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        if self._done.wait(self._end - time.monotonic()):
            return
        self._start(self._interrupt)  # which may wait for the server
        while not self._done.wait(CLOSING):
            if self.close is not None:
                self.close()

    def _interrupt(self) -> None:
        for tries in itertools.count():
            try:
                if self.interrupt is not None:
                    self.interrupt(tries >= CANCELLATIONS)
            except Exception as error:  # SQLAlchemy's or, if the driver interrupts, the driver's
                logger.warning("cannot stop an SQL request that ran for longer than %s: %s", self.timeout, error)
            if self._done.wait(PAUSE):
                return


# -- execution of a task's SQL, and its response ----------------------------------------------------------------------

CONNECTING = timedelta(seconds=30)
"""How long it may take until a new connection is ready for its request."""


def executing_url(url: str | URL) -> URL:
    """Return the parsed ``url``.  Raises :class:`.ArgumentError` if its driver cannot execute requests."""
    parsed = parsed_url(url)
    adapter_for(parsed.get_dialect()()).connections.request_arguments(parsed)
    return database_url(parsed)


class RequestExecutor:
    """Executes each request on a new connection, in one transaction, so that session settings do not leak.

    As the user of ``url``, or of one of the URLs ``users``, by name.  Raises :class:`.ArgumentError` for URLs whose
    driver cannot execute requests.
    """

    def __init__(self, url: str | URL, users: Mapping[str, str | URL], *, timeout: timedelta, limit: int) -> None:
        self._default = executing_url(url)
        self._users = {name: executing_url(each) for name, each in users.items()}
        self._timeout = duration("timeout", timeout)
        self._limit = count("limit", limit)

    def execute(self, request: str, *, user: str | None, timeout: float | None) -> str:
        """Execute ``request``, commit, and return its response as JSON.

        ``timeout``: in seconds, at most the executor's.  Raises :class:`RequestFailed` for an unknown user, and for a
        request that fails or takes too long, which is then rolled back; outages raise SQLAlchemy's ``DBAPIError``.
        """
        url, limit = self._url(user), self._within(timeout)
        adapter = adapter_for(url.get_dialect()())
        try:
            with _connected(url, adapter) as connection:
                return self._executed(connection, request, limit)
        except DBAPIError as error:
            if adapter.connections.is_outage(error):
                raise
            raise _failed(adapter, error) from error

    def _executed(self, connection: Connection, request: str, limit: timedelta) -> str:
        """Execute and commit, or roll back if the time runs out first."""
        adapter = adapter_for(connection.dialect)
        watchdog = Watchdog(limit)  # first: a request that another limit ends has run out of time, too
        watchdog.close = _closing(adapter, connection.connection.driver_connection)
        with connection.begin() as transaction:
            try:
                with watchdog:
                    watchdog.interrupt = adapter.connections.interruption(connection)
                    adapter.connections.limit_time(connection, limit)
                    with adapter.connections.answer(connection, request) as answer:
                        told = response(answer, self._limit)
                    watchdog.check()
                    transaction.commit()  # may be slow, too
            except DBAPIError as error:  # includes outages: the watchdog may have closed the connection
                watchdog.check(_failed(adapter, error))
                raise
            finally:  # after the watchdog has ended, which must not interrupt a closed connection
                if watchdog.is_up:
                    connection.invalidate()  # closing rolls back; a ROLLBACK might be slow, too
        return told

    def _url(self, user: str | None) -> URL:
        if user is None:
            return self._default
        if user not in self._users:
            # the inserting program reads the error of its row, but need not know the other users
            logger.warning("unknown user %s; the users are: %s", user, ", ".join(sorted(self._users)) or "none")
            raise RequestFailed(f"unknown user {user!r}: the log of the worker lists the users", code="no-user")
        return self._users[user]

    def _within(self, timeout: float | None) -> timedelta:
        """Return the time limit of a request, at most the executor's."""
        if timeout is None:
            return self._timeout
        if not timeout > 0:
            raise RequestFailed(f"timeout={timeout}: give a positive number of seconds", code="timeout")
        return min(timedelta(seconds=min(timeout, self._timeout.total_seconds())), self._timeout)


def _connected(url: URL, adapter: Adapter) -> Connection:
    """Return a new connection.

    A connection that is not ready in time is closed, which raises an outage: the host may be silent, or the user may
    have settings with which the first statements of a session do not end.
    """
    limits = adapter.connections.connect_limits(url.get_driver_name(), CONNECTING)
    unset = {name: limit for name, limit in limits.items() if name not in url.query}
    arguments = {**unset, **adapter.connections.request_arguments(url)}
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments)
    watchdog = Watchdog(CONNECTING)

    def opened(driver: Any, _: object) -> None:
        adapter.connections.lift_connect_limits(driver, unset)
        watchdog.close = _closing(adapter, driver)

    event.listen(engine, "connect", opened, insert=True, once=True)  # before statements that prepare the connection
    with watchdog:
        return engine.connect()


def _closing(adapter: Adapter, driver: Any) -> Callable[[], object] | None:
    """Return a function that shuts the socket of a driver's connection down; ``None`` if there is none or it is
    unknown."""
    try:
        descriptor = adapter.connections.descriptor(driver) if adapter.connections.has_network else None
        return None if descriptor is None else Socket(descriptor).shut_down
    except Exception:
        return None  # a driver may raise anything if the connection was just lost; the next statement will fail


def _failed(adapter: Adapter, error: DBAPIError) -> RequestFailed:
    code = adapter.connections.error_code(error) or type(error.orig).__name__
    return RequestFailed(f"{code}: {error.orig}", code=code)
