"""Running workers register themselves, execute the commands in their rows, and maintain their queues."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, select, update
from sqlalchemy.orm import sessionmaker

from sqlqueue import SchemaMismatchError, Worker, WorkerInfo
from sqlqueue._support.errors import WorkerTokens
from sqlqueue._support.processes import birth_of, has_ended
from sqlqueue.model.companions import worker_table
from sqlqueue.sql import NEVER
from sqlqueue.worker import registration
from tests.support.fleet import Call, Errand, Fleet, FleetWorker, fleet, sync_fleet
from tests.support.harness import Database
from tests.support.models import Attachment, Mail, Task
from tests.support.processes import Processes
from tests.support.rows import PAST, TOMORROW, clock, count
from tests.support.workers import (
    LONG,
    BlockingHandler,
    Workers,
    all_are,
    eventually,
    seen,
    statuses,
    with_session,
    without_session,
)
from tests.worker import children

__all__ = ["fleet", "sync_fleet"]
has_proc = pytest.mark.skipif(birth_of(os.getpid()) is None, reason="reads /proc")

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
    worker = workers.make(name="ada", version="1.2")
    worker.handler(Errand, concurrency=3)(with_session(fleet, during=blocking))
    worker.task(Call, name="shop.mail")(lambda: None)
    worker.task(Call, name="shop.bill")(lambda: None)
    running = workers.start(worker)
    (info,) = eventually(lambda: [each for each in registered(fleet) if each.busy])
    assert (info.name, info.process, info.version, info.is_live) == ("ada", os.getpid(), "1.2", True)
    handler, calls = info.handlers
    facts = (handler.queue, handler.functions, handler.whole, handler.slots, handler.busy)
    assert facts == ("errand_of_fleet", None, True, 3, 1)
    assert calls.functions == ("shop.bill", "shop.mail")
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


@pytest.mark.one_engine
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


@pytest.mark.one_engine
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
    dead = {"name": "dead", "host": "", "process": 1, "claimer": 1, "handlers": []}
    now = clock(sync_fleet)
    with sync_fleet.engine.begin() as connection:
        for key, age in (("old", 61), ("young", 59)):
            moment = now - timedelta(minutes=age)
            table: Any = FleetWorker.__table__
            connection.execute(table.insert().values(id=key, started_at=moment, seen_at=moment, **dead))
    running = workers.serve(Errand, without_session(sync_fleet))
    eventually(lambda: keys(sync_fleet) >= {"young"} and "old" not in keys(sync_fleet))
    running.stop()
    assert keys(sync_fleet) == {"young"}


def state_of(worker: Worker) -> str | None:
    health = worker.health()
    return None if health is None else health.state


@pytest.mark.one_engine
def test_a_blocked_event_loop_is_reported(
    sync_fleet: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with the stack and the task; to the register by the thread that sees it; and when the loop goes on."""
    monkeypatch.setattr("sqlqueue.worker.context.STALLED", 0.5)
    monkeypatch.setattr(registration, "EVERY", timedelta(seconds=0.1))
    errands(sync_fleet, 1)
    released = False

    async def blocks(errand: Errand) -> None:
        while not released:
            time.sleep(0.01)

    worker = workers.serve(Errand, blocks).worker
    try:
        (info,) = eventually(lambda: [each for each in registered(sync_fleet) if each.state == "stalled"])
        assert (info.busy, state_of(worker)) == (1, "stalled")
        time.sleep(0.5)  # it is not reported again
    finally:
        released = True
    eventually(lambda: [each for each in registered(sync_fleet) if each.is_live])
    assert state_of(worker) == "live"
    (blocked,) = (each for each in caplog.records if each.levelname == "ERROR")
    assert blocked.getMessage().startswith(
        "errand_of_fleet 1: attempt 1 (4 left) has been blocking the event loop for "
    )
    assert "in blocks\n" in (blocked.stack_info or "")
    assert "asyncio" not in (blocked.stack_info or "")
    eventually(lambda: sum("goes on after" in each.getMessage() for each in caplog.records) == 1)


@has_proc
@pytest.mark.one_engine
def test_the_tasks_of_a_process_that_has_ended_are_released(
    sync_fleet: Database, workers: Workers, processes: Processes
) -> None:
    """Long before the end of their lease, once the worker is silent; but not those of processes of other machines."""
    errands(sync_fleet, 1)
    child = processes.spawn(children.run_an_errand, sync_fleet.url)
    child.wait_until_arrived()
    eventually(lambda: registered(sync_fleet))
    child.kill()
    (gone,) = registered(sync_fleet)
    tokens = WorkerTokens()
    elsewhere = {"status": "running", "available_at": TOMORROW, "claim_token": tokens(), "attempt": 1}
    sync_fleet.insert(Errand, [{"name": "elsewhere", "claimed_at": PAST, **elsewhere}])
    with sync_fleet.begin() as session:
        session.execute(update(FleetWorker).values(seen_at=PAST))
        facts = {key: getattr(session.scalars(select(FleetWorker)).one(), key) for key in ("host", "started_at")}
        facts |= {"handlers": [], "seen_at": PAST, "process": gone.process, "birth": "elsewhere 1"}
        session.add(FleetWorker(id="x", name="elsewhere", claimer=tokens.worker, **facts))
    workers.serve(Errand, without_session(sync_fleet))
    eventually(lambda: sorted(statuses(sync_fleet, Errand).values()) == ["completed", "running"])


