"""A failure in one part of a worker does not affect the others, nor do context variables that a handler sets."""

from __future__ import annotations

import functools
import logging
import time
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, select, text, update
from sqlalchemy.orm import Session

from sqlqueue import IllegalTransitionError, Worker
from tests.support.harness import Database
from tests.support.models import Ledger, Spool, Task
from tests.support.rows import count, end_leases
from tests.support.workers import (
    LEASE,
    LONG,
    BlockingHandler,
    Workers,
    all_are,
    by_id,
    eventually,
    nothing,
    raising,
    statuses,
    with_session,
    without_session,
)


@pytest.mark.requires("locks_rows")
def test_a_locked_row_does_not_keep_others_from_being_settled(db: Database, workers: Workers) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 31)])
    blocking = BlockingHandler()
    workers.serve(Task, without_session(db, during=blocking), concurrency=30)
    blocking.wait_for(30)
    with db.engine.connect() as other:
        other.execute(select(Task.id).where(Task.id == 7).with_for_update())
        blocking.release()
        eventually(lambda: list(statuses(db).values()).count("completed") == 29)
        assert statuses(db)[7] == "running"
    eventually(all_are(db, "completed"))


@pytest.mark.requires("locks_rows")
def test_a_queue_in_trouble_ends_no_leases_of_another(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, [{}])
    sync_db.insert(Spool, [{}])
    blocking = BlockingHandler()
    worker = workers.make()
    worker.handler(Task, lease=LEASE)(with_session(sync_db, during=blocking))
    worker.handler(Spool, lease=LEASE)(with_session(sync_db, nothing, during=blocking))
    workers.start(worker)
    blocking.wait_for(2)
    with sync_db.engine.connect() as other:
        if sync_db.case.truncate and sync_db.case.notifies:
            other.execute(text("LOCK TABLE spool"))
        else:
            other.execute(text("LOCK TABLES spool WRITE"))
        time.sleep(1.2 * LEASE.total_seconds())
        if not sync_db.case.notifies:
            other.execute(text("UNLOCK TABLES"))
    blocking.release()
    eventually(all_are(sync_db, "completed"))
    assert list(by_id(sync_db, Task.attempt).values()) == [1]


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_handler_that_exits_fails_and_the_worker_continues(
    sync_db: Database, workers: Workers, error: type[BaseException], mode: Any
) -> None:
    sync_db.insert(Task, [{"id": 1}])
    running = workers.serve(Task, raising(sync_db, error("bye")), mode=mode)
    eventually(lambda: statuses(sync_db)[1] == "retryable")
    assert not running.ended


@pytest.mark.one_engine
@pytest.mark.parametrize("how", ["rollback", "commit", "close"])
def test_a_locking_handler_that_ends_its_transaction_has_failed(sync_db: Database, workers: Workers, how: str) -> None:
    sync_db.insert(Task, [{"id": 1}])
    calls: list[int] = []

    def lets_go(session: Any, task: Any) -> None:
        calls.append(1)
        getattr(session, how)()

    workers.serve(Task, lets_go, mode="lock", concurrency=1)
    eventually(lambda: statuses(sync_db)[1] == "retryable")
    said = by_id(sync_db, Task.error)[1]
    assert "must leave its transaction open" in said or "settled" in said
    assert calls == [1]


def set_status(session: Session, task: Task) -> None:
    task.status = "completed"
    session.flush()


@pytest.mark.parametrize(
    "settings", [{}, {"mode": "lock", "concurrency": 1}, {"chunk": 1}], ids=["lease", "lock", "chunk"]
)
@pytest.mark.parametrize(
    "change",
    [
        Session.delete,
        set_status,
        lambda session, task: setattr(task, "attempt", 7),
        lambda session, task: session.execute(update(Task).values(status="completed")),
    ],
    ids=["delete", "status", "attempt", "statement"],
)
def test_a_handler_that_takes_its_own_claim_away_fails(
    sync_db: Database, workers: Workers, change: Any, settings: Any
) -> None:
    sync_db.insert(Task, [{"id": 1}])
    calls: list[int] = []

    def changes(session: Session, tasks: Any) -> None:
        calls.append(1)
        change(session, tasks[0] if "chunk" in settings else tasks)

    workers.serve(Task, changes, **settings)
    eventually(lambda: statuses(sync_db)[1] == "retryable")
    assert "on_complete='delete'" in by_id(sync_db, Task.error)[1]
    assert (by_id(sync_db, Task.attempt)[1], calls) == (1, [1])


