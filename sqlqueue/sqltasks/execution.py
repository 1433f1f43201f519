"""Execution of a task's SQL, and its response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from .._support.checks import count, duration
from .._support.logs import logger_of
from .._support.sockets import Socket
from .._support.urls import database_url, parsed_url
from ..dialects import adapter_for
from ..dialects.base import Adapter
from .response import response
from .watchdog import RequestFailed, Watchdog

CONNECTING = timedelta(seconds=30)
"""How long it may take until a new connection is ready for its request."""
logger = logger_of("sqlqueue")


@dataclass(frozen=True, slots=True)
class Users:
    """Database users that execute requests: the default URL, and URLs by name."""

    default: URL
    named: Mapping[str, URL]

    @classmethod
    def of(cls, default: str | URL, named: Mapping[str, str | URL]) -> Users:
        """Return users with parsed URLs.  Raises :class:`.ArgumentError` for URLs whose driver cannot execute
        requests."""
        return cls(_usable(default), {name: _usable(url) for name, url in named.items()})

    def url(self, name: str | None) -> URL:
        """Return the URL of the user ``name``, or the default one.  Raises :class:`RequestFailed` for an unknown
        name."""
        if name is None:
            return self.default
        if name not in self.named:
            # the inserting program reads the error of its row, but need not know the other users
            logger.warning("unknown user %s; the users are: %s", name, ", ".join(sorted(self.named)) or "none")
            raise RequestFailed(f"unknown user {name!r}: the log of the worker lists the users", code="no-user")
        return self.named[name]


def _usable(url: str | URL) -> URL:
    """Return the parsed ``url``.  Raises :class:`.ArgumentError` if its driver cannot execute requests."""
    parsed = parsed_url(url)
    adapter_for(parsed.get_dialect()()).requests.connect_arguments(parsed)
    return database_url(parsed)


class RequestExecutor:
    """Executes each request on a new connection, in one transaction, so that session settings do not leak."""

    def __init__(self, users: Users, *, timeout: timedelta, limit: int) -> None:
        self.users = users
        self.timeout = duration("timeout", timeout)
        self.limit = count("limit", limit)

    def execute(self, request: str, *, user: str | None, timeout: float | None) -> str:
        """Execute ``request``, commit, and return its response as JSON.

        ``timeout``: in seconds, at most the executor's.  Raises :class:`RequestFailed` for an unknown user, and for a
        request that fails or takes too long, which is then rolled back; outages raise SQLAlchemy's ``DBAPIError``.
        """
        url, limit = self.users.url(user), self._within(timeout)
        adapter = adapter_for(url.get_dialect()())
        try:
            with _connected(url, adapter) as connection:
                return self._executed(connection, request, limit)
        except DBAPIError as error:
            if adapter.errors.is_outage(error):
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
                    watchdog.interrupt = adapter.requests.interruption(connection)
                    adapter.requests.limit_time(connection, limit)
                    with adapter.requests.answer(connection, request) as answer:
                        told = response(answer, self.limit)
                    watchdog.check()
                    transaction.commit()  # may be slow, too
            except DBAPIError as error:  # includes outages: the watchdog may have closed the connection
                watchdog.check(_failed(adapter, error))
                raise
            finally:  # after the watchdog has ended, which must not interrupt a closed connection
                if watchdog.is_up:
                    connection.invalidate()  # closing rolls back; a ROLLBACK might be slow, too
        return told

    def _within(self, timeout: float | None) -> timedelta:
        """Return the time limit of a request, at most the executor's."""
        if timeout is None:
            return self.timeout
        if not timeout > 0:
            raise RequestFailed(f"timeout={timeout}: give a positive number of seconds", code="timeout")
        return min(timedelta(seconds=min(timeout, self.timeout.total_seconds())), self.timeout)


def _connected(url: URL, adapter: Adapter) -> Connection:
    """Return a new connection.

    A connection that is not ready in time is closed, which raises an outage: the host may be silent, or the user may
    have settings with which the first statements of a session do not end.
    """
    limits = adapter.network.connect_limits(url.get_driver_name(), CONNECTING)
    unset = {name: limit for name, limit in limits.items() if name not in url.query}
    arguments = {**unset, **adapter.requests.connect_arguments(url)}
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments)
    watchdog = Watchdog(CONNECTING)

    def opened(driver: Any, _: object) -> None:
        adapter.network.lift_limits(driver, unset)
        watchdog.close = _closing(adapter, driver)

    event.listen(engine, "connect", opened, insert=True, once=True)  # before statements that prepare the connection
    with watchdog:
        return engine.connect()


def _closing(adapter: Adapter, driver: Any) -> Callable[[], object] | None:
    """Return a function that shuts the socket of a driver's connection down; ``None`` if there is none or it is
    unknown."""
    try:
        descriptor = adapter.network.descriptor(driver) if adapter.network.is_there else None
        return None if descriptor is None else Socket(descriptor).shut_down
    except Exception:
        return None  # a driver may raise anything if the connection was just lost; the next statement will fail


def _failed(adapter: Adapter, error: DBAPIError) -> RequestFailed:
    code = adapter.errors.code(error) or type(error.orig).__name__
    return RequestFailed(f"{code}: {error.orig}", code=code)
