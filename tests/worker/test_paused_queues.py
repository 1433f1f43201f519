"""A worker claims nothing from paused queues."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, delete, insert
from sqlalchemy.orm import Session, sessionmaker

from sqlqueue import SchemaMismatchError, Worker, pause
from sqlqueue.queue.spec import spec_of
from sqlqueue.transaction import subscribe
from tests.support.harness import Database
from tests.support.models import Crawl, Document, Mail, QueuePause, Spool, Task, Transfer
from tests.support.processes import Gate, Processes
from tests.support.rows import clock, rows
from tests.support.workers import (
    LONG,
    BlockingHandler,
    Running,
    Workers,
    all_are,
    eventually,
    seen,
    statuses,
    with_session,
    without_session,
)

OFTEN = timedelta(seconds=0.1)


def write_pause(db: Database, key: str) -> None:
    """Write a pause as another process would: this process is not notified."""
    with db.engine.begin() as connection:
        connection.execute(insert(QueuePause).values(queue=key, paused_at=clock(db), paused_by="far away"))


def delete_pause(db: Database) -> None:
    with db.engine.begin() as connection:
        connection.execute(delete(QueuePause))


@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_a_paused_queue_is_not_claimed_until_it_is_resumed(db: Database, workers: Workers, mode: Any) -> None:
    write_pause(db, "task")
    db.insert(Task, rows(4, "ready", "scheduled", "retryable", "expired"))
    before, engine = statuses(db), db.variant(pool_size=20)
    handler = (with_session if mode == "lock" else without_session)(db)
    with seen(engine, "before_cursor_execute") as looks:
        running = workers.serve(Task, handler, engine=engine, poll=OFTEN, mode=mode)
        eventually(lambda: asked(looks))
        started = len(looks)
        eventually(lambda: len(asked(looks)) > 4)
    assert statuses(db) == before
    assert not any("FROM task" in each[2] for each in looks[started:]), "it asked for tasks that it must not have"
    delete_pause(db)
    eventually(all_are(db, "completed"))
    running.stop()  # so that none of its threads remain in the next test


@pytest.mark.one_engine
def test_running_tasks_continue_and_no_others_are_started(
    db: Database, workers: Workers, blocking: BlockingHandler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sqlqueue.worker")
    db.insert(Task, rows(3))
    engine = db.variant(pool_size=20)
    workers.serve(Task, with_session(db, during=blocking), engine=engine, poll=OFTEN, concurrency=1)
    blocking.wait_for()
    with db.begin() as session:
        session.pause(Task)
    eventually(lambda: "paused queues: task" in caplog.text)
    with seen(engine, "before_cursor_execute") as statements:
        blocking.release()
        eventually(lambda: "completed" in statuses(db).values() and len(asked(statements)) > 3)
    assert sorted(statuses(db).values()) == ["available", "available", "completed"]
    with db.begin() as session:
        session.resume(Task)
    eventually(all_are(db, "completed"))


def test_single_topics_are_paused(db: Database, workers: Workers) -> None:
    write_pause(db, "mail:news")
    db.insert(Mail, [{"id": number, "topic": topic} for number, topic in enumerate(("news", "bills", "news"), 1)])
    workers.serve(Mail, without_session(db), poll=OFTEN)
    eventually(lambda: statuses(db, Mail)[2] == "completed")
    db.insert(Mail, [{"id": 4, "topic": "bills"}])
    eventually(lambda: statuses(db, Mail)[4] == "completed")
    assert statuses(db, Mail) == {1: "available", 2: "completed", 3: "available", 4: "completed"}
    delete_pause(db)
    eventually(all_are(db, "completed", Mail))


@pytest.mark.parametrize("model", [Crawl, Transfer])
def test_single_keys_are_paused(db: Database, workers: Workers, model: Any) -> None:
    """Their tasks that come due become available, as those of other keys do, but do not start."""
    column, table = spec_of(model).keyed_by.key, model.__tablename__
    write_pause(db, f"{table}=a")
    db.insert(
        model, [{**row, "id": n, column: key} for n, (key, row) in enumerate(zip("aab", rows(3), strict=True), 1)]
    )
    db.insert(model, [{**rows(1, "retryable")[0], "id": 4, column: "a"}])
    workers.serve(model, without_session(db), poll=OFTEN)
    eventually(lambda: statuses(db, model)[3] == "completed")
    eventually(lambda: statuses(db, model)[4] == "available")
    db.insert(model, [{"id": 5, column: "b"}])
    eventually(lambda: statuses(db, model)[5] == "completed")
    assert {statuses(db, model)[n] for n in (1, 2, 4)} == {"available"}
    delete_pause(db)
    eventually(all_are(db, "completed", model))


@pytest.mark.one_engine
def test_one_statement_reads_the_pauses_of_all_queues(sync_db: Database, workers: Workers) -> None:
    engine = sync_db.variant(pool_size=20)
    worker = workers.make(engine=engine, poll=OFTEN)
    for model in (Task, Mail, Document, Spool):
        worker.handler(model)(without_session(sync_db))
    with seen(engine, "before_cursor_execute") as statements:
        workers.start(worker)
        began = time.monotonic()
        eventually(lambda: len(asked(statements)) > 4)
        elapsed = time.monotonic() - began
    assert len(asked(statements)) <= 2 + elapsed / (0.75 * OFTEN.total_seconds())


def asked(statements: list[Any]) -> list[str]:
    return [each[2] for each in tuple(statements) if "FROM queue_pause" in each[2]]


@pytest.mark.one_engine
def test_a_pause_in_the_same_process_is_noticed_at_once(
    db: Database, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sqlqueue.worker")
    worker = workers.serve(Task, without_session(db), poll=LONG).worker
    eventually(lambda: worker.health() is not None)
    with db.begin() as session:
        session.pause(Task)
    eventually(lambda: "paused queues: task" in caplog.text)
    db.insert(Task, rows(1))
    with db.begin() as session:
        session.resume(Task)
    eventually(all_are(db, "completed"))


@pytest.mark.one_engine
def test_waiting_handlers_are_woken(sync_db: Database, workers: Workers) -> None:
    heard: list[bool] = []
    unsubscribe = subscribe(["task"], lambda: heard.append(True))
    workers.serve(Task, without_session(sync_db), poll=OFTEN, notify=False)
    write_pause(sync_db, "task")
    eventually(lambda: len(heard) == 1)
    delete_pause(sync_db)
    eventually(lambda: len(heard) == 2)
    unsubscribe()


@pytest.mark.requires("notifies")
def test_a_pause_in_another_process_is_noticed_at_once(
    sync_db: Database, workers: Workers, processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sqlqueue.worker")
    worker = workers.serve(Task, without_session(sync_db), poll=LONG, notify=True).worker
    eventually(lambda: worker.health() is not None)
    processes.spawn(pause_elsewhere, sync_db.url).result()
    eventually(lambda: "paused queues: task" in caplog.text)


def pause_elsewhere(_: Gate, url: URL) -> None:
    engine = create_engine(url)
    with Session(engine) as session, session.begin():
        pause(session, Task)
    engine.dispose()


# -- the table ---------------------------------------------------------------------------------------------------------


def worker_of(engine: Engine) -> Worker:
    worker = Worker(sessionmaker(engine), poll=OFTEN)
    worker.handler(Task)(lambda task: None)
    return worker


def test_a_table_that_is_missing(file: Engine) -> None:
    QueuePause.__table__.drop(file)  # type: ignore[attr-defined]
    with pytest.raises(SchemaMismatchError, match=r"no table queue_pause.*alembic revision") as refused:
        worker_of(file).run()
    assert refused.value.differences == ("there is no table queue_pause, which stores the paused queues",)


def test_a_temporarily_unreadable_table_is_tolerated(file: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with Session(file) as session, session.begin():
        pause(session, Task)
        session.add(Task(id=1))
    caplog.set_level("INFO", "sqlqueue.worker")
    running = Running(worker_of(file))
    eventually(lambda: "paused queues: task" in caplog.text)
    with file.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE queue_pause RENAME TO elsewhere")
    eventually(lambda: "cannot read the pauses" in caplog.text)
    with Session(file) as session:
        assert session.get_one(Task, 1).status == "available"
    with file.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO queue_pause")
        connection.execute(delete(QueuePause))
    eventually(lambda: status_of(file, 1) == "completed")
    running.stop()


def status_of(engine: Engine, key: int) -> str:
    with Session(engine) as session:
        return session.get_one(Task, key).status
