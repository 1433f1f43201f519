"""Recycling: a worker process that has run many tasks, or has grown, ends and is replaced by a fresh one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from ..._support.processes import MIB, resident_memory

LOOK_EVERY = 0.2
"""Seconds between two checks of the limits."""
SPREAD = 0.1
"""How much the limits of several processes differ, as a fraction of the limits."""


class ProcessLimits(NamedTuple):
    """The limits at which a worker process is replaced; ``None``: no limit."""

    max_tasks: int | None = None
    """The minimum number of tasks that it runs."""
    max_memory: int | None = None
    """The resident memory that it may use, in MiB, without its child processes."""

    def of_process(self, number: int, processes: int) -> ProcessLimits:
        """Return the limits of process ``number``: at most a tenth more tasks, or less memory, than of the first.

        Processes that started together and run alike would otherwise all be replaced at the same moment.
        """
        share = SPREAD * number / processes
        tasks = None if self.max_tasks is None else round(self.max_tasks * (1 + share))
        memory = None if self.max_memory is None else round(self.max_memory * (1 - share))
        return ProcessLimits(tasks, memory)

    def reached(self, tasks: int) -> str | None:
        """Return which limit a process that has run ``tasks`` tasks has reached, as text; ``None`` if none."""
        if self.max_tasks is not None and tasks >= self.max_tasks:
            return f"has run {tasks} tasks"
        if self.max_memory is not None and (memory := resident_memory() // MIB) > self.max_memory:
            return f"occupies {memory} MiB"
        return None

    async def until_reached(self, tasks: Callable[[], int]) -> str:
        """Wait until a limit is reached, and return what :meth:`reached` returns."""
        while (reached := self.reached(tasks())) is None:
            await asyncio.sleep(LOOK_EVERY)
        return reached


UNLIMITED = ProcessLimits()
