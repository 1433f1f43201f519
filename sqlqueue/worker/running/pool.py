"""Pools in which handlers run: threads for functions, event loop tasks for coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

from ..handling.jobs import Job
from ..handling.outcomes import Outcome
from .executor import Executor

Done = Callable[[Job, "Outcome | None"], None]
"""Called on any thread with a finished job and the outcome that is left to write."""


class Pool(Protocol):
    """Runs a limited number of jobs at a time and queues the others."""

    def put(self, job: Job) -> None:
        """Queue a job.  Thread-safe."""
        ...

    def withdraw(self) -> list[Job]:
        """Remove and return the jobs that have not started."""
        ...

    def resize(self, count: int) -> None:
        """Run ``count`` jobs at a time.  Running jobs continue, and surplus ones are not replaced when they end."""
        ...

    async def ended(self) -> None:
        """Wait for the running jobs that can be stopped."""
        ...

    def close(self) -> None:
        """Let the threads or tasks of the pool end."""
        ...


class ThreadPool:
    """Runs handlers in daemon threads: one that never returns does not keep the process alive."""

    def __init__(self, executor: Executor, count: int, name: str, done: Done) -> None:
        self._executor = executor
        self._done = done
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._name = name
        self._lock = threading.Lock()
        self._count = self._alive = 0
        self.resize(count)

    def put(self, job: Job) -> None:
        """Queue a job for the next free thread."""
        self._jobs.put(job)

    def withdraw(self) -> list[Job]:
        """Return the jobs that no thread has started, which are then no longer queued."""
        jobs: list[Job] = []
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return jobs
            if job is not None:
                jobs.append(job)

    def resize(self, count: int) -> None:
        """Change the number of threads; surplus ones end after their current job."""
        with self._lock:
            self._count = count
            for _ in range(self._alive - count):
                self._jobs.put(None)  # wakes an idle thread
            while self._alive < count:
                threading.Thread(target=self._work, name=f"sqlqueue-{self._name}-{self._alive}", daemon=True).start()
                self._alive += 1

    async def ended(self) -> None:
        """Return at once: threads cannot be waited for, since one may never end."""

    def close(self) -> None:
        """Make the threads end after their current jobs."""
        self.resize(0)

    def _work(self) -> None:
        while not self._is_surplus():
            job = self._jobs.get()
            if job is not None:
                self._done(job, self._executor.perform(job))

    def _is_surplus(self) -> bool:
        """Return whether the calling thread is one too many, and ends."""
        with self._lock:
            surplus = self._alive > self._count
            self._alive -= surplus
            return surplus


class CoroutinePool:
    """Runs coroutine handlers in tasks of the event loop."""

    def __init__(self, executor: Executor, count: int, done: Done) -> None:
        self._executor = executor
        self._done = done
        self._jobs: deque[Job] = deque()
        self._count = self._free = count
        self._running: set[asyncio.Task[None]] = set()

    def put(self, job: Job) -> None:
        """Queue a job, and start it if a slot is free."""
        self._jobs.append(job)
        self._start()

    def withdraw(self) -> list[Job]:
        """Return the jobs that have not been started, which are then no longer queued."""
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs

    def resize(self, count: int) -> None:
        """Change the number of jobs that run at a time."""
        self._free += count - self._count
        self._count = count
        self._start()

    async def ended(self) -> None:
        """Wait until no job is running."""
        while self._running:
            await asyncio.wait(self._running)

    def close(self) -> None:
        """Do nothing: tasks end with their jobs."""

    def _start(self) -> None:
        while self._free > 0 and self._jobs:
            self._free -= 1
            task = asyncio.create_task(self._work(self._jobs.popleft()))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _work(self, job: Job) -> None:
        try:
            self._done(job, await self._executor.perform_coroutine(job))
        finally:
            self._free += 1
            self._start()
