"""The common parts of the scripts: the roles of a process, and its messages.

Each script runs in the environment of one library.  A client creates the tables and enqueues; a worker runs jobs. Both
read commands, as JSON lists on lines of standard input, and respond with JSON on lines of standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from importlib.metadata import version
from typing import Any, ClassVar

Mark = Callable[[int], None]


class Peer:
    """The interface to a library. Every job has a number, which its handler marks."""

    distribution: ClassVar[str]
    is_done: str
    """SQL that returns whether no job is waiting or running."""
    clear: str
    """SQL that removes all jobs."""

    def __init__(self, url: str, schema: str, concurrency: int, form: str) -> None:
        self.url = url
        self.schema = schema
        """The schema for the tables, which is the search path of the URL."""
        self.concurrency = concurrency
        self.form = form

    def run(self, role: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as the library's own command would."""
        asyncio.run(role)

    async def install(self) -> None:
        """Create the tables."""

    async def open(self) -> None:
        """Connect for enqueueing."""

    async def fill(self, numbers: list[int]) -> None:
        """Enqueue jobs in bulk."""

    async def enqueue(self, number: int) -> None:
        """Enqueue one job and commit."""

    async def enqueue_within(self, number: int) -> float:
        """Enqueue one job in a transaction, and return the time at which its commit was called."""
        raise NotImplementedError

    async def work(self, mark: Mark) -> None:
        """Run a worker forever."""


class Marks:
    """The time at which the handler of each job was called."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []
        self._cpu = 0.0

    def __call__(self, number: int) -> None:
        """Mark a job."""
        if not self.seen:
            self._cpu = time.process_time()
        self.seen.append((number, time.monotonic()))

    def report(self) -> dict[str, Any]:
        """Return all marks, and the CPU seconds since the first."""
        return {"marks": self.seen, "cpu": time.process_time() - self._cpu if self.seen else 0.0}


def say(answer: object) -> None:
    """Send a response."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(peer: type[Peer]) -> None:
    """Run a script: its arguments are the role, the schema, the concurrency, and the form of the handler.

    The URL comes from the environment: other users can see command lines.
    """
    role, schema, concurrency, form = sys.argv[1:]
    made = peer(os.environ["SQLQUEUE_BENCH_URL"], schema, int(concurrency), form)
    say({"version": version(peer.distribution), "is_done": made.is_done, "clear": made.clear})
    made.run({"client": _client, "worker": _worker}[role](made))


async def _client(peer: Peer) -> None:
    commands: dict[str, Callable[..., Awaitable[Any]]] = {
        "install": peer.install,
        "open": peer.open,
        "fill": lambda count: peer.fill(list(range(count))),
        "enqueue": lambda count: _each(count, peer.enqueue),
        "enqueue_within": lambda count, start: _paced(count, start, peer.enqueue_within),
    }
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, *arguments = json.loads(line)
        say(await commands[name](*arguments))


async def _each(count: int, enqueue: Callable[[int], Awaitable[None]]) -> list[float]:
    """Enqueue jobs, and return the seconds that each took."""
    taken = []
    for number in range(count):
        begun = time.perf_counter()
        await enqueue(number)
        taken.append(time.perf_counter() - begun)
    return taken


async def _paced(count: int, start: int, enqueue: Callable[[int], Awaitable[float]]) -> list[tuple[int, float, float]]:
    """Enqueue jobs with pauses.  Return the number of each, and when the call and its commit began."""
    sent = []
    for number in range(start, start + count):
        await asyncio.sleep(random.uniform(0.02, 0.05))
        called = time.monotonic()
        sent.append((number, called, await enqueue(number)))
    return sent


async def _worker(peer: Peer) -> None:
    marks = Marks()
    await asyncio.to_thread(sys.stdin.readline)  # ["go"]

    def answer() -> None:
        while sys.stdin.readline():
            say(marks.report())
        os._exit(0)  # the benchmark has ended

    threading.Thread(target=answer, daemon=True).start()
    await peer.work(marks)
