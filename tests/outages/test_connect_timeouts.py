"""Connection attempts that never succeed are abandoned, but slow statements are not."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, event, update
from sqlalchemy.orm import sessionmaker
from typer.testing import CliRunner

from sqlqueue import QueueSession, Worker
from sqlqueue.cli import application
from sqlqueue.dialects import adapter_for
from sqlqueue.worker.deadlines import track
from tests.outages.blackhole import BlackHole, through
from tests.outages.silence import LEASE, PATIENCE, tasks
from tests.support.harness import Database
from tests.support.models import Task
from tests.support.workers import Running, all_are, eventually, without_session

pytestmark = pytest.mark.asyncio_everywhere


@pytest.fixture
def greedy(sync_db: Database) -> Iterator[BlackHole]:
    with closing(BlackHole(sync_db.url)) as made:
        made.is_greedy = True
        yield made


@pytest.mark.requires("container")
def test_a_connection_that_is_never_made_does_not_keep_its_place(sync_db: Database, greedy: BlackHole) -> None:
    engine = create_engine(through(greedy, sync_db.url), pool_size=1, max_overflow=0)
    track(engine, timedelta(seconds=2))
    with ThreadPoolExecutor() as pool:
        attempt = pool.submit(engine.connect)
        with closing(greedy):
            assert wait([attempt], timeout=60).done
        assert adapter_for(engine.dialect).connections.is_outage(attempt.exception())  # type: ignore[arg-type]
    engine.dispose()


@pytest.mark.requires("container")
def test_a_connection_attempt_that_a_worker_abandons_is_closed(
    sync_db: Database, greedy: BlackHole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It occupies a place at the server, and an idle worker collects its garbage rarely."""
    monkeypatch.setattr("sqlqueue.worker.deadlines.CONNECT", timedelta(seconds=2))
    engine = create_engine(through(greedy, sync_db.url))
    worker = Worker(sessionmaker(engine, class_=QueueSession), notify=False)
    worker.handler(Task)(without_session(sync_db))
    gc.disable()
    try:
        with Running(worker), closing(greedy):
            eventually(lambda: greedy.left)
    finally:
        gc.enable()


@pytest.mark.requires("container")
@pytest.mark.parametrize("driver", ["sync_driver", "async_driver"])
def test_a_command_gives_up_a_connection_that_is_never_made(
    sync_db: Database, greedy: BlackHole, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    for module in ("worker.deadlines", "cli._database"):
        monkeypatch.setattr(f"sqlqueue.{module}.CONNECT", timedelta(seconds=2))
    url = through(greedy, sync_db.url).set(drivername=getattr(sync_db.case, driver))
    command = ["check", "--url", url.render_as_string(hide_password=False), "tests.support.check_models:Base"]
    told = CliRunner().invoke(application(), command)
    assert (told.exit_code, "cannot connect" in told.stderr) == (2, True), told.output


@pytest.mark.requires("container")
def test_a_proof_gives_up_a_connection_that_is_never_made(
    sync_db: Database, greedy: BlackHole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.worker.deadlines.CONNECT", timedelta(seconds=2))
    url = through(greedy, sync_db.url).render_as_string(hide_password=False)
    told = CliRunner().invoke(application(), ["prove", "--url", url])
    assert (told.exit_code, "cannot connect" in told.stderr) == (2, True), told.output


@pytest.mark.requires("container")
def test_statements_may_take_longer_than_connecting(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some drivers have one limit for both."""
    monkeypatch.setattr("sqlqueue.worker.deadlines.CONNECT", timedelta(seconds=1))
    engine = sync_db.variant().session_engine
    track(engine, LEASE)
    sync_db.insert(Task, tasks("any"))
    with sync_db.engine.connect() as holder, ThreadPoolExecutor() as pool:
        holder.execute(update(Task).values(priority=1))
        waiting = pool.submit(_prioritize, engine)
        assert not wait([waiting], timeout=2.5).done
        holder.rollback()
        waiting.result()


def _prioritize(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(update(Task).values(priority=2))


@pytest.mark.requires("container")
def test_a_worker_starts_although_the_catalog_is_slow(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.worker.run.SHORTEST_MAINTENANCE", timedelta(seconds=0.5))
    engine = sync_db.variant(pool_size=20)
    event.listen(engine.session_engine, "before_cursor_execute", lambda *_: time.sleep(0.2))
    worker = Worker(engine.sessions(), notify=False)
    worker.handler(Task)(without_session(sync_db))
    sync_db.insert(Task, tasks("any"))
    with Running(worker):
        eventually(all_are(sync_db, "completed"), within=PATIENCE)
