"""A lock for threads and coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future


class FairLock:
    """A lock that threads and coroutines, of any event loop, acquire in the order of their requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_held = False
        self._waiting: deque[Future[None]] = deque()

    def acquire(self, timeout: float, *, is_async: bool) -> bool:
        """Wait for the lock for at most ``timeout`` seconds.  Returns whether the caller holds it now.

        With ``is_async``, the caller runs in one of SQLAlchemy's greenlets, whose event loop keeps running.
        """
        with self._lock:
            if not self._is_held:
                self._is_held = True
                return True
            handed = Future[None]()
            self._waiting.append(handed)
        try:
            _wait(handed, timeout, is_async=is_async)
        except TimeoutError:
            return not handed.cancel()
        except BaseException:
            if not handed.cancel():
                self.release()
            raise
        return True

    def release(self) -> None:
        """Hand the lock to the caller that has waited longest."""
        with self._lock:
            while self._waiting:
                following = self._waiting.popleft()
                if following.set_running_or_notify_cancel():
                    following.set_result(None)
                    return
            self._is_held = False


def _wait(handed: Future[None], timeout: float, *, is_async: bool) -> None:
    if is_async:
        from sqlalchemy.util import await_only  # noqa: PLC0415

        await_only(asyncio.wait_for(asyncio.wrap_future(handed), timeout))
    else:
        handed.result(timeout)
