"""Connections that fall silent without being closed, while new ones work, as behind a firewall that was restarted."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from contextvars import copy_context
from datetime import datetime, timedelta
from functools import partial
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, func, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker
from typer.testing import CliRunner

from sqlqueue import QueueSession, Worker
from sqlqueue._support.sockets import Socket, keep_alive
from sqlqueue.cli import application
from sqlqueue.cli._database import connect
from sqlqueue.dialects import adapter_for
from sqlqueue.worker.database import deadlines
from sqlqueue.worker.database.checkouts import UNREACHABLE, track
from tests.drivers.listeners import listener, stay_silent
from tests.outages.blackhole import BlackHole, through
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.rows import count, rows
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

LEASE = timedelta(seconds=15)
"""Deadlines are a third of it."""
PATIENCE = 90.0
"""Seconds; a handler that was interrupted by the silence is called again after its backoff."""


@pytest.fixture
def hole(db: Database) -> Iterator[BlackHole]:
    made = BlackHole(db.url)
    track(db.engine, LEASE)  # as if another worker used it, whose idle connections have to stay open
    yield made
    made.close()


@contextmanager
def at_work(db: Database, hole: BlackHole, *handlers: Any, prepare: Any = None, **options: Any) -> Iterator[Worker]:
    """A worker that reaches its database through ``hole``.  Handlers are functions with their options.

    ``prepare`` is called with each new connection.
    """
    options |= {"engine": db.engine, "is_async": db.is_async}
    engine = Database(db.case, through(hole, db.url), db._loop, **options)
    if prepare is not None:
        event.listen(engine.session_engine, "connect", prepare)
    worker = Worker(engine.sessions(), poll=timedelta(seconds=0.5))
    for name, function, how in handlers:
        worker.handler(Task, Task.name == name, lease=LEASE, concurrency=2, **how)(function)
    running = Running(worker)
    try:
        yield worker
        assert not running.ended
    finally:
        running.stop(at_once=True)
        hole.close()  # whoever the server still waits for holds locks
        engine.dispose()


def tasks(*names: str) -> list[dict[str, Any]]:
    return [row for name in names for row in rows(1, name=name, max_attempts=9)]


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
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_a_handler_is_called_again_if_its_commit_fails(db: Database, hole: BlackHole, mode: Any) -> None:
    blocking, held = BlockingHandler(), BlockingHandler()
    busy, waiting = in_the_middle(db, flush, blocking), without_session(db, held)
    with at_work(db, hole, ("busy", busy, {"mode": mode}), ("held", waiting, {})) as worker:
        db.insert(Task, tasks("busy", "held"))
        blocking.wait_for()
        held.wait_for()
        assert hole.swallow()
        before = lease_end(db)
        blocking.release()
        eventually(lambda: worker.reports.counts["snoozed" if mode == "lease" else "database_errors"], within=PATIENCE)
        hole.bury()
        eventually(lambda: "completed" in statuses(db).values(), within=PATIENCE)
        assert count(db, Ledger) == 1
        eventually(lambda: lease_end(db) > before + LEASE)
        assert worker.reports.counts["lost"] == 0  # so a heartbeat that got no answer was repeated in time
        held.release()
        eventually(all_are(db, "completed"), within=PATIENCE)


@pytest.mark.requires("container")
def test_a_handler_that_waits_for_the_database_ends_once_its_task_is_lost(db: Database, hole: BlackHole) -> None:
    blocking = BlockingHandler()
    with at_work(db, hole, ("any", in_the_middle(db, ask, blocking, ask), {})) as worker:
        db.insert(Task, tasks("any"))
        blocking.wait_for()
        assert hole.swallow()
        blocking.release()
        with db.engine.begin() as other:
            other.execute(update(Task).values(status="cancelled"))
        eventually(lambda: worker.reports.counts["lost"] == 1, within=PATIENCE)


@pytest.mark.requires("container")
def test_a_worker_is_not_ready_while_nothing_answers(db: Database, hole: BlackHole) -> None:
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
    monkeypatch.setattr("sqlqueue.worker.process.run.SHORTEST_MAINTENANCE", timedelta(seconds=3))
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


@pytest.fixture
def greedy(sync_db: Database) -> Iterator[BlackHole]:
    made = BlackHole(sync_db.url)
    made.is_greedy = True
    yield made
    made.close()


@pytest.mark.requires("container")
def test_a_connection_that_is_never_made_does_not_keep_its_place(sync_db: Database, greedy: BlackHole) -> None:
    engine = create_engine(through(greedy, sync_db.url), pool_size=1, max_overflow=0)
    track(engine, timedelta(seconds=2))
    with ThreadPoolExecutor() as pool:
        attempt = pool.submit(engine.connect)
        try:
            assert wait([attempt], timeout=60).done
        finally:
            greedy.close()
        assert adapter_for(engine.dialect).errors.is_outage(attempt.exception())  # type: ignore[arg-type]
    engine.dispose()


@pytest.mark.requires("container")
@pytest.mark.parametrize("driver", ["sync_driver", "async_driver"])
def test_a_command_gives_up_a_connection_that_is_never_made(
    sync_db: Database, greedy: BlackHole, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    for module in ("worker.database.checkouts", "cli._database"):
        monkeypatch.setattr(f"sqlqueue.{module}.CONNECT", timedelta(seconds=2))
    url = through(greedy, sync_db.url).set(drivername=getattr(sync_db.case, driver))
    command = ["check", "--url", url.render_as_string(hide_password=False), "tests.support.check_models:Base"]
    told = CliRunner().invoke(application(), command)
    assert (told.exit_code, "cannot connect" in told.stderr) == (2, True), told.output


@pytest.mark.requires("container")
def test_a_proof_gives_up_a_connection_that_is_never_made(
    sync_db: Database, greedy: BlackHole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.worker.database.checkouts.CONNECT", timedelta(seconds=2))
    url = through(greedy, sync_db.url).render_as_string(hide_password=False)
    told = CliRunner().invoke(application(), ["prove", "--url", url])
    assert (told.exit_code, "cannot connect" in told.stderr) == (2, True), told.output


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this platform has no such option")
@pytest.mark.requires("container")
def test_a_command_has_limits_against_silence(sync_db: Database) -> None:
    def told(connection: Connection) -> int:
        descriptor = adapter_for(connection.dialect).network.descriptor(connection.connection.driver_connection)
        assert descriptor is not None
        with socket.socket(fileno=socket.dup(descriptor)) as copy:
            return copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    hole = BlackHole(sync_db.url)  # whose connections are TCP, whatever those of the server are
    try:
        for driver in (sync_db.case.sync_driver, sync_db.case.async_driver):
            url = through(hole, sync_db.url).set(drivername=driver).render_as_string(hide_password=False)
            assert 0 < connect(url, told) <= UNREACHABLE.total_seconds() * 1000
    finally:
        hole.close()


@pytest.mark.requires("container")
def test_statements_may_take_longer_than_connecting(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some drivers have one limit for both."""
    monkeypatch.setattr("sqlqueue.worker.database.checkouts.CONNECT", timedelta(seconds=1))
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


