"""The worker processes, one of which is killed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from sqlalchemy import URL

from sqlqueue import Worker

from ..._support.processes import CONTEXT
from ..database import connect, sessions
from ..processes import ChildProcess
from .worker import indexer


class DemoWorkers:
    """The worker processes.  Leaving the ``with`` block kills those that still run."""

    def __init__(self, count: int, url: URL, folder: Path) -> None:
        CONTEXT.set_forkserver_preload([__name__])
        self._processes = [_DemoWorker(f"worker {n}", url, folder) for n in range(1, count + 1)]

    def __enter__(self) -> DemoWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()

    def start(self) -> str | None:
        """Start working.  If there are several processes, the first pauses when it holds files; returns its name.

        Raises :class:`.EvaluationError` if a process exits or does not respond.
        """
        for process in self._processes:
            process.receive()
        victim = self._processes[0] if len(self._processes) > 1 else None
        if victim is not None:
            victim.send("claim and wait")
            victim.receive()
        for process in self._processes:
            if process is not victim:
                process.send("work")
        return None if victim is None else victim.name

    def kill(self, name: str) -> int:
        """Kill a process as ``kill -9`` does, without any cleanup, and return its process ID."""
        (victim,) = (process for process in self._processes if process.name == name)
        victim.kill()
        return victim.pid

    def stop(self) -> None:
        """Stop all processes, and wait for them."""
        for process in self._processes:
            process.stop()

    @property
    def is_alive(self) -> bool:
        """Whether any process is running."""
        return any(process.is_alive for process in self._processes)

    @property
    def crashed(self) -> Sequence[str]:
        """The names of the processes that ended with an error, which they have printed."""
        return [process.name for process in self._processes if process.has_crashed]


class _DemoWorker(ChildProcess):
    def __init__(self, name: str, url: URL, folder: Path) -> None:
        super().__init__(name, _main, name, url, folder)
        self._killed = False

    @property
    def has_crashed(self) -> bool:
        return not self._killed and self.exit_code not in (None, 0)

    def stop(self) -> None:
        self.send("stop")
        self.join()

    def kill(self) -> None:
        self._killed = True
        super().kill()


def _main(channel: Connection, name: str, url: URL, folder: Path) -> None:
    """Run a worker process."""

    first = threading.Lock()

    def claimed() -> None:
        first.acquire()  # only one thread may use the pipe
        channel.send("claimed")
        threading.Event().wait()  # until it is killed

    engine = connect(url)
    engine.connect().close()
    channel.send("ready")
    is_victim = channel.recv() == "claim and wait"
    worker = indexer(sessions(engine), folder, name, *([claimed] if is_victim else []))
    threading.Thread(target=_obey, args=(channel, worker), daemon=True).start()
    worker.run()


def _obey(channel: Connection, worker: Worker) -> None:
    """Stop the worker on a message, or when the parent process ends."""
    with suppress(EOFError):
        channel.recv()
    worker.stop(at_once=True)
