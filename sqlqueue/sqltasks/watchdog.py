"""Interruption of requests that take too long."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from threading import Event, Thread
from types import TracebackType
from typing import Self

from .._support.exc import SQLQueueError
from .._support.logs import logger_of
from ..dialects.parts.requests import Interrupt

PAUSE = 1.0
"""Seconds between two attempts to interrupt."""
CANCELLATIONS = 3
"""Number of attempts that cancel the statement before its connection is closed."""
CLOSING = (CANCELLATIONS + 2) * PAUSE
"""Seconds after the timeout until the connection is closed without the server, which may not respond."""
logger = logger_of("sqlqueue")


class RequestFailed(SQLQueueError):
    """Raised for a request that the database rejected or ended.  Its text begins with the database's ``code``."""

    def __init__(self, message: str, *, code: object) -> None:
        super().__init__(message)
        self.code = code


class Watchdog:
    """A context manager that interrupts the work within it once ``timeout`` has passed, repeatedly until it ends.

    The interruption comes from another connection or from the driver, so the statement's session settings do not
    affect it.  A statement may catch its cancellation, so after a few attempts the server is told to close its
    connection.  It may not do so, so in the end the connection is closed on this side.
    """

    def __init__(self, timeout: timedelta) -> None:
        self.timeout = timeout
        self.interrupt: Interrupt | None = None
        """Ends the statement by means of the server or the driver."""
        self.close: Callable[[], object] | None = None
        """Closes the connection on this side, which wakes the thread that waits for it; must not wait itself."""
        self._done = Event()
        self._end = time.monotonic() + timeout.total_seconds()
        self._threads: list[Thread] = []

    @property
    def is_up(self) -> bool:
        """Whether the timeout has passed."""
        return time.monotonic() >= self._end

    def check(self, cause: RequestFailed | None = None) -> None:
        """Raise :class:`RequestFailed` with the code ``timeout`` if the timeout has passed."""
        if self.is_up:
            seconds, why = self.timeout.total_seconds(), "" if cause is None else f" ({cause})"
            raise RequestFailed(f"timeout: stopped after {seconds:g} s{why}", code="timeout")

    def __enter__(self) -> Self:
        self._start(self._watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching; after this returns, nothing is interrupted, unless a server has not responded for long."""
        self._done.set()
        for thread in self._threads:
            thread.join(CLOSING)

    def _start(self, work: Callable[[], None]) -> None:
        thread = Thread(target=work, name="sqlqueue-watchdog", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        if self._done.wait(self._end - time.monotonic()):
            return
        self._start(self._interrupt)  # which may wait for the server
        while not self._done.wait(CLOSING):
            if self.close is not None:
                self.close()

    def _interrupt(self) -> None:
        for tries in count():
            try:
                if self.interrupt is not None:
                    self.interrupt(tries >= CANCELLATIONS)
            except Exception as error:  # SQLAlchemy's or, if the driver interrupts, the driver's
                logger.warning("cannot stop an SQL request that ran for longer than %s: %s", self.timeout, error)
            if self._done.wait(PAUSE):
                return
