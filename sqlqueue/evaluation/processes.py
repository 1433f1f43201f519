"""The processes that a command starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from .._support.processes import CONTEXT, start
from .errors import EvaluationError

PATIENCE = 60
"""Seconds to wait for a message, and for the end of a process."""


class ChildProcess:
    """A process and the pipe to it.  It ignores Ctrl-C.  Leaving a ``with`` block kills it."""

    def __init__(self, name: str, target: Callable[..., object], *args: object) -> None:
        """Start ``target(channel, *args)``; ``channel`` is its end of the pipe."""
        self.name = name
        self.channel, far_end = CONTEXT.Pipe()
        self._process = start(target, far_end, *args, name=name, daemon=True)
        far_end.close()  # so that the pipe closes when the process ends

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process ID."""
        pid: int = self._process.pid
        return pid

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        is_alive: bool = self._process.is_alive()
        return is_alive

    @property
    def exit_code(self) -> int | None:
        """The exit status; the negative number of the signal that killed it; ``None`` while it runs."""
        code: int | None = self._process.exitcode
        return code

    def send(self, message: object) -> None:
        """Send ``message``, if the process has not ended."""
        with suppress(OSError):
            self.channel.send(message)

    def receive(self) -> Any:
        """Wait for a message, and return it.  Raises :class:`.EvaluationError` if the process exits or does not
        respond."""
        if not self.channel.poll(PATIENCE):
            raise EvaluationError(f"{self.name} does not respond")
        try:
            return self.channel.recv()
        except (EOFError, OSError) as error:
            raise EvaluationError(f"{self.name} exited with an error") from error

    def kill(self) -> None:
        """Kill it as ``kill -9`` does, without any cleanup."""
        self._process.kill()
        self._process.join()

    def join(self) -> None:
        """Wait for it to end, for at most :data:`PATIENCE` seconds."""
        self._process.join(PATIENCE)
