"""Executes SQL tasks with psycopg."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Connection, func, select

from ..parts.requests import Interrupt, Requests, StatementResult, milliseconds
from .streaming import stream


class PsycopgRequests(Requests):
    """The common base for PostgreSQL and CockroachDB."""

    request_drivers: ClassVar[Mapping[str, Mapping[str, Any]] | None] = {"psycopg": {}}

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        setting = func.pg_catalog.set_config("statement_timeout", f"{milliseconds(timeout)}ms", True)
        connection.execute(select(setting))

    def answer(self, connection: Connection, request: str) -> AbstractContextManager[StatementResult]:
        return stream(connection, request, self.type_name)

    def type_name(self, code: Any) -> str:
        try:
            from psycopg import adapters  # noqa: PLC0415  # a user of PostgreSQL may have another driver
        except ImportError:
            return str(code)
        known = adapters.types.get(code)
        return str(code) if known is None else known.name


class PostgreSQLRequests(PsycopgRequests):
    """Ends statements by the process id of their server process."""

    def interruption(self, connection: Connection) -> Interrupt:
        process = connection.scalar(select(func.pg_catalog.pg_backend_pid()))

        def interrupt(by_force: bool) -> None:
            end = func.pg_catalog.pg_terminate_backend if by_force else func.pg_catalog.pg_cancel_backend
            with connection.engine.connect() as other:
                other.execute(select(end(process)))

        return interrupt
