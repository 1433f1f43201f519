"""The work that one process does in a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from threading import Thread
from typing import Any, TypeAlias

from sqlqueue import Worker
from sqlqueue._support.processes import settle_in
from sqlqueue.evaluation.support import EvaluationError, sessions
from sqlqueue.worker.handlers import Mode

from .clients import Client, Clients
from .counter import StatementCounter
from .models import CALL, Call, Note
from .plan import Plan

Cycle: TypeAlias = Callable[[Client, int], int]
"""A function that claims and completes up to the given number of jobs, and returns how many it did."""
Enqueue: TypeAlias = Callable[[Client, Sequence[str]], None]
NOTE = "x"
_AGAIN = 0.001
_POLL = timedelta(milliseconds=50)


class Workload:
    """The work of one process.  It connects when it is created; each measurement begins and ends it."""

    def begin(self, jobs: int) -> None:
        """Start to work on ``jobs`` jobs."""

    def check(self) -> None:
        """Raise any error of the work so far."""

    def end(self) -> None:
        """Finish, after all jobs are done or claimed."""

    def close(self) -> None:
        """Close the connections."""
        raise NotImplementedError


MakeWorkload: TypeAlias = Callable[[Plan, StatementCounter], Workload]


class Draining(Workload):
    """Loops in threads that claim and complete, each with its own client."""

    def __init__(
        self, plan: Plan, counter: StatementCounter, *, clients: Clients, cycle: Cycle, in_batches: bool, threads: int
    ) -> None:
        self._stack = ExitStack()
        self._clients = self._stack.enter_context(clients(plan, counter, threads))
        self._threads = self._stack.enter_context(ThreadPoolExecutor(threads))
        self._cycle = cycle
        self._limit = plan.batch if in_batches else 1
        self._running: list[Future[None]] = []

    def begin(self, jobs: int) -> None:
        """Start the loops."""
        self._running = [self._threads.submit(self._drain, client) for client in self._clients]

    def _drain(self, client: Client) -> None:
        while True:
            if self._cycle(client, self._limit):
                continue
            if not client.any_left():
                return
            time.sleep(_AGAIN)  # the remaining jobs are locked by others, which may roll back

    def check(self) -> None:
        """Raise the error of a loop that has failed."""
        for each in self._running:
            if each.done():
                each.result()

    def end(self) -> None:
        """Wait for the loops, and raise the error of one that has failed."""
        for each in self._running:
            each.result()

    def close(self) -> None:
        """Close the clients."""
        self._stack.close()


def apart(client: Client, limit: int) -> int:
    """Claim and complete jobs with one commit for each step, and return their number."""
    jobs = client.claim(limit)
    client.commit()
    if jobs:
        client.complete(jobs)
        client.commit()
    return len(jobs)


def together(client: Client, limit: int) -> int:
    """Claim and complete jobs with one commit, and return their number."""
    jobs = client.claim(limit)
    if jobs:
        client.complete(jobs)
    client.commit()
    return len(jobs)


def apart_writing(client: Client, limit: int) -> int:
    """Claim jobs, commit, complete them together with a write of the application, commit, and return their number."""
    jobs = client.claim(limit)
    client.commit()
    if jobs:
        client.write(NOTE)
        client.complete(jobs)
        client.commit()
    return len(jobs)


def apart_writing_each(client: Client, limit: int) -> int:
    """Claim jobs, commit, complete them together with a write of the application for each, and return their number."""
    jobs = client.claim(limit)
    client.commit()
    if jobs:
        client.write_all([NOTE] * len(jobs))
        client.complete(jobs)
        client.commit()
    return len(jobs)


def together_writing(client: Client, limit: int) -> int:
    """Claim and complete jobs together with a write of the application, with one commit, and return their number."""
    jobs = client.claim(limit)
    if jobs:
        client.write(NOTE)
        client.complete(jobs)
    client.commit()
    return len(jobs)


def at_most_once(client: Client, limit: int) -> int:
    """Consume jobs with one commit, and return their number."""
    jobs = client.consume(limit)
    client.commit()
    return len(jobs)


Register: TypeAlias = Callable[[Worker, Plan], None]
"""A function that registers what a worker does."""


class Working(Workload):
    """A worker in a thread; the main thread takes the commands."""

    def __init__(self, plan: Plan, counter: StatementCounter, *, register: Register) -> None:
        self._engine = plan.engine()
        self._worker = worker = Worker(sessions(counter.watch(self._engine)), poll=_POLL)
        register(worker, plan)
        settle_in()
        self._thread = Thread(target=worker.run, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise :class:`.EvaluationError` if the worker has ended."""
        if not self._thread.is_alive():
            raise EvaluationError("the worker has exited")

    def close(self) -> None:
        """Stop the worker, wait for it, and close its connections."""
        self._worker.stop()
        self._thread.join()
        self._engine.dispose()


def with_session(session: Any, job: Any) -> None:
    """Do nothing, so that only the queue is measured."""


def writing(session: Any, job: Any) -> None:
    """Insert a row: a handler that does not use its session has nothing to commit with its completion."""
    session.add(Note(text=NOTE))


def writing_each(session: Any, jobs: Any) -> None:
    """Insert a row for each job of a chunk."""
    session.add_all([Note(text=NOTE) for _ in jobs])


def without_session(job: Any) -> None:
    """Do nothing, so that only the queue is measured."""


async def coroutine(job: Any) -> None:
    """Do nothing, as a coroutine."""


def call() -> None:
    """Do nothing, as a function whose calls are enqueued."""


def handle(worker: Worker, plan: Plan, *, handler: Callable[..., Any], mode: Mode = "lease") -> None:
    """Register a handler of jobs. In at-most-once mode, a worker claims only what it can run at once, so as many run at
    a time as the baseline claims at a time.
    """
    concurrency = plan.batch if mode == "at-most-once" else plan.threads
    worker.handler(plan.model, concurrency=concurrency, mode=mode)(handler)


def handle_chunks(worker: Worker, plan: Plan) -> None:
    """Register a handler of chunks, as large as the batches of the baseline, one at a time."""
    worker.handler(plan.model, concurrency=1, chunk=plan.batch)(writing_each)


def run_calls(worker: Worker, plan: Plan) -> None:
    """Register the function whose calls are enqueued."""
    worker.task(Call, name=CALL, concurrency=plan.threads)(call)


class Enqueueing(Workload):
    """Enqueues jobs with one client."""

    def __init__(self, plan: Plan, counter: StatementCounter, *, clients: Clients, enqueue: Enqueue) -> None:
        self._stack = ExitStack()
        (self._client,) = self._stack.enter_context(clients(plan, counter, 1))
        self._payload = plan.text
        self._enqueue = enqueue

    def begin(self, jobs: int) -> None:
        """Enqueue ``jobs`` jobs."""
        self._enqueue(self._client, [self._payload] * jobs)

    def close(self) -> None:
        """Close the client."""
        self._stack.close()


def one_by_one(client: Client, payloads: Sequence[str]) -> None:
    """Enqueue jobs with a commit for each."""
    for payload in payloads:
        client.add(payload)
        client.commit()


def in_bulk(client: Client, payloads: Sequence[str]) -> None:
    """Enqueue all jobs in one call, with one commit."""
    client.insert(payloads)
    client.commit()


def by_copy(client: Client, payloads: Sequence[str]) -> None:
    """Enqueue all jobs with COPY, in one commit."""
    client.copy(payloads)
    client.commit()