@has_proc
def test_a_process_is_known_to_have_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        birth = birth_of(program.pid)
        assert birth is not None
        assert not has_ended(program.pid, birth)
        assert has_ended(program.pid, f"{birth}0"), "another process with this number, of the same machine"
        assert not has_ended(program.pid, "elsewhere 1")
        assert not has_ended(program.pid, None)
    assert has_ended(program.pid, birth)


def test_a_worker_writes_its_row_every_ten_seconds_at_most(sync_fleet: Database, workers: Workers) -> None:
    """Neither tasks nor commands, which it reads at once, make it write more often."""
    assert registration.EVERY.total_seconds() == 10
    engine = sync_fleet.variant(pool_size=20)
    with seen(engine, "before_cursor_execute") as sent:
        begun = time.monotonic()
        running = workers.serve(Errand, without_session(sync_fleet), engine=engine)
        worker = running.worker
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


def test_a_missing_table(engine: Engine) -> None:
    Fleet.metadata.create_all(engine)
    worker_table(Fleet.metadata).drop(engine)  # type: ignore[union-attr]
    worker = Worker(sessionmaker(engine))
    worker.handler(Errand)(lambda errand: None)
    with pytest.raises(SchemaMismatchError, match=r"no table fleet_worker.*migrate") as refused:
        worker.run()
    assert refused.value.differences == ("there is no table fleet_worker, in which workers are registered",)


# -- maintenance: rescue and prune, in small steps, and by several workers at once ------------------------------------


OFTEN = timedelta(seconds=0.05)
DONE = {"status": "completed", "finished_at": PAST, "available_at": PAST}
CRASHED = {"status": "running", "available_at": PAST, "claimed_at": PAST, "attempt": 3, "max_attempts": 3}


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "RESCUE_EVERY", OFTEN)
    monkeypatch.setattr(registration, "PRUNE_EVERY", OFTEN)
    monkeypatch.setattr(registration, "PRUNED", 2)


@pytest.mark.usefixtures("often")
def test_two_workers_rescue_and_prune(db: Database, workers: Workers) -> None:
    db.insert(Task, [CRASHED] * 3)
    db.insert(Mail, [{**DONE, "topic": "old"}] * 9)
    db.insert(Mail, [{**DONE, "topic": "new", "finished_at": TOMORROW}])
    for name in ("first", "second"):
        worker = workers.make(name=name, poll=LONG)
        worker.handler(Task)(without_session(db))
        worker.handler(Mail)(without_session(db))
        workers.start(worker)
    eventually(all_are(db, "discarded"))
    assert count(db, Task, Task.error.like("crashed in every attempt%")) == 3
    eventually(lambda: count(db, Mail, Mail.topic == "old") == 0)
    assert count(db, Mail) == 1


@pytest.mark.one_engine
def test_many_batches_are_pruned_in_a_row(sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "PRUNE_EVERY", timedelta(seconds=2))
    monkeypatch.setattr(registration, "PRUNED", 2)
    sync_db.insert(Mail, [{**DONE, "topic": "old"}] * 21)
    workers.serve(Mail, without_session(sync_db), poll=LONG)
    eventually(lambda: count(sync_db, Mail) < 21)
    eventually(lambda: count(sync_db, Mail) == 0, within=9 * 0.75 * 2)


@pytest.mark.usefixtures("often")
def test_rows_that_cannot_go_stay_and_the_others_are_pruned(
    sync_db: Database, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    sync_db.insert(Mail, [{"id": number, **DONE} for number in range(1, 10)])
    sync_db.insert(Attachment, [{"mail_id": number} for number in (1, 2, 3, 4)])  # more than one batch
    sync_db.insert(Mail, [{"id": 20, **DONE, "finished_at": None, "available_at": NEVER}])  # adopted
    workers.serve(Mail, without_session(sync_db), poll=LONG)
    eventually(lambda: count(sync_db, Mail) == 5)
    eventually(lambda: "pruned mail: kept 4 final rows" in caplog.text)


@pytest.fixture
def broken(sync_db: Database) -> Iterator[None]:
    """Drop the table of attachments, which pruning of mails reads."""
    Attachment.__table__.drop(sync_db.engine)
    yield
    Attachment.__table__.create(sync_db.engine)


@pytest.mark.usefixtures("often", "broken")
@pytest.mark.requires("locks_rows")
def test_a_failing_chore_is_named_and_does_not_block_others(
    sync_db: Database, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    sync_db.insert(Mail, [DONE])
    workers.serve(Mail, without_session(sync_db), poll=LONG)
    eventually(lambda: caplog.text.count("pruning mail failed: ") > 1)
    assert "Traceback" not in caplog.text
    sync_db.insert(Mail, [CRASHED])
    eventually(lambda: count(sync_db, Mail, Mail.status == "discarded") == 1)


@pytest.mark.one_engine
@pytest.mark.usefixtures("often")
def test_rescue_in_batches(sync_db: Database, workers: Workers) -> None:
    """Before each commit, another session reads the result of the earlier batches."""
    sync_db.insert(Task, [CRASHED] * 7)
    found: list[int] = []
    engine = sync_db.variant(pool_size=20)
    event.listen(engine.bind, "commit", lambda _: found.append(count(sync_db, Task, Task.status == "discarded")))
    workers.serve(Task, without_session(sync_db), engine=engine, poll=LONG)
    eventually(all_are(sync_db, "discarded"))
    in_order = sorted([*found, 7])  # several threads commit, and record what they have seen slightly later
    assert max(after - before for before, after in pairwise(in_order)) == 2
