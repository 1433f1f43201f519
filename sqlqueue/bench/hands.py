"""What a process does in a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from threading import Thread
from typing import Any, Protocol, TypeAlias

from sqlqueue import Worker

from .._support.processes import settle_in
from ..demo.database import sessions
from ..worker.handling.handlers import Mode
from .clients import Client, Clients
from .plan import BenchError, Plan
from .tally import Tally

Cycle: TypeAlias = Callable[[Client, int], int]
"""Claims and completes up to so many; how many there were."""
Enqueue: TypeAlias = Callable[[Client, Sequence[str]], None]
_AGAIN = 0.001
_POLL = timedelta(milliseconds=50)


class Hand(Protocol):
    """Connected when it has been made, and then told to begin as often as there is something to do."""

    def begin(self, jobs: int) -> None: ...

    def check(self) -> None:
        """Raises what has gone wrong since."""

    def end(self) -> None:
        """All is done, or nothing is left to begin."""

    def close(self) -> None: ...


MakeHand: TypeAlias = Callable[[Plan, Tally], Hand]


class Draining:
    """Loops on threads, each with a client of its own."""

    def __init__(
        self, plan: Plan, tally: Tally, *, clients: Clients, cycle: Cycle, in_batches: bool, threads: int
    ) -> None:
        self._stack = ExitStack()
        self._clients = self._stack.enter_context(clients(plan, tally, threads))
        self._threads = self._stack.enter_context(ThreadPoolExecutor(threads))
        self._cycle = cycle
        self._limit = plan.batch if in_batches else 1
        self._running: list[Future[None]] = []

    def begin(self, jobs: int) -> None:
        self._running = [self._threads.submit(self._drain, client) for client in self._clients]

    def _drain(self, client: Client) -> None:
        while True:
            if self._cycle(client, self._limit):
                continue
            if not client.any_left():
                return
            time.sleep(_AGAIN)  # what is left is locked by others, who may roll back

    def check(self) -> None:
        for each in self._running:
            if each.done():
                each.result()

    def end(self) -> None:
        for each in self._running:
            each.result()

    def close(self) -> None:
        self._stack.close()


def apart(client: Client, limit: int) -> int:
    """A commit for the claim, another for the completion."""
    jobs = client.claim(limit)
    client.commit()
    if jobs:
        client.complete(jobs)
        client.commit()
    return len(jobs)


def together(client: Client, limit: int) -> int:
    """One commit for both."""
    jobs = client.claim(limit)
    if jobs:
        client.complete(jobs)
    client.commit()
    return len(jobs)


def at_most_once(client: Client, limit: int) -> int:
    jobs = client.consume(limit)
    client.commit()
    return len(jobs)


class Working:
    """A worker, on a thread: the process's own thread obeys."""

    def __init__(self, plan: Plan, tally: Tally, *, handler: Callable[..., None], mode: Mode) -> None:
        self._engine = plan.engine()
        self._worker = worker = Worker(sessions(tally.watch(self._engine)), poll=_POLL)
        worker.handler(plan.model, concurrency=plan.threads, mode=mode)(handler)
        settle_in()
        self._thread = Thread(target=worker.run, daemon=True)
        self._thread.start()

    def begin(self, jobs: int) -> None:
        """It has found the jobs already."""

    def check(self) -> None:
        if not self._thread.is_alive():
            raise BenchError("the worker has ended")

    def end(self) -> None:
        """It goes on looking for more."""

    def close(self) -> None:
        self._worker.stop()
        self._thread.join()
        self._engine.dispose()


def with_session(session: Any, job: Any) -> None:
    """Nothing to do: what is measured is the rest."""


def without_session(job: Any) -> None:
    """Likewise."""


class Enqueueing:
    def __init__(self, plan: Plan, tally: Tally, *, clients: Clients, enqueue: Enqueue) -> None:
        self._stack = ExitStack()
        (self._client,) = self._stack.enter_context(clients(plan, tally, 1))
        self._payload = plan.text
        self._enqueue = enqueue

    def begin(self, jobs: int) -> None:
        self._enqueue(self._client, [self._payload] * jobs)

    def check(self) -> None:
        """It has raised it already."""

    def end(self) -> None:
        """It is done."""

    def close(self) -> None:
        self._stack.close()


def one_by_one(client: Client, payloads: Sequence[str]) -> None:
    for payload in payloads:
        client.add(payload)
        client.commit()


def in_bulk(client: Client, payloads: Sequence[str]) -> None:
    client.insert(payloads)
    client.commit()


def by_copy(client: Client, payloads: Sequence[str]) -> None:
    client.copy(payloads)
    client.commit()
