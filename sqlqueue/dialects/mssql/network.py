"""How long the drivers of SQL Server wait for a connection."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from ..parts.network import Network


class SQLServerNetwork(Network):
    """ODBC's time for the login, and FreeTDS's."""

    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = {
        "pyodbc": ("timeout",),
        "aioodbc": ("timeout",),
        "pymssql": ("login_timeout",),
    }
