"""Threads that do not keep a process from ending: one may hang in a handler, or in a database that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")


class DaemonThreads(ThreadPoolExecutor):
    """So many threads at the most; they begin when they are needed.

    None of its base's, which are waited for at the end of the process; but no event loop takes another by default.
    """

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count)
        self._count = count
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begun = 0
        self._busy = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        future: Future[R] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        with self._lock:
            self._busy += 1
            if self._busy > self._begun and self._begun < self._count:
                self._begun += 1
                name = f"sqlqueue-{self._name}-{self._begun}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._calls.put(call)
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """What runs is left to end by itself; a later call begins anew."""
        with self._lock:
            for _ in range(self._begun):
                self._calls.put(None)
            self._begun = 0

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                self._busy -= 1
