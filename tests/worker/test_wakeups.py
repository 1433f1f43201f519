"""A worker that polls rarely starts new work immediately, and an idle one sends few statements."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text

from bench.proxy import Proxy, proxy
from sqlqueue import Retry
from sqlqueue.dialects import adapter_for
from sqlqueue.transaction import channel_of, spread
from sqlqueue.worker import fetcher as poller
from sqlqueue.worker.fetcher import Poller
from tests.support.harness import Database
from tests.support.models import Spool, Task
from tests.support.rows import clock, count, rows
from tests.support.workers import AT_ONCE, LONG, PATIENCE, Workers, all_are, eventually, seen, without_session

pytestmark = pytest.mark.asyncio_everywhere


@pytest.fixture(autouse=True)
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers poll as rarely as after a long idle time."""
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())


def idle(db: Database, workers: Workers, *, notify: bool = True) -> None:
    """Start a worker and wait until it has nothing left to do."""
    db.insert(Task, rows(1))
    workers.serve(Task, without_session(db), poll=LONG, notify=notify)
    eventually(all_are(db, "completed"))
    time.sleep(0.2)


def done_at_once(db: Database) -> None:
    eventually(all_are(db, "completed"), AT_ONCE)


def enqueue_elsewhere(db: Database, *, notify: bool = True) -> None:
    """Enqueue as another process would, without the sessions of this process."""
    with db.engine.begin() as connection:
        connection.execute(insert(Task), rows(1))
        if notify:
            adapter_for(connection.dialect).connections.notify(connection, "task")


def test_a_commit_in_this_process_wakes_its_workers(db: Database, workers: Workers) -> None:
    idle(db, workers, notify=False)
    with db.begin() as actor:
        actor.add(Task())
        actor.flush()
        time.sleep(0.1)
        assert count(db, Task, Task.status == "completed") == 1
    done_at_once(db)


def enqueued(actor: Any) -> None:
    actor.enqueue(Task, [{"name": "new"}])


def redriven(actor: Any) -> None:
    actor.retry(Task)


def released(actor: Any) -> None:
    actor.release(actor.claim(Task, Task.status == "retryable"))


@pytest.mark.parametrize("call", [enqueued, redriven, released])
def test_each_way_to_make_work_available_wakes_workers(
    sync_db: Database, workers: Workers, call: Callable[[Any], None]
) -> None:
    idle(sync_db, workers, notify=False)
    sync_db.insert(Task, rows(1, "retryable", available_at=clock(sync_db) + timedelta(hours=call is not released)))
    with sync_db.begin() as actor:
        call(actor)
    if call is enqueued:
        eventually(lambda: count(sync_db, Task, Task.status == "completed") == 2, AT_ONCE)
    else:
        done_at_once(sync_db)


def test_a_task_begins_when_it_is_due(db: Database, workers: Workers) -> None:
    idle(db, workers)
    delays = [delay_of_one_that_is_scheduled(db) for _ in range(3)]
    assert min(delays) >= timedelta(0)
    assert min(delays) < timedelta(seconds=0.2), "a busy machine is late now and then, and not each time"


def delay_of_one_that_is_scheduled(db: Database) -> timedelta:
    due = clock(db) + timedelta(seconds=0.3)
    with db.begin() as actor:
        actor.add(Task(name="later", available_at=due))
    eventually(all_are(db, "completed"), AT_ONCE)
    with db.begin() as actor:
        begun: datetime = actor.scalars(select(func.max(Task.claimed_at)).where(Task.name == "later")).one()
    return begun - due


def test_a_retry_does_not_wait_for_the_next_poll(db: Database, workers: Workers) -> None:
    db.insert(Task, rows(1))
    begun: list[float] = []

    def during(task: Any) -> None:
        begun.append(time.monotonic())
        if len(begun) == 1:
            raise Retry(timedelta(seconds=0.3))

    workers.serve(Task, without_session(db, during), poll=LONG)
    eventually(all_are(db, "completed"), AT_ONCE)
    assert begun[1] - begun[0] >= 0.3


def test_an_idle_worker_is_quiet(sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "FIRST_LOOK", AT_ONCE)
    engine = sync_db.variant(pool_size=5)
    worker = workers.make(poll=timedelta(seconds=AT_ONCE), engine=engine)
    worker.handler(Task)(without_session(sync_db))

    def is_quiet() -> bool:
        with seen(engine, "before_cursor_execute") as statements:
            time.sleep(0.6)
        return len(statements) <= 2  # one query for work, one for pauses

    with seen(engine, "before_cursor_execute") as before:
        workers.start(worker)
        eventually(lambda: any("task" in each[2] for each in before))
    eventually(is_quiet)


