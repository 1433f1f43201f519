"""The writes of a handler and the completion of its task, in each mode."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.exc import OperationalError

from sqlqueue.dialects import adapter_for
from sqlqueue.worker import completer
from tests.support.harness import Database
from tests.support.models import Ledger, Notice, Reminder, Spool, Task
from tests.support.rows import count, end_leases, row, rows
from tests.support.workers import (
    LONG,
    BlockingHandler,
    Workers,
    all_are,
    eventually,
    nothing,
    raising,
    seen,
    statuses,
    with_session,
    without_session,
)

pytestmark = pytest.mark.asyncio_everywhere


def test_the_writes_and_the_completion_are_one_commit(db: Database, workers: Workers) -> None:
    db.insert(Task, rows(20, "ready", "scheduled", "retryable", "expired"))
    worker = workers.serve(Task, with_session(db), name="me").worker
    eventually(all_are(db, "completed"))
    assert count(db, Ledger) == 20
    assert count(db, Task, Task.claimed_by == "me", Task.finished_at.is_not(None)) == 20
    eventually(lambda: worker._reports.counts["completed"] == 20)  # a moment after the commit
    assert worker._reports.counts["claimed"] == 20


def test_a_failing_handler_has_written_nothing(db: Database, workers: Workers) -> None:
    db.insert(Task, rows(2))
    workers.serve(Task, raising(db, ValueError("no luck")))
    eventually(all_are(db, "retryable"))
    assert count(db, Ledger) == 0
    assert count(db, Task, Task.error == "ValueError: no luck") == 2


def test_the_writes_of_a_zombie_are_rolled_back(
    db: Database, workers: Workers, blocking: BlockingHandler, caplog: pytest.LogCaptureFixture
) -> None:
    db.insert(Task, rows(1))
    worker = workers.make(name="zombie")  # the lease is 5 minutes, so no heartbeat reveals it
    worker.handler(Task, concurrency=1)(with_session(db, during=blocking))
    workers.start(worker)
    blocking.wait_for()
    end_leases(db)
    with db.begin() as other:
        (successor,) = other.claim_many(Task, limit=1, claimed_by="other")
    blocking.release()
    eventually(lambda: "was lost" in caplog.text)
    assert count(db, Ledger) == 0
    assert (row(db, successor)["status"], row(db, successor)["claimed_by"]) == ("running", "other")
    (line,) = [record for record in caplog.records if "was lost" in record.message]
    assert (line.levelno, line.__dict__["queue"], line.__dict__["attempt"]) == (logging.WARNING, "Task", 1)


def test_tasks_without_a_session_are_completed_in_batches(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completer, "GATHER", 2)  # by far more than a busy machine takes to start a handler's thread
    db.insert(Task, [each for number in range(3) for each in rows(1, number=number)])
    workers.serve(Task, without_session(db, lambda task: time.sleep(0.05 * task.number)), poll=LONG)
    eventually(all_are(db, "completed"))
    with db.engine.connect() as connection:
        assert connection.scalar(select(func.count(Task.finished_at.distinct()))) == 1


def test_a_lost_claim_does_not_keep_others_from_being_completed(
    db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    db.insert(Task, rows(3))
    workers.serve(Task, without_session(db, blocking), poll=LONG)
    blocking.wait_for(3)
    lost = blocking.started[0]
    with db.begin() as other:
        assert other.cancel(Task, Task.id == lost) == 1
    blocking.release()
    eventually(lambda: sorted(statuses(db).values()) == ["cancelled", "completed", "completed"])
    assert statuses(db)[lost] == "cancelled"


def test_a_deadlock_victim_is_run_again_with_a_fresh_row(db: Database, workers: Workers) -> None:
    """The second try must not see the first one's changes to the instance."""
    db.insert(Task, rows(1, number=1))
    tries: list[int] = []

    def write(session: Any, task: Any) -> None:
        tries.append(task.number)
        task.number += 1
        session.flush()
        if len(tries) < 3:
            raise OperationalError("…", {}, deadlock(session.connection()))

    worker = workers.serve(Task, with_session(db, write)).worker
    eventually(all_are(db, "completed"))
    assert tries == [1, 1, 1]
    assert count(db, Task, Task.number == 2, Task.attempt == 1) == 1
    assert worker._reports.counts["retries"] == 2


def deadlock(connection: Any) -> Any:
    """Return a driver error with the attributes that this engine's adapter reads."""
    code = next(iter(adapter_for(connection.dialect).connections.transient_errors), 5)
    error = connection.dialect.loaded_dbapi.OperationalError(code, "…")
    for attribute in ("sqlstate", "sqlite_errorcode"):
        with contextlib.suppress(AttributeError):
            setattr(error, attribute, code)
    return error


