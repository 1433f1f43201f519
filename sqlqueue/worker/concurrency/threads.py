"""Daemon threads, which do not keep a process alive when one hangs in a handler or waits for a silent database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
        """Let idle threads end; running calls are not waited for.  A later ``submit`` starts new threads."""
        with self._lock:
            for _ in range(self._begun):
                self._calls.put(None)
            self._begun = 0

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                self._busy -= 1
