"""Tests side by side, in whatever process; but some keep the whole machine busy, or suffer from who does."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Room:
    """Its locks are the system's: who dies in it has left it."""

    def __init__(self, directory: Path) -> None:
        self._door = (directory / "door").open("w")
        self._room = (directory / "room").open("w")

    @contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        fcntl.flock(self._door, fcntl.LOCK_EX)  # held while waiting, or who wants to be alone would wait forever
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    def close(self) -> None:
        self._door.close()
        self._room.close()
