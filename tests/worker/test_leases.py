"""Leases: extended while the worker is alive, whatever its handlers do, and what happens to lost ones."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.rows import clock, count, end_leases, rows
from tests.support.workers import (
    AT_ONCE,
    LEASE,
    LONG,
    BlockingHandler,
    Workers,
    all_are,
    eventually,
    statuses,
    with_session,
    without_session,
)

pytestmark = pytest.mark.asyncio_everywhere


def seconds(leases: float) -> float:
    return leases * LEASE.total_seconds()


def taken_over(db: Database, leases: float) -> list[Any]:
    """Return the tasks of the worker that others can claim within the given number of leases."""
    found: list[Any] = []
    until = time.monotonic() + seconds(leases)
    while time.monotonic() < until:
        with db.begin() as other:
            found += other.claim_many(Task, limit=10, claimed_by="other")
        time.sleep(0.02)
    return found


def test_one_heartbeat_extends_all_leases(db: Database, workers: Workers, blocking: BlockingHandler) -> None:
    db.insert(Task, rows(20))
    workers.serve(Task, without_session(db, blocking), poll=LONG, concurrency=20, batch=5, lease=LEASE)
    blocking.wait_for(20)
    with db.engine.connect() as connection:
        moments = select(func.count(Task.claimed_at.distinct()), func.count(Task.available_at.distinct()))
        assert connection.execute(moments).one()[0] > 1
        connection.rollback()
        eventually(lambda: rolled_back(connection, moments)[1] == 1, AT_ONCE)


def rolled_back(connection: Any, statement: Any) -> Any:
    found = connection.execute(statement).one()
    connection.rollback()
    return found


def test_a_handler_that_blocks_the_event_loop(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, rows(2))
    worker = workers.make()
    begun: list[int] = []

    @worker.handler(Task, concurrency=2, lease=LEASE)
    async def block(task: Task) -> None:
        begun.append(task.id)
        time.sleep(seconds(1.1))

    workers.start(worker)
    eventually(lambda: begun)
    assert taken_over(sync_db, 1.2) == []
    eventually(all_are(sync_db, "completed"))


@pytest.mark.one_engine
def test_handlers_that_keep_the_interpreter_busy(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, rows(2))
    worker = workers.make()
    begun: list[int] = []

    @worker.handler(Task, concurrency=2, lease=LEASE)
    def compute(task: Task) -> None:
        begun.append(task.id)
        until = time.monotonic() + seconds(1.1)
        while time.monotonic() < until:
            sum(range(1000))

    workers.start(worker)
    eventually(lambda: len(begun) == 2)
    assert taken_over(sync_db, 1.2) == []
    eventually(all_are(sync_db, "completed"))


def test_a_lost_lease_stops_its_handler_and_the_worker_continues(
    db: Database, workers: Workers, blocking: BlockingHandler, caplog: pytest.LogCaptureFixture
) -> None:
    db.insert(Task, rows(1))
    workers.serve(Task, with_session(db, during=blocking), poll=LONG, concurrency=1, lease=LEASE)
    blocking.wait_for()
    take_over(db)
    eventually(lambda: blocking.lost == blocking.started)
    eventually(lambda: "was lost, and its writes were rolled back" in caplog.text)
    blocking.release()
    with db.begin() as actor:
        actor.add(Task())
    eventually(lambda: sorted(statuses(db).values()) == ["completed", "running"])
    assert count(db, Ledger) == 1
    assert count(db, Task, Task.claimed_by == "other", Task.attempt == 2) == 1


def take_over(db: Database) -> None:
    """End the lease as if the worker had stalled for longer; a heartbeat may precede it."""

    def taken() -> bool:
        end_leases(db)
        with db.begin() as other:
            return bool(other.claim_many(Task, limit=1, claimed_by="other"))

    eventually(taken)


@pytest.mark.requires("locks_rows")
def test_a_row_locked_by_its_own_handler_delays_no_others(
    sync_db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    sync_db.insert(Task, rows(4))
    worker = workers.make(poll=LONG)

    @worker.handler(Task, concurrency=4, lease=LEASE)
    def write(session: Any, task: Any) -> None:
        if task.id == first:
            task.name = "written"
            session.flush()
        blocking(task)

    first = min(statuses(sync_db))
    workers.start(worker)
    blocking.wait_for(4)
    assert taken_over(sync_db, 1.2) == []
    assert count(sync_db, Task, Task.available_at > clock(sync_db)) == 3, "leases have ended"
    blocking.release()
    eventually(all_are(sync_db, "completed"))
    assert count(sync_db, Task, Task.name == "written") == 1
