"""The timeouts of the drivers of PostgreSQL and of its server."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Connection, func, select

from ..parts.network import Network, socket_of

_OF_LIBPQ = ("psycopg", "psycopg_async", "psycopg2", "psycopg2cffi")
_LIMITS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_LIMITS_OF_ASYNCPG = {"timeout": 10, "command_timeout": 60}
_UNSET = (None, "0")
_UNKNOWN = object()
_FOREVER = ("0", "0s")


class PostgreSQLNetwork(Network):
    """Drivers that use libpq, which environment variables can also configure, and asyncpg."""

    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = {
        **dict.fromkeys(_OF_LIBPQ, ("connect_timeout",)),
        "asyncpg": ("timeout",),
        "pg8000": ("timeout",),
    }

    def connect_limits(self, driver: str, within: timedelta) -> Mapping[str, int]:
        if driver in _OF_LIBPQ and "PGCONNECT_TIMEOUT" in os.environ:
            return {}
        return super().connect_limits(driver, within)

    def driver_advice(self, connection: Any) -> str | None:
        if getattr(getattr(connection, "_config", None), "command_timeout", _UNKNOWN) is None:  # asyncpg
            return f"create_async_engine(..., connect_args={_LIMITS_OF_ASYNCPG}), or longer if a statement takes longer"
        given = _parameters(connection)
        if given is None or all(given.get(name) not in _UNSET for name in ("keepalives_idle", "tcp_user_timeout")):
            return None
        return f"create_engine(..., connect_args={_LIMITS})"

    def lift_limits(self, connection: Any, limits: Collection[str]) -> None:
        if "timeout" in limits and hasattr(connection, "_usock"):  # pg8000's socket keeps it
            connection._usock.settimeout(None)

    def descriptor(self, connection: Any) -> int | None:
        own = getattr(connection, "_usock", None)  # pg8000
        if own is not None:
            return int(own.fileno())
        transport = getattr(connection, "_transport", None)  # asyncpg
        return super().descriptor(connection) if transport is None else socket_of(transport)

    def server_advice(self, connection: Connection) -> Iterator[tuple[str, str]]:
        if (
            connection.scalar(select(func.pg_catalog.current_setting("idle_in_transaction_session_timeout")))
            in _FOREVER
        ):
            message = (
                "idle_in_transaction_session_timeout is not set: a client that disappears during a transaction keeps"
                " its locks until TCP closes the connection, after two hours by default"
            )
            fix = (
                "ALTER ROLE CURRENT_USER SET idle_in_transaction_session_timeout = '5min', or longer if a handler"
                " keeps its transaction idle for longer"
            )
            yield message, fix


def _parameters(connection: Any) -> Mapping[str, Any] | None:
    """Return the parameters of libpq that were given; ``None`` if the driver does not use it."""
    info: Any = getattr(connection, "info", None)
    if not hasattr(info, "get_parameters"):
        return getattr(info, "dsn_parameters", None)  # psycopg2
    given: Mapping[str, Any] = info.get_parameters()
    return given
