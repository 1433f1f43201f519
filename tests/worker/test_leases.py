"""Leases: extended while the worker is alive, whatever its handlers do and others write; and lost ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, func, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sqlqueue.worker import run
from tests.support.harness import Database
from tests.support.models import Account, Ledger, Task
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
        time.sleep(0.1)
    return found


def test_a_heartbeat_does_not_disturb_a_handler_that_has_read(db: Database, workers: Workers) -> None:
    """At the server's default level: MariaDB's is a snapshot, which conflicts with later changes of its rows."""
    called: list[Any] = []

    def moment() -> Any:
        with db.engine.connect() as connection:
            return connection.execute(select(Task.available_at)).scalar_one()

    def wait_for_heartbeat(task: Any) -> None:
        first = moment()
        eventually(lambda: moment() != first)

    def read(session: Any, task: Any) -> None:
        called.append(task.id)
        session.execute(select(Task.number)).all()

    db.insert(Task, rows(1))
    handler = with_session(db, before=read, during=wait_for_heartbeat)
    workers.serve(Task, handler, poll=LONG, lease=LEASE)
    eventually(all_are(db, "completed"))
    assert len(called) == 1
    assert count(db, Ledger) == 1


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


@pytest.mark.requires("locks_rows")
def test_a_handler_that_goes_on_after_its_lease_was_lost_soon_keeps_no_locks(
    sync_db: Database, workers: Workers
) -> None:
    sync_db.insert(Task, rows(1))
    sync_db.insert(Ledger, [{"task_id": 7}])
    worker = workers.make(poll=LONG)
    goes_on, has_locked = threading.Event(), threading.Event()

    @worker.handler(Task, concurrency=1, lease=LEASE)
    def write(session: Any, task: Any) -> None:
        session.execute(update(Ledger).values(task_id=8))
        has_locked.set()
        goes_on.wait()

    def is_locked() -> bool:
        with sync_db.engine.connect() as connection:
            return connection.execute(select(Ledger.id).with_for_update(skip_locked=True)).first() is None

    workers.start(worker)
    try:
        eventually(has_locked.is_set)
        assert is_locked()
        take_over(sync_db)
        eventually(lambda: not is_locked())
    finally:
        goes_on.set()
    eventually(lambda: worker._reports.counts["lost"] == 1)


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


# -- an engine with one writer at a time, while other writers keep writing --------------------------------------------


WRITERS = 40
one_writer = pytest.mark.requires("one_writer")


@contextmanager
def writers(db: Database) -> Iterator[list[int]]:
    """Run writers, of which one always has the lock; yield the list to which each commit is appended."""
    db.insert(Account, [{"id": 1, "name": ""}])
    stop, commits = threading.Event(), list[int]()

    def write() -> None:
        while not stop.is_set():
            try:
                with db.engine.begin() as connection:
                    connection.execute(update(Account).values(name="x"))
                    time.sleep(0.005)
            except (OperationalError, PoolTimeoutError):  # its turn has not come, neither to connect nor to write
                continue
            commits.append(1)

    threads = [threading.Thread(target=write) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield commits
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def attempts(db: Database) -> list[tuple[Any, ...]]:
    with db.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(select(Task.status, Task.attempt - Task.max_attempts))]


@one_writer
def test_a_worker_keeps_its_leases_and_stops_at_no_cost(
    db: Database, workers: Workers, blocking: BlockingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FINAL_WRITE_LIMIT", 100.0)  # the last write has to have its turn, too
    db.insert(Task, [{"max_attempts": 3} for _ in range(6)])
    # whose turn it is to write is a matter of chance, so that a heartbeat needs time for many tries
    lease, handler = 2 * LEASE, without_session(db, during=blocking)
    running = workers.serve(Task, handler, grace=timedelta(0), concurrency=6, lease=lease)
    worker = running.worker
    blocking.wait_for(6)
    with writers(db) as commits:
        eventually(lambda: len(commits) > 100, 120)
        threading.Event().wait(1.3 * lease.total_seconds())
        assert not blocking.lost
        worker.stop()
        eventually(lambda: running.ended, 120)
    assert attempts(db) == [("available", 1 - 4)] * 6


@one_writer
def test_a_worker_waits_for_another_writer_to_release_its_lock(
    db: Database, workers: Workers, blocking: BlockingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FINAL_WRITE_LIMIT", 0.5)
    db.insert(Account, [{"id": 1, "name": ""}])
    db.insert(Task, [{"max_attempts": 3}])
    engine = db.variant(pool_size=20, on_connect=db.case.impatient_sql)
    worker = workers.make(engine=engine, grace=timedelta(seconds=30))
    worker.handler(Task, concurrency=1)(without_session(db, during=blocking))
    running = workers.start(worker)
    blocking.wait_for(1)
    with db.engine.begin() as other:
        other.execute(update(Account).values(name="x"))
        worker.stop()
        blocking.release()
        threading.Event().wait(3)
        assert not running.ended
    eventually(lambda: running.ended)
    assert attempts(db) == [("completed", 1 - 3)]


@one_writer
def test_the_transactions_of_a_worker_write_one_after_another(db: Database, workers: Workers) -> None:
    """None of them gets "database is locked", although no connection waits for another."""
    engine = db.variant(pool_size=20, on_connect="PRAGMA busy_timeout = 0")
    event.listen(engine.session_engine, "commit", lambda _: time.sleep(0.005))
    db.insert(Task, rows(40))
    worker = workers.serve(Task, with_session(db), engine=engine, concurrency=10).worker
    eventually(all_are(db, "completed"))
    assert count(db, Ledger) == 40
    assert (worker._reports.counts["retries"], worker._reports.counts["database_errors"]) == (0, 0)


@one_writer
@pytest.mark.asyncio_everywhere
@pytest.mark.parametrize("streams", [False, True], ids=["fetched", "streamed"])
def test_a_cancelled_statement_does_not_keep_the_write_lock(db: Database, workers: Workers, streams: bool) -> None:
    """The call ends while its statement runs, and what refers to its exception refers to the statement too."""
    if not db.is_async:
        pytest.skip("threads cannot be cancelled")
    db.insert(Account, [{"id": 1, "name": ""}, {"id": 2, "name": ""}])
    db.insert(Task, [{"id": 1}])
    engine = db.variant()
    executing, cancelled = threading.Event(), threading.Event()
    kept: list[object] = []

    def execute_until_cancelled() -> str:
        executing.set()
        cancelled.wait()
        return "x"

    async def handle(session: Any, task: Any) -> None:
        connection = await session.connection()
        driver = (await connection.get_raw_connection()).driver_connection
        await driver.create_function("execute_until_cancelled", 0, execute_until_cancelled)
        if streams:
            kept.append(await session.stream(select(Account.id)))
        try:
            await session.execute(update(Account).values(name=func.execute_until_cancelled()).returning(Account.id))
        except asyncio.CancelledError as error:
            kept.append(error)
            raise

    event.listen(engine.session_engine, "handle_error", lambda _: cancelled.set(), insert=True)
    running = workers.serve(Task, handle, engine=engine, mode="lock", concurrency=1)
    eventually(executing.is_set)
    running.stop(at_once=True)
    assert isinstance(kept[-1], asyncio.CancelledError)
    with db.engine.connect() as other:
        other.exec_driver_sql("PRAGMA busy_timeout = 0")
        try:
            other.execute(update(Account).values(name="y"))
            other.commit()
            is_read = other.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalars().all()
        finally:
            other.invalidate()
            kept.clear()
    assert streams or is_read == [0]
