"""consume(): tasks are claimed and completed at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.orm import Session, selectinload

import sqlqueue
from sqlqueue import IllegalTransitionError
from tests.support.harness import Database
from tests.support.models import Attachment, Mail, Order, Reminder, Spool, Task

PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2090, 1, 1, tzinfo=UTC)


def rows(db: Database, model: Any) -> list[Any]:
    with Session(db.engine) as session:
        return list(session.scalars(select(model).order_by(model.id)))


def test_a_consumed_task_is_completed(db: Database) -> None:
    db.insert(Task, [{"id": 1, "available_at": PAST}])
    with db.begin() as session:
        task = session.consume(Task, claimed_by="me")
        assert task.__dict__["status"] == "completed"
        assert session.consume(Task) is None
    (task,) = rows(db, Task)
    assert (task.status, task.attempt, task.claimed_by, task.max_attempts) == ("completed", 1, "me", 3)
    assert PAST < task.available_at == task.finished_at == task.claimed_at


def test_many_tasks_are_consumed_in_claim_order(db: Database) -> None:
    db.insert(Task, [{"id": n, "priority": -n} for n in range(1, 5)])
    db.insert(Task, [{"id": 5, "status": "running", "attempt": 1, "available_at": PAST}])
    db.insert(Task, [{"id": 6, "status": "scheduled", "available_at": FUTURE}])
    with db.begin() as session:
        assert [task.id for task in session.consume_many(Task, Task.id > 1, limit=10)] == [4, 3, 2, 5]
    assert [task.status for task in rows(db, Task)] == ["available"] + ["completed"] * 4 + ["scheduled"]


def test_a_task_deleted_on_completion_is_returned_detached(db: Database) -> None:
    db.insert(Spool, [{"id": n, "text": f"text {n}"} for n in (1, 2, 3)])
    with db.begin() as session:
        tasks = session.consume_many(Spool, limit=2)
        assert [task.text for task in tasks] == ["text 1", "text 2"]
        assert all(inspect(task).detached for task in tasks)
        assert session.get(Spool, 1) is None
    assert [task.id for task in rows(db, Spool)] == [3]


def test_a_rollback_undoes_a_consume(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    db.insert(Spool, [{"id": 1}])
    session = db.session()
    assert session.consume(Task)
    assert session.consume(Spool)
    session.rollback()
    assert [(task.status, task.attempt) for task in rows(db, Task) + rows(db, Spool)] == [("available", 0)] * 2


def test_a_consumed_task_cannot_be_settled(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        task = session.consume(Task)
        with pytest.raises(IllegalTransitionError):
            session.complete(task)


def test_loader_options(db: Database) -> None:
    with db.begin() as session:
        session.add(Mail(id=1, attachments=[Attachment(name="x")]))
    with db.begin() as session:
        mail = session.consume(Mail, options=[selectinload(Mail.attachments)])
        assert [attachment.name for attachment in mail.__dict__["attachments"]] == ["x"]


def test_consume_with_renamed_columns_and_inheritance(db: Database) -> None:
    db.insert(Order, [{"id": 1, "status": "paid"}])
    with db.begin() as session:
        session.add(Reminder(id=1, about="milk"))
        assert session.consume(Reminder, Reminder.about == "milk").id == 1
        assert session.consume(Order).queue_status == "completed"
    assert rows(db, Order)[0].status == "paid"


def test_functions_on_a_plain_session(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in (1, 2, 3)])
    with db.begin(class_=db.plain_class) as session:
        assert session.run(sqlqueue.consume, Task, Task.id == 2).id == 2
        assert len(session.run(sqlqueue.consume_many, Task, limit=9)) == 2
    assert {task.status for task in rows(db, Task)} == {"completed"}
