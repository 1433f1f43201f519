"""A worker that polls rarely starts new work at once, an idle one is quiet, and a busy one finds what came due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from threading import Event
from typing import Any

import pytest
from sqlalchemy import event, func, insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from bench.proxy import Proxy, proxy
from sqlqueue import Retry, claim_of
from sqlqueue.dialects import adapter_for
from sqlqueue.operations import turns
from sqlqueue.transaction import channel_of, spread
from sqlqueue.worker import fetcher, lock_mode
from sqlqueue.worker.fetcher import Poller
from sqlqueue.worker.lock_mode import LockingTransactions, LockModeFetcher
from sqlqueue.worker.threads import happens_within, soon
from tests.outbox.messages import relay_of
from tests.suite.test_unreadable_rows import seen as signs_seen
from tests.suite.test_unreadable_rows import signs
from tests.support.harness import Database
from tests.support.models import Mail, Outgoing, Sign, Slot, Spool, Task, Visit
from tests.support.rows import PAST, clock, count, rows
from tests.support.workers import (
    AT_ONCE,
    LONG,
    PATIENCE,
    BlockingHandler,
    Workers,
    all_are,
    eventually,
    nothing,
    seen,
    with_session,
    without_session,
)

pytestmark = pytest.mark.asyncio_everywhere


@pytest.fixture(autouse=True)
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers poll as rarely as after a long idle time."""
    monkeypatch.setattr(fetcher, "FIRST_LOOK", LONG.total_seconds())


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


@pytest.mark.every_engine
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


@pytest.mark.every_engine
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


@pytest.mark.every_engine
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
    monkeypatch.setattr(fetcher, "FIRST_LOOK", AT_ONCE)
    engine = sync_db.variant(pool_size=5)

    def is_quiet() -> bool:
        with seen(engine, "before_cursor_execute") as statements:
            time.sleep(0.6)
        return len(statements) <= 2  # one query for work, one for pauses

    with seen(engine, "before_cursor_execute") as before:
        workers.serve(Task, without_session(sync_db), engine=engine, poll=timedelta(seconds=AT_ONCE))
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
    allowed = fetcher.WAKE_UPS + (time.monotonic() - begun) / fetcher.WAKE_UP_EVERY + 2
    assert fetcher.WAKE_UPS < len(claims) <= allowed
    with sync_db.begin() as actor:
        actor.add(Task())
    done_at_once(sync_db)


