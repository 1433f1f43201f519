"""Interruption of requests that take too long."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from itertools import count
from threading import Event, Thread
from types import TracebackType
from typing import Self

from sqlalchemy.exc import SQLAlchemyError

from .._support.exc import SQLQueueError
from ..dialects.parts.requests import Interrupt

PAUSE = 1.0
"""Seconds between two attempts to interrupt."""
CANCELLATIONS = 3
"""Number of attempts that cancel the statement before its connection is closed."""
logger = logging.getLogger("sqlqueue")


class RequestFailed(SQLQueueError):
    """Raised for a request that the database rejected or ended.  Its text begins with the database's ``code``."""

    def __init__(self, message: str, *, code: object) -> None:
        super().__init__(message)
        self.code = code


class Watchdog:
    """A context manager that interrupts the work within it once ``timeout`` has passed, repeatedly until it ends.

    The interruption comes from another connection or from the driver, so the statement's session settings do not
    affect it.  A statement may catch its cancellation, so after a few attempts its connection is closed.
    """

    def __init__(self, timeout: timedelta, interrupt: Interrupt | None) -> None:
        self.timeout = timeout
        self._interrupt = interrupt
        self._done = Event()
        self._end = time.monotonic() + timeout.total_seconds()
        self._thread: Thread | None = None

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
        if self._interrupt is not None:
            self._thread = Thread(target=self._watch, args=(self._interrupt,), name="sqlqueue-watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop watching; after this returns, nothing is interrupted."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, interrupt: Interrupt) -> None:
        pause = self._end - time.monotonic()
        for tries in count():
            if self._done.wait(pause):
                return
            try:
                interrupt(tries >= CANCELLATIONS)
            except SQLAlchemyError as error:
                logger.warning("cannot stop an SQL request that ran for longer than %s: %s", self.timeout, error)
            pause = PAUSE
