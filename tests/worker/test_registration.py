"""Running workers register themselves, and execute the commands in their rows."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, delete
from sqlalchemy.orm import sessionmaker

from sqlqueue import SchemaMismatchError, Worker, WorkerInfo
from sqlqueue.model.companions import worker_table
from sqlqueue.worker import registration
from tests.support.fleet import Call, Errand, Fleet, FleetWorker, fleet, sync_fleet
from tests.support.harness import Database
from tests.support.rows import clock
from tests.support.workers import BlockingHandler, Workers, eventually, seen, statuses, with_session, without_session

__all__ = ["fleet", "sync_fleet"]

SHORT = timedelta(seconds=0.05)


def registered(db: Database) -> Sequence[WorkerInfo]:
    with db.begin() as session:
        found: Sequence[WorkerInfo] = session.workers(Fleet)
    return found


def errands(db: Database, number: int) -> None:
    db.insert(Errand, [{"name": str(n)} for n in range(number)])


def test_a_worker_registers_itself(
    fleet: Database, workers: Workers, blocking: BlockingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "EVERY", timedelta(seconds=0.1))
    errands(fleet, 1)
    running = workers.serve(Errand, with_session(fleet, during=blocking), name="ada", version="1.2", concurrency=3)
    (info,) = eventually(lambda: [each for each in registered(fleet) if each.busy])
    assert (info.name, info.process, info.version, info.is_live) == ("ada", os.getpid(), "1.2", True)
    (handler,) = info.handlers
    assert (handler.queue, handler.functions, handler.whole, handler.slots, handler.busy) == (
        "errand_of_fleet",
        None,
        True,
        3,
        1,
    )
    assert info.memory
    assert info.last_claim_at
    assert timedelta(0) <= clock(fleet) - info.started_at < timedelta(minutes=1)
    assert info.last_claim_at <= info.seen_at
    # each is counted back from the time at which the statement that writes it is executed, some moments later
    assert info.started_at - info.last_claim_at < timedelta(seconds=10)
    first = info.seen_at
    eventually(lambda: registered(fleet)[0].seen_at > first)
    with fleet.engine.begin() as connection:  # as if others had considered it dead
        connection.execute(delete(FleetWorker))
    eventually(lambda: registered(fleet))
    blocking.release()
    running.stop()
    assert registered(fleet) == []


def test_functions_are_named(sync_fleet: Database, workers: Workers) -> None:
    worker = Worker(sync_fleet.variant(pool_size=20).sessions(), notify=False)
    worker.task(Call, name="shop.mail")(lambda: None)
    worker.task(Call, name="shop.bill")(lambda: None)
    running = workers.start(worker)
    (info,) = eventually(lambda: registered(sync_fleet))
    assert info.handlers[0].functions == ("shop.bill", "shop.mail")
    running.stop()


def test_drain_waits_for_what_runs_and_claims_no_more(
    fleet: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    errands(fleet, 3)
    running = workers.serve(Errand, with_session(fleet, during=blocking), grace=timedelta(0), concurrency=1, batch=1)
    worker = running.worker
    blocking.wait_for()
    eventually(lambda: registered(fleet))
    with fleet.begin() as session:
        assert session.drain_workers(Errand) == 1
    eventually(lambda: worker._run is not None and worker._run._context.stopping._made.is_set())
    assert not running.ended
    blocking.release()
    running.wait()
    assert sorted(statuses(fleet, Errand).values()) == ["available", "available", "completed"]
    assert blocking.lost == []


def test_stop_gives_the_grace_period(fleet: Database, workers: Workers, blocking: BlockingHandler) -> None:
    errands(fleet, 1)
    running = workers.serve(Errand, with_session(fleet, during=blocking), grace=SHORT)
    blocking.wait_for()
    eventually(lambda: registered(fleet))
    with fleet.begin() as session:
        session.drain_workers(Errand)
        session.stop_workers(Errand)
    running.wait()
    assert set(statuses(fleet, Errand).values()) == {"available"}


@pytest.mark.parametrize("mode", ["lease", pytest.param("lock", marks=pytest.mark.requires("locks_rows"))])
def test_more_and_fewer_slots(fleet: Database, workers: Workers, mode: Any) -> None:
    first, second = BlockingHandler(), BlockingHandler()
    calls = iter([first] * 3 + [second] * 9)

    def handle(task: Any) -> None:
        next(calls)(task)

    errands(fleet, 8)
    running = workers.serve(Errand, with_session(fleet, during=handle), concurrency=1, mode=mode)
    worker = running.worker
    first.wait_for(1)
    eventually(lambda: registered(fleet))
    resize(fleet, 3)
    first.wait_for(3)
    resize(fleet, 2)
    eventually(lambda: worker._run is not None and worker._run._fetchers[0].slots == 2)
    first.release()
    second.wait_for(2)
    second.release()
    eventually(lambda: set(statuses(fleet, Errand).values()) == {"completed"})
    assert (first.max_running, second.max_running) == (3, 2)
    running.stop()


def resize(db: Database, number: int) -> None:
    with db.begin() as session:
        assert session.set_concurrency(Fleet, number) == 1


def test_dead_workers_are_forgotten(sync_fleet: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "FORGET_EVERY", timedelta(seconds=0.1))
    monkeypatch.setattr(registration, "EVERY", timedelta(seconds=0.1))
    worker = workers.make(name="ada")
    worker.handler(Errand)(without_session(sync_fleet))
    dead = {"name": "dead", "host": "", "process": 1, "handlers": []}
    now = clock(sync_fleet)
    with sync_fleet.engine.begin() as connection:
        for key, age in (("old", 61), ("young", 59)):
            moment = now - timedelta(minutes=age)
            table: Any = FleetWorker.__table__
            connection.execute(table.insert().values(id=key, started_at=moment, seen_at=moment, **dead))
    running = workers.start(worker)
    eventually(lambda: keys(sync_fleet) >= {"young"} and "old" not in keys(sync_fleet))
    running.stop()
    assert keys(sync_fleet) == {"young"}


def test_a_worker_writes_its_row_every_ten_seconds_at_most(sync_fleet: Database, workers: Workers) -> None:
    """Neither tasks nor commands, which it reads at once, make it write more often."""
    assert registration.EVERY.total_seconds() == 10
    engine = sync_fleet.variant(pool_size=20)
    worker = workers.make(engine=engine)
    worker.handler(Errand)(without_session(sync_fleet))
    with seen(engine, "before_cursor_execute") as sent:
        begun = time.monotonic()
        running = workers.start(worker)
        eventually(lambda: registered(sync_fleet))
        for number in range(2, 7):
            errands(sync_fleet, 5)
            resize(sync_fleet, number)
            eventually(lambda number=number: worker._run is not None and worker._run._fetchers[0].slots == number)
        eventually(lambda: set(statuses(sync_fleet, Errand).values()) == {"completed"})
        inserts, updates = (
            sum(statement.startswith(f"{verb} fleet_worker ") for *_, statement, _, _, _ in sent)
            for verb in ("INSERT INTO", "UPDATE")
        )
        most = 1 + (time.monotonic() - begun) // 10
    running.stop()
    assert inserts == 1
    assert 1 <= updates <= most


def keys(db: Database) -> set[str]:
    with db.begin() as session:
        return set(session.scalars(FleetWorker.__table__.select().with_only_columns(FleetWorker.id)))


def test_a_missing_table(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'fleet.db'}")
    Fleet.metadata.create_all(engine)
    worker_table(Fleet.metadata).drop(engine)  # type: ignore[union-attr]
    worker = Worker(sessionmaker(engine))
    worker.handler(Errand)(lambda errand: None)
    with pytest.raises(SchemaMismatchError, match=r"no table fleet_worker.*migrate") as refused:
        worker.run()
    assert refused.value.differences == ("there is no table fleet_worker, in which workers are registered",)
    engine.dispose()
