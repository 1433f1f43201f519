"""What an adapter knows of statements that are not the library's own: their time, and the types of their results."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection


class Requests:
    """The part of an adapter by which SQL of others is run."""

    def limit_time(self, connection: Connection, timeout: timedelta) -> None:
        """Let the server (where it has no such thing, the driver) end any statement that takes longer.

        For a connection that serves one request and is closed then.
        """
        raise NotImplementedError

    def type_name(self, code: Any) -> str:
        """What the driver says of the type of a column of a result."""
        return str(getattr(code, "name", None) or getattr(code, "__name__", None) or ("" if code is None else code))


def milliseconds(timeout: timedelta) -> int:
    """At least one: nought stands for no limit everywhere."""
    return max(int(timeout.total_seconds() * 1000), 1)
