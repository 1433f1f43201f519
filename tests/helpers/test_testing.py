"""The helpers for the tests of applications: tasks done in a test's own transaction, or one transaction each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, StaticPool, create_engine, select
from sqlalchemy.orm import Session, sessionmaker

from sqlqueue import ArgumentError, Cancel, Discard, HandlerNotFoundError, Retry, Snooze, Worker, current_job
from sqlqueue.testing import assert_enqueued, drain, perform
from tests.suite.test_unreadable_rows import signs
from tests.support.harness import Database
from tests.support.models import Base, Job, Ledger, Mail, Sign, Task
from tests.support.rows import TOMORROW, count
from tests.support.workers import statuses, with_session, without_session

pytestmark = pytest.mark.one_engine
DAY = timedelta(days=1)


def raising(error: Exception) -> Callable[[Any, Any], None]:
    """A handler that writes and then raises; the write is rolled back."""

    def write(session: Any, task: Any) -> None:
        session.add(Ledger(task_id=task.id))
        session.flush()
        raise error

    return write


def following(session: Any, task: Any) -> None:
    """A handler that enqueues a follow-up task."""
    session.add(Ledger(task_id=task.id))
    if task.number:
        session.add(Task(number=task.number - 1))


@pytest.mark.every_engine
def test_all_happens_in_the_transaction_of_the_test(db: Database) -> None:
    worker = Worker(db.sessions())
    worker.handler(Task)(with_session(db, following))
    with db.session() as session:
        session.add_all([Task(number=2), Task(available_at=TOMORROW)])
        assert session.pass_to(lambda session: drain(worker, session)) == {"completed": 3}
        ledger = session.scalars(select(Ledger.task_id)).all()
        assert len(set(ledger)) == 3
        session.rollback()
    assert count(db, Task) == count(db, Ledger) == 0


@pytest.mark.every_engine
def test_each_task_is_committed(db: Database) -> None:
    worker = Worker(db.sessions())
    done: list[int] = []
    worker.handler(Task, Task.number == 1)(without_session(db, lambda task: done.append(current_job().task.id)))
    worker.handler(Task, Task.number > 1)(with_session(db, raising(ValueError("no"))))
    db.insert(Task, [{"number": number} for number in (2, 1, 0, 1)])
    with db.session() as session, pytest.raises(ValueError, match="no"):
        session.pass_to(lambda _: drain(worker, db.sessions()))
    assert len(done) == count(db, Task, Task.status == "completed") == 2
    assert count(db, Task, Task.status == "retryable", Task.error == "ValueError: no") == 1
    assert (count(db, Task, Task.status == "available"), count(db, Ledger)) == (1, 0)


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("error", "ended", "status"),
    [
        (ValueError("no"), "failed", "retryable"),
        (Retry(DAY), "failed", "retryable"),
        (Snooze(DAY), "snoozed", "scheduled"),
        (Discard("no"), "discarded", "discarded"),
        (Cancel(), "cancelled", "cancelled"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_error_is_recorded_and_raised(db: Database, error: Exception, ended: str, status: str) -> None:
    worker = Worker(db.sessions())
    worker.handler(Task)(with_session(db, raising(error)))
    for raise_errors in (True, False):
        with db.session() as session:
            session.add(Task())
            if raise_errors and isinstance(error, ValueError):
                with pytest.raises(ValueError, match="no"):
                    session.pass_to(lambda session: drain(worker, session))
            else:
                counts = session.pass_to(lambda session: drain(worker, session, raise_errors=raise_errors))  # noqa: B023
                assert counts == {ended: 1}
            assert session.scalars(select(Task.status)).all() == [status]
            assert session.scalars(select(Ledger)).all() == []


def test_ahead_runs_tasks_of_the_future(db: Database) -> None:
    worker = Worker(db.sessions())
    worker.handler(Task, Task.number == 0)(without_session(db))
    worker.handler(Task, Task.number == 1)(with_session(db, raising(Snooze(10 * DAY))))
    worker.handler(Task, Task.number == 2)(with_session(db, raising(Retry(DAY))))
    with db.session() as session:
        for number, ahead in ((0, DAY), (0, 100 * DAY), (1, 10 * DAY), (2, DAY)):
            session.add(Task(number=number, available_at=TOMORROW + ahead, max_attempts=3))
        assert session.pass_to(lambda session: drain(worker, session)) == {}
        # the first task, the one that snoozes (once), and the failing one until it is discarded
        counts = session.pass_to(lambda session: drain(worker, session, ahead=12 * DAY))
        assert counts == {"completed": 1, "snoozed": 1, "failed": 2, "discarded": 1}
        left = session.execute(select(Task.number, Task.status).order_by(Task.number, Task.available_at)).all()
        assert [tuple(row) for row in left] == [
            (0, "completed"),
            (0, "scheduled"),
            (1, "scheduled"),
            (2, "discarded"),
        ]


def test_drain_stops_at_its_limit(db: Database) -> None:
    worker = Worker(db.sessions())
    worker.handler(Task)(with_session(db, raising(Snooze(timedelta(0)))))
    with db.session() as session:
        session.add(Task())
        with pytest.raises(AssertionError, match=r"more than 3 tasks, so far {'snoozed': 4}"):
            session.pass_to(lambda session: drain(worker, session, limit=3))


def test_run_one_handles_one_task(db: Database) -> None:
    worker = Worker(db.sessions())
    worker.handler(Mail, Mail.subject == "b")(with_session(db, raising(ValueError("not this one"))))
    worker.handler(Mail, Mail.subject == "a")(without_session(db))
    with db.session() as session:
        mine, later, other = Mail(subject="a"), Mail(subject="a", available_at=TOMORROW), Mail(subject="c")
        session.add_all([mine, later, other])
        assert session.pass_to(lambda session: perform(worker, session, mine)) == "completed"
        with pytest.raises(ArgumentError, match=r"Mail \(\d+,\) cannot be claimed now: it is scheduled"):
            session.pass_to(lambda session: perform(worker, session, later))
        with pytest.raises(HandlerNotFoundError, match=r"no handler for .* \(Mail\)"):
            session.pass_to(lambda session: perform(worker, session, other))
        session.add(Mail(subject="b"))
        claimed = session.claim(Mail, Mail.subject == "b")
        assert session.pass_to(lambda session: perform(worker, session, claimed, raise_errors=False)) == "failed"


def test_only_the_given_models_are_drained(sync_db: Database) -> None:
    worker = Worker(sync_db.sessions())
    worker.handler(Task)(without_session(sync_db))
    worker.handler(Mail)(without_session(sync_db))
    sync_db.insert(Task, [{}])
    sync_db.insert(Mail, [{}])
    assert drain(worker, None, Mail) == {"completed": 1}
    assert (count(sync_db, Task, Task.status == "available"), count(sync_db, Mail, Mail.status == "completed")) == (
        1,
        1,
    )


@pytest.fixture
def engine() -> Any:
    """An in-memory database, which a running worker would reject."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_an_in_memory_database_is_enough(engine: Engine) -> None:
    Session = sessionmaker(engine)  # sessions of any class
    worker, seen = Worker(Session), list[int]()

    @worker.handler(Task, mode="lock")
    def locked(session: Session, task: Task) -> None:
        seen.append(task.number)

    @worker.handler(Job, mode="at-most-once")
    def once(job: Job) -> None:
        raise ValueError("it is completed already")

    with Session.begin() as session:
        session.add_all([Task(number=7), Job(task="once")])
    with pytest.raises(ValueError, match="it is completed already"):
        drain(worker)
    assert drain(worker) == {}
    with Session() as session:
        assert session.scalars(select(Job.status)).all() == session.scalars(select(Task.status)).all() == ["completed"]
    assert seen == [7]


