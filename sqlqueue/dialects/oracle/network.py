"""The timeouts of python-oracledb, which does not expose its socket."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from ..parts.network import Network, Undo
from ..parts.requests import milliseconds


class OracleNetwork(Network):
    """A server whose driver ends calls that take too long, but waits forever for a listener that sends nothing."""

    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = dict.fromkeys(
        ("oracledb", "oracledb_async"), ("tcp_connect_timeout",)
    )

    def driver_advice(self, connection: Any) -> str | None:
        if getattr(connection, "call_timeout", None) != 0:
            return None
        limits = {"tcp_connect_timeout": 10, "expire_time": 1}
        listener = "lambda _, record: setattr(record.driver_connection, 'call_timeout', 60_000)"
        return (
            f"event.listen(engine, 'connect', {listener}), or longer if a call takes longer, and"
            f" create_engine(..., connect_args={limits})"
        )

    def limit_calls(self, connection: Any, within: timedelta) -> Undo:
        before = connection.call_timeout
        connection.call_timeout = milliseconds(within)
        return partial(setattr, connection, "call_timeout", before)
