"""The timeouts of the drivers of SQL Server."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from ..parts.network import Network

_LONGER = ", or longer if a statement takes longer"
_REST = f"{_LONGER}; KeepAlive=10;KeepAliveInterval=3 in the connection string, as ODBC may still wait for the server"


class SQLServerNetwork(Network):
    """The login timeouts of ODBC and FreeTDS."""

    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = {
        "pyodbc": ("timeout",),
        "aioodbc": ("timeout",),
        "pymssql": ("login_timeout",),
    }

    def driver_advice(self, connection: Any) -> str | None:
        """Return advice for statements only: ODBC's driver decides whether a statement ends in time, and may wait for
        the server."""
        if getattr(getattr(connection, "_conn", None), "query_timeout", None) == 0:  # pymssql
            limits = {"login_timeout": 10, "timeout": 60}
            return f"create_engine(..., connect_args={limits}){_LONGER}"
        if getattr(connection, "timeout", None) != 0:
            return None
        if inspect.iscoroutinefunction(connection.execute):  # aioodbc
            arguments = "connect_args={'after_created': limit}"
            return f"async def limit(connection): connection.timeout = 60; create_async_engine(..., {arguments}){_REST}"
        listener = "lambda connection, _: setattr(connection, 'timeout', 60)"
        return f"event.listen(engine, 'connect', {listener}){_REST}"