@pytest.mark.one_engine
def test_a_worker_ends_if_one_of_its_parts_fails(sync_db: Database, workers: Workers) -> None:
    """A log filter of the application raises an error: the worker ends instead of continuing without that part."""
    sync_db.insert(Task, [{}])

    def breaks(record: logging.LogRecord) -> bool:
        raise RuntimeError("a filter of the application")

    logger = logging.getLogger("sqlqueue.worker")
    logger.addFilter(breaks)
    try:
        running = workers.serve(Task, lambda task: nothing_more(sync_db))
        eventually(lambda: running.ended)
    finally:
        logger.removeFilter(breaks)
    assert isinstance(running.error, RuntimeError)
    running.error = None


def nothing_more(db: Database) -> None:
    with db.begin() as session:
        session.cancel(Task)  # so that the worker has to report a lost claim


@pytest.mark.one_engine
def test_a_worker_runs_once_at_a_time(sync_db: Database, workers: Workers) -> None:
    worker = workers.serve(Task, without_session(sync_db)).worker
    eventually(lambda: worker.health() is not None)
    with pytest.raises(IllegalTransitionError, match="already running"):
        worker.run()


@pytest.mark.one_engine
def test_any_callable_can_be_a_handler(sync_db: Database, workers: Workers) -> None:
    class Writes:
        def __call__(self, session: Any, task: Any) -> None:
            session.add(Ledger(task_id=task.id, worker="object"))

    def write(worker: str, session: Any, task: Any) -> None:
        session.add(Ledger(task_id=task.id, worker=worker))

    sync_db.insert(Task, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    worker = workers.make()
    worker.handler(Task, Task.name == "a")(Writes())
    worker.handler(Task, Task.name == "b", mode="lock")(functools.partial(write, "partial"))
    workers.start(worker)
    eventually(all_are(sync_db, "completed"))
    assert count(sync_db, Ledger) == 2


@pytest.mark.one_engine
def test_sessions_that_do_not_begin_by_themselves(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, [{}])
    worker = Worker(sync_db.variant().sessions(autobegin=False), poll=timedelta(seconds=0.3))
    worker.handler(Task)(with_session(sync_db))
    workers.start(worker)
    eventually(all_are(sync_db, "completed"))


@pytest.mark.one_engine
def test_a_lease_that_the_same_worker_takes_over_stops_its_first_handler(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, [{"id": 1}])
    blocking = BlockingHandler()
    workers.serve(Task, with_session(sync_db, during=blocking), poll=timedelta(seconds=0.2), lease=LONG)
    blocking.wait_for(1)
    end_leases(sync_db)
    eventually(lambda: blocking.lost == [1])
    blocking.release()
    eventually(lambda: statuses(sync_db) == {1: "completed"})
    assert count(sync_db, Ledger) == 1


# -- context variables that a handler sets, such as its tenant, do not reach other calls ------------------------------

tenant: ContextVar[str] = ContextVar("tenant", default="")
ROWS = [{"id": n, "name": f"tenant {n}" if n % 2 else ""} for n in range(1, 7)]


@pytest.mark.one_engine
@pytest.mark.parametrize(("mode", "session"), [("lease", False), ("lease", True), ("lock", True)])
def test_a_call_does_not_see_what_another_has_set(db: Database, workers: Workers, mode: Any, session: bool) -> None:
    """The events of a session see what its call has set: it flushes and commits after the handler has returned."""
    db.insert(Task, ROWS)
    seen: dict[int, str] = {}
    flushed: dict[int, str] = {}

    def call(task: Any) -> None:
        if task.name:
            tenant.set(task.name)
        seen[task.id] = tenant.get()

    def write(session: Any, task: Any) -> None:
        call(task)
        session.add(Ledger(task_id=task.id, worker="worker"))

    async def call_async(task: Any) -> None:
        call(task)

    async def write_async(session: Any, task: Any) -> None:
        write(session, task)

    def note(session: Session, *_: Any) -> None:
        flushed.update({each.task_id: tenant.get() for each in session.new if isinstance(each, Ledger)})

    function, coroutine = (write, write_async) if session else (call, call_async)
    event.listen(Session, "before_flush", note)
    try:
        workers.serve(Task, coroutine if db.is_async else function, mode=mode, concurrency=1)
        eventually(all_are(db, "completed"))
    finally:
        event.remove(Session, "before_flush", note)
    assert seen == {row["id"]: row["name"] for row in ROWS}
    assert flushed == (seen if session else {})
