"""Daemon threads, which do not keep a process alive when one hangs in a handler or waits for a silent database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")


class DaemonThreads(ThreadPoolExecutor):
    """At most ``count`` daemon threads, started on demand.

    It uses none of the base class's threads, which the interpreter joins at exit; it derives from it because
    ``loop.set_default_executor`` accepts nothing else.
    """

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count)
        self._count = count
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begun = 0
        self._busy = 0
        self._lock = threading.Lock()
        self.stuck = 0
        """Threads whose calls were abandoned and have not returned."""

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Call ``fn`` in a daemon thread, and return the future of its result."""
        future: Future[R] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        with self._lock:
            self._busy += 1
            self._start()
        self._calls.put(call)
        return future

    def grow(self, count: int) -> None:
        """Allow at least ``count`` threads."""
        with self._lock:
            self._count = max(self._count, count)
            self._start()

    def abandon(self, future: Future[Any], error: Exception) -> None:
        """Make ``future`` raise ``error``, and allow another thread to replace the one that may never return."""
        with suppress(InvalidStateError):
            future.set_exception(error)
            with self._lock:
                self.stuck += 1
                self._begun -= 1
                self._busy -= 1
                self._start()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """End idle threads, without waiting for running calls.  A later ``submit`` starts new threads."""
        with self._lock:
            for _ in range(self._begun):
                self._calls.put(None)
            self._begun = 0

    def _start(self) -> None:
        """Start a thread if all are busy, up to the number of threads."""
        if self._busy > self._begun and self._begun < self._count:
            self._begun += 1
            name = f"sqlqueue-{self._name}-{self._begun}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except InvalidStateError:  # the call was abandoned, and this thread has been replaced
                with self._lock:
                    self.stuck -= 1
                return
            with self._lock:
                self._busy -= 1
