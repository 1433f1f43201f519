"""The connections of a worker, as the server counts them, to one database or to several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.orm import Session, sessionmaker

from sqlqueue import QueueSession, SchemaMismatchError, Worker
from sqlqueue.worker.database import MAX_TRANSACTIONS, SharedConnections, database_of
from sqlqueue.worker.reports import Liveness
from tests.suite.test_schemas import Guest, Parking, Tenants, tables  # noqa: F401  (a fixture)
from tests.support.harness import Database
from tests.support.models import Document, Ledger, Mail, Notice, Order, Parcel, Spool, Task
from tests.support.workers import LEASE, PATIENCE, BlockingHandler, Workers, eventually, without_session

pytestmark = pytest.mark.asyncio_everywhere

QUEUES: Sequence[Any] = (Task, Document, Mail, Notice, Order, Parcel, Spool)
POOLED, OWN = 2, 2
"""The maximum number of connections in the pool, and outside it: one that extends leases, and one that listens."""


@pytest.fixture
def connections(db: Database) -> Iterator[Any]:
    """Return a function that returns the current number of connections, not counting its own."""
    assert db.case.connections_sql is not None
    engine = create_engine(db.url, pool_size=1, max_overflow=0, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield lambda: len(connection.exec_driver_sql(db.case.connections_sql).all())
    engine.dispose()


def is_extended(db: Database, queue: Any) -> bool:
    """Return whether a heartbeat has extended the lease of the queue's task, beyond the end of any claim's lease."""
    with db.engine.connect() as connection:
        claimed, ends = connection.execute(select(queue.claimed_at, queue.available_at)).one()
    return bool(ends - claimed > LEASE + timedelta(seconds=0.5))


@pytest.mark.requires("connections_sql")
@pytest.mark.parametrize("count", [1, len(QUEUES)])
def test_connections_do_not_grow_with_the_queues(
    db: Database, workers: Workers, blocking: BlockingHandler, connections: Any, count: int
) -> None:
    with db.begin() as session:
        session.add_all([Document(id="1") if queue is Document else queue() for queue in QUEUES])
    db.engine.dispose()
    before = eventually(lambda: connections() + 1) - 1
    worker = workers.make(notify=True, engine=db.variant(pool_size=POOLED, max_overflow=0))
    for queue in QUEUES[:count]:
        worker.handler(queue, concurrency=1, lease=LEASE)(without_session(db, blocking))
    workers.start(worker)
    blocking.wait_for(count)
    most = 0

    def all_extended() -> bool:
        nonlocal most
        most = max(most, connections() - before)
        return all(is_extended(db, queue) for queue in QUEUES[:count])

    eventually(all_extended)
    assert most <= POOLED + OWN + 1  # the test's own connections


def test_a_worker_may_start_while_the_application_is_connecting(sync_db: Database, workers: Workers) -> None:
    db = sync_db.variant(pool_size=20)
    engine, connecting, working = db.session_engine, Event(), Event()

    def hold_first(*_: object) -> None:
        if not connecting.is_set():
            connecting.set()
            assert working.wait(PATIENCE)

    worker = workers.make(engine=db)
    worker.handler(Task)(without_session(sync_db, lambda _: working.set()))
    sync_db.insert(Task, [{}])
    with engine.connect(), ThreadPoolExecutor() as pool:  # others wait for an engine's very first connection
        event.listen(engine, "connect", hold_first)
        attempt = pool.submit(engine.connect)
        assert connecting.wait(PATIENCE)
        workers.start(worker)
        attempt.result().close()


def test_a_transaction_that_is_held_up_holds_up_no_other(db: Database) -> None:
    variant = db.variant(pool_size=2)
    shared = SharedConnections(database_of(variant.sessions(), Liveness()).own, 2)
    begun, over = Event(), Event()
    waited: list[bool] = []

    def hold(session: Session) -> None:
        begun.set()
        waited.append(over.wait(PATIENCE))

    def use(work: Any) -> None:
        shared.run(variant.session_engine, work, timedelta(seconds=PATIENCE))
        shared.close()

    holding = Thread(target=use, args=(hold,))
    holding.start()
    assert begun.wait(PATIENCE)
    use(lambda session: session.scalar(select(func.count()).select_from(Task)))
    over.set()
    holding.join()
    assert waited == [True]


def test_a_worker_has_few_transactions_at_a_time(db: Database) -> None:
    variant = db.variant(pool_size=2 * MAX_TRANSACTIONS)
    database = database_of(variant.sessions(), Liveness())
    most = running = 0

    def work(session: Session) -> None:
        nonlocal most, running
        session.scalar(select(func.count()).select_from(Task))
        running += 1
        most = max(most, running)
        until = time.monotonic() + PATIENCE
        while most < MAX_TRANSACTIONS and time.monotonic() < until:
            _sleep(0.05, is_async=db.is_async)
        _sleep(0.2, is_async=db.is_async)  # time in which more could begin
        running -= 1

    async def ask() -> None:
        await asyncio.gather(*(database.run(work, timedelta(seconds=60)) for _ in range(2 * MAX_TRANSACTIONS)))
        await database.end(5)
        await database.dispose({variant.session_engine})

    asyncio.run(ask())
    assert most == MAX_TRANSACTIONS


def _sleep(seconds: float, *, is_async: bool) -> None:
    if is_async:
        from sqlalchemy.util import await_only

        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


# -- several databases, each with its own worker; and schemas that are translated -------------------------------------


POLL = timedelta(seconds=0.2)


def worker_of(engine: Engine) -> Worker:
    worker = Worker(sessionmaker(engine, class_=QueueSession), poll=POLL, notify=False)

    @worker.handler(Task, concurrency=2)
    def handle(session: QueueSession, task: Task) -> None:
        session.add(Ledger(task_id=task.id))

    return worker


class Fleet:
    """Workers of several databases on one event loop."""

    def __init__(self, *workers: Worker) -> None:
        self._workers = workers
        self._thread = Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        await asyncio.gather(*(worker.serve() for worker in self._workers))

    def __enter__(self) -> Fleet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


def enqueue(engine: Engine, *numbers: int) -> None:
    with Session(engine) as session:
        session.add_all(Task(id=number) for number in numbers)
        session.commit()


def done(engine: Engine) -> list[int]:
    with Session(engine) as session:
        assert set(session.scalars(select(Task.id).where(Task.status == "completed"))) <= set(
            session.scalars(select(Ledger.task_id))
        )
        return sorted(session.scalars(select(Ledger.task_id)))


def test_each_task_is_done_in_its_own_database(sync_db: Database, file: Engine) -> None:
    enqueue(sync_db.engine, 1, 2)
    enqueue(file, 2, 3)  # the same key is another task there
    mine = sync_db.variant(pool_size=10).session_engine
    with Fleet(worker_of(mine), worker_of(file)):
        eventually(lambda: (done(sync_db.engine), done(file)) == ([1, 2], [2, 3]))
        enqueue(file, 4)
        eventually(lambda: done(file) == [2, 3, 4])
    assert done(sync_db.engine) == [1, 2]


def test_an_unavailable_database_does_not_hold_up_others(sync_db: Database, file: Engine, tmp_path: Path) -> None:
    """It is served again as soon as it is available."""
    enqueue(file, 1)
    file.dispose()
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "worker.db").rename(elsewhere / "worker.db")
    away = create_engine(f"sqlite:///{home}/worker.db")
    mine = sync_db.variant(pool_size=10).session_engine
    with Fleet(worker_of(away), worker_of(mine)):
        enqueue(sync_db.engine, 1, 2)
        eventually(lambda: done(sync_db.engine) == [1, 2])
        elsewhere.rename(home)
        eventually(lambda: done(away) == [1])
    away.dispose()


# -- a worker whose engine has a `schema_translate_map` ---------------------------------------------------------------

# ruff: noqa: F811 - a fixture is a parameter of its name


@pytest.mark.every_engine
def test_a_worker_runs_in_a_translated_schema(db: Database, tables: dict[str, Any], workers: Workers) -> None:
    variant = db.variant(execution_options=tables)
    worker = workers.make(engine=db.variant(execution_options=tables, pool_size=20), notify=True)
    blocking = BlockingHandler()
    worker.handler(Guest, concurrency=3, lease=LEASE)(without_session(db, blocking))
    workers.start(worker)
    with variant.begin() as actor:
        actor.enqueue(Guest, [{"limit_key": "new"}, {"limit_key": "new"}, {"limit_key": "newer"}])
    blocking.wait_for(3)

    def extended() -> bool:
        with variant.begin() as actor:
            return all(each.available_at > each.claimed_at + LEASE for each in actor.find(Guest))

    eventually(extended)
    blocking.release()

    def completed() -> bool:
        with variant.begin() as actor:
            return {each.status for each in actor.find(Guest)} == {"completed"}

    eventually(completed)


@pytest.mark.every_engine
def test_a_worker_does_not_start_without_the_tables(
    db: Database,
    tables: dict[str, Any],
    workers: Workers,
) -> None:
    variant = db.variant(execution_options=tables)
    Tenants.metadata.drop_all(db.engine.execution_options(**tables))
    worker = workers.make(engine=variant)
    worker.handler(Parking)(without_session(db))
    with pytest.raises(SchemaMismatchError):
        workers.start(worker).wait()