def test_notifications_in_vain_do_not_keep_a_worker_busy(
    sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs may send any number of them.  Work that then comes is still begun at once."""
    idle(sync_db, workers, notify=False)
    claims: list[float] = []
    expect = Poller.expect
    monkeypatch.setattr(Poller, "expect", lambda self: claims.append(time.monotonic()) or expect(self))
    begun = time.monotonic()
    while time.monotonic() < begun + 3:
        spread([channel_of(Task.__queue_spec__)])
        time.sleep(0.001)
    allowed = poller.WAKE_UPS + (time.monotonic() - begun) / poller.WAKE_UP_EVERY + 2
    assert poller.WAKE_UPS < len(claims) <= allowed
    with sync_db.begin() as actor:
        actor.add(Task())
    done_at_once(sync_db)


# -- notifications ----------------------------------------------------------------------------------------------------


def listeners(db: Database) -> set[int]:
    """The connections that listen."""
    with db.engine.connect() as connection:
        return set(connection.scalars(text("SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN sqlqueue'")))


@pytest.mark.requires("notifies")
def test_a_commit_in_another_process_wakes(db: Database, workers: Workers) -> None:
    before = listeners(db)
    idle(db, workers)
    eventually(lambda: listeners(db) - before)
    enqueue_elsewhere(db)
    done_at_once(db)


@pytest.mark.requires("notifies")
def test_a_disconnected_listener_reconnects(db: Database, workers: Workers) -> None:
    before = listeners(db)  # of workers that have just ended
    idle(db, workers)
    (mine,) = eventually(lambda: listeners(db) - before)
    with db.engine.connect() as connection:
        connection.execute(select(func.pg_terminate_backend(mine)))
    enqueue_elsewhere(db, notify=False)  # notifications in the meantime are missed
    done_at_once(db)
    eventually(lambda: listeners(db) - before - {mine})
    enqueue_elsewhere(db)
    done_at_once(db)


@pytest.mark.requires("notifies")
def test_a_worker_that_does_not_listen(db: Database, workers: Workers) -> None:
    before = listeners(db)
    idle(db, workers, notify=False)
    eventually(lambda: listeners(db) <= before)  # one from a worker that is ending may still arrive


@pytest.mark.requires("notifies")
@pytest.mark.parametrize("begun", [False, True])
def test_a_transaction_sends_one_notification(db: Database, begun: bool) -> None:
    """It is sent with the BEGIN, or in a separate statement."""
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as listening:
        listening.execute(text("LISTEN sqlqueue"))
        with seen(db, "before_cursor_execute") as statements, db.begin() as actor:
            if begun:
                actor.execute(text("SELECT 1"))
            for _ in range(3):
                actor.add_all([Task() for _ in range(20)])
                actor.flush()
                actor.enqueue(Task, [{"name": "bulk"}] * 20)
                with actor.begin_nested():
                    actor.add(Task())
            actor.add(Spool(text="of a queue that does not notify"))
        assert sum("pg_notify" in each[2] for each in statements) == begun
        driver = listening.connection.driver_connection
        assert [note.payload for note in driver.notifies(timeout=1, stop_after=1)] == ["task"]
        assert [note.payload for note in driver.notifies(timeout=0.2)] == []
        listening.invalidate()


@pytest.mark.requires("notifies")
def test_a_rollback_sends_no_notification(db: Database) -> None:
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as listening:
        listening.execute(text("LISTEN sqlqueue"))
        with db.session() as actor:
            actor.add(Task())
            actor.flush()
            actor.rollback()
        with db.begin() as actor:
            savepoint = actor.begin_nested()
            with savepoint:
                actor.add(Task())
                actor.flush()
                actor.run(lambda session: session.get_nested_transaction().rollback())
            actor.add(Task())
        driver = listening.connection.driver_connection
        assert [note.payload for note in driver.notifies(timeout=0.5)] == ["task"]
        listening.invalidate()


def test_a_stream_of_new_tasks_does_not_delay_due_tasks(sync_db: Database, workers: Workers) -> None:
    idle(sync_db, workers)
    sync_db.insert(Task, rows(1, "retryable", name="due", available_at=clock(sync_db) + timedelta(seconds=1)))
    deadline = time.monotonic() + PATIENCE
    with sync_db.session() as actor:
        while not count(sync_db, Task, Task.name == "due", Task.status == "completed"):
            assert time.monotonic() < deadline
            actor.enqueue(Task, [{"name": "new"}])
            actor.commit()


@pytest.mark.requires("notifies")
@pytest.mark.parametrize("bulk", [False, True])
def test_a_notification_costs_no_round_trip(db: Database, bulk: bool) -> None:
    """It is sent with the BEGIN; the INSERT and the COMMIT follow."""
    if db.url.host is None:
        pytest.skip("round trips are counted on the network, and this server is reached through a Unix socket")
    with proxy(db.url, 0.01) as through:
        engine = Database(db.case, through.url, db._loop, engine=db.engine, is_async=db.is_async)
        counts = [enqueue_through(engine, through, bulk) for _ in range(12)]
        engine.dispose()
    assert counts[-1] == 3  # the first transactions open a connection and prepare the statement


def enqueue_through(engine: Database, through: Proxy, bulk: bool) -> int:
    before = through.round_trips
    with engine.begin() as actor:
        actor.enqueue(Task, [{}]) if bulk else actor.add(Task())
    return through.round_trips - before
