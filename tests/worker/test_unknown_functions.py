"""A worker leaves calls of functions that it has not registered to other workers."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from tests.support.harness import Database
from tests.support.models import Job, Ledger
from tests.support.polling import next_due
from tests.support.processes import Processes
from tests.support.rows import TOMORROW, clock, count, rows
from tests.support.workers import Workers, eventually, statuses
from tests.worker import children
from tests.worker.function_jobs import of_kind

CONDITIONS = ("ready", "scheduled", "retryable", "expired")


def stored(db: Database, *criteria: Any) -> list[Any]:
    with db.engine.connect() as connection:
        return list(connection.execute(select(Job.__table__).where(*criteria).order_by(Job.id)))


def calls_of(names: str, number: int, *conditions: str, **values: Any) -> list[dict[str, Any]]:
    made = rows(number, *conditions)
    bare = ({name: value for name, value in row.items() if name in Job.__table__.columns} for row in made)
    own = {"priority": 0, "arguments": {}, **values}
    return [{**row, "task": names[n % len(names)], **own} for n, row in enumerate(bare)]


def test_unknown_calls_stay_unchanged_and_in_place(db: Database, workers: Workers) -> None:
    called: list[str] = []
    worker, other = workers.make(), workers.make()
    for name in "ac":
        worker.task(Job, name=name)(of_kind(db, lambda name=name: called.append(name)))
    other.task(Job, name="b")(of_kind(db, lambda: called.append("b")))
    db.insert(Job, [*calls_of("b", 8, *CONDITIONS, priority=-1), *calls_of("ac", 8, *CONDITIONS)])
    untouched = stored(db, Job.task == "b")
    running = workers.start(worker)
    eventually(lambda: count(db, Job, Job.status == "completed") == 8)
    db.insert(Job, calls_of("a", 2))
    eventually(lambda: count(db, Job, Job.status == "completed") == 10)
    assert stored(db, Job.task == "b") == untouched
    running.stop()
    assert "b" not in called
    workers.start(other)
    eventually(lambda: set(statuses(db, Job).values()) == {"completed"})
    assert called.count("b") == 8


def test_maintenance_leaves_unknown_calls_alone(db: Database) -> None:
    db.insert(Job, [*calls_of("b", 4, "ready", "scheduled", priority=-1), *calls_of("ac", 4, "retryable")])
    untouched = stored(db, Job.task == "b")
    known = Job.task.in_(["a", "c"])
    with db.begin() as session:
        assert session.run(next_due, Job, known) == timedelta(0)
    with db.begin() as session:
        assert session.promote(Job, known) == 4
    with db.begin() as session:
        assert session.run(next_due, Job, Job.task.in_(["x", "y"])) is None
    assert stored(db, Job.task == "b") == untouched


def test_old_and_new_workers_side_by_side(sync_db: Database, processes: Processes) -> None:
    """No attempt is lost during a rolling deployment, and nothing is discarded."""

    def enqueue(*names: str) -> None:
        sync_db.insert(Job, [{"task": name, "arguments": {}} for name in names * 10])

    def done(*criteria: Any) -> int:
        return count(sync_db, Job, Job.status == "completed", *criteria)

    old = processes.spawn(children.call, sync_db.url, ["both", "old"])
    enqueue("both", "new")
    eventually(lambda: done(Job.task == "both") == 10)
    assert not done(Job.task == "new")
    new = processes.spawn(children.call, sync_db.url, ["both", "new"])
    for _ in range(20):
        enqueue("old", "both", "new")
        time.sleep(0.05)
    eventually(lambda: done() == 620)
    old.signal(signal.SIGTERM)
    assert old.result() == "ended"
    enqueue("both", "new")
    eventually(lambda: done() == 640)
    new.signal(signal.SIGTERM)
    assert new.result() == "ended"
    assert count(sync_db, Job, Job.attempt == 1, Job.error.is_(None)) == 640
    with sync_db.engine.connect() as connection:
        each = connection.execute(select(Job.task, Ledger.worker).join(Ledger, Ledger.task_id == Job.id)).all()
    assert len(each) == 640
    assert {worker for task, worker in each if task != "both"} == {"old", "new"}
    assert all(task in ("both", worker) for task, worker in each)


def test_functions_that_no_worker_takes_are_shown(db: Database) -> None:
    day = timedelta(days=1)
    db.insert(Job, calls_of("a", 4, "ready"))
    db.insert(Job, calls_of("b", 4, "retryable"))
    db.insert(Job, calls_of("c", 4, "ready", available_at=clock(db) - timedelta(seconds=1)))
    db.insert(Job, calls_of("d", 4, "scheduled", available_at=TOMORROW))
    db.insert(Job, calls_of("e", 4, "ready"))
    with db.begin() as session:
        assert session.claim(Job, Job.task == "e") is not None
    with db.begin() as session:
        for found in (session.overview(Job).unserved_functions, session.stats(Job).unserved_functions):
            assert found.keys() == {"a", "b"}
            assert all(age > day for age in found.values())
        assert session.stats(Job, Job.task == "b").unserved_functions.keys() == {"b"}


def test_a_worker_warns_of_them_once(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("sqlqueue.worker.registration.REPORT_EVERY", timedelta(seconds=0.1))
    db.insert(Job, calls_of("b", 4, "ready"))
    worker = workers.make()
    worker.task(Job, name="a")(of_kind(db, lambda: None))
    workers.start(worker)

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if "no worker seems to have" in each.getMessage()]

    eventually(warnings)
    time.sleep(0.5)
    (only,) = warnings()
    assert "Job: no worker seems to have the function b registered" in only
