"""Every way to settle a claim: its effect on each column, and the fence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from sqlalchemy import delete, event, inspect, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import sqlqueue
from sqlqueue import (
    ClaimLostError,
    IllegalTransitionError,
    claim_of,
)
from sqlqueue.queue.spec import QUEUE_ROLES
from sqlqueue.sql.clock import utcnow
from tests.support.harness import Actor, Database
from tests.support.models import Base, Ledger, Order, Seat, Spool, Task

M = TypeVar("M", bound=Base)
PAST = datetime(2020, 1, 1, tzinfo=UTC)
SOON = timedelta(minutes=2)


@dataclass(frozen=True)
class Settling:
    """A call, what it changes, and after how long the row is available or has become final."""

    name: str
    arguments: tuple[Any, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    after: timedelta = timedelta(0)
    final: bool = False

    def __str__(self) -> str:
        return "-".join([self.name, *(type(argument).__name__ for argument in self.arguments)])


BACK = {"claimed_by": None, "claimed_at": None, "max_attempts": 4}
SETTLINGS = [
    Settling("complete", (), {"status": "completed"}, final=True),
    Settling("fail", ("no",), {"status": "retryable", "error": "no"}, after=timedelta(seconds=10)),
    Settling(
        "fail", (ValueError("no"),), {"status": "retryable", "error": "ValueError: no"}, after=timedelta(seconds=10)
    ),
    Settling("fail", ("no", SOON), {"status": "retryable", "error": "no"}, after=SOON),
    Settling("discard", ("no",), {"status": "discarded", "error": "no"}, final=True),
    Settling("cancel", (), {"status": "cancelled"}, final=True),
    Settling("release", (), {"status": "available", **BACK}),
    Settling("snooze", (SOON,), {"status": "scheduled", **BACK}, after=SOON),
    Settling("heartbeat", (), {}, after=timedelta(minutes=5)),
    Settling("heartbeat", (SOON,), {}, after=SOON),
]


@pytest.fixture(params=["methods", "functions"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def by_method(session: Actor, name: str, *arguments: Any) -> Any:
        return getattr(session, name)(*arguments)

    def by_function(session: Actor, name: str, *arguments: Any) -> Any:
        return session.run(getattr(sqlqueue, name), *arguments)

    return by_method if request.param == "methods" else by_function


def plain(db: Database) -> dict[str, Any]:
    """Sessions that know nothing of queues."""
    return {"class_": AsyncSession if db.is_async else Session}


def row(db: Database, model: type[M], key: Any) -> M:
    with Session(db.engine) as session:
        return session.get_one(model, key)


def columns(task: Any) -> dict[str, Any]:
    attributes = task.__queue_spec__.attributes
    return {role: getattr(task, attributes[role]) for role in QUEUE_ROLES}


def now(db: Database) -> datetime:
    with db.engine.connect() as connection:
        return connection.scalars(select(utcnow())).one()


def claim(db: Database, model: type[M], *where: Any, **arguments: Any) -> M:
    """Claimed and committed: what is left of the lease is what a worker has."""
    with db.begin() as session:
        task: M = session.claim(model, *where, **arguments)
        return task


@pytest.mark.parametrize("settling", SETTLINGS, ids=str)
def test_effect_on_every_column(db: Database, call: Callable[..., Any], settling: Settling) -> None:
    db.insert(Task, [{"id": 1, "available_at": PAST, "priority": 2}])
    task = claim(db, Task, claimed_by="me")
    before, started = columns(row(db, Task, 1)), now(db)
    with db.begin(**plain(db) if "function" in call.__name__ else {}) as session:
        assert call(session, settling.name, task, *settling.arguments) is None
    after, ended = columns(row(db, Task, 1)), now(db)
    moment = after.pop("available_at")
    assert started + settling.after <= moment <= ended + settling.after
    assert after.pop("finished_at") == (moment if settling.final else None)
    del before["available_at"], before["finished_at"]
    assert after == before | settling.changes


@pytest.mark.parametrize("settling", SETTLINGS, ids=str)
def test_on_renamed_columns(db: Database, settling: Settling) -> None:
    db.insert(Order, [{"id": 1, "status": "paid"}])
    with db.begin() as session:
        order = session.claim(Order)
        getattr(session, settling.name)(order, *settling.arguments)
    stored = row(db, Order, 1)
    assert (stored.status, stored.queue_status) == ("paid", settling.changes.get("status", "running"))
    assert stored.created_at is None


def test_the_last_failure_discards(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "retryable", "attempt": 2, "max_attempts": 3, "available_at": PAST}])
    with db.begin() as session:
        session.fail(session.claim(Task), "third")
    task = row(db, Task, 1)
    assert (task.status, task.error, task.attempt, task.max_attempts) == ("discarded", "third", 3, 3)
    assert task.finished_at == task.available_at <= now(db)


def test_backoff_grows_with_the_attempt(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "retryable", "attempt": 1, "available_at": PAST}])
    with db.begin() as session:
        session.fail(session.claim(Task), "second")
    assert timedelta(seconds=15) < row(db, Task, 1).available_at - now(db) <= timedelta(seconds=30)


def test_one_failure_of_several_attempts(db: Database) -> None:
    db.insert(Task, [{"id": n, "status": "retryable", "attempt": n - 1, "available_at": PAST} for n in (1, 2, 3)])
    with db.begin() as session:
        session.fail(session.claim_many(Task, limit=3), "no")
    tasks = [row(db, Task, n) for n in (1, 2, 3)]
    assert [task.status for task in tasks] == ["retryable", "retryable", "discarded"]
    assert tasks[1].available_at - tasks[0].available_at == timedelta(seconds=20)


def test_handed_back_without_counting_the_attempt(db: Database) -> None:
    db.insert(Task, [{"id": 1, "max_attempts": 1}])
    for attempt in (1, 2, 3):
        with db.begin() as session:
            task = session.claim(Task)
            assert task.attempt == attempt
            session.snooze(task, timedelta(0)) if attempt % 2 else session.release(task)
    assert row(db, Task, 1).max_attempts == 4
    with db.begin() as session:
        session.fail(session.claim(Task), "the first that counts")
    assert row(db, Task, 1).status == "discarded"


def test_delete_on_complete(db: Database) -> None:
    db.insert(Spool, [{"id": n} for n in (1, 2, 3)])
    with db.begin() as session:
        tasks = session.claim_many(Spool, limit=3)
        session.complete(tasks[0])
        session.complete([tasks[1], claim_of(tasks[2])])
        assert inspect(tasks[0]).detached
        assert session.scalars(select(Spool)).all() == []


def test_instances_show_what_was_done(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        task = session.claim(Task)
        task.name = "not flushed yet"
        session.complete(task)
        session.refresh(task)
        assert (task.status, task.name) == ("completed", "not flushed yet")


# -- several at once ---------------------------------------------------------------------------------------------------


def test_an_iterable_of_instances_or_claims(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 6)])
    with db.begin() as session:
        tasks = session.claim_many(Task, limit=5)
        session.complete(task for task in tasks[:2])
        session.complete(claim_of(task) for task in tasks[2:4])
        session.complete([])
    assert [row(db, Task, task.id).status for task in tasks] == ["completed"] * 4 + ["running"]


def test_one_statement_for_the_lot(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 41)])
    updates: list[str] = []

    def record(*args: Any) -> None:
        updates.extend([args[2]] if args[2].startswith("UPDATE") else [])

    with db.begin() as session:
        tasks = session.claim_many(Task, limit=40)
        event.listen(db.session_engine, "before_cursor_execute", record)
        try:
            session.complete(tasks)
        finally:
            event.remove(db.session_engine, "before_cursor_execute", record)
    assert len(updates) == 1


def test_keys_of_two_columns(db: Database) -> None:
    db.insert(Seat, [{"line": line, "number": number} for line in "ab" for number in (1, 2)])
    with db.begin() as session:
        seats = session.claim_many(Seat, limit=3)
        assert [(seat.line, seat.number) for seat in seats] == [("a", 1), ("a", 2), ("b", 1)]
        session.complete(seats[1:])
    assert row(db, Seat, ("a", 1)).status == "running"
    assert row(db, Seat, ("a", 2)).status == row(db, Seat, ("b", 1)).status == "completed"
    assert row(db, Seat, ("b", 2)).status == "available"


# -- the fence ---------------------------------------------------------------------------------------------------------


def _taken_over(db: Database) -> None:
    with db.engine.begin() as connection:
        connection.execute(update(Task).values(available_at=PAST))
    assert claim(db, Task, claimed_by="successor") is not None


def _cancelled(db: Database) -> None:
    with db.begin() as session:
        assert session.cancel(Task) == 1


def _deleted(db: Database) -> None:
    with db.engine.begin() as connection:
        connection.execute(delete(Task))


@pytest.mark.parametrize("settling", SETTLINGS, ids=str)
@pytest.mark.parametrize("lose", [_taken_over, _cancelled, _deleted])
def test_a_lost_claim_settles_nothing(sync_db: Database, lose: Callable[[Database], None], settling: Settling) -> None:
    db = sync_db
    db.insert(Task, [{"id": 1}])
    task = claim(db, Task)
    lose(db)
    before = _all_rows(db)
    session = db.session()
    session.add(Ledger(task_id=1))
    with pytest.raises(ClaimLostError, match="Task") as lost:
        getattr(session, settling.name)(task, *settling.arguments)
    assert (lost.value.model, lost.value.identity, lost.value.attempt) == (Task, (1,), 1)
    assert lost.value.claims == (claim_of(task),)
    session.rollback()
    assert _all_rows(db) == before


def _all_rows(db: Database) -> list[Any]:
    with db.engine.connect() as connection:
        return [tuple(each) for model in (Task, Ledger) for each in connection.execute(select(model.__table__))]


def test_lost_in_async_too(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    task = claim(db, Task)
    _taken_over(db)
    with pytest.raises(ClaimLostError):
        db.session().complete(task)


def test_settled_elsewhere_is_lost(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    held = claim_of(claim(db, Task))
    with db.begin() as session:
        session.complete(held)
    with pytest.raises(ClaimLostError):
        db.session().fail(held, "no")
    assert row(db, Task, 1).error is None


def test_those_lost_among_several_are_named(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 5)])
    with db.begin() as session:
        tasks = session.claim_many(Task, limit=4)
    with db.begin() as session:
        session.cancel(Task, Task.id.in_([2, 3]))
    session = db.session()
    with pytest.raises(ClaimLostError, match="and 1 more") as lost:
        session.complete(tasks)
    assert sorted(claim.identity for claim in lost.value.claims) == [(2,), (3,)]
    session.rollback()
    with db.begin() as session:
        session.complete([tasks[0], tasks[3]])


def test_a_claim_settles_after_its_lease_if_not_taken_over(db: Database) -> None:
    """Nothing else has happened to the row, so nothing is lost."""
    db.insert(Task, [{"id": 1}])
    task = claim(db, Task)
    with db.engine.begin() as connection:
        connection.execute(update(Task).values(available_at=PAST))
    with db.begin() as session:
        session.complete(task)
    assert row(db, Task, 1).status == "completed"


# -- once --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settling", SETTLINGS, ids=str)
def test_never_claimed_or_settled_already(sync_db: Database, settling: Settling) -> None:
    sync_db.insert(Task, [{"id": 1}, {"id": 2}])
    with sync_db.begin() as session:
        task, unclaimed = session.claim(Task), session.get(Task, 2)
        session.complete(task)
        with pytest.raises(IllegalTransitionError, match="already settled: completed") as settled:
            getattr(session, settling.name)(task, *settling.arguments)
        assert settled.value.task is task
        with pytest.raises(IllegalTransitionError, match="was not claimed"):
            getattr(session, settling.name)(unclaimed, *settling.arguments)
        with pytest.raises(IllegalTransitionError):
            claim_of(task)


def test_heartbeat_settles_nothing(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        task = session.claim(Task)
        session.heartbeat(task)
        session.heartbeat(task)
        session.complete(task)


def test_a_rolled_back_settlement_can_be_repeated(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    task = claim(db, Task)
    session = db.session()
    session.complete(task)
    session.rollback()
    assert claim_of(task).attempt == 1
    session.fail(task, "second thoughts")
    session.commit()
    assert row(db, Task, 1).status == "retryable"


def test_settled_in_a_savepoint_that_is_rolled_back(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        task = session.claim(Task)
        savepoint = session.run(lambda sync: sync.begin_nested())
        session.complete(task)
        session.run(lambda _: savepoint.rollback())
        session.discard(task, "no")
    assert row(db, Task, 1).status == "discarded"


def test_settled_in_a_savepoint_that_is_kept(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        task = session.claim(Task)
        savepoint = session.run(lambda sync: sync.begin_nested())
        session.complete(task)
        session.run(lambda _: savepoint.commit())
        with pytest.raises(IllegalTransitionError):
            session.complete(task)
    assert row(db, Task, 1).status == "completed"


def test_business_writes_commit_with_the_completion(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    task = session.claim(Task)
    session.add(Ledger(task_id=task.id))
    session.add(Task(id=2, name="the next"))
    session.complete(task)
    session.rollback()
    assert [each[0] for each in _all_rows(db)] == [1]
    assert row(db, Task, 1).status == "available"
    with db.begin() as session:
        task = session.claim(Task)
        session.add_all([Ledger(task_id=task.id), Task(id=2, name="the next")])
        session.complete(task)
    assert len(_all_rows(db)) == 3


def test_a_claim_is_settled_by_its_value_after_the_commit(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.session() as session:
        task = session.claim(Task)
        session.commit()
        session.complete(claim_of(task))
        session.commit()
        session.refresh(task)
        assert task.status == "completed"


def test_settling_leaves_at_hand_what_it_did_not_write(db: Database) -> None:
    # through asyncio, an expired attribute cannot be looked at
    db.insert(Task, [{"id": 1}])
    with db.session() as session:
        task = session.claim(Task)
        session.heartbeat(task)
        assert (task.status, task.attempt, task.name) == ("running", 1, "")
        session.complete(task)
        assert (task.attempt, task.priority) == (1, 0)
