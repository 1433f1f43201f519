"""How a worker ends: running tasks may finish, the others are released, and leases of unreleased tasks expire."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from sqlqueue import Worker
from sqlqueue.worker import fetcher as poller
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.rows import count, rows
from tests.support.workers import (
    AT_ONCE,
    LONG,
    BlockingHandler,
    Workers,
    all_are,
    eventually,
    statuses,
    with_session,
    without_session,
    write_ledger,
)

pytestmark = pytest.mark.asyncio_everywhere


@pytest.mark.every_engine
def test_running_tasks_finish_and_no_others_are_started(
    db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    db.insert(Task, rows(6))
    running = workers.serve(Task, with_session(db, during=blocking), concurrency=2)
    blocking.wait_for(2)
    running.worker.stop()
    time.sleep(0.1)
    assert not running.ended
    blocking.release()
    running.wait()
    assert sorted(statuses(db).values()) == ["available"] * 4 + ["completed"] * 2
    assert count(db, Ledger) == 2


@pytest.mark.every_engine
def test_prefetched_tasks_are_released(db: Database, workers: Workers, blocking: BlockingHandler) -> None:
    db.insert(Task, rows(40))
    first = min(statuses(db))
    handler = without_session(db, lambda task: task.id == first + 20 and blocking(task))
    running = workers.serve(Task, handler, concurrency=1)
    blocking.wait_for()
    eventually(lambda: count(db, Task, Task.status == "completed") == 20)
    ahead = count(db, Task, Task.status == "running") - 1
    assert ahead > 0
    running.worker.stop()
    eventually(lambda: count(db, Task, Task.status == "running") == 1)
    assert count(db, Task, Task.status == "completed") == 20, "tasks were begun out of turn"
    # it may have claimed more since
    assert count(db, Task, Task.status == "available", Task.attempt == 1, Task.max_attempts == 4) >= ahead
    blocking.release()
    running.wait()
    assert sorted(set(statuses(db).values())) == ["available", "completed"]


@pytest.mark.every_engine
def test_after_the_grace_period_running_tasks_are_released(
    db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    db.insert(Task, rows(2))
    running = workers.serve(Task, with_session(db, during=blocking), grace=timedelta(seconds=0.2))
    blocking.wait_for(2)
    running.stop()
    assert count(db, Task, Task.status == "available", Task.attempt == 1, Task.max_attempts == 4) == 2
    eventually(lambda: len(blocking.lost) == 2)
    assert count(db, Ledger) == 0


def test_a_task_held_by_its_lock_is_freed_when_the_worker_ends(
    db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    db.insert(Task, rows(1))

    def late(session: Any, task: Any) -> None:
        if session.in_transaction():
            write_ledger(session, task)

    handler = with_session(db, late, during=blocking)
    running = workers.serve(Task, handler, mode="lock", grace=timedelta(seconds=0.1))
    blocking.wait_for()
    running.stop()
    blocking.release()  # a thread continues, and cannot be stopped
    eventually(all_are(db, "available" if db.is_async else "completed"))
    assert count(db, Task, Task.error.is_(None), Task.attempt == int(not db.is_async)) == 1
    assert running.worker._reports.counts["claimed"] == 1


def test_other_workers_are_notified_of_released_tasks(
    sync_db: Database, workers: Workers, blocking: BlockingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())
    sync_db.insert(Task, rows(1))
    running = workers.serve(Task, without_session(sync_db, blocking), poll=LONG, grace=timedelta(0))
    blocking.wait_for()
    workers.serve(Task, without_session(sync_db), poll=LONG, name="second")
    time.sleep(0.5)
    running.stop()
    eventually(all_are(sync_db, "completed"), AT_ONCE)


@pytest.mark.every_engine
def test_a_worker_cancelled_twice_releases_its_tasks(db: Database, workers: Workers, blocking: BlockingHandler) -> None:
    db.insert(Task, rows(2))
    engine = db.variant(pool_size=20)
    worker = workers.make(engine=engine)
    worker.handler(Task)(with_session(db, during=blocking))

    async def application() -> None:
        serving = asyncio.create_task(worker.serve())
        await asyncio.to_thread(blocking.wait_for, 2)
        serving.cancel()
        await asyncio.sleep(0.7)
        assert not serving.done(), "the first time, it gives the grace period"
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert all_are(db, "available")()
        if isinstance(engine.bind, AsyncEngine):
            await engine.bind.dispose()

    asyncio.run(application())
    eventually(lambda: len(blocking.lost) == 2)
    assert count(db, Ledger) == 0


@pytest.mark.one_engine
def test_a_coroutine_that_is_stopped_may_clean_up(sync_db: Database) -> None:
    sync_db.insert(Task, rows(1))
    steps: list[str] = []
    worker = Worker(sync_db.variant().sessions(), grace=timedelta(0))

    @worker.handler(Task)
    async def handle(task: Task) -> None:
        worker.stop()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            steps.append("cleaned up")

    async def application() -> None:
        await worker.serve()
        steps.append("ended")

    asyncio.run(application())
    assert steps == ["cleaned up", "ended"]
    assert all_are(sync_db, "available")()
