"""Records of the tasks that a process is running, in memory that outlives it."""

from __future__ import annotations

import pickle
from collections import deque
from enum import IntEnum
from struct import Struct
from typing import Any

from ..._support.processes import CONTEXT
from ...operations.upkeep import Crash, Started
from ..handling.jobs import Job

MAX_STARTED = 2_048
"""The maximum number of tasks that are recorded at a time."""
SIZE = 512
"""The size of a slot in bytes."""
_NUMBER, _FLAG, _LENGTH, _RECORD = Struct("=Q"), Struct("=B"), Struct("=H"), Struct(f"={SIZE - 2}s")
_INCOMPLETE, _RECOVERED, _END = _NUMBER.size, _NUMBER.size + 1, _NUMBER.size + 2
"""The offsets of the fields that follow the worker's number."""
_FIRST = 16


class End(IntEnum):
    """The reason that a process records for its end: exit statuses can be a handler's."""

    DIED = 0
    """The process died before it could write another reason."""
    STOPPED = 1
    LIMIT_REACHED = 2
    """It has stopped because it had reached a limit."""
    REFUSED = 3
    """A restarted process would fail the same way again."""


def shared_memory() -> Any:
    """Return memory that can be passed to a process at its start, and read once the process has died."""
    return CONTEXT.RawArray("c", _FIRST + MAX_STARTED * SIZE)


class StartedTasks:
    """The tasks that this process is running, written to ``memory`` by its threads, if there is any.

    A record is complete before its length is written, so a process may die at any moment.
    """

    def __init__(self, memory: Any = None) -> None:
        self._memory = memory
        self.is_recorded = memory is not None
        """Whether there is memory; otherwise :meth:`begin` and :meth:`end` do nothing."""
        self._free = deque(range(_FIRST, _FIRST + MAX_STARTED * SIZE, SIZE))

    def claim_by(self, worker: int) -> None:
        """Record the number in the tokens of this process's claims."""
        if self._memory is not None:
            _NUMBER.pack_into(self._memory, 0, worker)

    def recovered(self) -> None:
        """Record that the tasks of earlier processes are released."""
        if self._memory is not None:
            _FLAG.pack_into(self._memory, _RECOVERED, 1)

    def begin(self, job: Job, *, counted: bool = False) -> int | None:
        """Record that ``job`` is started.  Returns what :meth:`end` needs."""
        if self._memory is None:
            return None
        claim = job.claim
        token = None if job.handler.mode == "lock" else claim.token
        record = pickle.dumps((job.handler.spec.table.fullname, claim.identity, token, counted), 5)
        if len(record) > SIZE - 2 or not self._free:
            _FLAG.pack_into(self._memory, _INCOMPLETE, 1)  # all that the process holds is suspected if it dies
            return None
        slot = self._free.popleft()
        _RECORD.pack_into(self._memory, slot + 2, record)
        _LENGTH.pack_into(self._memory, slot, len(record))
        return slot

    def end(self, slot: int | None) -> None:
        """Record that it has ended."""
        if slot is not None:
            _LENGTH.pack_into(self._memory, slot, 0)
            self._free.append(slot)


def note_end(memory: Any, end: End) -> None:
    """Record how this process ends."""
    _FLAG.pack_into(memory, _END, end)


def end_of(memory: Any) -> End:
    """Return how a process has ended."""
    return End(_FLAG.unpack_from(memory, _END)[0])


def has_recovered(memory: Any) -> bool:
    """Return whether the process had released the tasks of earlier ones."""
    return bool(memory[_RECOVERED] != b"\0")


def crash_of(memory: Any, status: int) -> Crash | None:
    """Return what a dead process was running; ``None`` if it had claimed nothing."""
    (worker,) = _NUMBER.unpack_from(memory, 0)
    if not worker:
        return None
    started: list[Started] = []
    for slot in range(_FIRST, _FIRST + MAX_STARTED * SIZE, SIZE):
        (length,) = _LENGTH.unpack_from(memory, slot)
        if length:
            started.append(Started(*pickle.loads(memory[slot + 2 : slot + 2 + length])))
    return Crash(worker, status, tuple(started), complete=memory[_INCOMPLETE] == b"\0")
