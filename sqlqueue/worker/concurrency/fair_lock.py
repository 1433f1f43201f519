"""A lock for threads and coroutines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress

HANDED_AFTER = 0.5
"""Seconds after which a waiting caller is the next one to hold the lock."""
PAUSES = 0.005, 0.04
"""The first and the longest pause in seconds between two attempts of a waiting caller until then."""


class FairLock:
    """A lock for threads and coroutines of any event loop, which no caller is kept from by those that come later.

    A free lock is taken by the first caller that asks for it, usually the one that has just released it: a thread that
    had to be woken for every transaction would leave the database idle meanwhile.  A caller that has waited for
    :data:`HANDED_AFTER` gets the lock at its next release, the longest waiting one first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_held = False
        self._waiting: deque[_Waiting] = deque()

    def acquire(self, timeout: float, *, is_async: bool) -> bool:
        """Wait for the lock for at most ``timeout`` seconds.  Returns whether the caller holds it now.

        With ``is_async``, the caller runs in one of SQLAlchemy's greenlets, whose event loop keeps running.
        """
        with self._lock:
            if not self._is_held:
                self._is_held = True
                return True
            waiting = _Waiting(is_async=is_async)
            self._waiting.append(waiting)
        try:
            return self._wait(waiting, timeout)
        except BaseException:
            if self._withdraw(waiting):
                self.release()
            raise

    def release(self) -> None:
        """Hand the lock to the longest waiting caller if it has waited for long enough, or free it."""
        with self._lock:
            if self._waiting and self._waiting[0].since + HANDED_AFTER <= time.monotonic():
                self._waiting.popleft().handed.set_result(None)
            else:
                self._is_held = False

    def _wait(self, waiting: _Waiting, timeout: float) -> bool:
        until = waiting.since + timeout
        pause, longest = PAUSES
        while not waiting.handed.done() and (left := until - time.monotonic()) > 0:
            waiting.sleep(min(left, pause))
            self._retry(waiting)
            pause = min(2 * pause, longest)
        return self._withdraw(waiting)

    def _withdraw(self, waiting: _Waiting) -> bool:
        """Stop waiting.  Returns whether the caller holds the lock."""
        with self._lock:
            if waiting.handed.done():
                return True
            self._waiting.remove(waiting)
            return False

    def _retry(self, waiting: _Waiting) -> None:
        """Hand the lock to a waiting caller if it is free."""
        with self._lock:
            if not self._is_held:
                self._is_held = True
                self._waiting.remove(waiting)
                waiting.handed.set_result(None)


class _Waiting:
    """A caller that waits for the lock."""

    def __init__(self, *, is_async: bool) -> None:
        self.since = time.monotonic()
        self.handed = Future[None]()
        """Done when the caller holds the lock."""
        self._awaited = {asyncio.wrap_future(self.handed)} if is_async else None

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds``, or when the caller holds the lock."""
        if self._awaited is None:
            with suppress(TimeoutError):
                self.handed.result(seconds)
        else:
            from sqlalchemy.util import await_only  # noqa: PLC0415

            await_only(asyncio.wait(self._awaited, timeout=seconds))
