"""How a worker ends: running tasks may finish, the others are released, and leases of unreleased tasks expire."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from sqlqueue import Worker
from sqlqueue.worker import fetcher as poller
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.processes import Child, Processes
from tests.support.rows import count, rows
from tests.support.workers import (
    AT_ONCE,
    LONG,
    PATIENCE,
    BlockingHandler,
    Workers,
    all_are,
    eventually,
    statuses,
    with_session,
    without_session,
    write_ledger,
)
from tests.worker import children

pytestmark = pytest.mark.asyncio_everywhere


def test_running_tasks_finish_and_no_others_are_started(
    db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    db.insert(Task, rows(6))
    running = workers.serve(Task, with_session(db, during=blocking), concurrency=2)
    worker = running.worker
    blocking.wait_for(2)
    worker.stop()
    time.sleep(0.1)
    assert not running.ended
    blocking.release()
    running.wait()
    assert sorted(statuses(db).values()) == ["available"] * 4 + ["completed"] * 2
    assert count(db, Ledger) == 2


def test_prefetched_tasks_are_released(db: Database, workers: Workers, blocking: BlockingHandler) -> None:
    db.insert(Task, rows(40))
    first = min(statuses(db))
    worker = workers.make()
    worker.handler(Task, concurrency=1)(without_session(db, lambda task: task.id == first + 20 and blocking(task)))
    running = workers.start(worker)
    blocking.wait_for()
    eventually(lambda: count(db, Task, Task.status == "completed") == 20)
    ahead = count(db, Task, Task.status == "running") - 1
    assert ahead > 0
    worker.stop()
    eventually(lambda: count(db, Task, Task.status == "running") == 1)
    # it may have claimed more since
    assert count(db, Task, Task.status == "available", Task.attempt == 1, Task.max_attempts == 4) >= ahead
    blocking.release()
    running.wait()
    assert sorted(set(statuses(db).values())) == ["available", "completed"]


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
    worker = workers.make(grace=timedelta(seconds=0.1))

    def late(session: Any, task: Any) -> None:
        if session.in_transaction():
            write_ledger(session, task)

    worker.handler(Task, mode="lock")(with_session(db, late, during=blocking))
    running = workers.start(worker)
    blocking.wait_for()
    running.stop()
    blocking.release()  # a thread continues, and cannot be stopped
    eventually(all_are(db, "available" if db.is_async else "completed"))
    assert worker._reports.counts["claimed"] == 1


def test_other_workers_are_notified_of_released_tasks(
    sync_db: Database, workers: Workers, blocking: BlockingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())
    sync_db.insert(Task, rows(1))
    first, second = workers.make(poll=LONG, grace=timedelta(0)), workers.make(poll=LONG, name="second")
    first.handler(Task)(without_session(sync_db, blocking))
    running = workers.start(first)
    blocking.wait_for()
    second.handler(Task)(without_session(sync_db))
    workers.start(second)
    time.sleep(0.5)
    running.stop()
    eventually(all_are(sync_db, "completed"), AT_ONCE)


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


# -- processes --------------------------------------------------------------------------------------------------------


def signal_twice(child: Child) -> None:
    child.signal(signal.SIGTERM)
    time.sleep(1.5)  # a busy child would take an earlier signal for the same one
    child.signal(signal.SIGTERM)


def test_after_sigterm_a_process_finishes_its_tasks(sync_db: Database, processes: Processes) -> None:
    sync_db.insert(Task, rows(4))
    child = processes.spawn(children.work, sync_db.url)
    child.wait_until_arrived()
    child.signal(signal.SIGTERM)
    time.sleep(0.3)
    child.let_pass()
    assert child.result() == "ended"
    assert sorted(statuses(sync_db).values()) == ["available"] * 3 + ["completed"]
    assert count(sync_db, Ledger) == 1


def test_a_second_sigterm_does_not_wait(sync_db: Database, processes: Processes) -> None:
    sync_db.insert(Task, rows(2))
    child = processes.spawn(children.work, sync_db.url)
    child.wait_until_arrived()
    signal_twice(child)
    assert child.result() == "ended"
    with sync_db.begin() as other:
        tasks = other.claim_many(Task, limit=2)
    assert sorted((task.attempt, task.max_attempts) for task in tasks) == [(1, 3), (2, 4)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_process_that_a_handler_forks_can_be_ended(
    sync_db: Database, processes: Processes, is_coroutine: bool
) -> None:
    sync_db.insert(Task, rows(1))
    child = processes.spawn(children.fork, sync_db.url, is_coroutine)
    assert child.result() == (-signal.SIGTERM, True)
    assert all_are(sync_db, "completed")()


@pytest.mark.parametrize("own_pool", [False, True])
def test_a_thread_of_a_coroutine_keeps_no_process(sync_db: Database, processes: Processes, own_pool: bool) -> None:
    sync_db.insert(Task, rows(1))
    child = processes.spawn(children.never_return, sync_db.url, own_pool)
    child.wait_until_arrived()
    signal_twice(child)
    assert child.result(PATIENCE) == "ended"
    assert child.status == 0
    assert all_are(sync_db, "available")()


def test_tasks_of_a_killed_process_are_taken_over_once_their_lease_ends(
    sync_db: Database, workers: Workers, processes: Processes
) -> None:
    sync_db.insert(Task, rows(3))
    child = processes.spawn(children.write_and_stay, sync_db.url)
    child.wait_until_arrived()
    held = select(Task.id, Task.available_at).where(Task.status == "running")
    with sync_db.engine.connect() as connection:
        ((key, _),) = connection.execute(held)
    child.kill()
    with sync_db.engine.connect() as connection:
        ((_, lease_ends),) = connection.execute(held)
    workers.serve(Task, with_session(sync_db), concurrency=2)
    eventually(all_are(sync_db, "completed"))
    assert count(sync_db, Ledger) == 3
    assert count(sync_db, Task, Task.id == key, Task.attempt == 2, Task.claimed_at >= lease_ends) == 1
