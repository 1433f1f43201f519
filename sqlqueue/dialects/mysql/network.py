"""The sockets of PyMySQL and aiomysql, which have no public name."""

from __future__ import annotations

from typing import Any

from ..parts.network import Network, socket_of


class MySQLNetwork(Network):
    """What MySQL and MariaDB have in common."""

    def descriptor(self, connection: Any) -> int | None:
        own = getattr(connection, "_sock", None)  # PyMySQL
        if own is not None:
            return int(own.fileno())
        stream = getattr(connection, "_writer", None)  # aiomysql
        return socket_of(stream) if stream is not None else super().descriptor(connection)