def test_a_coroutine_without_a_session_in_a_sync_test(engine: Engine) -> None:
    worker, seen = Worker(sessionmaker(engine)), list[int]()

    @worker.handler(Task)
    async def see(task: Task) -> None:
        seen.append(current_job().claim.attempt)

    with Session(engine) as session:
        session.add(Task())
        assert drain(worker, session) == {"completed": 1}
    assert seen == [1]


def test_sessions_of_the_other_kind(db: Database, engine: Engine) -> None:
    worker = Worker(db.sessions())
    worker.handler(Task)(with_session(db))
    if db.is_async:
        with pytest.raises(ArgumentError, match=r"asyncio sessions: await drain\(worker, Session\)"):
            drain(worker)
        with Session(engine) as session:
            session.add(Task())
            with pytest.raises(ArgumentError, match="needs an asyncio session"):
                drain(worker, session)
    else:
        assert drain(worker) == {}


def send(to: str, copies: int = 1) -> None: ...


def test_assert_enqueued_finds_waiting_tasks(db: Database) -> None:
    worker = Worker(db.sessions())
    task, other = worker.task(Job)(send), worker.task(Job, name="other")(send)
    with db.session() as session:
        session.add_all(
            [Task(name="a"), Task(name="a", available_at=TOMORROW), Task(name="b"), Task(status="completed")]
        )
        session.pass_to(task.enqueue, "ada")
        session.pass_to(other.enqueue, "ada")
        session.pass_to(task.options(priority=1).enqueue, "grace", copies=2)
        found = session.pass_to(assert_enqueued, Task, name="a", count=2)
        assert [each.name for each in found] == ["a", "a"]
        assert len(session.pass_to(assert_enqueued, Task, Task.name != "a")) == 1
        (job,) = session.pass_to(assert_enqueued, task, to="ada", copies=1)
        assert job.arguments == {"to": "ada"}
        session.pass_to(assert_enqueued, task, Job.priority == 1, to="grace")
        session.pass_to(assert_enqueued, Mail, count=0)
        for what, values, message in (
            (
                Task,
                {"name": "c"},
                r"expected at least one of Task\(name='c'\): 0 waiting \(3 in total\)\n  Task\(.*'a'",
            ),
            (Task, {"count": 1}, r"expected 1 of Task\(\): 3 waiting"),
            (
                task,
                {"to": "alan"},
                r"expected at least one of tests.helpers.test_testing.send\(to='alan'\)[^/]*'grace', 'copies': 2",
            ),
            (Mail, {}, r"\(0 in total\)$"),
        ):
            with pytest.raises(AssertionError, match=message):
                session.pass_to(assert_enqueued, what, **values)
        for what, values, message in (
            (Task, {"nome": "c"}, "Task has no nome"),
            (task, {"cc": "c"}, "has no cc"),
        ):
            with pytest.raises(ArgumentError, match=message):
                session.pass_to(assert_enqueued, what, **values)


def test_drain_passes_over_rows_that_cannot_be_read(db: Database) -> None:
    signs(db, "rose", "dove", "rose")
    worker = Worker(db.sessions())
    worker.handler(Sign)(without_session(db))
    with db.begin() as session:
        assert session.pass_to(lambda session: drain(worker, session)) == {"completed": 2}
    assert statuses(db, Sign) == {1: "completed", 2: "scheduled", 3: "completed"}
