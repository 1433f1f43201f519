"""The worker processes, as controlled by their parent process."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import suppress

from sqlalchemy import URL

from .._support.processes import CONTEXT, start
from .database import ProofError
from .worker import main

_PATIENCE = 60


class Member:
    """A worker process."""

    def __init__(self, name: str, url: URL) -> None:
        self.name = name
        self.is_frozen = False
        self._channel, far_end = CONTEXT.Pipe()
        self._process = start(main, far_end, url, name, name=name, daemon=True)
        far_end.close()  # so that the end of the process is the end of the pipe

    def wait_until_ready(self) -> None:
        """Wait until it has connected; :class:`.ProofError` if it exits or does not respond."""
        if self._receive() is None:
            raise ProofError(f"{self.name} does not start")

    @property
    def lives(self) -> bool:
        """Whether the process is running."""
        lives: bool = self._process.is_alive()
        return lives

    def kill(self) -> None:
        """Kill it, as ``kill -9`` does."""
        self._process.kill()
        self._process.join()

    def freeze(self, seconds: float) -> None:
        """Suspend it for some seconds, like a suspended machine: its connections stay open."""
        os.kill(self._process.pid, signal.SIGSTOP)
        self.is_frozen = True
        # even if this process is waiting, possibly for locks of the frozen process
        timer = threading.Timer(seconds, self._thaw)
        timer.daemon = True
        timer.start()

    def _thaw(self) -> None:
        with suppress(OSError):  # it was killed at the end
            os.kill(self._process.pid, signal.SIGCONT)
        self.is_frozen = False

    def cut(self) -> None:
        """Shut down its connections to the server."""
        with suppress(OSError):
            self._channel.send("cut")

    def stop(self) -> Counter[str]:
        """Stop it, and return its worker's counts; empty if it has died."""
        with suppress(OSError):
            self._channel.send("stop")
        counts = self._receive()
        self._process.join(_PATIENCE)
        return Counter(counts if isinstance(counts, dict) else {})

    def _receive(self) -> object:
        with suppress(EOFError, OSError):
            if self._channel.poll(_PATIENCE):
                received: object = self._channel.recv()
                return received
        return None


class Crew:
    """The worker processes. Leaving the ``with`` block kills those that are still running."""

    def __init__(self, url: URL) -> None:
        CONTEXT.set_forkserver_preload([__name__])
        self._url = url
        self._started = 0
        self.died: list[str] = []
        """The names of processes that ended by themselves."""
        self.members: list[Member] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()

    def start(self, number: int) -> None:
        """Start the given number of processes, and wait until they are ready; :class:`.ProofError` if one does not
        start."""
        for _ in range(number):
            self._add()
        for member in self.members:
            member.wait_until_ready()

    def replace(self, member: Member) -> None:
        """Start a process in place of one that was killed or has died."""
        self.members.remove(member)
        self._add()

    def replace_dead(self) -> None:
        """Record the processes that ended without being killed, and replace them."""
        for member in [member for member in self.members if not member.lives]:
            self.died.append(member.name)
            self.replace(member)

    def stop(self) -> Counter[str]:
        """Stop all processes, and return the sums of their counts."""
        return sum((member.stop() for member in self.members), Counter())

    def _add(self) -> None:
        self._started += 1
        self.members.append(Member(f"worker {self._started}", self._url))
