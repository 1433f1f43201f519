"""Every way to settle a claim, and its effect on each column."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, inspect, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import sqlqueue
from sqlqueue import claim_of
from sqlqueue.queue.spec import QUEUE_ROLES
from tests.suite.settlements import PAST, SETTLINGS, Settling, claim
from tests.support.harness import Actor, Database
from tests.support.models import Order, Seat, Spool, Task
from tests.support.rows import clock, load

pytestmark = pytest.mark.asyncio_everywhere


@pytest.fixture(params=["methods", "functions"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def by_method(session: Actor, name: str, *arguments: Any) -> Any:
        return getattr(session, name)(*arguments)

    def by_function(session: Actor, name: str, *arguments: Any) -> Any:
        return session.run(getattr(sqlqueue, name), *arguments)

    return by_method if request.param == "methods" else by_function


def plain(db: Database) -> dict[str, Any]:
    """Ordinary sessions, without the queue methods."""
    return {"class_": AsyncSession if db.is_async else Session}


def columns(task: Any) -> dict[str, Any]:
    attributes = task.__queue_spec__.attributes
    return {role: getattr(task, attributes[role]) for role in QUEUE_ROLES}


@pytest.mark.parametrize("settling", SETTLINGS, ids=str)
def test_each_settlement_changes_its_columns(db: Database, call: Callable[..., Any], settling: Settling) -> None:
    db.insert(Task, [{"id": 1, "available_at": PAST, "priority": 2}])
    task = claim(db, Task, claimed_by="me")
    before, started = columns(load(db, Task, 1)), clock(db)
    with db.begin(**plain(db) if "function" in call.__name__ else {}) as session:
        assert call(session, settling.name, task, *settling.arguments) is None
    after, ended = columns(load(db, Task, 1)), clock(db)
    moment = after.pop("available_at")
    assert started + settling.after <= moment <= ended + settling.after
    assert after.pop("finished_at") == (moment if settling.final else None)
    del before["available_at"], before["finished_at"]
    assert after == before | settling.changes


@pytest.mark.parametrize("settling", SETTLINGS, ids=str)
def test_renamed_columns(db: Database, settling: Settling) -> None:
    db.insert(Order, [{"id": 1, "status": "paid"}])
    with db.begin() as session:
        order = session.claim(Order)
        getattr(session, settling.name)(order, *settling.arguments)
    stored = load(db, Order, 1)
    assert (stored.status, stored.queue_status) == ("paid", settling.changes.get("status", "running"))
    assert stored.created_at is None


def test_the_last_failure_discards(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "retryable", "attempt": 2, "max_attempts": 3, "available_at": PAST}])
    with db.begin() as session:
        session.fail(session.claim(Task), "third")
    task = load(db, Task, 1)
    assert (task.status, task.error, task.attempt, task.max_attempts) == ("discarded", "third", 3, 3)
    assert task.finished_at == task.available_at <= clock(db)


def test_backoff_grows_with_the_attempt(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "retryable", "attempt": 1, "available_at": PAST}])
    with db.begin() as session:
        session.fail(session.claim(Task), "second")
    assert timedelta(seconds=15) < load(db, Task, 1).available_at - clock(db) <= timedelta(seconds=30)


def test_one_failure_of_several_attempts(db: Database) -> None:
    db.insert(Task, [{"id": n, "status": "retryable", "attempt": n - 1, "available_at": PAST} for n in (1, 2, 3)])
    with db.begin() as session:
        session.fail(session.claim_many(Task, limit=3), "no")
    tasks = [load(db, Task, n) for n in (1, 2, 3)]
    assert [task.status for task in tasks] == ["retryable", "retryable", "discarded"]
    assert tasks[1].available_at - tasks[0].available_at == timedelta(seconds=20)


def test_handed_back_without_counting_the_attempt(db: Database) -> None:
    db.insert(Task, [{"id": 1, "max_attempts": 1}])
    for attempt in (1, 2, 3):
        with db.begin() as session:
            task = session.claim(Task)
            assert task.attempt == attempt
            session.snooze(task, timedelta(0)) if attempt % 2 else session.release(task)
    assert load(db, Task, 1).max_attempts == 4
    with db.begin() as session:
        session.fail(session.claim(Task), "the first that counts")
    assert load(db, Task, 1).status == "discarded"


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


def test_an_iterable_of_instances_or_claims(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 6)])
    with db.begin() as session:
        tasks = session.claim_many(Task, limit=5)
        session.complete(task for task in tasks[:2])
        session.complete(claim_of(task) for task in tasks[2:4])
        session.complete([])
    assert [load(db, Task, task.id).status for task in tasks] == ["completed"] * 4 + ["running"]


def test_several_claims_are_settled_by_one_statement(db: Database) -> None:
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
    assert load(db, Seat, ("a", 1)).status == "running"
    assert load(db, Seat, ("a", 2)).status == load(db, Seat, ("b", 1)).status == "completed"
    assert load(db, Seat, ("b", 2)).status == "available"
