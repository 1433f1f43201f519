"""Enqueueing by session.add(), enqueue() and rows."""

from __future__ import annotations

import uuid
from datetime import timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import event, inspect

from sqlqueue import ArgumentError, Status
from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.parts.inserts import Inserts
from tests.suite.documents import FUTURE, rows
from tests.support.harness import Database
from tests.support.models import CreditNote, Document, Letter, Order, Parcel, Reminder, Seat, Task
from tests.support.rows import clock, load


def test_session_add_enqueues(db: Database) -> None:
    started = clock(db)
    with db.begin() as session:
        session.add(Task(id=1))
    task = load(db, Task, 1)
    assert (task.status, task.priority, task.attempt, task.max_attempts) == ("available", 0, 0, 3)
    assert started <= task.available_at <= clock(db)
    assert started <= task.created_at <= clock(db)
    assert task.claimed_by is task.claimed_at is task.finished_at is task.error is None


def test_a_task_with_a_time_is_scheduled(db: Database) -> None:
    with db.begin() as session:
        session.add(Task(id=1, available_at=FUTURE))
        session.enqueue(Task(id=2, available_at=FUTURE.astimezone(timezone(timedelta(hours=5)))))
        session.enqueue(Task, [{"id": 3, "available_at": FUTURE}, {"id": 4}])
        session.add(Task(id=5, available_at=FUTURE, status=Status.AVAILABLE))
        session.add(Task(id=6, status="available"))
    assert [task.status for task in rows(db, Task)] == ["scheduled"] * 3 + ["available"] * 3
    assert {task.available_at for task in rows(db, Task) if task.id not in (4, 6)} == {FUTURE}


def test_instances_become_persistent(db: Database) -> None:
    with db.begin() as session:
        one, *more = tasks = [Task(name=str(n)) for n in range(5)]
        assert session.enqueue(one) is None
        session.enqueue(task for task in more)
        assert all(inspect(task).persistent for task in tasks)
        assert len({task.id for task in tasks}) == 5
    assert [task.name for task in rows(db, Task)] == list("01234")


def test_models_of_several_kinds_at_once(db: Database) -> None:
    with db.begin() as session:
        session.enqueue([Task(name="a"), Document(id="d"), Task(name="b"), Letter("ada", priority=4)])
    assert [len(rows(db, model)) for model in (Task, Document, Letter)] == [2, 1, 1]
    assert rows(db, Letter)[0].priority == 4


def test_rows_are_enqueued_without_instances(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Task, [{"name": str(n), "priority": n} for n in range(300)])
        session.enqueue(Task, iter([{"name": "from an iterator"}]))
        session.enqueue(Task, [])
        assert len(list(session.sync_session)) == 0
    assert len(rows(db, Task)) == 301


def test_rows_of_different_shapes(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Task, [{"id": 1, "name": "a"}, {"id": 2, "priority": 5}, {"id": 3, "available_at": FUTURE}])
    assert [(task.name, task.priority, task.status) for task in rows(db, Task)] == [
        ("a", 0, "available"),
        ("", 5, "available"),
        ("", 0, "scheduled"),
    ]


def test_none_stands_for_the_default(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Task, [{"id": 1, "priority": None}, {"id": 2, "priority": 5}])
        session.enqueue(Task, [{"id": 3, "priority": 6}, {"id": 4, "priority": None}])
        session.enqueue(Parcel, [{"id": uuid.uuid4(), "name": None}, {"id": uuid.uuid4(), "name": None}])
    assert [task.priority for task in rows(db, Task)] == [0, 5, 6, 0]
    assert {parcel.name for parcel in rows(db, Parcel)} == {""}


def test_orm_execute_listeners_see_the_inserts(db: Database) -> None:
    seen: list[Any] = []
    with db.begin() as session:
        event.listen(session.sync_session, "do_orm_execute", lambda state: seen.append(list(state.all_mappers)))
        session.enqueue(Task, [{"id": 1}, {"id": 2}])
    assert [inspect(Task)] in seen


def test_rows_of_every_sort_of_key(db: Database) -> None:
    key = uuid.uuid4()
    with db.begin() as session:
        session.enqueue(Parcel, [{"id": key, "name": "given"}])
        session.enqueue(Parcel, [{"name": "made"}])
        session.enqueue(Seat, [{"line": "a", "number": 1}])
        session.enqueue(Order, [{"id": 1, "status": "paid", "available_at": FUTURE}])
    assert load(db, Parcel, key).name == "given"
    assert len(rows(db, Parcel)) == 2
    assert load(db, Seat, ("a", 1)).status == "available"
    order = load(db, Order, 1)
    assert (order.status, order.queue_status, order.available_at) == ("paid", "scheduled", FUTURE)


def test_rows_of_inheriting_classes(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Reminder, [{"id": 1, "about": "milk"}])
        session.enqueue(CreditNote, [{"id": 1, "amount": 7}])
    assert load(db, Reminder, 1).about == "milk"
    assert (load(db, CreditNote, 1).amount, load(db, CreditNote, 1).status) == (7, "available")


def test_copy(db: Database) -> None:
    tasks = [{"name": f"tab\t{n}\\N\n", "number": n} for n in range(100)]
    adapter = adapter_for(db.engine.dialect)
    if type(adapter.inserts).copy is Inserts.copy:
        with pytest.raises(ArgumentError, match="COPY"):
            db.session().enqueue(Task, tasks, copy=True)
        return
    with db.begin() as session:
        session.enqueue(Task, tasks, copy=True)
        session.enqueue(Parcel, [{"name": "made here"}], copy=True)
        session.enqueue(Order, [{"id": 1, "status": "paid"}], copy=True)
    stored = rows(db, Task)
    assert [(task.name, task.number) for task in stored] == [(each["name"], each["number"]) for each in tasks]
    assert {(task.status, task.attempt, task.max_attempts) for task in stored} == {("available", 0, 3)}
    assert rows(db, Parcel)[0].name == "made here"
    assert load(db, Order, 1).queue_status == "available"


def test_a_rollback_enqueues_nothing(db: Database) -> None:
    session = db.session()
    session.enqueue([Task(), Document(id="d")])
    session.enqueue(Task, [{"name": "x"}])
    session.enqueue(Document, [{"id": "e"}], on_conflict="replace")
    session.rollback()
    assert rows(db, Task) == rows(db, Document) == []
