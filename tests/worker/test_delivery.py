"""The writes of a handler and the completion of its task, in each mode; and how many tasks share a commit."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.exc import OperationalError

from sqlqueue import QueueSession, Worker, complete, current_job
from sqlqueue.dialects import adapter_for
from sqlqueue.operations.claiming import claim_matching
from sqlqueue.worker import completer, fetcher, lock_mode
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
    write_ledger,
)


@pytest.mark.asyncio_everywhere
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_the_writes_and_the_completion_are_one_commit(db: Database, workers: Workers, mode: Any) -> None:
    db.insert(Task, rows(20, "ready", "scheduled", "retryable", "expired"))
    worker = workers.serve(Task, with_session(db), name="me", mode=mode).worker
    eventually(all_are(db, "completed"))
    assert count(db, Ledger) == 20
    assert count(db, Task, Task.claimed_by == "me", Task.finished_at.is_not(None), Task.attempt > 0) == 20
    eventually(lambda: worker._reports.counts["completed"] == 20)  # a moment after the commit
    assert worker._reports.counts["claimed"] == 20


@pytest.mark.asyncio_everywhere
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_a_failing_handler_has_written_nothing(db: Database, workers: Workers, mode: Any) -> None:
    db.insert(Task, rows(2, max_attempts=1))
    workers.serve(Task, raising(db, ValueError("no luck")), mode=mode)
    eventually(all_are(db, "discarded"))
    assert count(db, Ledger) == 0
    assert count(db, Task, Task.error == "ValueError: no luck", Task.attempt == 1) == 2


@pytest.mark.asyncio_everywhere
def test_the_writes_of_a_zombie_are_rolled_back(
    db: Database, workers: Workers, blocking: BlockingHandler, caplog: pytest.LogCaptureFixture
) -> None:
    db.insert(Task, rows(1))
    # the lease is 5 minutes, so no heartbeat reveals it
    workers.serve(Task, with_session(db, during=blocking), concurrency=1)
    blocking.wait_for()
    end_leases(db)
    with db.begin() as other:
        (successor,) = other.claim_many(Task, limit=1, claimed_by="other")
    blocking.release()
    eventually(lambda: "was lost" in caplog.text)
    assert count(db, Ledger) == 0
    assert (row(db, successor)["status"], row(db, successor)["claimed_by"]) == ("running", "other")
    (line,) = [record for record in caplog.records if "was lost" in record.message]
    assert (line.levelno, line.__dict__["queue"], line.__dict__["attempt"]) == (logging.WARNING, "task", 1)


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


@pytest.mark.asyncio_everywhere
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


@pytest.mark.one_engine
def test_the_classes_of_one_table(db: Database, workers: Workers) -> None:
    with db.begin() as session:
        session.add_all([Notice(), Reminder(about="tea"), Notice(), Reminder(about="milk")])
    seen: list[str] = []
    workers.serve(Notice, with_session(db, lambda session, task: seen.append(getattr(task, "about", "notice"))))
    eventually(all_are(db, "completed", Notice))
    assert sorted(seen) == ["milk", "notice", "notice", "tea"]


# -- mode="lock" -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio_everywhere
@pytest.mark.requires("locks_rows")
def test_in_lock_mode_nothing_is_written_before_the_commit(
    db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    db.insert(Task, rows(1))
    held: list[str] = []

    def during(task: Any) -> None:
        held.append(task.status)
        blocking(task)

    workers.serve(Task, with_session(db, during=during), mode="lock")
    blocking.wait_for()
    assert statuses(db) == {blocking.started[0]: "available"}
    assert held == ["available"], "it is written, if not committed"
    with db.begin() as other:
        assert other.claim(Task) is None
    blocking.release()
    eventually(all_are(db, "completed"))


# -- mode="at-most-once" ---------------------------------------------------------------------------------------------


@pytest.mark.asyncio_everywhere
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


@pytest.mark.one_engine
def test_at_most_once_claimed_tasks_are_run_before_the_worker_ends(
    db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    db.insert(Task, rows(20))
    running = workers.serve(Task, without_session(db, blocking), concurrency=2, mode="at-most-once")
    blocking.wait_for(2)
    running.worker.stop()
    blocking.release()
    running.wait()
    assert count(db, Task, Task.status == "completed") == len(blocking.started)


@pytest.mark.one_engine
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


# -- a worker claims and completes many tasks at once, with one commit for each task that uses a session --------------

TASKS = 100
HANDLERS: dict[str, Callable[[Database], Any]] = {
    "writes": with_session,
    "has a session": lambda db: with_session(db, nothing),
    "has none": without_session,
}


@pytest.mark.parametrize("handler", HANDLERS)
def test_handlers_that_do_not_use_the_database_share_commits(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, handler: str
) -> None:
    # otherwise tasks would be long on a slow machine, and few would be claimed at once
    monkeypatch.setattr(fetcher, "AHEAD", 60.0)
    db.insert(Task, rows(TASKS))
    engine = db.variant(pool_size=20)
    with seen(engine, "before_cursor_execute") as statements, seen(engine, "commit") as commits:
        running = workers.serve(Task, HANDLERS[handler](db), poll=LONG, engine=engine, concurrency=4)
        eventually(all_are(db, "completed"))
        running.stop()
    of_tasks = [each for each in statements if "task" in each[2]]
    if handler == "writes":
        assert TASKS <= len(commits) < 1.5 * TASKS
        assert len(of_tasks) < 3 * TASKS
    else:
        assert len(commits) < TASKS / 2
        assert len(of_tasks) < TASKS


@pytest.mark.requires("one_writer")
@pytest.mark.sync_only
def test_few_claims_compete_with_the_writes_of_handlers(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[int] = []

    def claim(session: Any, query: Any, limit: int, **options: Any) -> Any:
        claims.append(limit)
        return claim_matching(session, query, limit, **options)

    monkeypatch.setattr(fetcher, "claim_matching", claim)
    # as if each call waited for 20 ms until it could write
    monkeypatch.setattr(fetcher.CallDurations, "calls_within", lambda _, seconds: int(seconds / 0.02))
    db.insert(Task, rows(TASKS))
    workers.serve(Task, with_session(db), poll=LONG, concurrency=1)
    eventually(all_are(db, "completed"))
    assert len(claims) < TASKS / 5


@pytest.mark.one_engine
@pytest.mark.sync_only
def test_tasks_claimed_ahead_do_not_wait_behind_a_long_call(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "AHEAD", 60.0)
    monkeypatch.setattr(fetcher, "STANDSTILL", 0.1)
    long = BlockingHandler()
    db.insert(Task, rows(3))
    workers.serve(Task, lambda task: long(task) if task.priority else None, name="busy", concurrency=1)
    eventually(all_are(db, "completed"))
    db.insert(Task, rows(4, priority=1))
    long.wait_for(1)
    workers.serve(Task, without_session(db), name="idle")
    eventually(lambda: count(db, Task, Task.claimed_by == "idle", Task.status == "completed") == 3)
    assert len(long.started) == 1
    long.release()


class Locking:
    """A worker with ``mode="lock"``, one call of which runs at a time."""

    def __init__(self, db: Database, workers: Workers) -> None:
        self._db = db
        self._workers = workers
        self.transactions: list[Any] = []
        """The transactions in which the calls ran, one for each."""

    def serve(self, work: Callable[..., None] = nothing) -> Worker:
        def called(session: Any, task: Any) -> None:
            self.transactions.append(session.get_transaction())
            work(session, task)

        handler = with_session(self._db, called)
        return self._workers.serve(Task, handler, poll=LONG, mode="lock", concurrency=1).worker


@pytest.fixture
def locking(db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Locking:
    monkeypatch.setattr(lock_mode, "AHEAD", 60.0)
    return Locking(db, workers)


def test_calls_that_do_not_use_their_locking_transaction_share_it(db: Database, locking: Locking) -> None:
    db.insert(Task, rows(TASKS))
    worker = locking.serve()
    eventually(all_are(db, "completed"))
    eventually(lambda: worker._reports.counts["completed"] == TASKS)
    assert len(locking.transactions) == TASKS
    assert len(set(locking.transactions)) < TASKS / 2


def test_a_failure_among_calls_that_share_a_transaction_is_recorded(db: Database, locking: Locking) -> None:
    def fail(_session: Any, task: Any) -> None:
        if task.priority == 1:
            raise ValueError("no luck")

    db.insert(Task, [each | {"priority": number % 2} for number, each in enumerate(rows(20, max_attempts=1))])
    worker = locking.serve(fail)
    eventually(lambda: worker._reports.counts["completed"] == worker._reports.counts["discarded"] == 10)
    assert len(set(locking.transactions)) < 20
    assert count(db, Task, Task.status == "discarded", Task.priority == 1, Task.error == "ValueError: no luck") == 10
    assert count(db, Task, Task.status == "completed", Task.priority == 0) == 10


def test_a_call_that_writes_has_a_locking_transaction_of_its_own(db: Database, locking: Locking) -> None:
    def write_every_other(session: Any, task: Any) -> None:
        if len(locking.transactions) % 2:
            write_ledger(session, task)

    db.insert(Task, rows(20))
    locking.serve(write_every_other)
    eventually(all_are(db, "completed"))
    assert len(set(locking.transactions)) == 20
    assert count(db, Ledger) == 10


def test_a_call_that_commits_in_lock_mode_does_not_complete_the_others(db: Database, locking: Locking) -> None:
    """The second call shares the transaction that is lost. It has used nothing of it, so that its completion holds, and
    is recorded in another."""
    called: list[int] = []

    def commit_the_third(session: Any, task: Any) -> None:
        called.append(task.id)
        if len(called) == 3:
            session.commit()

    db.insert(Task, rows(5, max_attempts=1))
    worker = locking.serve(commit_the_third)
    eventually(lambda: count(db, Task, Task.status == "completed") == 4)
    assert count(db, Task, Task.status == "discarded", Task.error.contains("UnsettledClaimError")) == 1
    assert len(called) == len(set(called)) == 5
    assert locking.transactions[1] is locking.transactions[2]
    eventually(lambda: worker._reports.counts["completed"] >= 4)
    assert worker._reports.counts["completed"] == 4


class Audited(QueueSession):
    """A session that writes when it is committed."""


@event.listens_for(Audited, "before_commit")
def audit(session: Any) -> None:
    try:
        task = current_job().task
    except LookupError:  # not in a handler's
        return
    write_ledger(session, task)


@pytest.mark.one_engine
def test_rows_that_a_session_adds_at_its_commit_are_committed_with_the_completion(
    db: Database, workers: Workers
) -> None:
    engine = db.variant(pool_size=20)
    sessions = engine.sessions(**{"sync_session_class" if db.is_async else "class_": Audited})
    worker = Worker(sessions, notify=False)
    worker.handler(Task)(with_session(db, nothing))
    sent = list[tuple[Any, str]]()
    event.listen(engine.session_engine, "before_cursor_execute", lambda *of: sent.append((of[0], of[2].split()[0])))
    event.listen(engine.session_engine, "commit", lambda connection: sent.append((connection, "COMMIT")))
    db.insert(Task, rows(1))
    workers.start(worker, engine=engine)
    eventually(all_are(db, "completed"))
    assert count(db, Ledger) == 1
    (writer,) = (connection for connection, word in sent if word == "INSERT")
    words = [word for connection, word in sent if connection is writer and word != "SET"]  # of the isolation level
    assert words == ["UPDATE", "INSERT", "COMMIT"]


@pytest.mark.one_engine
def test_a_handler_may_settle_its_task_and_commit_itself(db: Database, workers: Workers) -> None:
    def settle(session: Any, task: Any) -> None:
        complete(session, task)
        session.commit()

    db.insert(Task, rows(1))
    running = workers.serve(Task, with_session(db, settle), poll=LONG)
    worker = running.worker
    eventually(all_are(db, "completed"))
    running.stop()
    assert (worker._reports.counts["completed"], worker._reports.counts["lost"]) == (1, 0)
