"""An engine with one writer, while another process writes for longer than the busy timeout."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, delete, select

from sqlqueue import Worker
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.rows import count, rows
from tests.support.workers import BlockingHandler, Running, eventually, statuses, with_session, without_session

pytestmark = [pytest.mark.asyncio_everywhere, pytest.mark.requires("one_writer")]
BUSY_TIMEOUT = 0.1
"""Seconds for which the workers' connections wait for the writer."""
LOCKED = (
    "OperationalError: (sqlite3.OperationalError) database is locked (returned after attempt 1, 1 of 10 times in a row)"
)


@contextmanager
def somebody_writes(db: Database) -> Iterator[None]:
    other = create_engine(db.url)
    with other.begin() as connection:
        connection.execute(delete(Ledger).where(Ledger.id == -1))
        yield
    other.dispose()


@contextmanager
def at_work(db: Database, blocking: BlockingHandler) -> Iterator[Worker]:
    engine = db.variant(pool_size=20, connect_args={"timeout": BUSY_TIMEOUT})
    worker = Worker(engine.sessions(), poll=timedelta(seconds=0.2))
    worker.handler(Task, Task.name == "session", concurrency=2)(with_session(db, during=blocking))
    worker.handler(Task, Task.name == "plain", concurrency=2)(without_session(db, blocking))
    with Running(worker) as running:
        yield worker
        assert not running.ended


def test_the_worker_waits_for_the_writer(db: Database) -> None:
    db.insert(Task, [row | {"name": name, "max_attempts": 9} for name in ("session", "plain") for row in rows(2)])
    blocking = BlockingHandler()
    with at_work(db, blocking) as worker:
        blocking.wait_for(4)
        with somebody_writes(db):
            blocking.release()
            eventually(lambda: worker._reports.counts["snoozed"] == 2)
            time.sleep(4 * BUSY_TIMEOUT)
            assert count(db, Ledger) == 0
        eventually(lambda: Counter(statuses(db).values()) == {"completed": 2, "scheduled": 2})
        assert worker._reports.counts["failed"] == 0
        assert worker._reports.counts["retries"] > 0
    with db.engine.connect() as connection:
        found = set(connection.execute(select(Task.name, Task.attempt, Task.max_attempts, Task.error)).all())
    assert found == {("session", 1, 10, LOCKED), ("plain", 1, 9, None)}


def test_a_suspect_that_only_a_lock_would_hold_is_found_again(
    sync_db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    blocking, engine = BlockingHandler(), sync_db.variant(pool_size=20, connect_args={"timeout": BUSY_TIMEOUT})
    worker = Worker(engine.sessions(), poll=timedelta(seconds=0.2))
    worker.handler(Task, Task.name == "plain")(blocking)
    worker.handler(Task, Task.name == "suspect", mode="lock")(with_session(sync_db))
    caplog.set_level("INFO", "sqlqueue")
    sync_db.insert(Task, [{"name": "plain"}])
    running = Running(worker)
    blocking.wait_for(1)
    sync_db.insert(Task, [{"name": "suspect", "crashes": 1}])
    eventually(lambda: worker._run is not None and worker._run._fetchers[0]._held is not None)
    with somebody_writes(sync_db):
        blocking.release()  # nothing else runs, so the suspect may be claimed, which fails
        eventually(lambda: "cannot run a suspect, next try in " in caplog.text or running.ended)
    eventually(lambda: set(statuses(sync_db).values()) == {"completed"} or running.ended)
    running.stop()
    assert set(statuses(sync_db).values()) == {"completed"}
    assert count(sync_db, Ledger) == 1
