"""Enqueueing by session.add(), by enqueue(), in bulk, and in listeners of a flush."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import event, inspect
from sqlalchemy.orm import Session

import sqlqueue
from sqlqueue import ArgumentError, Status
from tests.support.harness import Database
from tests.support.models import CreditNote, Document, Letter, Order, Parcel, Reminder, Seat, Task
from tests.support.rows import FUTURE, TOMORROW, clock, count, load, load_all
from tests.support.workers import seen


def test_session_add_enqueues(db: Database) -> None:
    started = clock(db)
    db.committed.add(Task(id=1))
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
    assert [task.status for task in load_all(db, Task)] == ["scheduled"] * 3 + ["available"] * 3
    assert {task.available_at for task in load_all(db, Task) if task.id not in (4, 6)} == {FUTURE}


def test_instances_become_persistent(db: Database) -> None:
    with db.begin() as session:
        one, *more = tasks = [Task(name=str(n)) for n in range(5)]
        assert session.enqueue(one) is None
        session.enqueue(task for task in more)
        assert all(inspect(task).persistent for task in tasks)
        assert len({task.id for task in tasks}) == 5
    assert [task.name for task in load_all(db, Task)] == list("01234")


def test_models_of_several_kinds_at_once(db: Database) -> None:
    db.committed.enqueue([Task(name="a"), Document(id="d"), Task(name="b"), Letter("ada", priority=4)])
    assert [len(load_all(db, model)) for model in (Task, Document, Letter)] == [2, 1, 1]
    assert load_all(db, Letter)[0].priority == 4


def test_rows_are_enqueued_without_instances(db: Database) -> None:
    """They may have different shapes."""
    with db.begin() as session:
        given = [{"id": 1, "name": "a"}, {"id": 2, "priority": 5}, {"id": 3, "available_at": FUTURE}]
        session.enqueue(Task, iter(given))
        session.enqueue(Task, [])
        assert len(list(session.sync_session)) == 0
    assert [(task.name, task.priority, task.status) for task in load_all(db, Task)] == [
        ("a", 0, "available"),
        ("", 5, "available"),
        ("", 0, "scheduled"),
    ]


def test_none_stands_for_the_default(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Task, [{"id": 1, "priority": None}, {"id": 2, "priority": 5}])
        session.enqueue(Task, [{"id": 3, "priority": 6}, {"id": 4, "priority": None}])
        session.enqueue(Parcel, [{"id": uuid.uuid4(), "name": None}, {"id": uuid.uuid4(), "name": None}])
    assert [task.priority for task in load_all(db, Task)] == [0, 5, 6, 0]
    assert {parcel.name for parcel in load_all(db, Parcel)} == {""}


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
    assert len(load_all(db, Parcel)) == 2
    assert load(db, Seat, ("a", 1)).status == "available"
    order = load(db, Order, 1)
    assert (order.status, order.queue_status, order.available_at) == ("paid", "scheduled", FUTURE)


def test_rows_of_inheriting_classes(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Reminder, [{"id": 1, "about": "milk"}])
        session.enqueue(Reminder, [{"id": 2}], on_conflict="ignore")
        session.enqueue(CreditNote, [{"id": 1, "amount": 7}])
    assert len(db.committed.claim_many(Reminder, limit=3)) == 2
    assert load(db, Reminder, 1).about == "milk"
    assert (load(db, CreditNote, 1).amount, load(db, CreditNote, 1).status) == (7, "available")


def test_a_rollback_enqueues_nothing(db: Database) -> None:
    session = db.session()
    session.enqueue([Task(), Document(id="d")])
    session.enqueue(Task, [{"number": n} for n in range(1_000)])
    session.enqueue(Document, [{"id": "e"}], on_conflict="replace")
    session.rollback()
    assert load_all(db, Task) == load_all(db, Document) == []


# -- enqueueing in listeners of a flush -------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["before_flush", "after_flush", "after_flush_postexec"])
def test_enqueueing_while_the_session_flushes(db: Database, hook: str) -> None:
    """An outbox or an audit trail is written there."""
    modes: tuple[Any, ...] = ("raise", "ignore", "replace", "rerun")
    with db.begin() as actor:

        @event.listens_for(actor.sync_session, hook, once=True)
        def enqueue(session: Session, *_: object) -> None:
            for how in modes:
                sqlqueue.enqueue(session, Document, [{"id": f"a row, {how}"}], on_conflict=how)
                sqlqueue.enqueue(session, Document(id=f"an instance, {how}"), on_conflict=how)

        actor.add(Document(id="a"))
        actor.flush()
    expected = {"a", *(f"{what}, {how}" for what in ("a row", "an instance") for how in modes)}
    assert {document.id for document in load_all(db, Document)} == expected


# -- thousands of rows in one call are sent in bulk, in the session's transaction -------------------------------------

MANY = 2_000


def inserts(statements: list[Any]) -> int:
    """Return the number of inserts; one with many sets of parameters counts once."""
    return sum("INSERT" in statement for _, _, statement, *_ in statements)


def test_many_rows_are_not_inserted_one_by_one(sync_db: Database) -> None:
    with seen(sync_db, "before_cursor_execute") as statements, sync_db.begin() as actor:
        actor.enqueue(Task, [{"name": f"task {n}", "number": n} for n in range(MANY)])
    assert inserts(statements) < 50
    assert count(sync_db, Task, Task.status == "available", Task.attempt == 0, Task.max_attempts == 3) == MANY
    assert [task.name for task in sync_db.session().claim_many(Task, limit=2)] == ["task 0", "task 1"]


def test_rows_with_conflicts_are_written_in_bulk(db: Database) -> None:
    db.insert(Document, [{"id": str(n), "version": 1} for n in range(100)])
    with seen(db, "before_cursor_execute") as statements, db.begin() as actor:
        actor.enqueue(Document, [{"id": str(n), "version": 2} for n in range(2_000)], on_conflict="replace")
    assert inserts(statements) < 50
    assert count(db, Document, Document.version == 2) == 2_000


# -- COPY -----------------------------------------------------------------------------------------------------------

copies = pytest.mark.requires("copies")


@copies
def test_copy_loads_the_given_rows(db: Database) -> None:
    text = 'tab\t, newline\n, backslash \\, quote ", \\N and ö'
    with seen(db, "before_cursor_execute") as statements, db.begin() as actor:
        actor.enqueue(Task, [{"name": text, "number": n} for n in range(MANY)], copy=True)
    assert inserts(statements) == 0
    assert count(db, Task, Task.name == text, Task.status == "available") == MANY
    (task,) = db.session().claim_many(Task, limit=1)
    assert (task.name, task.number, task.max_attempts, task.priority) == (text, 0, 3, 0)


@copies
def test_copy_matches_columns_by_name(db: Database) -> None:
    db.committed.enqueue(Task, [{"name": "one", "number": 1}, {"number": 2, "name": "two"}], copy=True)
    assert [(task.name, task.number) for task in db.session().claim_many(Task, limit=2)] == [("one", 1), ("two", 2)]


@copies
def test_copy_schedules_and_makes_keys(db: Database) -> None:
    moment = datetime(2031, 5, 6, 7, 8, 9, 123_457, tzinfo=UTC)
    with db.begin() as actor:
        actor.enqueue(Parcel, [{"name": "later", "available_at": moment} for _ in range(100)], copy=True)
        actor.enqueue(Letter, [{"recipient": "ada"}], copy=True)
        actor.enqueue(Order, [{"id": 1, "status": "paid"}], copy=True)
        assert actor.claim(Letter).recipient == "ada"
    assert count(db, Parcel, Parcel.available_at == moment, Parcel.status == "scheduled") == 100
    assert (load(db, Order, 1).status, load(db, Order, 1).queue_status) == ("paid", "available")


@copies
def test_copy_is_part_of_the_transaction(db: Database) -> None:
    actor = db.session()
    actor.add(Task(name="by hand"))
    actor.flush()
    actor.enqueue(Task, [{"name": f"copied {n}"} for n in range(100)], copy=True)
    assert len(actor.claim_many(Task, limit=200)) == 101
    assert count(db, Task) == 0, "other transactions do not see it before the commit"
    actor.rollback()
    assert count(db, Task) == 0


def test_copy_without_support_is_rejected(db: Database) -> None:
    actor = db.session()
    if db.case.copies:
        pytest.skip("it copies")
    with pytest.raises(ArgumentError, match="COPY"):
        actor.enqueue(Task, [{"available_at": TOMORROW}], copy=True)
    actor.rollback()
    assert count(db, Task) == 0
