"""A handler raises ``CancelledError``, because something that it awaited was cancelled: that is a failure."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.rows import count
from tests.support.workers import LONG, Workers, eventually, statuses, with_session, without_session

ROWS = [{"id": n, "name": "bad" if n == 1 else "", "max_attempts": 1} for n in range(1, 6)]
ENDED = {1: "discarded", 2: "completed", 3: "completed", 4: "completed", 5: "completed"}


def write(session: Any, task: Any) -> None:
    if task.name == "bad":
        raise asyncio.CancelledError
    session.add(Ledger(task_id=task.id, worker="worker"))


@pytest.mark.asyncio_everywhere
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_it_counts_as_a_failure(db: Database, workers: Workers, mode: Any) -> None:
    db.insert(Task, ROWS)
    workers.serve(Task, with_session(db, write), mode=mode, concurrency=1)
    eventually(lambda: statuses(db) == ENDED)
    assert count(db, Ledger) == 4
    assert count(db, Task, Task.error == "CancelledError") == 1


@pytest.mark.asyncio_everywhere
def test_it_counts_as_a_failure_without_a_session(db: Database, workers: Workers) -> None:
    db.insert(Task, ROWS)

    def during(task: Any) -> None:
        if task.name == "bad":
            raise CancelledError

    workers.serve(Task, without_session(db, during), concurrency=1)
    eventually(lambda: statuses(db) == ENDED)


async def awaits_what_is_cancelled() -> None:
    request = asyncio.create_task(asyncio.sleep(LONG.total_seconds()))
    request.cancel()
    await request


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(LONG.total_seconds())


async def exits() -> None:
    raise SystemExit


@pytest.mark.parametrize("mode", ["lease", "lock"])
@pytest.mark.parametrize("ends", [awaits_what_is_cancelled, cancels_itself, exits])
def test_a_coroutine_that_ends_so_affects_no_other(db: Database, workers: Workers, mode: Any, ends: Any) -> None:
    """The next coroutine uses a task group, which a cancellation that is left over would break."""
    if not db.is_async:
        pytest.skip("only coroutines can await")
    db.insert(Task, ROWS)
    worker = workers.make()

    @worker.handler(Task, mode=mode, concurrency=1)
    async def handle(session: Any, task: Any) -> None:
        if task.name == "bad":
            await ends()
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        session.add(Ledger(task_id=task.id, worker="worker"))

    workers.start(worker)
    eventually(lambda: statuses(db) == ENDED)
    assert count(db, Ledger) == 4


async def fails() -> None:
    raise ValueError("no luck")


def test_a_slot_that_something_cancels_is_started_again(
    db: Database, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    if not db.is_async:
        pytest.skip("needs a handler on the event loop of the slots")
    db.insert(Task, [{"id": 1}])
    worker = workers.make()
    calls: list[int] = []

    @worker.handler(Task, mode="lock", concurrency=2)
    async def handle(session: Any, task: Any) -> None:
        calls.append(task.id)
        if len(calls) == 1:
            for other in asyncio.all_tasks():
                if other.get_coro().__qualname__ == "LockModeFetcher._slot":  # type: ignore[union-attr]
                    other.cancel()
            await asyncio.sleep(LONG.total_seconds())

    with caplog.at_level(logging.ERROR, "sqlqueue"):
        workers.start(worker)
        eventually(lambda: statuses(db) == {1: "completed"})
    assert "was cancelled, and is started again" in caplog.text


def test_a_worker_that_stops_hands_back_what_it_cancels(db: Database, workers: Workers) -> None:
    if not db.is_async:
        pytest.skip("threads cannot be cancelled")
    db.insert(Task, [{"id": 1}])
    worker = workers.make()
    started: list[int] = []

    @worker.handler(Task, mode="lock")
    async def handle(session: Any, task: Any) -> None:
        started.append(task.id)
        await asyncio.sleep(LONG.total_seconds())

    running = workers.start(worker)
    eventually(lambda: started)
    running.stop(at_once=True)
    assert statuses(db) == {1: "available"}
    assert count(db, Task, Task.error.is_(None), Task.attempt == 0) == 1
