"""Workers go on if rows cannot be read, whatever keeps them from it, and say so."""

from __future__ import annotations

import logging
import re
import sys
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import delete, event, text

from sqlqueue.operations.upkeep import poll
from sqlqueue.worker import fetcher as poller
from tests.suite.test_unreadable_rows import seen, signs, states, waits
from tests.support.harness import Database
from tests.support.models import Sign, Spool, Task
from tests.support.rows import PAST
from tests.support.workers import (
    AT_ONCE,
    LEASE,
    LONG,
    Workers,
    all_are,
    eventually,
    nothing,
    with_session,
    without_session,
)


@pytest.mark.parametrize("mode", ["lease", "lock", "at-most-once"])
def test_a_worker_goes_on(db: Database, workers: Workers, mode: str) -> None:
    signs(db, "dove", "rose", "lion", "rose")
    worker = workers.serve(Sign, with_session(db, nothing) if mode == "lock" else without_session(db), mode=mode).worker
    eventually(lambda: [row.status for row in seen(db).values()] == ["scheduled", "completed"] * 2)
    rows = seen(db)
    assert waits(db, rows[1])
    assert waits(db, rows[3])
    db.insert(Sign, [{"id": 5}])
    eventually(lambda: seen(db)[5].status == "completed")
    assert worker.health().counts["unreadable"] == 2


@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_only_unreadable_rows(db: Database, workers: Workers, mode: str) -> None:
    signs(db, "dove")
    workers.serve(Sign, with_session(db, nothing) if mode == "lock" else without_session(db), mode=mode)
    eventually(lambda: seen(db)[1].status == "scheduled")


@pytest.mark.parametrize("mode", ["lease", "lock", "at-most-once"])
def test_a_worker_claims_at_once_after_rows_that_cannot_be_read(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Its claims return early if there are many of them."""
    monkeypatch.setattr(sys.modules["sqlqueue.operations.claiming"], "PATIENCE", 0)
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())
    signs(db, *["dove"] * 12, "rose")
    worker = workers.make(poll=LONG)
    worker.handler(Sign, mode=mode, concurrency=1)(with_session(db, nothing) if mode == "lock" else without_session(db))
    workers.start(worker)
    eventually(lambda: seen(db)[13].status == "completed", AT_ONCE)


def insert_odd_times(db: Database, column: str, status: str, *some: str) -> int:
    """Insert a task for each, or for some, of the times that the engine has and Python has not; return how many."""
    with db.engine.connect() as connection:
        if db.case.odd_mode:
            connection.execute(text(db.case.odd_mode))
        for moment in some or db.case.odd_times:
            others = ", available_at" if column != "available_at" else ""
            given = f"'{status}', {moment}" + (f", '{PAST:%Y-%m-%d %H:%M:%S}'" if others else "")
            connection.execute(
                text(f"INSERT INTO task (name, number, status, {column}{others}) VALUES ('', 0, {given})")
            )
        connection.commit()
        connection.invalidate()
    return len(db.case.odd_times)


@pytest.mark.parametrize("column", ["available_at", "created_at"])
@pytest.mark.parametrize("status", ["available", "scheduled"])
def test_a_worker_starts_and_goes_on(db: Database, workers: Workers, column: str, status: str) -> None:
    assert insert_odd_times(db, column, status) >= 2
    worker = workers.make()
    worker.handler(Task)(without_session(db))
    worker.handler(Spool)(without_session(db))
    running = workers.start(worker)
    db.insert(Task, [{"id": 1_000}])
    db.insert(Spool, [{"id": 1}])
    eventually(lambda: states(db, Task)[1_000] == "completed" and not states(db, Spool))
    assert running.error is None


@pytest.mark.parametrize("status", ["available", "scheduled"])
def test_polls(db: Database, status: str) -> None:
    for moment in db.case.odd_times:
        insert_odd_times(db, "available_at", status, moment)
        with db.begin() as actor:
            assert actor.run(poll, Task).due is not None
        with db.engine.begin() as connection:
            connection.execute(delete(Task))
    insert_odd_times(db, "available_at", status)
    with db.begin() as actor:
        assert actor.run(poll, Task).due == timedelta(0)
    with db.begin() as actor:
        actor.complete(actor.claim_many(Task, limit=100))
    with db.begin() as actor:
        left = actor.run(poll, Task).due
        assert left is None or left > timedelta(days=10_000)


def test_claims_that_always_fail_show(sync_db: Database, workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """A worker is not ready, and a metric names the queue, until claims succeed again."""
    sync_db.insert(Task, [{"id": 1}])
    engine = sync_db.variant(pool_size=20)
    broken = True

    def fail(*arguments: Any) -> None:
        if broken and re.search("UPDATE `?task`? ", arguments[2]):
            raise ValueError("broken")

    event.listen(engine.session_engine, "before_cursor_execute", fail)
    worker = workers.make(engine=engine)
    worker.handler(Task, lease=LEASE)(without_session(sync_db))
    worker.handler(Spool)(without_session(sync_db))
    with caplog.at_level(logging.CRITICAL):
        workers.start(worker)
        eventually(lambda: (health := worker.health()) and not health.ready and health.alive)
        assert set(worker.health().failing_seconds) == {"task"}
        found = {
            sample.labels["queue"]: sample.value
            for family in text_string_to_metric_families(worker.metrics().decode())
            for sample in family.samples
            if sample.name == "sqlqueue_claims_failing_seconds"
        }
        assert found["task"] > 0
        assert found["spool"] == 0
        broken = False
        eventually(all_are(sync_db, "completed"))
        eventually(lambda: worker.health().ready)
        assert not worker.health().failing_seconds
