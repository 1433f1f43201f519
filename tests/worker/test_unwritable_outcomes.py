"""An outcome that the database does not accept is replaced by a failure that it accepts, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, Connection, Identity, String, event
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import ConstantBackoff, Discard, QueueMixin, QueueOptions, Retry, claim_of
from sqlqueue._support.errors import WorkerTokens
from sqlqueue._support.texts import host_name
from sqlqueue.operations.upkeep import Crash
from sqlqueue.worker.jobs import RETURNS
from sqlqueue.worker.run import Supervision
from tests.support import tables
from tests.support.harness import Database
from tests.support.models import Task
from tests.support.rows import PAST, TOMORROW, count
from tests.support.workers import Workers, by_id, eventually, nothing, raising, statuses, with_session, without_session

pytestmark = pytest.mark.asyncio_everywhere

EURO = "costs 5 \N{EURO SIGN}"


class Base(DeclarativeBase):
    pass


class Delivery(QueueMixin, Base):
    __tablename__ = "picky_delivery"
    __table_args__ = (
        CheckConstraint("name <> 'refused' OR status <> 'completed'"),
        CheckConstraint("error NOT LIKE '%\N{EURO SIGN}%'"),
        CheckConstraint("name <> 'innocent' OR crashes < 2"),
        CheckConstraint("name <> 'unsuspected' OR crashes = 0"),
        {"mysql_charset": "latin1", "mariadb_charset": "latin1"},
    )
    __queue__ = QueueOptions(max_attempts=1, retry=ConstantBackoff(timedelta(0)))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(20))


class Effect(Base):
    __tablename__ = "picky_effect"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(20))


@pytest.fixture
def queue(db: Database) -> Iterator[Database]:
    for _ in tables.kept(db, Base.metadata):
        yield db
        db.end_test()


@pytest.fixture
def changeable_queue(db: Database) -> Iterator[Database]:
    for _ in tables.changeable(db, Base.metadata):
        yield db
        db.end_test()


def fill(db: Database, *names: str) -> None:
    db.insert(Delivery, [{"id": number, "name": name} for number, name in enumerate(names, 1)])


RAISED = {"euro": ValueError(EURO), "retry": Retry(reason=EURO), "discard": Discard(EURO)}
"""What a task of this name raises."""


def act(task: Any) -> None:
    if task.name == "silent":
        raise Silent
    if task.name in RAISED:
        raise RAISED[task.name]


def handler(db: Database, kind: str) -> Any:
    if kind == "no session":
        return without_session(db, act)
    return with_session(db, write if kind == "writes" else nothing, during=act)


def write(session: Any, task: Any) -> None:
    session.add(Effect(name=task.name))


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("lease", "no session"),
        ("lease", "session"),
        ("lease", "writes"),
        ("lock", "session"),
        ("lock", "writes"),
    ],
)
def test_it_is_replaced_by_a_plain_failure(queue: Database, workers: Workers, mode: Any, kind: str) -> None:
    names = ["fine", "refused", "fine", *RAISED, "fine"]
    fill(queue, *names)
    workers.serve(Delivery, handler(queue, kind), mode=mode, concurrency=1)
    expected = {number: "completed" if name == "fine" else "discarded" for number, name in enumerate(names, 1)}
    eventually(lambda: statuses(queue, Delivery) == expected)
    found = by_id(queue, Delivery.error)
    assert {found[n] for n in (1, 3, 7)} == {None}
    assert "Error" in (found[2] or "")
    assert [found[n] for n in (4, 5, 6)] == [f"ValueError: {ESCAPED}", ESCAPED, ESCAPED]
    written = list(by_id(queue, Effect.name).values())
    assert written == (["fine"] * 3 if kind == "writes" else [])


ESCAPED = "costs 5 \\u20ac"
TOO_LONG = EURO * 500
"""Once it is escaped."""
GRIN = "worker \N{GRINNING FACE}"


@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_an_error_at_the_commit_belongs_to_its_task(queue: Database, workers: Workers, mode: Any) -> None:
    fill(queue, "fine", "fine", "late", "fine")
    calls: list[int] = []

    def write_late(session: Any, task: Any) -> None:
        calls.append(task.id)
        if task.name == "late":
            write(session, task)
            session.flush()
            session.connection().info["is late"] = True

    engine = queue.variant(pool_size=20)
    event.listen(engine.session_engine, "commit", reject_late)
    workers.serve(Delivery, with_session(queue, write_late), engine=engine, mode=mode, concurrency=1)
    ended = {1: "completed", 2: "completed", 3: "discarded", 4: "completed"}
    eventually(lambda: statuses(queue, Delivery) == ended)
    assert by_id(queue, Delivery.error) == {1: None, 2: None, 3: "ValueError: rejected at the commit", 4: None}
    assert sorted(calls) == [1, 2, 3, 4]
    assert count(queue, Effect) == 0


def reject_late(connection: Connection) -> None:
    """Reject a commit as SQLite does: the transaction stays open."""
    if connection.info.pop("is late", False):
        raise ValueError("rejected at the commit")


@pytest.mark.requires("narrow_options")
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_a_connection_whose_character_set_lacks_the_error(db: Database, workers: Workers, mode: Any) -> None:
    db.insert(Task, [{"id": 1, "max_attempts": 1}])
    engine = db.variant(pool_size=20, connect_args=db.case.narrow_options)
    workers.serve(Task, raising(db, ValueError(EURO)), engine=engine, mode=mode)
    eventually(lambda: statuses(db) == {1: "discarded"})
    assert count(db, Task, Task.error == f"ValueError: {ESCAPED}") == 1


def raise_in_a_block(session: Any) -> None:
    with session.claiming(Delivery):
        raise ValueError(EURO)


METHODS = {
    "fail": lambda session: session.fail(session.claim(Delivery), ValueError(EURO)),
    "fail several": lambda session: session.fail(iter(session.claim_many(Delivery, limit=9)), f"ValueError: {EURO}"),
    "discard": lambda session: session.discard(session.claim(Delivery, lease=None), ValueError(EURO)),
    "claiming": raise_in_a_block,
}


@pytest.mark.every_engine
@pytest.mark.parametrize("method", METHODS)
def test_an_error_that_an_application_records_itself(queue: Database, method: str) -> None:
    """Nothing else that its transaction has written is lost."""
    fill(queue, "fine")
    with queue.begin() as session:
        session.add(Effect(name="before"))
        METHODS[method](session)
        session.add(Effect(name="after"))
    assert statuses(queue, Delivery) == {1: "discarded"}
    assert by_id(queue, Delivery.error) == {1: f"ValueError: {ESCAPED}"}
    assert count(queue, Effect) == 2


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("method", "error"), [("fail", "costs 5 \N{POUND SIGN}"), ("fail", EURO), ("discard", "costs 5"), ("discard", EURO)]
)
def test_an_error_is_rolled_back_with_the_transaction(queue: Database, method: str, error: str) -> None:
    fill(queue, "fine")
    with queue.begin() as session:
        claim = claim_of(session.claim(Delivery))
    with suppress(InterruptedError), queue.begin() as session:
        getattr(session, method)(claim, error)
        raise InterruptedError
    assert statuses(queue, Delivery) == {1: "running"}


@pytest.mark.requires("narrow_options")
def test_an_error_that_the_character_set_of_a_session_lacks(db: Database) -> None:
    db.insert(Task, [{"id": 1, "max_attempts": 1}])
    with db.variant(connect_args=db.case.narrow_options).begin() as session:
        session.fail(session.claim(Task), ValueError(EURO))
    assert count(db, Task, Task.status == "discarded", Task.error == f"ValueError: {ESCAPED}") == 1


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("mode", "message"), [("lease", EURO), ("lease", TOO_LONG), ("lock", TOO_LONG)], ids=lambda value: value[:9]
)
def test_an_outage_that_does_not_count_does_not_count_then_either(
    queue: Database, workers: Workers, message: str, mode: Any
) -> None:
    """It is returned as often as if the error could be stored, and no more often."""
    fill(queue, "fine")
    calls: list[int] = []

    def miss(task: Any) -> None:
        calls.append(task.id)
        raise PoolTimeoutError(message)

    # in mode="lock", others can lock the task before its outcome is written in a transaction of its own: another loop,
    # if there were one, or the worker's promotion of tasks that came due
    worker = workers.serve(Delivery, with_session(queue, nothing, during=miss), mode=mode, concurrency=1).worker
    eventually(lambda: statuses(queue, Delivery) == {1: "discarded"})
    lost = worker._reports.counts["lost"]
    assert len(calls) == RETURNS + 1 + lost
    assert mode == "lock" or not lost
    assert (by_id(queue, Delivery.error)[1] or "").isascii()


def test_a_name_of_any_characters(queue: Database, workers: Workers) -> None:
    fill(queue, "fine")
    workers.serve(Delivery, without_session(queue), name=GRIN)
    eventually(lambda: count(queue, Delivery, Delivery.status == "completed", Delivery.claimed_by == GRIN) == 1)


@pytest.mark.parametrize("mode", ["lease", "lock", "at-most-once"])
@pytest.mark.parametrize(
    "lacking",
    [
        pytest.param("connection", marks=pytest.mark.requires("narrow_options")),
        pytest.param("column", marks=pytest.mark.requires("narrow_column")),
    ],
)
def test_a_name_is_written_in_ascii_where_a_character_set_lacks_it(
    changeable_queue: Database, workers: Workers, mode: Any, lacking: str
) -> None:
    queue = changeable_queue
    if lacking == "column":
        with queue.engine.begin() as connection:
            connection.exec_driver_sql(queue.case.narrow_column.format(table="picky_delivery"))
    fill(queue, "fine")
    options = {"connect_args": queue.case.narrow_options} if lacking == "connection" else {}
    handler = with_session(queue, nothing) if mode == "lock" else without_session(queue)
    engine = queue.variant(pool_size=20, **options)
    workers.serve(Delivery, handler, engine=engine, name=EURO, mode=mode)
    eventually(lambda: count(queue, Delivery, Delivery.status == "completed", Delivery.claimed_by == ESCAPED) == 1)


@pytest.mark.one_engine
@pytest.mark.parametrize("host", ["caf\N{LATIN SMALL LETTER E WITH ACUTE}-\N{EURO SIGN}", "\udce9" * 64])
def test_a_host_whose_name_cannot_be_stored_anywhere(db: Database, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    db.insert(Task, [{}])
    monkeypatch.setattr("socket.gethostname", lambda: host)
    host_name.cache_clear()
    with db.begin() as session:
        name = session.claim(Task).claimed_by
    host_name.cache_clear()
    assert name.isascii()
    assert name.startswith(host.encode("ascii", "backslashreplace").decode()[:150])


class Silent(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.one_engine
@pytest.mark.parametrize("kind", ["no session", "session"])
def test_an_error_that_cannot_be_described_is_recorded(queue: Database, workers: Workers, kind: str) -> None:
    fill(queue, "fine", "silent", "fine")
    workers.serve(Delivery, handler(queue, kind), concurrency=1)
    eventually(lambda: statuses(queue, Delivery) == {1: "completed", 2: "discarded", 3: "completed"})
    assert by_id(queue, Delivery.error)[2] == "Silent; determining the outcome raised KeyboardInterrupt"


@pytest.mark.every_engine
def test_a_suspect_that_cannot_be_suspected_is_given_up(queue: Database, workers: Workers) -> None:
    """Its crash is counted before it runs, which the database does not accept.  The worker continues."""
    queue.insert(Delivery, [{"id": 1, "name": "innocent", "crashes": 1}])
    running = workers.serve(Delivery, without_session(queue))
    eventually(lambda: running.worker._reports.counts["lost"] == 1 or running.ended)
    queue.insert(Delivery, [{"id": 2, "name": "fine"}])
    eventually(lambda: statuses(queue, Delivery)[2] == "completed" or running.ended)
    assert statuses(queue, Delivery) == {1: "running", 2: "completed"}


@pytest.mark.every_engine
def test_tasks_of_a_dead_process_that_cannot_be_suspected_keep_no_worker_from_starting(
    queue: Database, workers: Workers
) -> None:
    """They are left until their leases end."""
    tokens = WorkerTokens()
    held = {"status": "running", "claim_token": tokens(), "attempt": 1, "claimed_at": PAST, "available_at": TOMORROW}
    queue.insert(Delivery, [{"id": 1, "name": "unsuspected", **held}])
    queue.insert(Delivery, [{"id": 2, "name": "fine"}])
    worker = workers.make()
    worker.handler(Delivery)(without_session(queue))
    worker._supervision = Supervision(crashes=(Crash(tokens.worker, "was killed by SIGKILL", (), complete=False),))
    running = workers.start(worker)
    eventually(lambda: statuses(queue, Delivery)[2] == "completed" or running.ended)
    assert statuses(queue, Delivery) == {1: "running", 2: "completed"}
