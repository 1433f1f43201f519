"""Wrong input is refused at once, with the way out, instead of making a task that nobody ever finds or runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import StaticPool, create_engine, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sqlqueue import (
    ArgumentError,
    AsyncQueueSession,
    Cron,
    IllegalTransitionError,
    QueueSession,
    Status,
    Worker,
    current_job,
)
from sqlqueue.sql.rows import utcinsertion
from tests.support.models import Base, Film, Job, Order, Task


@pytest.fixture
def session() -> Iterator[QueueSession]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    with QueueSession(engine) as session:
        yield session
    engine.dispose()


@pytest.fixture
def worker() -> Worker:
    return Worker(sessionmaker(create_engine("sqlite://")))


@pytest.mark.parametrize("status", ["done", "Available", "", " available", 3])
@pytest.mark.parametrize(("model", "name"), [(Task, "status"), (Order, "queue_status")])
def test_a_status_that_is_none(session: QueueSession, model: Any, name: str, status: Any) -> None:
    told = rf"{name}={status!r} is not a status: .*available, scheduled"
    with pytest.raises(ArgumentError, match=told):
        session.enqueue(model, [{name: status}])
    with pytest.raises(ArgumentError, match=told):
        session.enqueue(model(**{name: status}))
    session.rollback()
    session.add(model(**{name: status}))
    with pytest.raises(ArgumentError, match=told):
        session.flush()
    session.rollback()
    session.add(task := model())
    session.flush()
    setattr(task, name, status)
    with pytest.raises(ArgumentError, match=told):
        session.flush()


def test_a_row_with_an_unknown_status_can_be_changed_otherwise(session: QueueSession) -> None:
    session.add(task := Task())
    session.commit()
    session.execute(update(Task).values(status="odd"))
    session.refresh(task)
    task.name = "changed"
    session.flush()
    task.status = Status.COMPLETED
    session.flush()


def test_the_default_of_a_time_is_no_time_that_is_given(session: QueueSession) -> None:
    default: Any = Task.__table__.c.available_at.default
    assert isinstance(default.arg, utcinsertion)
    session.add(task := Task(available_at=default.arg))  # as libraries do that set the defaults of new instances
    session.flush()
    session.enqueue(Task, [{"available_at": default.arg}])
    assert task.status == "available"
    assert session.stats(Task)["available"] == 2


def test_dictionaries_without_their_model(session: QueueSession) -> None:
    wrong: Any
    for wrong in ({"name": "x"}, [{"name": "x"}]):
        with pytest.raises(ArgumentError, match="dictionaries need their model"):
            session.enqueue(wrong)


def test_a_task_is_named_by_its_key(session: QueueSession) -> None:
    with pytest.raises(IllegalTransitionError, match=r"^a new Task was not claimed"):
        session.complete(Task())
    session.add(task := Task(id=2))
    session.flush()
    with pytest.raises(IllegalTransitionError, match=r"^Task 2 was not claimed"):
        session.complete(task)


@pytest.mark.parametrize("expression", ["0 0 2 * * *", "0 3 * *", "", None])
def test_a_cron_expression_has_five_fields(expression: Any) -> None:
    with pytest.raises(ArgumentError, match=r"is not a cron expression: give five fields"):
        Cron(expression)


@pytest.mark.parametrize("where", [Film.stage == "draft", Film.stage.in_(["cut", "draft"])], ids=["one", "some"])
def test_a_handler_for_a_stage_that_does_not_exist(worker: Worker, where: Any) -> None:
    with pytest.raises(ArgumentError, match="Film has no stage 'draft': its stages are cut, dub, print"):
        worker.handler(Film, where)(lambda film: None)
    worker.handler(Film, Film.stage.in_(["cut", "dub"]))(lambda film: None)
    worker.handler(Film, Film.stage == "print")(lambda film: None)


def test_a_handler_for_a_session_of_the_other_kind(worker: Worker) -> None:
    coroutines = Worker(async_sessionmaker(create_async_engine("sqlite+aiosqlite://")))

    async def coroutine(session: QueueSession, task: Task) -> None: ...

    async def unresolved(session: Session, task: Task) -> None: ...

    def function(session: AsyncQueueSession, task: Task) -> None: ...

    coroutine.__annotations__["session"], function.__annotations__["session"] = QueueSession, AsyncQueueSession
    for wrong in (coroutine, unresolved):
        with pytest.raises(ArgumentError, match="a coroutine function gets an AsyncSession"):
            coroutines.handler(Task)(wrong)
    with pytest.raises(ArgumentError, match="a function gets a Session"):
        worker.handler(Task)(function)

    async def right(session: AsyncSession, task: Task) -> None: ...

    coroutines.handler(Task)(right)


def test_the_job_outside_of_a_handler() -> None:
    with pytest.raises(LookupError, match=r"current_job\(\) is called outside of a handler"):
        current_job()


def test_a_call_of_a_function_task(worker: Worker) -> None:
    @worker.task(Job, name="add")
    def add(a: int) -> None: ...

    task: Any = add
    for wrong in (1, None):
        with pytest.raises(ArgumentError, match="add: give the session first, as in enqueue"):
            task.enqueue(wrong)
    for priority in ("high", 1.5, True):
        with pytest.raises(ArgumentError, match=r"priority=.*: give an integer"):
            task.options(priority=priority)
    with pytest.raises(ArgumentError, match="is naive"):
        task.options(available_at=datetime(2026, 1, 1))
    with pytest.raises(ArgumentError, match="queue_name: not a column of Job"):
        task.options(queue_name="x")
    task.options(priority=-1, available_at=datetime(2026, 1, 1, tzinfo=UTC))


def test_running_a_worker_in_a_loop(worker: Worker) -> None:
    async def run() -> None:
        with pytest.raises(IllegalTransitionError, match=r"await worker.serve\(\)"):
            worker.run()

    asyncio.run(run())