def test_a_worker_is_not_alive_once_all_its_threads_are_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can end PyMySQL's wait for the greeting of a server, if the application itself opens connections."""
    pymysql = pytest.importorskip("pymysql")
    for name in ("database.deadlines.SHORTEST", "process.run.SHORTEST_MAINTENANCE", "process.run.SLOWEST_CATALOG"):
        monkeypatch.setattr(f"sqlqueue.worker.{name}", timedelta(seconds=0.2))
    monkeypatch.setattr(deadlines, "GRACE", 0.2)
    with listener(stay_silent(PATIENCE)) as port:
        connect = partial(pymysql.connect, host="127.0.0.1", port=port)
        engine = create_engine("mysql+pymysql://", creator=connect, pool_size=50)
        worker = Worker(sessionmaker(engine, class_=QueueSession))
        worker.handler(Task, lease=timedelta(seconds=0.2))(lambda session, task: None)
        running = Running(worker)
        try:
            eventually(lambda: (health := worker.health()) and not health.alive, within=PATIENCE)
        finally:
            running.stop(at_once=True)


@pytest.mark.requires("container")
def test_a_worker_starts_although_the_catalog_is_slow(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.worker.process.run.SHORTEST_MAINTENANCE", timedelta(seconds=0.5))
    engine = sync_db.variant(pool_size=20)
    event.listen(engine.session_engine, "before_cursor_execute", lambda *_: time.sleep(0.2))
    worker = Worker(engine.sessions(), notify=False)
    worker.handler(Task)(without_session(sync_db))
    sync_db.insert(Task, tasks("any"))
    running = Running(worker)
    try:
        eventually(all_are(sync_db, "completed"), within=PATIENCE)
    finally:
        running.stop(at_once=True)


@pytest.mark.requires("container")
def test_the_socket_of_each_driver_is_known(db: Database, hole: BlackHole) -> None:
    """Some drivers have no public name for it, and may come to call it otherwise."""
    engine = Database(db.case, through(hole, db.url), db._loop, engine=db.engine, is_async=db.is_async)
    with engine.session() as actor:
        descriptor = actor.run(descriptor_of)
        with socket.socket(fileno=socket.dup(descriptor)) as copy:
            assert copy.getpeername()[1] == hole.port
        Socket(descriptor).shut_down()
        with pytest.raises(DBAPIError) as caught:
            actor.execute(text("SELECT 1"))
        assert adapter_for(engine.session_engine.dialect).errors.is_outage(caught.value)
    engine.dispose()


def test_a_closed_socket_is_not_shut_down() -> None:
    """Its number may be another one's by now."""
    one, other = socket.socketpair()
    with other:
        sock = Socket(descriptor := one.fileno())
        one.close()
        first, second = socket.socketpair()
        with first, second:
            assert descriptor in (first.fileno(), second.fileno())
            assert not sock.shut_down()
            first.sendall(b"x")
            assert second.recv(1) == b"x"


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this platform has no such options")
def test_keepalive_times_are_set_on_the_socket() -> None:
    def options() -> tuple[int, ...]:
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        return tuple(client.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names)

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)  # shorter, which stays
        keep_alive(client.fileno(), timedelta(seconds=18))
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert options() == (4, 3, 3, 18_000)


def flush(session: Any, task: Any) -> None:
    session.add(Ledger(task_id=task.id))
    session.flush()


def ask(session: Any, task: Any) -> None:
    session.scalar(select(func.count()).select_from(Ledger))


def in_the_middle(db: Database, before: Any, blocking: BlockingHandler, after: Any = nothing) -> Any:
    """A handler who waits between two parts of its transaction."""

    def function(session: Any, task: Any) -> None:
        before(session, task)
        blocking(task)
        after(session, task)

    async def coroutine(session: Any, task: Any) -> None:
        await session.run_sync(before, task)
        await asyncio.get_running_loop().run_in_executor(None, copy_context().run, blocking, task)
        await session.run_sync(after, task)

    return coroutine if db.is_async else function


def well(worker: Worker) -> bool:
    health = worker.health()
    return health is not None and health.ready


def lease_end(db: Database) -> datetime:
    with db.engine.connect() as connection:
        return connection.execute(select(func.max(Task.available_at)).where(Task.name == "held")).scalar_one()


def descriptor_of(session: Any) -> int:
    connection = session.connection()
    driver = connection.connection.driver_connection
    found = adapter_for(connection.dialect).network.descriptor(driver)
    assert found is not None
    return found
