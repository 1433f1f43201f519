"""Pools in which handlers run: threads for functions, event loop tasks for coroutines.

Each job has its own copy of the context in which the pool was created: variables that a handler sets are not seen by
the next one.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Protocol

from ..handling.jobs import Job
from ..handling.outcomes import Outcome
from .executor import Executor

Done = Callable[[Job, "Outcome | None"], None]
"""Called on any thread with a finished job and the outcome that is left to write."""


class Pool(Protocol):
    """Runs a limited number of jobs at a time and queues the others."""

    def put(self, jobs: Sequence[Job]) -> None:
        """Queue jobs.  Thread-safe."""
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
        """End the threads or tasks of the pool, after their current jobs."""
        ...


class ThreadPool:
    """Runs handlers in daemon threads: one that never returns does not keep the process alive."""

    def __init__(self, executor: Executor, count: int, name: str, done: Done) -> None:
        self._executor = executor
        self._done = done
        self._jobs: deque[Job] = deque()
        self._name = name
        self._context = copy_context()
        self._changed = threading.Condition(threading.Lock())
        """Notified of new jobs and of changes to the number of threads.  Held to wait, to notify, and to change that
        number."""
        self._count = self._alive = 0
        self.resize(count)

    def put(self, jobs: Sequence[Job]) -> None:
        """Queue jobs for the next free threads."""
        self._jobs.extend(jobs)
        with self._changed:
            self._changed.notify(len(jobs))

    def withdraw(self) -> list[Job]:
        """Return the jobs that no thread has started, which are then no longer queued."""
        jobs: list[Job] = []
        while True:
            try:
                jobs.append(self._jobs.popleft())  # one by one: threads take jobs meanwhile
            except IndexError:
                return jobs

    def resize(self, count: int) -> None:
        """Change the number of threads; surplus ones end after their current job."""
        with self._changed:
            self._count = count
            self._changed.notify_all()
            while self._alive < count:
                threading.Thread(target=self._work, name=f"sqlqueue-{self._name}-{self._alive}", daemon=True).start()
                self._alive += 1

    async def ended(self) -> None:
        """Return at once: threads cannot be waited for, since one may never end."""

    def close(self) -> None:
        """Make the threads end after their current jobs."""
        self.resize(0)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._done(job, self._context.copy().run(self._executor.perform, job))

    def _next(self) -> Job | None:
        """Wait for a job.  Returns ``None`` if there are too many threads, so that the calling one has to end."""
        while True:
            if self._alive <= self._count:
                try:
                    return self._jobs.popleft()  # without the lock, while there is enough to do
                except IndexError:
                    pass
            with self._changed:
                if self._alive > self._count:
                    self._alive -= 1
                    return None
                if not self._jobs:
                    self._changed.wait()


class CoroutinePool:
    """Runs coroutine handlers in tasks of the event loop."""

    def __init__(self, executor: Executor, count: int, done: Done) -> None:
        self._executor = executor
        self._done = done
        self._jobs: deque[Job] = deque()
        self._context = copy_context()
        self._count = self._free = count
        self._running: set[asyncio.Task[None]] = set()

    def put(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, and start them as far as slots are free."""
        self._jobs.extend(jobs)
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
            ended, _ = await asyncio.wait(self._running)
            self._running -= ended  # a task that is cancelled before it begins does not remove itself

    def close(self) -> None:
        """Do nothing: tasks end with their jobs."""

    def _start(self) -> None:
        while self._free > 0 and self._jobs:
            self._free -= 1
            work = self._work(self._jobs.popleft())
            self._running.add(asyncio.create_task(work, context=self._context.copy()))

    async def _work(self, job: Job) -> None:
        try:
            self._done(job, await self._executor.perform_coroutine(job))
        finally:
            self._running.discard(asyncio.current_task())
            self._free += 1
            self._start()
