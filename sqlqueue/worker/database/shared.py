"""Connections that several threads share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property

from sqlalchemy import Engine

from .base import OwnConnections, R, Work

TURN_WAIT = 1.0
"""Seconds for which a thread waits for its turn."""


class SharedConnections:
    """The shared connections of several threads: one for each engine, and more only while it is blocked.

    A thread that has waited for :data:`TURN_WAIT` seconds, because another's transaction waits for locks or for a
    silent server, opens a connection for its own transaction and closes it afterwards.
    """

    def __init__(self, make: Callable[[], OwnConnections], threads: int) -> None:
        self._make = make
        self._threads = threads
        self._turn = threading.Lock()
        self._count = threading.Lock()

    @cached_property
    def _kept(self) -> OwnConnections:
        return self._make()

    def run(self, engine: Engine, work: Work[R], within: timedelta) -> R:
        """Run ``work`` in a new transaction, and commit it.  The deadline is as for :meth:`.Database.run`."""
        if self._turn.acquire(timeout=TURN_WAIT):
            try:
                return self._kept.run(engine, work, within)
            finally:
                self._turn.release()
        own = self._make()
        try:
            return own.run(engine, work, within)
        finally:
            own.close()

    def close(self) -> None:
        """Close the connections, once each of the threads has called this."""
        with self._count:
            self._threads -= 1
            is_last = self._threads == 0
        if is_last and "_kept" in self.__dict__:
            self._kept.close()
