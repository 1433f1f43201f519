"""Executes the SQL of a task, and writes down what it returned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import URL, Connection, CursorResult, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from ..checks import count, duration
from ..dialects import adapter_for
from ..dialects.base import Adapter
from ..exc import ArgumentError, SQLQueueError

FETCH = 100
"""Rows at a time."""


class RequestFailed(SQLQueueError):
    """The database refused a request, or ended it.  Its text begins with the database's own ``code``."""

    def __init__(self, message: str, *, code: object) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Users:
    """As whom requests are executed: the URL for those that name nobody, and those by name."""

    default: URL
    named: Mapping[str, URL]

    @classmethod
    def of(cls, default: str | URL, named: Mapping[str, str | URL]) -> Users:
        users = cls(make_url(default), {name: make_url(url) for name, url in named.items()})
        for url in (users.default, *users.named.values()):
            if url.get_dialect().is_async:
                raise ArgumentError(f"{url.drivername} is an asyncio driver: requests are executed in threads")
        return users

    def url(self, name: str | None) -> URL:
        if name is None:
            return self.default
        if name not in self.named:
            known = ", ".join(sorted(self.named)) or "none"
            raise RequestFailed(f"there is no user {name!r} here; there are: {known}", code="no-user")
        return self.named[name]


class Executor:
    """Each request has a connection and a transaction of its own, which end with it: what it sets, nobody inherits."""

    def __init__(self, users: Users, *, timeout: timedelta, limit: int) -> None:
        self.users = users
        self.timeout = duration("timeout", timeout)
        self.limit = count("limit", limit)

    def execute(self, request: str, *, user: str | None, timeout: float | None) -> str:
        """What ``request`` returned, as JSON, after its commit; :class:`RequestFailed` if it did not come to that."""
        engine = create_engine(self.users.url(user), poolclass=NullPool)
        adapter = adapter_for(engine.dialect)
        seconds = self.timeout if timeout is None else timedelta(seconds=timeout)
        if seconds <= timedelta(0):
            raise RequestFailed(f"timeout={timeout}: a positive number of seconds is needed", code="timeout")
        try:
            with engine.begin() as connection:
                adapter.limit_time(connection, min(seconds, self.timeout))
                return self._response(adapter, connection, request)
        except DBAPIError as error:
            if adapter.is_outage(error):
                raise
            code = adapter.code(error)
            raise RequestFailed(f"{code}: {error.orig}", code=code) from error

    def _response(self, adapter: Adapter, connection: Connection, request: str) -> str:
        unchanged = connection.execution_options(no_parameters=True)  # a % in it is a %
        with unchanged.exec_driver_sql(request) as result:
            if not result.returns_rows:
                return _text({"row_count": result.rowcount})
            described = result.cursor.description if result.cursor is not None else ()
            rows, truncated = self._rows(result)
            first = rows[0] if rows else [""] * len(described)
            columns = [
                [name, adapter.type_name(code) or type(value).__name__]  # SQLite has types of values alone
                for (name, code, *_), value in zip(described, first, strict=True)
            ]
            return _text({"columns": columns, "rows": rows, "row_count": len(rows), "truncated": truncated})

    def _rows(self, result: CursorResult[Any]) -> tuple[list[list[Any]], bool]:
        """As many whole rows as fit in the limit."""
        rows: list[list[Any]] = []
        size = 0
        while some := result.fetchmany(FETCH):
            for row in some:
                size += len(_text(list(row))) + 1
                if size > self.limit:
                    return rows, True
                rows.append(list(row))
        return rows, False


def _text(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> str:
    """What JSON has no word for, as text; bytes in hexadecimal."""
    return bytes(value).hex() if isinstance(value, (bytes, bytearray, memoryview)) else str(value)
