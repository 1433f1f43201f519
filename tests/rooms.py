"""Side by side, tests about time run while nothing but their like does, in whatever process: a busy machine is late."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PAUSE = 0.02


class Rooms:
    """Two, of which one has people at a time. Who dies in one has left it."""

    def __init__(self, directory: Path) -> None:
        self._door = (directory / "door").open("w")
        self._timed = (directory / "timed").open("w")
        self._others = (directory / "others").open("w")

    @contextmanager
    def entered(self, *, timed: bool, alone: bool = False) -> Iterator[None]:
        """``alone``: nobody else is in the room either."""
        room, opposite = (self._timed, self._others) if timed else (self._others, self._timed)
        while not self._enter(room, opposite, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            time.sleep(PAUSE)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)

    def close(self) -> None:
        for file in (self._door, self._timed, self._others):
            file.close()

    def _enter(self, room: IO[str], opposite: IO[str], hold: int) -> bool:
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(opposite, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(opposite, fcntl.LOCK_UN)
            fcntl.flock(room, hold | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
