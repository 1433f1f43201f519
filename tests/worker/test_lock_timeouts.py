"""Handlers that time out waiting for a lock: the task's attempts do not count, up to a limit."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import select, update

from sqlqueue.worker.executor import TRIES
from sqlqueue.worker.jobs import RETURNS
from tests.support.harness import Database
from tests.support.models import Account, Task
from tests.support.rows import PAST
from tests.support.workers import Running, Workers, eventually, statuses, with_session

pytestmark = [pytest.mark.asyncio_everywhere, pytest.mark.requires("impatient_sql")]
LONG = 90.0
MOST = 3
"""The maximum number of attempts of a Task."""


def kept_waiting(db: Database, workers: Workers, outcome: str) -> tuple[Running, int]:
    """Wait until the only task has this outcome; return the number of calls."""
    db.insert(Account, [{"id": 1, "name": ""}])
    arrived, locked = threading.Event(), threading.Event()
    calls: list[int] = []

    def during(task: Any) -> None:
        calls.append(task.id)
        arrived.set()
        locked.wait(LONG)

    def write(session: Any, _: Any) -> None:
        session.execute(update(Account).where(Account.id == 1).values(name="handler"))

    engine = db.variant(pool_size=20, on_connect=db.case.impatient_sql)
    running = workers.serve(Task, with_session(db, write, during=during), engine=engine, concurrency=1)
    worker = running.worker
    assert arrived.wait(LONG)
    with db.engine.begin() as other:
        other.execute(update(Account).where(Account.id == 1).values(name="other"))
        locked.set()
        eventually(lambda: worker._reports.counts[outcome], LONG)
    return running, len(calls)


def test_a_lock_timeout_does_not_count_as_an_attempt(db: Database, workers: Workers) -> None:
    db.insert(Task, [{"id": 1, "max_attempts": MOST}])
    running, calls = kept_waiting(db, workers, "snoozed")
    eventually(lambda: statuses(db) == {1: "scheduled"})
    assert calls == TRIES
    with db.engine.connect() as connection:
        attempt, most, error = connection.execute(select(Task.attempt, Task.max_attempts, Task.error)).one()
    assert (attempt, most) == (1, MOST + 1)
    assert "Error: " in error, "it does not say why it is postponed"
    with db.engine.begin() as connection:
        connection.execute(update(Task).values(available_at=PAST))
    eventually(lambda: statuses(db) == {1: "completed"})
    assert running.worker._reports.counts["failed"] == 0


def test_a_lock_timeout_counts_after_too_many_releases(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(
        Task,
        [{"id": 1, "error": f"DBAPIError: it waits (returned after attempt 0, {RETURNS} of {RETURNS} times in a row)"}],
    )
    kept_waiting(sync_db, workers, "failed")
    eventually(lambda: statuses(sync_db) == {1: "retryable"})
