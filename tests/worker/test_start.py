"""Invalid arguments of a worker are rejected at registration or at start."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import lazyload, sessionmaker

from sqlqueue import ArgumentError, ConfigurationError, HandlerNotFoundError, QueueSession, SchemaMismatchError, Worker
from tests.support.harness import Database
from tests.support.models import Base, Job, Notice, Reminder, Task
from tests.support.rows import rows
from tests.support.workers import LONG, Workers, all_are, eventually, seen, statuses, without_session


def worker_of(engine: Any) -> Worker:
    worker = Worker(sessionmaker(engine, class_=QueueSession))
    worker.handler(Task)(lambda task: None)
    return worker


def test_a_schema_mismatch_is_an_error(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sqlqueue"), pytest.raises(SchemaMismatchError, match="there is no table task"):
        worker_of(engine).run()
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("ERROR", None)
    said = "worker stopped: the schema does not match the models: there is no table task. "
    assert record.getMessage().startswith(said)
    Base.metadata.create_all(engine)
    with QueueSession(engine) as session:  # no listener is left
        session.add(Task())
        session.commit()


def test_a_database_in_memory() -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match="which an in-memory database does not offer: use a file"):
        worker_of(engine).run()
    engine.dispose()


def test_sessions_of_one_connection(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="not to a connection"):
        worker_of(connection).run()


def test_a_worker_without_handlers_is_rejected(engine: Engine) -> None:
    with pytest.raises(HandlerNotFoundError, match="register one with @worker"):
        Worker(sessionmaker(engine)).run()


def test_invalid_criteria_are_rejected(engine: Engine) -> None:
    worker = Worker(sessionmaker(engine))
    worker.handler(Task, True)(lambda task: None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="True is not a criterion"):
        worker.run()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"poll": timedelta(0)}, "poll="),
        ({"poll": 3}, "poll=3"),
        ({"grace": timedelta(-1)}, "grace="),
        ({"name": ""}, "name=''"),
        ({"name": "n" * 201}, "201 characters; give at most 200"),
    ],
    ids=str,
)
def test_invalid_settings_are_rejected(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Worker(sessionmaker(), **arguments)


def test_a_worker_rejects_objects_that_make_no_sessions() -> None:
    with pytest.raises(ArgumentError, match="neither a sessionmaker nor an async_sessionmaker"):
        Worker(QueueSession())  # type: ignore[arg-type]


def function(session: Any, task: Any) -> None: ...
def alone(task: Any) -> None: ...
async def coroutine(session: Any, task: Any) -> None: ...
async def awaiting(task: Any) -> None: ...
def nothing() -> None: ...
def three(a: Any, b: Any, c: Any) -> None: ...
def keyword(task: Any, *, needed: Any) -> None: ...
def by_name(task: Any, session: Any) -> None: ...
def by_annotation(email: Task, unit: QueueSession) -> None: ...
def only_a_session(session: Any) -> None: ...
def generator(task: Any) -> Iterator[None]:
    yield


async def async_generator(task: Any) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("sessions", "handler", "arguments", "said"),
    [
        (sessionmaker, coroutine, {}, "a coroutine that takes a session needs a worker of an async_sessionmaker"),
        (async_sessionmaker, function, {}, "a function that takes a session needs a worker of a sessionmaker"),
        (sessionmaker, nothing, {}, "takes \\(task\\) or \\(session, task\\)"),
        (sessionmaker, three, {}, "takes \\(task\\) or \\(session, task\\)"),
        (sessionmaker, keyword, {}, "takes \\(task\\) or \\(session, task\\)"),
        (sessionmaker, by_name, {}, "in this order"),
        (sessionmaker, by_annotation, {}, "in this order"),
        (sessionmaker, only_a_session, {}, "in this order"),
        (sessionmaker, generator, {}, "is a generator"),
        (sessionmaker, async_generator, {}, "is a generator"),
        (sessionmaker, 7, {}, "7 is not a function"),
        (sessionmaker, alone, {"mode": "lock"}, "the handler must take a session"),
        (sessionmaker, function, {"mode": "at-most-once"}, "the handler must take only the task"),
        (sessionmaker, alone, {"mode": "twice"}, "mode='twice'"),
        (sessionmaker, alone, {"concurrency": 0}, "concurrency=0"),
        (sessionmaker, alone, {"batch": 0}, "batch=0"),
        (sessionmaker, alone, {"timeout": timedelta(0)}, "timeout="),
        (sessionmaker, alone, {"lease": timedelta(0)}, "lease="),
        (sessionmaker, alone, {"options": lazyload("*")}, "options="),
    ],
)
def test_invalid_handlers_are_rejected(
    sessions: Callable[[], Any], handler: Any, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        Worker(sessions()).handler(Task, **arguments)(handler)


def another(task: Any) -> None: ...


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((Task,), (Task,)),
        ((Task, Task.number == 1), (Task, Task.number == 1)),
        ((Task,), (Task, Task.number == 1)),
        ((Task, Task.number == 1), (Task,)),
        ((Notice,), (Reminder,)),
        ((Reminder, Reminder.id == 1), (Notice,)),
    ],
)
def test_two_handlers_of_the_same_tasks(first: Any, second: Any) -> None:
    worker = Worker(sessionmaker())
    worker.handler(*first)(alone)
    with pytest.raises(ArgumentError, match=r"alone and .*another are both registered for the same tasks"):
        worker.handler(*second)(another)
    assert len(worker.handlers) == 1


def test_handlers_of_different_tasks() -> None:
    worker = Worker(sessionmaker())
    worker.handler(Task, Task.number == 1)(alone)
    worker.handler(Task, Task.number == 2)(another)
    worker.handler(Task, Task.number != 1, Task.number != 2)(another)
    worker.handler(Notice)(alone)
    worker.handler(Notice, Notice.priority < 0)(alone)  # separate threads for urgent tasks
    worker.task(Job)(another)
    with pytest.raises(ArgumentError, match=r"@worker.task\(Job\) and .*alone are both registered"):
        worker.handler(Job)(alone)
    with pytest.raises(ArgumentError, match="both registered"):
        worker.handler(Notice)(alone)


def test_a_decorator_without_its_model() -> None:
    worker = Worker(sessionmaker())
    with pytest.raises(ArgumentError, match=r"write @worker\.handler\(Task\)"):
        worker.handler(alone)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"write @worker\.task\(Task\)"):
        worker.task(alone)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="is not a queue model"):
        worker.handler(Base)  # type: ignore[type-var]


def test_a_coroutine_is_rejected_where_it_could_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "greenlet", None)
    worker = Worker(sessionmaker())
    worker.handler(Task)(alone)
    for register in (worker.handler(Task), worker.task(Job)):
        with pytest.raises(ArgumentError, match=r"needs greenlet.*pip install 'SQLAlchemy\[asyncio\]'"):
            register(awaiting)


def test_all_public_names_can_be_imported_without_optional_packages() -> None:
    without = "import sys; sys.modules.update(greenlet=None, pydantic=None)"
    code = f"{without}; from sqlqueue import *; Worker, 'AsyncQueueSession' in globals()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.one_engine
def test_partials_and_callable_objects_count_as_coroutine_functions(sync_db: Database, workers: Workers) -> None:
    """Otherwise it would be called without being awaited, and silently do nothing."""
    done: list[str] = []

    async def plain(name: str, task: Any) -> None:
        await asyncio.sleep(0)
        done.append(name)

    class Callable_:
        async def __call__(self, task: Any) -> None:
            await plain("object", task)

    worker = workers.make()
    worker.handler(Task, Task.number == 1)(partial(plain, "partial"))
    worker.handler(Task, Task.number == 2)(Callable_())
    worker.handler(Task, Task.number == 3)(lambda task: plain("lambda", task))
    sync_db.insert(Task, [each for number in (1, 2, 3) for each in rows(1, number=number)])
    workers.start(worker)
    eventually(lambda: sorted(statuses(sync_db).values()) == ["completed", "completed", "retryable"])
    assert sorted(done) == ["object", "partial"]
    with sync_db.begin() as actor:
        (failed,) = actor.query(Task).where(Task.number == 3)
    assert "returned an awaitable" in failed.error


@pytest.mark.one_engine
def test_a_stop_before_the_start_is_respected(db: Database, workers: Workers) -> None:
    worker = workers.make(poll=LONG)
    worker.handler(Task)(without_session(db))
    worker.stop()
    workers.start(worker).wait()


@pytest.mark.requires("describes_tables_soon")
def test_a_stop_during_the_start_leaves_nothing_under_way(db: Database, workers: Workers) -> None:
    engine = db.variant(pool_size=20)
    worker = workers.make(engine=engine, poll=LONG)
    worker.handler(Task)(without_session(db))
    for when in ("do_connect", "before_cursor_execute"):
        with seen(engine, "before_cursor_execute") as begun, seen(engine, "after_cursor_execute") as ended:
            event.listen(engine.session_engine, when, lambda *_, **__: worker.stop(), once=True)
            worker.run()
            assert len(begun) == len(ended) > 0
        assert engine.session_engine.pool.checkedout() == 0


def test_a_worker_may_begin_again(db: Database, workers: Workers) -> None:
    worker = workers.make(poll=LONG)
    worker.handler(Task)(without_session(db))
    for _ in range(2):
        db.insert(Task, rows(1))
        running = workers.start(worker)
        eventually(all_are(db, "completed"))
        running.stop()
        worker.stop()  # which has no effect on the next run