@pytest.mark.requires("locks_rows")
def test_whenever_a_query_sees_work_that_others_have_locked_another_claim_follows(
    sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be free at once, whatever was locked before."""
    look, looks = Poller._look, list[Any]()

    async def observed(self: Poller) -> Any:
        found = await look(self)
        looks.append(found[0].due)
        if len(looks) == 4:
            other.rollback()
        return found

    monkeypatch.setattr(Poller, "_look", observed)
    sync_db.insert(Task, rows(1))
    with sync_db.session() as other:
        locked = other.claim(Task, lease=None)
        workers.serve(Task, without_session(sync_db), poll=LONG)
        eventually(lambda: looks == [fetcher.NOW, fetcher.NOW])
        other.complete(locked)
        other.commit()
        spread([channel_of(Task.__queue_spec__)])
        eventually(lambda: looks[2:] == [None])
        sync_db.insert(Task, rows(1))
        assert other.claim(Task, lease=None)
        spread([channel_of(Task.__queue_spec__)])
        done_at_once(sync_db)


# -- one query serves all slots of a handler that runs in the transaction of its claim --------------------------------


@pytest.mark.requires("locks_rows")
def test_a_worker_looks_again_when_a_slot_has_ended(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the slot has written may come due sooner than anything that the last query has seen."""
    rests, begun = Event(), list[Any]()

    async def observed(happens: Any, seconds: float) -> bool:
        if seconds > AT_ONCE:
            rests.set()
        return await happens_within(happens, seconds)

    def during(task: Any) -> None:
        begun.append(task)
        if len(begun) == 1:
            assert rests.wait(AT_ONCE)
            raise Retry(timedelta(seconds=0.3))

    monkeypatch.setattr(fetcher, "happens_within", observed)
    db.insert(Task, rows(1))
    workers.serve(Task, with_session(db, nothing, during=during), mode="lock", concurrency=2, poll=LONG)
    done_at_once(db)


@pytest.mark.requires("locks_rows")
def test_what_is_heard_during_a_query_outlasts_the_claims_of_slots(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, ended, goes_on = list[Any](), list[Any](), Event()
    look, run, work = Poller._look, LockModeFetcher.run, LockingTransactions.work

    async def held(self: Poller) -> Any:
        found = await look(self)
        running.append("looked")
        while not goes_on.is_set():
            await asyncio.sleep(0.01)
        return found

    def run_observed(self: LockModeFetcher) -> Any:
        running.append(self)
        return run(self)

    def work_observed(self: LockingTransactions, found: Callable[[], bool]) -> None:
        work(self, found)
        ended.append(self)

    monkeypatch.setattr(Poller, "_look", held)
    monkeypatch.setattr(LockModeFetcher, "run", run_observed)
    monkeypatch.setattr(LockingTransactions, "work", work_observed)
    workers.serve(Task, with_session(db, nothing), mode="lock", concurrency=2, poll=LONG)
    eventually(lambda: running[1:] and len(ended) == 1)
    with db.begin() as actor:
        actor.add(Task(available_at=clock(db) + timedelta(seconds=1)))
    soon(running[0]._loop, running[0].resume)
    eventually(lambda: len(ended) == 2)
    goes_on.set()
    done_at_once(db)


def test_one_of_the_loops_that_wait_claims_and_wakes_another_only_if_it_has_found_a_task(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, transact = list[Any](), LockingTransactions._transact

    def observed(self: LockingTransactions, *given: Any, **named: Any) -> bool:
        claims.append(self)
        return transact(self, *given, **named)

    monkeypatch.setattr(LockingTransactions, "_transact", observed)
    running = workers.serve(Task, with_session(db, nothing), mode="lock", concurrency=10, poll=LONG)
    run: Any = eventually(lambda: running.worker._run)
    eventually(lambda: run._fetchers[0]._waiting == 10)
    claims.clear()
    for number in range(1, 6):
        with db.begin() as actor:
            actor.add(Task())
        eventually(lambda number=number: count(db, Task, Task.status == "completed") == number)
        eventually(lambda: run._fetchers[0]._waiting == 10)
    assert len(claims) <= 5 * 5, "each of them has claimed for each task"


@pytest.mark.requires("locks_rows")
def test_tasks_that_come_at_once_are_claimed_by_all_loops(
    db: Database, workers: Workers, blocking: BlockingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_mode, "EVERY", 600.0)
    running = workers.serve(Task, with_session(db, during=blocking), mode="lock", concurrency=10, poll=LONG)
    run: Any = eventually(lambda: running.worker._run)
    eventually(lambda: run._fetchers[0]._waiting == 10)
    with db.begin() as actor:
        actor.add_all([Task() for _ in range(10)])
    blocking.wait_for(10)


# -- notifications ----------------------------------------------------------------------------------------------------


@pytest.mark.one_engine
def test_a_freed_slot_wakes_a_worker(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Visit, [{"limit_key": key} for key in ["full"] * 3])
    running = [claim_of(visit) for visit in sync_db.committed.claim_many(Visit, limit=5)]
    sync_db.insert(Visit, [{"limit_key": None}])
    workers.serve(Visit, without_session(sync_db), poll=LONG)
    eventually(lambda: count(sync_db, Visit, Visit.status == "completed") == 1)
    time.sleep(0.2)
    sync_db.committed.complete(running[0])
    eventually(lambda: count(sync_db, Visit, Visit.status == "completed") == 3, AT_ONCE)
    assert count(sync_db, Visit, Visit.status == "running") == 1


@pytest.mark.one_engine
def test_a_worker_goes_on_behind_many_full_keys(
    sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "VISITED", 500)
    turns._rotations.clear()
    keys = [f"{n:04}" for n in range(2_500)]
    sync_db.insert(Slot, [{"slot_key": key, "slot_number": 0, "max_attempts": 0} for key in keys])
    sync_db.insert(Visit, [{"limit_key": key} for key in [*keys, "last"]])
    workers.serve(Visit, without_session(sync_db), poll=LONG)
    eventually(lambda: count(sync_db, Visit, Visit.status == "completed") == 1, AT_ONCE)


def listeners(db: Database) -> set[int]:
    """The connections that listen."""
    with db.engine.connect() as connection:
        return set(connection.scalars(text("SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN sqlqueue'")))


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
def test_a_commit_in_this_process_wakes_its_workers_once(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[str]()

    def hear(names: Iterable[str]) -> None:
        heard.extend(names)
        spread(names)

    monkeypatch.setattr("sqlqueue.worker.news.spread", hear)
    idle(db, workers)
    eventually(lambda: "task" in heard)  # it listens
    heard.clear()
    with db.begin() as actor:
        actor.add(Task())
    done_at_once(db)
    enqueue_elsewhere(db)
    done_at_once(db)
    assert heard == ["task"]


@pytest.mark.requires("notifies")
def test_a_commit_that_its_session_does_not_see_wakes_workers(sync_db: Database, workers: Workers) -> None:
    before = listeners(sync_db)
    idle(sync_db, workers)
    eventually(lambda: listeners(sync_db) - before)
    with sync_db.engine.begin() as connection:
        with Session(connection) as session, session.begin():
            session.add(Task())
        time.sleep(0.1)
        assert count(sync_db, Task, Task.status == "completed") == 1
    done_at_once(sync_db)


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
        assert [note.payload.split("\n")[0] for note in driver.notifies(timeout=1, stop_after=1)] == ["task"]
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
        assert [note.payload.split("\n")[0] for note in driver.notifies(timeout=0.5)] == ["task"]
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
@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_new_task_is_claimed_in_one_round_trip(db: Database, workers: Workers, is_prepared: bool) -> None:
    """The claim commits itself, unless the application has sent something in the transaction, such as a setting for
    row-level security."""
    if "psycopg" not in db.url.drivername:
        pytest.skip("this driver always begins a transaction")
    engine = db.variant()
    committing: list[bool] = []

    def observe(connection: Any, _cursor: object, statement: str, *_: object) -> None:
        if "UPDATE task" in statement:
            committing.append(connection.connection.driver_connection.autocommit)

    if is_prepared:
        prepare = "SET LOCAL a.b = 'c'"
        event.listen(engine.session_engine, "begin", lambda connection: connection.exec_driver_sql(prepare))
    event.listen(engine.session_engine, "before_cursor_execute", observe)
    db.insert(Task, rows(1))
    workers.serve(Task, without_session(db), poll=LONG, notify=True, engine=engine)
    done_at_once(db)
    time.sleep(0.2)
    committing.clear()
    enqueue_elsewhere(db)
    done_at_once(db)
    claimed, *others = committing
    assert claimed is not is_prepared
    assert True not in others  # such as the completion, which is in a transaction again


@pytest.mark.requires("notifies")
@pytest.mark.sync_only
@pytest.mark.parametrize("statement", ["SELECT 1 / 0", "SELECT pg_terminate_backend(pg_backend_pid())"])
def test_after_a_claim_that_fails_nothing_commits_itself(db: Database, statement: str) -> None:
    engine = db.variant(pool_size=1).session_engine
    alone = adapter_for(engine.dialect).connections.alone
    with engine.connect() as connection, pytest.raises(DBAPIError), alone(connection):
        connection.exec_driver_sql(statement)
    with engine.begin() as connection:
        assert not getattr(connection.connection.driver_connection, "autocommit", False)


@pytest.mark.requires("notifies")
def test_new_rows_that_cannot_be_read(db: Database, workers: Workers) -> None:
    db.insert(Sign, [{"id": 9}])
    workers.serve(Sign, without_session(db), poll=LONG, notify=True)
    eventually(lambda: signs_seen(db)[9].status == "completed")
    time.sleep(0.2)
    signs(db, "dove", "rose")
    with db.engine.begin() as connection:
        adapter_for(connection.dialect).connections.notify(connection, "sign")
    eventually(lambda: [row.status for row in signs_seen(db).values()] == ["scheduled", "completed", "completed"])


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


# -- while there is always work, tasks that came due and tasks of crashed workers take their turn ---------------------


BACKLOG = 20
DUE: Sequence[dict[str, Any]] = [
    *rows(3, "scheduled", "retryable", "expired", claim_token=77, max_attempts=2),
    *rows(1, "expired", claim_token=-77, max_attempts=1),
]
"""Tasks that came due, and tasks whose claimer has crashed: a loop of the application, and a worker."""


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "EVERY", 0.0)
    monkeypatch.setattr(fetcher, "AHEAD", 0.0)
    monkeypatch.setattr(lock_mode, "AHEAD", 0.0)


def due(**values: Any) -> list[dict[str, Any]]:
    return [{"priority": -1, "created_at": PAST, **row, **values} for row in DUE]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("model", "values", "mode"),
    [
        (Task, {}, "lease"),
        (Task, {}, "lock"),
        (Mail, {"topic": "a"}, "lease"),
        (Visit, {"limit_key": "a"}, "lease"),
        (Visit, {"limit_key": "a"}, "lock"),
    ],
    ids=["plain-lease", "plain-lock", "topic-lease", "limited-lease", "limited-lock"],
)
def test_they_take_their_turn_before_the_backlog_ends(
    sync_db: Database, workers: Workers, model: Any, values: dict[str, Any], mode: Any
) -> None:
    """Each task enqueues another. A limited queue has more room than its key, so no claim gets all it wants."""
    sync_db.insert(model, rows(BACKLOG, **values))
    sync_db.insert(model, due(**values))
    where = [model.topic == "a"] if model is Mail else []
    handle = with_session(sync_db, lambda session, task: session.add(model(**values)) if task.priority == 0 else None)
    workers.serve(model, handle, *where, mode=mode, concurrency=4 if model is Visit else 1)
    eventually(lambda: count(sync_db, model, model.priority == -1, model.status == "completed") == len(DUE))
    assert count(sync_db, model, model.status == "available") > BACKLOG // 2


@pytest.mark.every_engine
@pytest.mark.usefixtures("often")
def test_messages_take_their_turn_before_the_backlog_ends(db: Database, workers: Workers) -> None:
    db.insert(Outgoing, [{"payload": {}, **row} for row in rows(BACKLOG)])
    db.insert(Outgoing, due(payload={}))
    engine = db.variant(pool_size=20)
    workers.start(relay_of(engine, lambda _: db.insert(Outgoing, [{"payload": {}}]), batch=1), engine=engine)
    eventually(lambda: count(db, Outgoing, Outgoing.priority == -1) == 0)
    assert count(db, Outgoing, Outgoing.status == "available") > BACKLOG // 2
