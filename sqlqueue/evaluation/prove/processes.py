"""The worker processes as their parent sees them."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

from sqlalchemy import URL

from ..._support.processes import CONTEXT
from ..errors import EvaluationError
from ..processes import ChildProcess
from .worker import main


class WorkerProcess(ChildProcess):
    """A worker process, into which faults are injected."""

    def __init__(self, name: str, url: URL) -> None:
        super().__init__(name, main, url, name)
        self.is_frozen = False

    def freeze(self, seconds: float) -> None:
        """Suspend it for some seconds, as if its machine were suspended: its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)
        self.is_frozen = True
        # a timer, because this process may itself be waiting for locks that the frozen one holds
        timer = threading.Timer(seconds, self._thaw)
        timer.daemon = True
        timer.start()

    def _thaw(self) -> None:
        with suppress(OSError):  # it was killed at the end
            os.kill(self.pid, signal.SIGCONT)
        self.is_frozen = False

    def cut(self) -> None:
        """Shut down its connections to the server."""
        self.send("cut")

    def stop(self) -> Counter[str]:
        """Stop it, and return the counts of its worker; empty if it has died."""
        self.send("stop")
        counts: Any = None
        with suppress(EvaluationError):
            while not isinstance(counts, dict):  # a process that replaced another one has sent "ready" first
                counts = self.receive()
        self.join()
        return Counter(counts if isinstance(counts, dict) else {})


class WorkerProcesses:
    """Some worker processes.  Leaving the ``with`` block kills those that still run."""

    def __init__(self, url: URL) -> None:
        CONTEXT.set_forkserver_preload([__name__])
        self._url = url
        self._started = 0
        self.died: list[str] = []
        """The names of processes that ended without being killed."""
        self.running: list[WorkerProcess] = []

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.kill()

    def start(self, number: int) -> None:
        """Start ``number`` processes, and wait until they are ready.  Raises :class:`.EvaluationError` if one does not
        start."""
        for _ in range(number):
            self._add()
        for process in self.running:
            process.receive()

    def replace(self, process: WorkerProcess) -> None:
        """Start another process for one that was killed or has died."""
        self.running.remove(process)
        self._add()

    def replace_dead(self) -> None:
        """Record processes that ended without having been killed, and start others."""
        for process in [process for process in self.running if not process.is_alive]:
            self.died.append(process.name)
            self.replace(process)

    def stop(self) -> Counter[str]:
        """Stop all of them, and return the sums of their counts."""
        return sum((process.stop() for process in self.running), Counter())

    def _add(self) -> None:
        self._started += 1
        self.running.append(WorkerProcess(f"worker {self._started}", self._url))
