"""A server that does not respond to new connections: no driver's error for that counts as an attempt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from sqlalchemy import NullPool, literal, select

from sqlqueue import Worker
from tests.drivers.any_driver import on_network_drivers
from tests.outages.blackhole import BlackHole, through
from tests.support.harness import Database
from tests.support.models import Task
from tests.support.rows import rows
from tests.support.workers import Running, eventually, with_session

# pg8000 leaves sockets to the garbage collector if it cannot connect
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
TASKS = 4
CONNECT = timedelta(seconds=1)
SILENCE = 4.0


@pytest.fixture
def hole(sync_db: Database) -> Iterator[BlackHole]:
    with closing(BlackHole(sync_db.url)) as made:
        yield made


@on_network_drivers
def test_a_silent_server_is_an_outage(
    sync_db: Database, driver: str, hole: BlackHole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.worker.deadlines.CONNECT", CONNECT)
    url = through(hole, sync_db.url).set(drivername=driver)
    database = sync_db.variant(url=url, poolclass=NullPool)
    started, silent = list[int](), Event()

    def wait(task: Any) -> None:
        started.append(task.id)
        silent.wait(60)

    def ask(session: Any, task: Any) -> None:
        session.scalar(select(literal(1)))

    worker = Worker(database.sessions(), poll=timedelta(seconds=0.5), notify=False)
    worker.handler(Task, concurrency=TASKS)(with_session(database, ask, during=wait))
    sync_db.insert(Task, rows(TASKS, max_attempts=9))
    counts = worker._reports.counts
    with Running(worker) as running:
        eventually(lambda: len(started) == TASKS)
        hole.is_greedy = True
        silent.set()
        time.sleep(SILENCE)  # some drivers give up meanwhile
        hole.close()  # others wait until the connection ends
        eventually(lambda: counts["snoozed"] + counts["failed"] + counts["discarded"] == TASKS)
        assert counts["snoozed"] == TASKS
        assert not running.ended
