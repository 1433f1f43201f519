"""The network between the drivers of an engine and its server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias

Undo: TypeAlias = Callable[[], object]


class Network:
    """A server that is reached through sockets, whose drivers may wait for an answer without end."""

    is_there: ClassVar[bool] = True
    """Whether there is a network: without one, nothing but a lock keeps an answer waiting."""

    def descriptor(self, connection: Any) -> int | None:
        """Return the file descriptor of a driver's open connection, ``None`` if the driver does not tell."""
        tell = getattr(connection, "fileno", None)
        return None if tell is None else int(tell())

    def limit_calls(self, connection: Any, within: timedelta) -> Undo | None:
        """Let the driver itself end calls that take longer, if it tells no socket.  Returns what lifts the limit."""
        return None


def socket_of(stream: Any) -> int | None:
    """Return the descriptor of an asyncio stream's socket."""
    transport = getattr(stream, "transport", None)
    found = None if transport is None else transport.get_extra_info("socket")
    return None if found is None else int(found.fileno())
