"""Executes the SQL of a task, and writes down what it returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import URL, Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from .._support.checks import count, duration
from .._support.urls import database_url, parsed_url
from ..dialects import adapter_for
from ..dialects.base import Adapter
from .response import response
from .watchdog import RequestFailed, Watchdog


@dataclass(frozen=True, slots=True)
class Users:
    """As whom requests are executed: the URL for those that name nobody, and those by name."""

    default: URL
    named: Mapping[str, URL]

    @classmethod
    def of(cls, default: str | URL, named: Mapping[str, str | URL]) -> Users:
        return cls(_usable(default), {name: _usable(url) for name, url in named.items()})

    def url(self, name: str | None) -> URL:
        if name is None:
            return self.default
        if name not in self.named:
            known = ", ".join(sorted(self.named)) or "none"
            raise RequestFailed(f"there is no user {name!r} here; there are: {known}", code="no-user")
        return self.named[name]


def _usable(url: str | URL) -> URL:
    """``url`` if requests can be executed with its driver; :class:`.ArgumentError` if not."""
    parsed = parsed_url(url)
    adapter_for(parsed.get_dialect()()).requests.connect_arguments(parsed)
    return database_url(parsed)


class Executor:
    """Each request has a connection and a transaction of its own, which end with it: what it sets, nobody inherits."""

    def __init__(self, users: Users, *, timeout: timedelta, limit: int) -> None:
        self.users = users
        self.timeout = duration("timeout", timeout)
        self.limit = count("limit", limit)

    def execute(self, request: str, *, user: str | None, timeout: float | None) -> str:
        """What ``request`` returned, as JSON, after its commit; :class:`RequestFailed` if it did not come to that."""
        url, limit = self.users.url(user), self._within(timeout)
        adapter = adapter_for(url.get_dialect()())
        engine = create_engine(url, poolclass=NullPool, connect_args=adapter.requests.connect_arguments(url))
        try:
            with engine.connect() as connection:
                return self._executed(connection, request, limit)
        except DBAPIError as error:
            if adapter.errors.is_outage(error):
                raise
            raise _failed(adapter, error) from error

    def _executed(self, connection: Connection, request: str, limit: timedelta) -> str:
        """Committed, or undone if its time is up before that."""
        adapter = adapter_for(connection.dialect)
        with connection.begin() as transaction:
            interrupt = adapter.requests.interruption(connection)
            adapter.requests.limit_time(connection, limit)
            with Watchdog(limit, interrupt) as watchdog:
                try:
                    with adapter.requests.answer(connection, request) as answer:
                        told = response(answer, self.limit)
                    watchdog.check()
                    transaction.commit()  # which may take its time, too
                except DBAPIError as error:  # an outage also, if it is that the connection was ended
                    watchdog.check(_failed(adapter, error))
                    raise
                finally:
                    if watchdog.is_up:
                        connection.invalidate()  # closed, which undoes it: a ROLLBACK may be interrupted, too
        return told

    def _within(self, timeout: float | None) -> timedelta:
        """The time of a request, at most that of all."""
        if timeout is None:
            return self.timeout
        if not timeout > 0:
            raise RequestFailed(f"timeout={timeout}: a positive number of seconds is needed", code="timeout")
        return min(timedelta(seconds=min(timeout, self.timeout.total_seconds())), self.timeout)


def _failed(adapter: Adapter, error: DBAPIError) -> RequestFailed:
    code = adapter.errors.code(error) or type(error.orig).__name__
    return RequestFailed(f"{code}: {error.orig}", code=code)
