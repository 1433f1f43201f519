"""A worker claims and completes many tasks at once, with one commit for each task that uses a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from sqlalchemy import event

from sqlqueue import QueueSession, Worker, complete, current_job
from sqlqueue.worker import fetcher
from sqlqueue.worker import lock_mode as locking_executor
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.rows import count, rows
from tests.support.workers import (
    LONG,
    Workers,
    all_are,
    eventually,
    nothing,
    seen,
    with_session,
    without_session,
    write_ledger,
)

TASKS = 100


class Sent(NamedTuple):
    statements: int
    """Statements on the table of tasks."""
    commits: int


@pytest.fixture
def drain(db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Sent]:
    monkeypatch.setattr(
        fetcher, "AHEAD", 60.0
    )  # otherwise tasks would be long on a slow machine, and few would be claimed at once

    def drained(handler: Any) -> Sent:
        """Count the statements of a worker until all tasks are completed."""
        db.insert(Task, rows(TASKS))
        engine = db.variant(pool_size=20)
        worker = workers.make(poll=LONG, engine=engine)
        worker.handler(Task, concurrency=4)(handler)
        with seen(engine, "before_cursor_execute") as statements, seen(engine, "commit") as commits:
            workers.start(worker)
            eventually(all_are(db, "completed"))
            worker.stop()
        of_tasks = [each[2] for each in statements if "task" in each[2]]
        return Sent(len(of_tasks), len(commits))

    return drained


def test_a_handler_that_writes_costs_one_commit(db: Database, drain: Callable[[Any], Sent]) -> None:
    sent = drain(with_session(db))
    assert TASKS <= sent.commits < 1.5 * TASKS
    assert sent.statements < 3 * TASKS


@pytest.mark.parametrize("takes_session", [False, True], ids=["without session", "with session"])
def test_handlers_that_do_not_use_the_database_share_commits(
    db: Database, drain: Callable[[Any], Sent], takes_session: bool
) -> None:
    sent = drain(with_session(db, nothing) if takes_session else without_session(db))
    assert sent.commits < TASKS / 2
    assert sent.statements < TASKS


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the transactions in which the handlers of a test ran, one for each call."""
    monkeypatch.setattr(locking_executor, "AHEAD", 60.0)
    return []


def lock_mode_worker(db: Database, workers: Workers, transactions: list[Any], work: Callable[..., None]) -> Worker:
    """Return a worker with ``mode="lock"``, one call of which runs at a time."""

    def called(session: Any, task: Any) -> None:
        transactions.append(session.get_transaction())
        work(session, task)

    worker = workers.make(poll=LONG)
    worker.handler(Task, mode="lock", concurrency=1)(with_session(db, called))
    return worker


def test_calls_that_do_not_use_their_locking_transaction_share_it(
    db: Database, workers: Workers, transactions: list[Any]
) -> None:
    worker = lock_mode_worker(db, workers, transactions, lambda *_: None)
    db.insert(Task, rows(TASKS))
    workers.start(worker)
    eventually(all_are(db, "completed"))
    eventually(lambda: worker._reports.counts["completed"] == TASKS)
    assert len(transactions) == TASKS
    assert len(set(transactions)) < TASKS / 2


def test_a_failure_among_calls_that_share_a_transaction_is_recorded(
    db: Database, workers: Workers, transactions: list[Any]
) -> None:
    def fail(_session: Any, task: Any) -> None:
        if task.priority == 1:
            raise ValueError("no luck")

    worker = lock_mode_worker(db, workers, transactions, fail)
    db.insert(Task, [each | {"priority": number % 2} for number, each in enumerate(rows(20, max_attempts=1))])
    workers.start(worker)
    eventually(lambda: worker._reports.counts["completed"] == worker._reports.counts["discarded"] == 10)
    assert len(set(transactions)) < 20
    assert count(db, Task, Task.status == "discarded", Task.priority == 1, Task.error == "ValueError: no luck") == 10
    assert count(db, Task, Task.status == "completed", Task.priority == 0) == 10


def test_a_call_that_writes_has_a_locking_transaction_of_its_own(
    db: Database, workers: Workers, transactions: list[Any]
) -> None:
    def write_every_other(session: Any, task: Any) -> None:
        if len(transactions) % 2:
            write_ledger(session, task)

    worker = lock_mode_worker(db, workers, transactions, write_every_other)
    db.insert(Task, rows(20))
    workers.start(worker)
    eventually(all_are(db, "completed"))
    assert len(set(transactions)) == 20
    assert count(db, Ledger) == 10


def test_a_call_that_commits_in_lock_mode_does_not_complete_the_others(
    db: Database, workers: Workers, transactions: list[Any]
) -> None:
    """The second call shares the transaction that is lost. It has used nothing of it, so that its completion holds, and
    is recorded in another."""
    called: list[int] = []

    def commit_the_third(session: Any, task: Any) -> None:
        called.append(task.id)
        if len(called) == 3:
            session.commit()

    worker = lock_mode_worker(db, workers, transactions, commit_the_third)
    db.insert(Task, rows(5, max_attempts=1))
    workers.start(worker)
    eventually(lambda: count(db, Task, Task.status == "completed") == 4)
    assert count(db, Task, Task.status == "discarded", Task.error.contains("UnsettledClaimError")) == 1
    assert len(called) == len(set(called)) == 5
    assert transactions[1] is transactions[2]
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
    assert [word for connection, word in sent if connection is writer] == ["UPDATE", "INSERT", "COMMIT"]


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
