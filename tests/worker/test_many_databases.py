"""One process serves several databases, each with its own worker; and schemas that are translated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import Session, sessionmaker

from sqlqueue import QueueSession, SchemaMismatchError, Worker
from tests.suite.test_schemas import Guest, Parking, Tenants, tables  # noqa: F401  (a fixture)
from tests.support.harness import Database
from tests.support.models import Base, Ledger, Task
from tests.support.workers import LEASE, BlockingHandler, Workers, eventually, without_session

POLL = timedelta(seconds=0.2)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Engine]:
    """A second database."""
    engine = create_engine(f"sqlite:///{tmp_path}/other.db")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


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


def test_each_task_is_done_in_its_own_database(sync_db: Database, other: Engine) -> None:
    enqueue(sync_db.engine, 1, 2)
    enqueue(other, 2, 3)  # the same key is another task there
    mine = sync_db.variant(pool_size=10).session_engine
    with Fleet(worker_of(mine), worker_of(other)):
        eventually(lambda: (done(sync_db.engine), done(other)) == ([1, 2], [2, 3]))
        enqueue(other, 4)
        eventually(lambda: done(other) == [2, 3, 4])
    assert done(sync_db.engine) == [1, 2]


def test_an_unavailable_database_does_not_hold_up_others(sync_db: Database, other: Engine, tmp_path: Path) -> None:
    """It is served again as soon as it is available."""
    enqueue(other, 1)
    other.dispose()
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "other.db").rename(elsewhere / "other.db")
    away = create_engine(f"sqlite:///{home}/other.db")
    mine = sync_db.variant(pool_size=10).session_engine
    with Fleet(worker_of(away), worker_of(mine)):
        enqueue(sync_db.engine, 1, 2)
        eventually(lambda: done(sync_db.engine) == [1, 2])
        elsewhere.rename(home)
        eventually(lambda: done(away) == [1])
    away.dispose()


# -- a worker whose engine has a `schema_translate_map` ---------------------------------------------------------------

# ruff: noqa: F811 - a fixture is a parameter of its name


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
