"""The network between the drivers of an engine and its server."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import Connection

from ..._support.processes import is_local
from ...queue.spec import Finding, Severity

Undo: TypeAlias = Callable[[], object]

_UNANSWERED = (
    "if the network drops this connection without an error, a program can wait for a response for hours: workers have"
    " their own deadlines, other programs do not"
)


class Network:
    """A server that is reached through sockets, whose drivers may wait forever for a response."""

    is_there: ClassVar[bool] = True
    """Whether there is a network: without one, only a lock can delay a response."""
    connect_timeouts: ClassVar[Mapping[str, Collection[str]]] = {}
    """By driver, the arguments of ``connect`` that limit, in seconds, how long it waits for the server."""

    def connect_limits(self, driver: str, within: timedelta) -> Mapping[str, int]:
        """Return the arguments that make a driver abandon a connection attempt that takes too long; none if unknown."""
        return dict.fromkeys(self.connect_timeouts.get(driver, ()), math.ceil(within.total_seconds()))

    def findings(self, connection: Connection) -> Iterator[Finding]:
        """Yield notes about missing limits on how long the driver and the server wait for each other. Yields none for
        connections without a network. Workers do not need these limits; other programs, and the server, do.
        """
        driver = connection.connection.driver_connection
        descriptor = self.descriptor(driver) if self.is_there else None
        if not self.is_there or (descriptor is not None and is_local(descriptor)):
            return
        advice = self.driver_advice(driver)
        if advice is not None:
            yield _note("driver-timeouts", _UNANSWERED, advice)
        yield from (_note("server-timeouts", *found) for found in self.server_advice(connection))

    def driver_advice(self, connection: Any) -> str | None:
        """Return the settings to use if this driver's connection waits forever for a silent server; ``None``
        otherwise."""
        return None

    def server_advice(self, connection: Connection) -> Iterator[tuple[str, str]]:
        """Yield each setting that makes the server wait forever for a silent client, and the fix."""
        return iter(())

    def lift_limits(self, connection: Any, limits: Collection[str]) -> None:
        """Lift the limits of :meth:`connect_limits` that this driver would also apply to statements."""

    def descriptor(self, connection: Any) -> int | None:
        """Return the file descriptor of a driver's open connection; ``None`` if the driver does not expose it."""
        tell = getattr(connection, "fileno", None)
        return None if tell is None else int(tell())

    def limit_calls(self, connection: Any, within: timedelta) -> Undo | None:
        """Make the driver end calls that take longer than ``within``, if it does not expose its socket. Returns a
        function that lifts the limit; ``None`` if there is no limit."""
        return None


def _note(code: str, message: str, fix: str) -> Finding:
    return Finding(severity=Severity.NOTE, code=code, message=message, fix=fix)


def socket_of(transport: Any) -> int | None:
    """Return the descriptor of an asyncio transport's socket."""
    found = transport.get_extra_info("socket")
    return None if found is None else int(found.fileno())
