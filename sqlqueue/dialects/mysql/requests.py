"""SQL of others on MySQL and MariaDB: what it returns stays in the server's words, and KILL ends it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import URL, Connection, func, select, text

from ..parts.requests import Interrupt, Requests, milliseconds


class KilledRequests(Requests):
    """What MySQL and MariaDB have in common."""

    request_drivers: ClassVar[Mapping[str, Mapping[str, Any]] | None] = {
        "pymysql": {},
        "mysqldb": {"multi_statements": False},
    }

    def connect_arguments(self, url: URL) -> dict[str, Any]:
        arguments = super().connect_arguments(url)
        return arguments if url.get_driver_name() != "pymysql" else {**arguments, "conv": _as_sent()}

    def interruption(self, connection: Connection) -> Interrupt:
        thread = connection.scalar(select(func.connection_id()))

        def interrupt(by_force: bool) -> None:
            with connection.engine.connect() as other:
                other.execute(text(f"KILL {'CONNECTION' if by_force else 'QUERY'} {thread}"))

        return interrupt

    def type_name(self, code: Any) -> str:
        try:
            from pymysql.constants import FIELD_TYPE  # noqa: PLC0415  # a user of MySQL may have another driver
        except ImportError:
            return str(code)
        names = {number: name for name, number in vars(FIELD_TYPE).items() if isinstance(number, int)}
        return names.get(code, str(code)).lower()


class MySQLRequests(KilledRequests):
    """With a limit of MySQL's own."""

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        # of queries alone: for statements that write, the server has no such limit of its own
        connection.execute(text(f"SET SESSION max_execution_time = {milliseconds(timeout)}"))


def _as_sent() -> dict[Any, Any]:
    """PyMySQL's conversions but for moments and decimals: they stay in the words of the server, valid or not."""
    from pymysql.constants import FIELD_TYPE  # noqa: PLC0415
    from pymysql.converters import conversions  # noqa: PLC0415

    kinds = ("DATE", "DATETIME", "TIME", "TIMESTAMP", "DECIMAL", "NEWDECIMAL")
    kept = {getattr(FIELD_TYPE, kind) for kind in kinds}
    return {kind: conversion for kind, conversion in conversions.items() if kind not in kept}