def test_rows_that_are_deleted_when_they_are_done(db: Database, workers: Workers) -> None:
    db.insert(Spool, rows(10))
    worker = workers.make()
    worker.handler(Spool, Spool.id % 2 == 0)(with_session(db, nothing))
    worker.handler(Spool, Spool.id % 2 == 1)(without_session(db))
    workers.start(worker)
    eventually(lambda: count(db, Spool) == 0)


def test_the_classes_of_one_table(db: Database, workers: Workers) -> None:
    with db.begin() as session:
        session.add_all([Notice(), Reminder(about="tea"), Notice(), Reminder(about="milk")])
    seen: list[str] = []
    workers.serve(Notice, with_session(db, lambda session, task: seen.append(getattr(task, "about", "notice"))))
    eventually(all_are(db, "completed", Notice))
    assert sorted(seen) == ["milk", "notice", "notice", "tea"]


# -- mode="lock" -----------------------------------------------------------------------------------------------------


def test_in_lock_mode_a_task_is_done_in_one_transaction(db: Database, workers: Workers) -> None:
    db.insert(Task, rows(5, "ready", "scheduled", "retryable"))
    engine = db.variant(pool_size=20)
    worker = workers.make(engine=engine, name="me")
    worker.handler(Task, concurrency=2, mode="lock")(with_session(db))
    with seen(engine, "commit") as commits:
        workers.start(worker)
        eventually(all_are(db, "completed"))
    assert count(db, Ledger) == 5
    assert count(db, Task, Task.attempt == 0) == 0
    assert len(commits) >= 5
    assert count(db, Task, Task.claimed_by == "me") == 5


@pytest.mark.requires("locks_rows")
def test_in_lock_mode_nothing_is_written_before_the_commit(
    db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    db.insert(Task, rows(1))
    worker = workers.make()
    held: list[str] = []

    def during(task: Any) -> None:
        held.append(task.status)
        blocking(task)

    worker.handler(Task, mode="lock")(with_session(db, during=during))
    running = workers.start(worker)
    blocking.wait_for()
    assert statuses(db) == {blocking.started[0]: "available"}
    assert held == ["available"], "it is written, if not committed"
    with db.begin() as other:
        assert other.claim(Task) is None
    blocking.release()
    eventually(all_are(db, "completed"))
    running.stop()


def test_in_lock_mode_a_failure_is_recorded_without_the_handlers_writes(db: Database, workers: Workers) -> None:
    db.insert(Task, rows(1, max_attempts=1))
    workers.serve(Task, raising(db, ValueError("no luck")), mode="lock")
    eventually(all_are(db, "discarded"))
    assert count(db, Task, Task.error == "ValueError: no luck", Task.attempt == 1) == 1
    assert count(db, Ledger) == 0


# -- mode="at-most-once" ---------------------------------------------------------------------------------------------


def test_at_most_once_a_task_is_done_before_its_handler_begins(db: Database, workers: Workers) -> None:
    db.insert(Task, rows(2))
    seen: list[str] = []

    def during(task: Any) -> None:
        seen.append(statuses(db)[task.id])
        raise ValueError("no luck")

    worker = workers.serve(Task, without_session(db, during), mode="at-most-once").worker
    eventually(lambda: worker._reports.counts["failed"] == 2)
    assert seen == ["completed", "completed"]
    assert set(statuses(db).values()) == {"completed"}


def test_at_most_once_claimed_tasks_are_run_before_the_worker_ends(
    db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    db.insert(Task, rows(20))
    running = workers.serve(Task, without_session(db, blocking), concurrency=2, mode="at-most-once")
    worker = running.worker
    blocking.wait_for(2)
    worker.stop()
    blocking.release()
    running.wait()
    assert count(db, Task, Task.status == "completed") == len(blocking.started)


def test_at_most_once_tasks_claimed_during_the_stop_are_run(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, rows(1))
    engine = sync_db.variant(pool_size=20)
    done: list[int] = []
    worker = workers.make(engine=engine)
    worker.handler(Task, mode="at-most-once")(lambda task: done.append(task.id))

    def stop(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "UPDATE" in statement and "task" in statement:  # of the table or of a common table expression
            worker.stop()
            time.sleep(0.1)  # on the claiming thread; the worker stops meanwhile

    event.listen(engine.session_engine, "after_cursor_execute", stop)
    workers.start(worker).wait()
    assert statuses(sync_db) == dict.fromkeys(done, "completed")
