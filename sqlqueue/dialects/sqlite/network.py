"""SQLite has no network."""

from __future__ import annotations

from typing import ClassVar

from ..parts.network import Network


class SQLiteNetwork(Network):
    """Return ``None``: a wait on SQLite is for another writer, until the driver's timeout."""

    is_there: ClassVar[bool] = False
