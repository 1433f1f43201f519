"""The sockets of drivers, some of which are private attributes, and the timeouts of drivers and servers."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Connection, Integer, literal_column, select

from ..parts.network import Network, socket_of

_SHORT_ENOUGH = timedelta(hours=1)
_LOCKED = (
    "a client that disappears during a transaction keeps its locks for that long, unless TCP closes the connection"
    " first"
)
_LONGER = ", or longer if a handler keeps its transaction idle for longer"


class MySQLNetwork(Network):
    """MySQL, which limits idle transactions only by its limit on idle connections."""

    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = {
        # after connecting, PyMySQL waits for the server's greeting as for the response to a statement
        "pymysql": ("connect_timeout", "read_timeout"),
        "aiomysql": ("connect_timeout",),
        "asyncmy": ("connect_timeout",),
        "mysqldb": ("connect_timeout",),
        "mysqlconnector": ("connection_timeout",),
        "mariadbconnector": ("connect_timeout",),
    }

    def driver_advice(self, connection: Any) -> str | None:
        limits = {name: 60 for name in ("read_timeout", "write_timeout") if hasattr(connection, f"_{name}")}
        if any(getattr(connection, f"_{name}") is None for name in limits):  # PyMySQL has both, asyncmy one
            return f"{_maker(connection)}(..., connect_args={limits}), or longer if a statement takes longer"
        if not limits and getattr(connection, "connect_timeout", 0) is None:  # aiomysql
            arguments = {"connect_timeout": 10}
            return (
                f"{_maker(connection)}(..., connect_args={arguments}), and asyncio.timeout() around calls that must"
                " not block: this driver has no time limit for statements"
            )
        return None

    def server_advice(self, connection: Connection) -> Iterator[tuple[str, str]]:
        seconds = session_variable(connection, "wait_timeout")
        if seconds > _SHORT_ENOUGH.total_seconds():
            arguments = {"init_command": "SET SESSION wait_timeout = 600"}
            fix = f"create_engine(..., connect_args={arguments}, pool_recycle=300){_LONGER}"
            yield f"wait_timeout is {seconds} seconds: {_LOCKED}", fix

    def lift_limits(self, connection: Any, limits: Collection[str]) -> None:
        if "read_timeout" in limits:
            connection._read_timeout = None

    def descriptor(self, connection: Any) -> int | None:
        tell = getattr(connection, "_get_socket", None)  # MariaDB's connector, whose `socket` would close it
        if tell is not None:
            return int(tell())
        # PyMySQL; MySQL's connector
        own = getattr(connection, "_sock", None) or getattr(getattr(connection, "_socket", None), "sock", None)
        if own is not None:
            return int(own.fileno())
        stream = getattr(connection, "_writer", None)  # aiomysql
        transport = getattr(connection, "_transport", None) if stream is None else stream.transport  # asyncmy
        return super().descriptor(connection) if transport is None else socket_of(transport)


class MariaDBNetwork(MySQLNetwork):
    """MariaDB, which limits idle transactions."""

    def server_advice(self, connection: Connection) -> Iterator[tuple[str, str]]:
        if session_variable(connection, "idle_transaction_timeout") == 0:
            for message, _ in super().server_advice(connection):
                arguments = {"init_command": "SET SESSION idle_transaction_timeout = 300"}
                fix = f"create_engine(..., connect_args={arguments}){_LONGER}"
                yield f"idle_transaction_timeout is not set, and {message}", fix


def _maker(connection: Any) -> str:
    """Return the name of the function that creates an engine with this driver."""
    return "create_async_engine" if inspect.iscoroutinefunction(connection.ping) else "create_engine"


def session_variable(connection: Connection, name: str) -> int:
    """Return the value of a numeric session variable."""
    return connection.execute(select(literal_column(f"@@session.{name}", Integer))).scalar_one()
