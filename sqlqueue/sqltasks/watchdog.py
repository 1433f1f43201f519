"""Ends what takes too long."""

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
"""Seconds between two tries."""
POLITE = 3
"""So many tries leave the connection alone."""
logger = logging.getLogger("sqlqueue")


class RequestFailed(SQLQueueError):
    """The database refused a request, or ended it.  Its text begins with the database's own ``code``."""

    def __init__(self, message: str, *, code: object) -> None:
        super().__init__(message)
        self.code = code


class Watchdog:
    """``with Watchdog(timeout, interrupt):`` what is done within is interrupted, until it ends, once its time is up.

    By another connection or by the driver, and so whatever the statement has set in its own session.  A statement may
    catch that it is cancelled, so in the end its connection is ended.
    """

    def __init__(self, timeout: timedelta, interrupt: Interrupt | None) -> None:
        self.timeout = timeout
        self._interrupt = interrupt
        self._done = Event()
        self._end = time.monotonic() + timeout.total_seconds()
        self._thread: Thread | None = None

    @property
    def is_up(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end

    def check(self, cause: RequestFailed | None = None) -> None:
        """:class:`RequestFailed`, with the code ``timeout``, if the time is up."""
        if self.is_up:
            seconds, why = self.timeout.total_seconds(), "" if cause is None else f" ({cause})"
            raise RequestFailed(f"timeout: it was ended after {seconds:g} s{why}", code="timeout")

    def __enter__(self) -> Self:
        if self._interrupt is not None:
            self._thread = Thread(target=self._watch, args=(self._interrupt,), name="sqlqueue-watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Once it returns, nothing is interrupted any more."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, interrupt: Interrupt) -> None:
        pause = self._end - time.monotonic()
        for tries in count():
            if self._done.wait(pause):
                return
            try:
                interrupt(tries >= POLITE)
            except SQLAlchemyError as error:
                logger.warning("cannot end an SQL request that ran for longer than %s: %s", self.timeout, error)
            pause = PAUSE
