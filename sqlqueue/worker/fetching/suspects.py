"""Runs suspects: tasks that may have crashed a process.  Each runs alone, so that the next crash has one cause."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property

from ..._support.errors import ArgumentError
from ..reporting.reports import logger
from ..running.children import Children
from ..running.isolated import IsolatedExecutor
from ..running.pool import Done, ThreadPool
from .base import BaseFetcher

PLACES = 4
"""The number of suspects of one handler that run at a time, in child processes."""
TICK = 0.005
"""Seconds between two checks whether the running tasks have ended."""


class SuspectProcesses:
    """Child processes for the suspects of one handler, each for one of them at a time."""

    def __init__(self, children: Children, executor: IsolatedExecutor, done: Done) -> None:
        self._children = children
        self._executor = executor
        self._done = done
        self._checked: asyncio.Task[bool] | None = None
        self.places = asyncio.Semaphore(PLACES)

    @cached_property
    def pool(self) -> ThreadPool:
        """The threads for suspects, created when first used."""
        return ThreadPool(self._executor, PLACES, "suspects", self._done)

    async def can_start(self) -> bool:
        """Return whether child processes can load the worker.  The first call starts one."""
        if self._checked is None:
            self._checked = asyncio.create_task(self._check())
        return await self._checked

    async def _check(self) -> bool:
        try:
            await asyncio.to_thread(self._children.prepare)
        except ArgumentError as error:
            logger.warning("suspects run alone in this process: %s", error)
            return False
        return True

    def close(self) -> None:
        """End the threads; does not wait for running jobs."""
        if "pool" in self.__dict__:
            self.pool.close()


class Suspects:
    """Runs suspects one after the other, while this process runs nothing else."""

    def __init__(self) -> None:
        self.fetchers: Sequence[BaseFetcher] = ()
        """All fetchers of the process."""
        self._waiting: deque[Callable[[], Awaitable[None]]] = deque()
        self._some = asyncio.Event()

    def put(self, run: Callable[[], Awaitable[None]]) -> None:
        """Queue ``run``, which runs one suspect to its end."""
        self._waiting.append(run)
        self._some.set()

    async def run(self) -> None:
        """Run waiting suspects, one at a time, while all fetchers are held; until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            for fetcher in self.fetchers:
                fetcher.hold()
            try:
                await until(lambda: all(fetcher.is_still for fetcher in self.fetchers))
                while self._waiting:
                    await self._waiting.popleft()()
            finally:
                for fetcher in self.fetchers:
                    fetcher.resume()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds."""
    while not condition():
        await asyncio.sleep(TICK)
