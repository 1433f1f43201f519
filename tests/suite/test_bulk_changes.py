"""Operations without a claim: retry, cancel, discard, rescue, prune, stats, errors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

import sqlqueue
from sqlqueue import Status
from tests.support.harness import Database
from tests.support.models import CreditNote, Document, Invoice, Notice, Order, Reminder, Seat, Task
from tests.support.rows import FUTURE, PAST, clock, load_all

WAITING = ("available", "scheduled", "retryable", "running")
FINAL = ("completed", "cancelled", "discarded")


def statuses(db: Database, model: Any = Task) -> list[str]:
    return [task.status for task in load_all(db, model)]


def one_of_each(db: Database) -> None:
    finished = {status: {"finished_at": PAST} for status in FINAL}
    for number, status in enumerate(Status, 1):
        values = {"status": status, "attempt": 3, "available_at": FUTURE, **finished.get(status, {})}
        db.insert(Task, [{"id": number, "name": status, **values}])


def test_retry(db: Database) -> None:
    one_of_each(db)
    before = load_all(db, Task)
    with db.begin() as session:
        assert session.retry(Task, Task.status == "discarded", Task.id > 0) == 1
        assert session.retry(Task) == 1
    for old, new in zip(before, load_all(db, Task), strict=True):
        if old.name in ("retryable", "discarded"):
            assert (new.status, new.attempt, new.max_attempts, new.finished_at) == ("available", 3, 6, None)
            assert new.available_at <= clock(db)
        else:
            assert (new.status, new.max_attempts, new.available_at) == (old.status, 3, FUTURE)


ENDINGS: dict[str, tuple[Callable[..., int], str, str | None]] = {
    "cancel": (lambda session, *where: session.cancel(Task, *where), "cancelled", None),
    "discard": (
        lambda session, *where: session.discard(Task, *where, error=ValueError("no such address")),
        "discarded",
        "ValueError: no such address",
    ),
}


@pytest.mark.parametrize("call", ENDINGS)
def test_unfinished_tasks_are_ended(db: Database, call: str) -> None:
    one_of_each(db)
    end, status, error = ENDINGS[call]
    with db.begin() as session:
        assert end(session) == 5
    for task in load_all(db, Task):
        if task.name in FINAL:
            assert (task.status, task.finished_at, task.error) == (task.name, PAST, None)
        else:
            assert (task.status, task.error) == (status, error)
            assert task.finished_at is not None
            assert PAST < task.finished_at == task.available_at < FUTURE


def test_discard_a_task_that_was_to_run_again(db: Database) -> None:
    db.insert(Document, [{"id": "a"}])
    db.committed.claim(Document)
    with db.begin() as session:
        session.enqueue(Document(id="a"), on_conflict="rerun")
        assert session.discard(Document, error="no") == 1
        assert session.stats(Document)["discarded"] == 1


def test_prune(db: Database) -> None:
    ended = clock(db) - timedelta(days=3)
    db.insert(Task, [{"id": n, "status": s, "finished_at": ended, "available_at": ended} for n, s in enumerate(FINAL)])
    db.insert(Task, [{"id": 10 + n, "status": s, "available_at": PAST} for n, s in enumerate(WAITING)])
    db.insert(Task, [{"id": 20, "status": "completed", "finished_at": clock(db)}])
    with db.begin() as session:
        assert session.prune(Task, timedelta(days=4)) == 0
        assert session.prune(Task, older_than=timedelta(days=2)) == 3
    assert [task.id for task in load_all(db, Task)] == [10, 11, 12, 13, 20]


def test_errors(db: Database) -> None:
    for number, (text, status) in enumerate(
        [("a", "retryable"), ("b", "discarded"), ("b", "running"), ("b", "completed")], start=1
    ):
        when = PAST + timedelta(days=number)
        row = {"error": text, "status": status, "claimed_at": when, "available_at": FUTURE}
        db.insert(Seat, [{"line": "abcd"[number - 1], "number": -number, **row}])
    db.insert(Seat, [{"line": "e", "number": 9}])
    with db.begin() as session:
        first, second = session.errors(Seat)
        (only,) = session.errors(Seat, Seat.status == "retryable")
    assert (first.message, first.tasks, first.example) == ("b", 2, ("c", -3))
    assert (first.first_seen, first.last_seen) == (PAST + timedelta(days=2), PAST + timedelta(days=3))
    assert (second.message, second.tasks, second.example, only.message) == ("a", 1, ("a", -1), "a")


# -- renamed, inheriting, plain sessions -------------------------------------------------------------------------------


def test_renamed_columns(db: Database) -> None:
    for number, status in enumerate(("discarded", "available", "completed"), 1):
        finished = None if status == "available" else PAST
        values = {"queue_status": status, "finished_at": finished, "available_at": PAST, "error": "no"}
        db.insert(Order, [{"id": number, "status": "paid", **values}])
    crashed = {"queue_status": "running", "attempt": 5, "claimed_at": PAST, "available_at": PAST, "error": "no"}
    db.insert(Order, [{"id": 4, "status": "paid", **crashed}])
    with db.begin() as session:
        assert session.rescue(Order) == 1
        assert [(each.message[:7], each.tasks) for each in session.errors(Order)] == [("no", 2), ("crashed", 1)]
        assert session.retry(Order, Order.status == "paid", Order.queue_status == "discarded") == 2
        assert session.cancel(Order, Order.id == 2) == 1
        assert session.stats(Order).unfinished == 2
        assert session.discard(Order, Order.status == "paid", Order.id == 4, error="no") == 1
        assert session.prune(Order, timedelta(days=1)) == 1
    orders = load_all(db, Order)
    assert [(order.id, order.queue_status) for order in orders] == [
        (1, "available"),
        (2, "cancelled"),
        (4, "discarded"),
    ]
    assert {order.status for order in orders} == {"paid"}


def test_a_class_of_one_table_is_a_queue_of_its_own(db: Database) -> None:
    old = {"status": "discarded", "finished_at": PAST, "error": "no"}
    db.committed.add_all([Notice(id=1, **old), Reminder(id=2, about="milk", **old), Reminder(id=3, about="tea", **old)])
    with db.begin() as session:
        assert session.stats(Reminder).total == 2
        assert session.stats(Notice).total == 3
        assert session.errors(Reminder)[0].tasks == 2
        assert session.retry(Reminder, Reminder.about == "milk") == 1
        assert session.cancel(Reminder) == 1
        assert session.prune(Reminder, timedelta(0)) == 2
    assert [type(notice) for notice in load_all(db, Notice)] == [Notice]


def test_a_class_of_two_tables(db: Database) -> None:
    old = {"status": "discarded", "finished_at": PAST}
    db.committed.add_all([Invoice(id=1, **old), CreditNote(id=2, amount=1, **old), CreditNote(id=3, amount=9, **old)])
    with db.begin() as session:
        assert session.retry(CreditNote, CreditNote.amount == 1) == 1
        assert session.stats(CreditNote, CreditNote.amount > 0).total == 2
        assert session.prune(Invoice, timedelta(days=1)) == 2
    assert [invoice.id for invoice in load_all(db, Invoice)] == [2]
    with Session(db.engine) as session:
        assert session.scalar(select(func.count()).select_from(CreditNote.__table__)) == 1


def test_functions_on_a_plain_session(db: Database) -> None:
    one_of_each(db)
    with db.begin(class_=db.plain_class) as session:
        assert session.run(sqlqueue.stats, Task).total == 8
        assert session.run(sqlqueue.errors, Task) == []
        assert session.run(sqlqueue.retry, Task, Task.name == "retryable") == 1
        assert session.run(sqlqueue.rescue, Task) == 0
        assert session.run(sqlqueue.discard, Task, Task.name == "scheduled", error="no") == 1
        assert len(session.run(sqlqueue.find, Task, Task.status == "discarded")) == 2
        assert session.run(sqlqueue.cancel, Task) == 4
        assert session.run(sqlqueue.prune, Task, timedelta(days=1)) == 3
    assert sorted(statuses(db)) == ["cancelled"] * 4 + ["discarded"]
