"""SQLite has no network."""

from __future__ import annotations

from typing import ClassVar

from ..parts.network import Network


class SQLiteNetwork(Network):
    """No network: on SQLite, a call waits only for another writer, until the driver's timeout."""

    is_there: ClassVar[bool] = False
