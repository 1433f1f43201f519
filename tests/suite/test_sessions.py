"""The methods of the sessions: both classes have every operation, with its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Delete, Engine, Update, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

import sqlqueue
from sqlqueue import ArgumentError, AsyncQueueSession, QueueSession
from sqlqueue.outbox import claim_messages
from sqlqueue.worker import Worker
from tests.suite.settlements import SETTLINGS
from tests.support.harness import Database
from tests.support.models import Base, Listing, Outgoing, QueuePause, Slot, Spool, Task, Visit

OPERATIONS = {
    name: function
    for name, function in ((name, getattr(sqlqueue, name)) for name in sqlqueue.__all__)
    if inspect.isfunction(function) and "session" in inspect.signature(function).parameters
}


def test_operations_are_found() -> None:
    assert {"claim", "complete", "enqueue", "stats", "pause", "claiming"} <= set(OPERATIONS)


@pytest.mark.parametrize(("session", "plain"), [(QueueSession, Session), (AsyncQueueSession, AsyncSession)])
def test_an_operation_is_a_method(session: type, plain: type) -> None:
    assert [name for name in OPERATIONS if hasattr(plain, name)] == [], "these would hide SQLAlchemy's"
    texts = {name: function.__doc__ for name, function in OPERATIONS.items()}
    assert None not in texts.values()
    assert {name: getattr(session, name).__doc__ for name in texts} == texts


@pytest.mark.one_engine
def test_functions_on_a_plain_session(db: Database) -> None:
    db.insert(Task, [{"number": n} for n in range(len(SETTLINGS))])
    db.insert(Spool, [{}] * 3)
    with db.begin(class_=db.plain_class) as session:
        assert session.run(sqlqueue.pause, Task) is True
        assert len(session.run(sqlqueue.paused, Task)) == 1
        assert session.run(sqlqueue.resume, Task) is True
        for settling in SETTLINGS.values():
            task = session.run(sqlqueue.claim, Task)
            session.run(getattr(sqlqueue, settling.name), task, *settling.arguments)
        assert session.run(sqlqueue.consume, Spool) is not None
        assert len(session.run(sqlqueue.consume_many, Spool, limit=9)) == 2
        session.run(sqlqueue.enqueue, Listing(unique_key="k"), on_conflict="ignore")
    with db.begin(class_=db.plain_class) as session:
        assert session.run(sqlqueue.overview, Task).finished_last_hour == 3
        assert session.run(sqlqueue.stats_by, Task, Task.number)[1].total == 1
        assert sum(bucket.completed for bucket in session.run(sqlqueue.timeline, Task)) == 1
        assert session.run(sqlqueue.stats, Listing).total == 1


# -- sessions that send reads and writes to different engines, as in SQLAlchemy's documentation -----------------------


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[dict[str, Engine]]:
    made = {name: create_engine(f"sqlite:///{tmp_path / name}.db") for name in ("leader", "follower")}
    for engine in made.values():
        Base.metadata.create_all(engine, [each.__table__ for each in (Task, Visit, Slot, QueuePause)])
    yield made
    for engine in made.values():
        engine.dispose()


@pytest.fixture
def routing(engines: dict[str, Engine]) -> sessionmaker[Any]:
    class RoutingSession(QueueSession):
        def get_bind(self, mapper: Any = None, clause: Any = None) -> Engine:  # type: ignore[override]
            return engines["leader" if self._flushing or isinstance(clause, Update | Delete) else "follower"]

    return sessionmaker(class_=RoutingSession)


def tasks_on(engine: Engine) -> int | None:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(Task))


@pytest.mark.parametrize(
    "enqueue",
    [
        lambda session: session.enqueue([Task(), Task()]),
        lambda session: session.enqueue(Task, [{"name": "a"}, {"name": "b"}]),
    ],
    ids=["instances", "rows"],
)
def test_tasks_are_enqueued_where_writes_go(
    engines: dict[str, Engine], routing: sessionmaker[Any], enqueue: Callable[[Any], None]
) -> None:
    with routing.begin() as session:
        enqueue(session)
    assert (tasks_on(engines["leader"]), tasks_on(engines["follower"])) == (2, 0)


def test_rows_that_the_orm_would_send_elsewhere_are_rejected(routing: sessionmaker[Any]) -> None:
    with routing() as session, pytest.raises(ArgumentError, match=r"INSERT and the UPDATE of Task.*one engine"):
        session.enqueue(Task, [{"name": "a"}, {"priority": 1}])


def test_operations_that_load_nothing_use_the_write_engine(
    engines: dict[str, Engine], routing: sessionmaker[Any]
) -> None:
    with routing.begin() as session:
        session.set_limit(Visit, "a", 3)
        assert session.pause(Task)
    with QueueSession(engines["leader"]) as session:
        assert [limit.key for limit in session.limits(Visit)] == ["a"]
        assert session.scalar(select(func.count()).select_from(QueuePause)) == 1


@pytest.mark.parametrize(
    "claim",
    [
        lambda session: session.claim(Task),
        lambda session: session.claim(Task, lease=None),
        lambda session: session.consume(Task),
        lambda session: session.claiming(Task).__enter__(),
        lambda session: session.claim(Visit),
        lambda session: claim_messages(session, Outgoing, limit=1),
    ],
    ids=["claim", "claim that only locks", "consume", "claiming", "claim where limits hold", "claim messages"],
)
def test_a_claim_is_rejected(
    engines: dict[str, Engine], routing: sessionmaker[Any], claim: Callable[[Any], object]
) -> None:
    with Session(engines["leader"]) as session, session.begin():
        session.add(Task())
    with routing() as session, pytest.raises(ArgumentError, match="one engine"):
        claim(session)


def test_a_worker_with_two_engines_is_rejected(routing: sessionmaker[Any]) -> None:
    worker = Worker(routing)
    worker.handler(Task)(lambda task: None)
    with pytest.raises(ArgumentError, match="one engine"):
        worker.run()


def test_with_one_engine_for_both_it_claims(engines: dict[str, Engine], routing: sessionmaker[Any]) -> None:
    engines["follower"].dispose()
    engines["follower"] = engines["leader"]
    with routing.begin() as session:
        session.enqueue(Task())
    with routing.begin() as session:
        task = session.claim(Task)
        assert task is not None
        session.complete(task)
    assert tasks_on(engines["leader"]) == 1
