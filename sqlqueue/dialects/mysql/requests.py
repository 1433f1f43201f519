"""Executes SQL tasks on MySQL and MariaDB: results keep the server's representation, and KILL ends statements."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import URL, Connection, func, select, text

from ..._support.errors import ArgumentError
from ..parts.requests import Interrupt, Requests, StatementResult, milliseconds

_UNSAFE: Mapping[str, Collection[str]] = {
    "pymysql": ("local_infile", "client_flag"),
    # of option files, which take precedence over arguments, one that MariaDB's library finds by itself is not read
    "mysqldb": ("local_infile", "client_flag", "read_default_file", "read_default_group"),
}
"""By driver, the options of a URL with which the server may ask the driver for files of this host, or execute several
statements."""


class KilledRequests(Requests):
    """The common base for MySQL and MariaDB."""

    request_drivers: ClassVar[Mapping[str, Mapping[str, Any]] | None] = {
        "pymysql": {"local_infile": False},
        "mysqldb": {"local_infile": 0, "multi_statements": False},
    }

    def connect_arguments(self, url: URL) -> dict[str, Any]:
        arguments = super().connect_arguments(url)
        unsafe = sorted(set(url.query).intersection(_UNSAFE[url.get_driver_name()]))
        if unsafe:
            raise ArgumentError(
                f"a URL of requests must not contain {', '.join(unsafe)}: with LOAD DATA LOCAL INFILE, or with several"
                " statements, a request could do more than its user; remove it"
            )
        return arguments if url.get_driver_name() != "pymysql" else {**arguments, "conv": _as_sent()}

    def interruption(self, connection: Connection) -> Interrupt:
        thread = connection.scalar(select(func.connection_id()))

        def interrupt(by_force: bool) -> None:
            with connection.engine.connect() as other:
                other.execute(text(f"KILL {'CONNECTION' if by_force else 'QUERY'} {thread}"))

        return interrupt

    @contextmanager
    def answer(self, connection: Connection, request: str) -> Iterator[StatementResult]:
        driver: Any = connection.connection.driver_connection
        with super().answer(connection, request) as answer:
            try:
                yield answer
            except BaseException:
                _forget_rows(driver)
                raise

    def type_name(self, code: Any) -> str:
        try:
            from pymysql.constants import FIELD_TYPE  # noqa: PLC0415  # a user of MySQL may have another driver
        except ImportError:
            return str(code)
        names = {number: name for name, number in vars(FIELD_TYPE).items() if isinstance(number, int)}
        return names.get(code, str(code)).lower()


class MySQLRequests(KilledRequests):
    """Limits the time of queries with ``max_execution_time``."""

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        # only for SELECT: the server has no such limit for statements that write
        connection.execute(text(f"SET SESSION max_execution_time = {milliseconds(timeout)}"))

    def lift_limit(self, connection: Connection) -> None:
        connection.execute(text("SET SESSION max_execution_time = DEFAULT"))


def _forget_rows(driver: Any) -> None:
    """Keep PyMySQL from reading the remaining rows of a result from a closed connection, which raises errors."""
    unread = getattr(driver, "_result", None)
    if unread is not None and driver._sock is None:
        unread.unbuffered_active = False


def _as_sent() -> dict[Any, Any]:
    """Return PyMySQL's conversions without times and decimals, which are kept as the server sends them, valid or
    not."""
    from pymysql.constants import FIELD_TYPE  # noqa: PLC0415
    from pymysql.converters import conversions  # noqa: PLC0415

    kinds = ("DATE", "DATETIME", "TIME", "TIMESTAMP", "DECIMAL", "NEWDECIMAL")
    kept = {getattr(FIELD_TYPE, kind) for kind in kinds}
    return {kind: conversion for kind, conversion in conversions.items() if kind not in kept}
