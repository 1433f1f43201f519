"""Workers whose connections go silent without being closed, while new ones work, as behind a restarted firewall."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from threading import Event
from typing import Any

import pytest
from sqlalchemy import create_engine, event, func, select, update
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Worker
from sqlqueue.worker import deadlines
from sqlqueue.worker.database import LONGEST
from tests.drivers.listeners import listener, stay_silent
from tests.outages.blackhole import BlackHole, through
from tests.outages.silence import LEASE, PATIENCE, tasks
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.rows import count
from tests.support.workers import (
    BlockingHandler,
    Running,
    all_are,
    eventually,
    nothing,
    statuses,
    with_session,
    without_session,
)

pytestmark = pytest.mark.asyncio_everywhere


@contextmanager
def at_work(db: Database, hole: BlackHole, *handlers: Any, prepare: Any = None, **options: Any) -> Iterator[Worker]:
    """Run a worker that reaches its database through ``hole``. Handlers are functions with their options. ``prepare``
    is called with each new connection.
    """
    engine = db.variant(url=through(hole, db.url), **options)
    if prepare is not None:
        event.listen(engine.session_engine, "connect", prepare)
    worker = Worker(engine.sessions(), poll=timedelta(seconds=0.5))
    for name, function, how in handlers:
        worker.handler(Task, Task.name == name, **{"lease": LEASE, "concurrency": 2, **how})(function)
    with closing(hole), Running(worker) as running:  # sessions for which the server is still waiting hold locks
        yield worker
        assert not running.ended


@pytest.mark.requires("container")
@pytest.mark.parametrize("pre_ping", [False, True])
def test_idle_connections_are_replaced(db: Database, hole: BlackHole, pre_ping: bool) -> None:
    with at_work(db, hole, ("any", with_session(db), {}), pool_pre_ping=pre_ping) as worker:
        db.insert(Task, tasks("any"))
        eventually(all_are(db, "completed"))
        assert hole.swallow()
        db.insert(Task, tasks("any", "any"))
        eventually(all_are(db, "completed"), within=PATIENCE)
        assert count(db, Ledger) == 3
        eventually(lambda: well(worker))


@pytest.mark.requires("container")
def test_silent_connections_are_closed(db: Database, hole: BlackHole) -> None:
    """A connection that is replaced but stays open occupies a place at the server."""
    with at_work(db, hole, ("any", with_session(db), {})) as worker:
        db.insert(Task, tasks("any"))
        eventually(all_are(db, "completed"))
        eventually(lambda: well(worker))
        assert hole.swallow()
        eventually(lambda: hole.waiting or hole.left)  # one that was waiting for a response then is not used any more
        db.insert(Task, tasks("any"))
        eventually(all_are(db, "completed"), within=PATIENCE)
        eventually(lambda: not hole.waiting)


@pytest.mark.sync_only
@pytest.mark.requires("container")
def test_one_silence_is_enough_to_replace_all_connections(db: Database, hole: BlackHole) -> None:
    """Even if only the ROLLBACK of a connection that is returned has no response, which SQLAlchemy merely logs."""
    engine, silences = create_engine(through(hole, db.url), pool_size=3), 0
    deadlines.track(engine, LEASE)
    with closing(hole), ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(engine.connect())
        opened.close()
        for _ in range(4):
            deadline = deadlines.Deadline(timedelta(seconds=1), [engine], is_async=False)
            with suppress(deadlines.NoResponse), deadline, engine.connect() as connection:
                connection.scalar(select(1))
                connection.commit()
                hole.swallow() if not silences else None
            silences += deadline.is_silent
    assert silences == 1
    engine.dispose()


@pytest.mark.requires("container")
def test_handlers_get_no_silent_connections(db: Database, hole: BlackHole) -> None:
    """Their own statements have no deadline."""
    together = BlockingHandler()
    handlers = (
        ("first", with_session(db, nothing, before=flush, during=together), {}),
        ("then", with_session(db, flush), {}),
    )
    with at_work(db, hole, *handlers):
        db.insert(Task, tasks("first", "first"))
        eventually(lambda: len(together.started) == 2)
        db.insert(Task, tasks("then"))  # the worker claims it through a third connection
        eventually(lambda: "completed" in statuses(db).values())
        together.release()  # each has used a connection, and leaves it idle
        eventually(all_are(db, "completed"))
        assert hole.swallow() > 2
        db.insert(Task, tasks("then", "then"))
        eventually(all_are(db, "completed"), within=PATIENCE)


@pytest.mark.requires("container")
def test_claims_go_on_within_30_seconds_at_a_lease_of_a_minute(
    db: Database, hole: BlackHole, caplog: pytest.LogCaptureFixture
) -> None:
    lease = timedelta(minutes=1)
    assert deadlines.transaction_limit(lease) + timedelta(seconds=LONGEST) < timedelta(seconds=30)
    with at_work(db, hole, ("any", with_session(db), {"lease": lease})):
        db.insert(Task, tasks("any"))
        eventually(all_are(db, "completed"))
        assert hole.swallow()
        db.insert(Task, tasks("any", "any"))
        eventually(all_are(db, "completed"), within=PATIENCE)
    assert "no response for 20 s" not in caplog.text


@pytest.mark.requires("container")
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_a_handler_is_called_again_if_its_commit_fails(db: Database, hole: BlackHole, mode: Any) -> None:
    blocking, held = BlockingHandler(), BlockingHandler()
    busy, waiting = with_session(db, nothing, before=flush, during=blocking), without_session(db, held)
    with at_work(db, hole, ("busy", busy, {"mode": mode}), ("held", waiting, {})) as worker:
        db.insert(Task, tasks("busy", "held"))
        blocking.wait_for()
        held.wait_for()
        assert hole.swallow()
        before = lease_end(db)
        blocking.release()
        # With mode="lock", the server still has the task locked for the silent transaction, so that another one cannot
        # record what has happened.
        eventually(lambda: worker._reports.counts["snoozed" if mode == "lease" else "lost"], within=PATIENCE)
        hole.bury()
        eventually(lambda: "completed" in statuses(db).values(), within=PATIENCE)
        assert count(db, Ledger) == 1
        eventually(lambda: lease_end(db) > before + LEASE)
        # a heartbeat without a response was repeated in time
        assert worker._reports.counts["lost"] == (mode == "lock")
        held.release()
        eventually(all_are(db, "completed"), within=PATIENCE)


@pytest.mark.requires("container")
def test_a_handler_that_waits_for_the_database_ends_once_its_task_is_lost(db: Database, hole: BlackHole) -> None:
    blocking = BlockingHandler()
    with at_work(db, hole, ("any", with_session(db, ask, before=ask, during=blocking), {})) as worker:
        db.insert(Task, tasks("any"))
        blocking.wait_for()
        assert hole.swallow()
        blocking.release()
        with db.engine.begin() as other:
            other.execute(update(Task).values(status="cancelled"))
        eventually(lambda: worker._reports.counts["lost"] == 1, within=PATIENCE)


@pytest.mark.requires("container")
def test_a_handler_that_waits_on_a_silent_connection_is_called_again(db: Database, hole: BlackHole) -> None:
    """Its statement could take any time, but another connection has fallen silent at the same time."""
    blocking = BlockingHandler()
    with at_work(
        db, hole, ("any", with_session(db, ask, before=ask, during=blocking), {}), ("other", with_session(db), {})
    ):
        db.insert(Task, tasks("any", "other"))
        blocking.wait_for()
        eventually(lambda: "completed" in statuses(db).values())
        assert hole.swallow()
        blocking.release()
        db.insert(Task, tasks("other"))
        eventually(all_are(db, "completed"), within=PATIENCE)


@pytest.mark.requires("container")
def test_a_worker_is_not_ready_while_its_database_does_not_respond(db: Database, hole: BlackHole) -> None:
    with at_work(db, hole, ("any", with_session(db), {})) as worker:
        eventually(lambda: well(worker))
        hole.is_greedy = True
        hole.swallow()
        eventually(lambda: not well(worker), within=PATIENCE)
        assert worker.health().alive  # type: ignore[union-attr]  # a new process would get no answer either
        hole.is_greedy = False
        hole.swallow()
        eventually(lambda: well(worker), within=PATIENCE)


@pytest.mark.requires("container")
def test_a_connection_falls_silent_while_it_is_prepared(
    db: Database, hole: BlackHole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.worker.run.SHORTEST_MAINTENANCE", timedelta(seconds=3))
    silenced = Event()

    def prepare(connection: Any, _: object) -> None:
        if not silenced.is_set() and hole.swallow():
            silenced.set()
        with closing(connection.cursor()) as cursor:
            cursor.execute("SELECT 1")

    with at_work(db, hole, ("any", with_session(db), {}), prepare=prepare):
        db.insert(Task, tasks("any"))
        eventually(all_are(db, "completed"), within=PATIENCE)
    assert silenced.is_set()


def test_a_worker_is_not_alive_once_all_its_threads_are_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can end PyMySQL's wait for the greeting of a server, if the application itself opens connections."""
    pymysql = pytest.importorskip("pymysql")
    preparation = ("run.SHORTEST_MAINTENANCE", "run.LONGEST_SCHEMA_CHECK")
    for name in ("deadlines.SHORTEST", *preparation):
        monkeypatch.setattr(f"sqlqueue.worker.{name}", timedelta(seconds=0.2))
    monkeypatch.setattr(deadlines, "GRACE", 0.2)
    with listener(stay_silent(PATIENCE)) as port:
        connect = partial(pymysql.connect, host="127.0.0.1", port=port)
        engine = create_engine("mysql+pymysql://", creator=connect, pool_size=50)
        worker = Worker(sessionmaker(engine, class_=QueueSession))
        worker.handler(Task, lease=timedelta(seconds=0.2))(lambda session, task: None)
        with Running(worker):
            eventually(lambda: (health := worker.health()) and not health.alive, within=PATIENCE)


def flush(session: Any, task: Any) -> None:
    session.add(Ledger(task_id=task.id))
    session.flush()


def ask(session: Any, task: Any) -> None:
    session.scalar(select(func.count()).select_from(Ledger))


def well(worker: Worker) -> bool:
    health = worker.health()
    return health is not None and health.ready


def lease_end(db: Database) -> datetime:
    with db.engine.connect() as connection:
        return connection.execute(select(func.max(Task.available_at)).where(Task.name == "held")).scalar_one()
