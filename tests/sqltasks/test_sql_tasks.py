"""SQL tasks: the statements in rows are executed as the given user within the given time, and their responses
stored."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import String, column, create_engine, insert, select, table, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from sqlqueue import Every, enqueue, limits
from sqlqueue.sqltasks import SQLTaskDatabase, SQLTaskScheduler, sql_task_models
from tests.support.engines import PASSWORD
from tests.support.harness import Database
from tests.support.rows import clock
from tests.support.workers import PATIENCE, eventually

MODELS = sql_task_models(table="request")
TASK: Any = MODELS.task
ENDLESS = (
    f"SELECT MAX({' + '.join(f'r{n}.id' for n in range(14))}) FROM {', '.join(f'request r{n}' for n in range(14))}"
)
"""A query over ten rows."""


@contextmanager
def running(*databases: SQLTaskDatabase) -> Iterator[SQLTaskScheduler]:
    scheduler = SQLTaskScheduler(databases)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            scheduler.run()
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert not errors


@pytest.fixture
def tasks(sync_db: Database) -> Iterator[Database]:
    MODELS.metadata.drop_all(sync_db.engine)
    MODELS.metadata.create_all(sync_db.engine)
    yield sync_db
    MODELS.metadata.drop_all(sync_db.engine)


def served(db: Database, **options: Any) -> SQLTaskDatabase:
    url = db.url.render_as_string(hide_password=False)
    return SQLTaskDatabase(url=url, table="request", poll=timedelta(seconds=0.1), **options)


def add(db: Database, *rows: dict[str, Any], delay: timedelta | None = None) -> None:
    with Session(db.engine) as session:
        for row in rows:
            enqueue(session, TASK, [row], delay=delay)
        session.commit()


def found(db: Database) -> list[Any]:
    with Session(db.engine) as session:
        return list(session.scalars(select(TASK).order_by(TASK.id)))


def ended(db: Database, count: int) -> Callable[[], bool]:
    return lambda: sum(task.finished_at is not None for task in found(db)) == count


def test_requests_leave_responses(tasks: Database) -> None:
    with tasks.engine.begin() as connection:  # like any program
        connection.execute(text("INSERT INTO request (request) VALUES ('SELECT 7 AS seven, ''a%b'' AS word')"))
        connection.execute(text("INSERT INTO request (request) VALUES ('SELECT * FROM there_is_none')"))
    add(tasks, {"request": "UPDATE request SET priority = 5 WHERE id = 2"})
    add(tasks, {"request": "SELECT id FROM request", "delete_when_done": True})
    add(tasks, {"request": "SELECT 1"}, delay=timedelta(seconds=0.5))
    with running(served(tasks)):
        eventually(lambda: len(found(tasks)) == 4 and ended(tasks, 4)())
    query, wrong, update, late = found(tasks)
    response = json.loads(query.response)
    assert [name for name, _ in response["columns"]] == ["seven", "word"]
    assert (response["rows"], response["row_count"], response["truncated"]) == ([[7, "a%b"]], 1, False)
    assert (wrong.status, wrong.response, wrong.attempt) == ("discarded", None, 1)
    kind, code, _ = wrong.error.split(": ", 2)
    assert kind == "RequestFailed"
    assert code not in {"", "None"}
    assert wrong.priority == 5
    assert (update.status, json.loads(update.response)) == ("completed", {"row_count": 1})
    assert late.claimed_at >= late.created_at + timedelta(seconds=0.5)


def test_the_server_ends_statements_that_take_too_long(tasks: Database) -> None:
    add(tasks, *[{"request": "SELECT 1"}] * 9, {"request": ENDLESS, "timeout": 0.5})
    with running(served(tasks)):
        eventually(ended(tasks, 10))
    *_, task = found(tasks)
    assert task.status == "discarded"
    assert timedelta(seconds=0.4) < task.finished_at - task.claimed_at < timedelta(seconds=8)


def test_no_request_takes_longer_than_the_scheduler_allows(tasks: Database) -> None:
    add(tasks, *[{"request": "SELECT 1"}] * 9, {"request": ENDLESS, "timeout": 3600})
    with running(served(tasks, timeout=timedelta(seconds=0.5))):
        eventually(ended(tasks, 10))
    assert found(tasks)[-1].status == "discarded"


def test_the_limits_of_queues_and_of_responses(tasks: Database) -> None:
    add(tasks, *[{"request": "SELECT id FROM request"}] * 8)
    for _ in range(2):
        add(tasks, {"request": ENDLESS, "timeout": 0.5, "queue": "slow", "priority": -1})
    with running(served(tasks, queues={"wide": 3}, response_limit=20)):
        eventually(ended(tasks, 10))
    first, second = sorted((task for task in found(tasks) if task.queue), key=lambda task: task.claimed_at)
    assert second.claimed_at >= first.finished_at
    for task in found(tasks)[:8]:
        response = json.loads(task.response)
        assert response["truncated"]
        assert 0 < len(response["rows"]) < 10
    with Session(tasks.engine) as session:
        assert {limit.key: limit.limit for limit in limits(session, MODELS.task)} == {"slow": 1, "wide": 3}


def test_a_recurring_request_is_repeated(tasks: Database) -> None:
    add(tasks, {"request": "SELECT 1", "repeat": str(Every(timedelta(seconds=1))), "delete_when_done": True})
    with running(served(tasks)):
        eventually(lambda: found(tasks)[0].attempt >= 2)
    (task,) = found(tasks)
    assert task.response
    assert task.status in {"scheduled", "available", "running"}


@pytest.mark.requires("account_sql")
def test_a_request_runs_as_its_user(tasks: Database) -> None:
    name = "request_reader"
    administrator = create_engine(tasks.url.set(username=tasks.case.administrator), poolclass=NullPool)
    url = tasks.url.set(username=name, password=PASSWORD).render_as_string(hide_password=False)
    with administrator.begin() as connection:
        connection.exec_driver_sql(tasks.case.account_sql.format(name=name, password=PASSWORD))
        connection.exec_driver_sql(f"GRANT SELECT ON request TO {name}")
    try:
        add(tasks, {"request": "SELECT CURRENT_USER", "run_as": "reader"}, {"request": "SELECT CURRENT_USER"})
        add(tasks, {"request": "DELETE FROM request WHERE id = 0", "run_as": "reader"})
        with running(served(tasks, users={"reader": url})):
            eventually(ended(tasks, 3))
        reader, owner, refused = found(tasks)
        assert name in reader.response
        assert name not in owner.response
        assert (refused.status, refused.response) == ("discarded", None)
    finally:
        with administrator.begin() as connection:
            connection.exec_driver_sql(f"REVOKE SELECT ON request FROM {name}")
            connection.exec_driver_sql(f"DROP USER {name}")


def test_an_unavailable_database_does_not_hold_up_others(tmp_path: Path) -> None:
    away, here = tmp_path / "later" / "away.db", tmp_path / "here.db"
    databases = [
        SQLTaskDatabase(url=f"sqlite:///{path}", create=True, poll=timedelta(seconds=0.1)) for path in (away, here)
    ]
    engine = create_engine(f"sqlite:///{here}", poolclass=NullPool)
    models = sql_task_models()
    with running(*databases):
        eventually(lambda: here.exists() and _completes(engine, models))
        away.parent.mkdir()
        eventually(lambda: away.exists() and _completes(create_engine(f"sqlite:///{away}", poolclass=NullPool), models))


def _completes(engine: Any, models: Any) -> bool:
    with Session(engine) as session:
        if not session.connection().dialect.has_table(session.connection(), "sql_task"):
            return False
        enqueue(session, models.task, [{"request": "SELECT 1"}])
        session.commit()
        waiting = text("SELECT COUNT(*) FROM sql_task WHERE response IS NULL")
        return bool(eventually(lambda: session.scalar(waiting) == 0 or session.rollback()))


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    config = tmp_path / "tasks.toml"
    config.write_text(f'[[database]]\nurl = "sqlite:///{path}"\ncreate = true\npoll = 0.1\nqueues = {{ mail = 3 }}\n')
    with subprocess.Popen(
        [sys.executable, "-c", "from sqlqueue.cli import main; main()", "sql-tasks", str(config)],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
            eventually(lambda: path.exists() and _completes(engine, sql_task_models()))
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def test_plain_inserts_start_at_their_time(tasks: Database) -> None:
    moments = table("request", column("request", String), column("available_at", TASK.__table__.c.available_at.type))
    now = clock(tasks)
    with tasks.engine.begin() as connection:
        connection.execute(insert(moments).values(request="SELECT 1", available_at=now + timedelta(hours=1)))
        connection.execute(insert(moments).values(request="SELECT 2", available_at=now + timedelta(seconds=1)))
        repeat = connection.dialect.identifier_preparer.quote("repeat")
        connection.execute(text(f"INSERT INTO request (request, {repeat}) VALUES ('SELECT 3', 'PT1H')"))
        connection.execute(text("INSERT INTO request (request) VALUES ('SELECT 4')"))
    with running(served(tasks)):
        eventually(ended(tasks, 2))
        eventually(lambda: [task.status for task in found(tasks)].count("scheduled") == 2)
    later, soon, hourly, at_once = found(tasks)
    assert (later.status, later.response, later.attempt) == ("scheduled", None, 0)
    assert (soon.status, at_once.status) == ("completed", "completed")
    assert soon.claimed_at >= now + timedelta(seconds=1)
    assert (hourly.status, hourly.response) == ("scheduled", None)
    assert hourly.available_at == hourly.created_at + timedelta(hours=1)
