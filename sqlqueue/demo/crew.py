"""The worker processes, one of which is killed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from sqlalchemy import URL

from sqlqueue import Worker

from .._support.processes import CONTEXT, start
from .database import connect, sessions
from .errors import DemoError
from .worker import indexer

_PATIENCE = 60


class Crew:
    """The worker processes.  Leaving the ``with`` block kills those that still run."""

    def __init__(self, count: int, url: URL, folder: Path) -> None:
        CONTEXT.set_forkserver_preload([__name__])
        self._members = [_Member(f"worker {n}", url, folder) for n in range(1, count + 1)]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.kill()

    def start(self) -> str | None:
        """Start working.  If there are several processes, the first pauses when it holds files; returns its name.

        Raises :class:`.DemoError` if a process exits or does not respond.
        """
        for member in self._members:
            member.receive()
        victim = self._members[0] if len(self._members) > 1 else None
        if victim is not None:
            victim.send("claim and wait")
            victim.receive()
        for member in self._members:
            if member is not victim:
                member.send("work")
        return None if victim is None else victim.name

    def kill(self, name: str) -> int | None:
        """Kill a process as ``kill -9`` does, without any cleanup, and return its process ID."""
        (victim,) = (member for member in self._members if member.name == name)
        return victim.kill()

    def stop(self) -> None:
        """Stop all processes, and wait for them."""
        for member in self._members:
            member.stop()

    @property
    def works(self) -> bool:
        """Whether any process is running."""
        return any(member.lives for member in self._members)

    @property
    def crashed(self) -> Sequence[str]:
        """The names of the processes that ended with an error, which they have printed."""
        return [member.name for member in self._members if member.has_crashed]


class _Member:
    def __init__(self, name: str, url: URL, folder: Path) -> None:
        self.name = name
        self._killed = False
        self._channel, far_end = CONTEXT.Pipe()
        self._process = start(_main, far_end, name, url, folder, name=name, daemon=True)
        far_end.close()  # so that the end of the process is the end of the pipe

    @property
    def lives(self) -> bool:
        lives: bool = self._process.is_alive()
        return lives

    @property
    def has_crashed(self) -> bool:
        return not self._killed and self._process.exitcode not in (None, 0)

    def send(self, message: str) -> None:
        self._channel.send(message)

    def receive(self) -> None:
        """Wait for the next message from the process; :class:`.DemoError` if it exits or does not respond."""
        if not self._channel.poll(_PATIENCE):
            raise DemoError(f"{self.name} does not respond")
        try:
            self._channel.recv()
        except EOFError as error:
            raise DemoError(f"{self.name} exited with an error") from error

    def stop(self) -> None:
        with suppress(OSError):  # it has already ended
            self.send("stop")
        self._process.join(_PATIENCE)

    def kill(self) -> int | None:
        self._killed = True
        self._process.kill()
        self._process.join()
        pid: int | None = self._process.pid
        return pid


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
