"""Notifications from other processes, with each driver of engines that have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import event, insert

from sqlqueue import Worker, check
from sqlqueue.dialects import adapter_for
from sqlqueue.worker import fetcher as poller
from tests.drivers.any_driver import engine_with, on_a_loop, on_other_drivers
from tests.support.harness import Database
from tests.support.models import Task
from tests.support.workers import AT_ONCE, LONG, Running, all_are, eventually


@pytest.fixture
def worker(sync_db: Database, driver: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker with this driver that finds tasks only if it is notified."""
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())
    made = Worker(sync_db.variant(url=sync_db.url.set(drivername=driver)).sessions(), poll=LONG)
    made.handler(Task)(lambda task: None)
    with Running(made):
        yield made


def enqueue(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.execute(insert(Task).values(name="it"))
        adapter_for(connection.dialect).connections.notify(connection, "task")


def listeners(database: Database) -> list[int]:
    with database.engine.connect() as connection:
        found = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %%'"
        return list(connection.exec_driver_sql(found).scalars())


@on_other_drivers
@pytest.mark.requires("notifies")
def test_a_commit_in_another_process_wakes(
    sync_db: Database, driver: str, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    can = adapter_for(sync_db.engine.dialect).connections.listeners
    if driver.partition("+")[2] not in can:
        eventually(lambda: "cannot listen for notifications" in caplog.text)
        return
    for _ in range(2):
        eventually(lambda: len(listeners(sync_db)) == 1)
        enqueue(sync_db)
        eventually(all_are(sync_db, "completed"), within=AT_ONCE)
        (process,) = listeners(sync_db)
        with sync_db.engine.begin() as connection:  # it listens again on a new connection
            connection.exec_driver_sql(str(sync_db.case.kill_sql).format(connection=process))
        eventually(lambda process=process: process not in listeners(sync_db))


@on_other_drivers
@pytest.mark.requires("notifies")
def test_a_check_names_a_driver_that_cannot_listen(sync_db: Database, driver: str) -> None:
    def codes() -> set[str]:
        with engine.connect() as connection:
            return {finding.code for finding in check(connection, Task)}

    with engine_with(driver, sync_db) as engine:
        can = driver.partition("+")[2] in adapter_for(engine.dialect).connections.listeners
        assert ("no-notifications" in on_a_loop(codes)()) == (not can)


@pytest.mark.requires("notifies")
def test_a_two_phase_transaction_does_not_notify(sync_db: Database) -> None:
    """PostgreSQL could not prepare it."""
    sent: list[str] = []
    variant = sync_db.variant()
    event.listen(variant.session_engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    with variant.session(twophase=True) as actor:
        actor.enqueue(Task, [{"name": "it"}])
        actor.add(Task())
        actor.flush()
    assert any("INSERT" in statement for statement in sent)
    assert not any("pg_notify" in statement for statement in sent)
