"""The rows that a claim takes, their order, and the values that it writes."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import desc, event, inspect, or_, text
from sqlalchemy.orm import joinedload, selectinload

from sqlqueue import ArgumentError
from sqlqueue.dialects import adapter_for
from sqlqueue.operations.claiming import ClaimQuery, claim_matching
from sqlqueue.queue.spec import spec_of
from tests.suite.claiming import PAST, claimed, ids
from tests.support.harness import Database
from tests.support.models import Account, Attachment, Mail, Task
from tests.support.rows import clock, load

pytestmark = pytest.mark.asyncio_everywhere

FUTURE = datetime(2090, 1, 1, tzinfo=UTC)
OTHER_COLUMNS = ("priority", "max_attempts", "finished_at", "error", "created_at", "name", "number")


def test_a_claim_writes_state_attempt_claimer_and_lease(db: Database) -> None:
    db.insert(Task, [{"id": 1, "name": "a", "priority": 3, "available_at": PAST}])
    before = load(db, Task, 1)
    started = clock(db)
    with db.begin() as session:
        session.claim(Task)
    after = load(db, Task, 1)
    assert (after.status, after.attempt) == ("running", 1)
    assert after.claimed_by == f"{socket.gethostname()}:{os.getpid()}"
    assert after.claimed_at is not None
    assert started <= after.claimed_at <= clock(db)
    assert abs(after.available_at - after.claimed_at - timedelta(minutes=5)) <= db.case.time_resolution
    for name in OTHER_COLUMNS:
        assert getattr(after, name) == getattr(before, name), name


def test_a_claim_returns_a_persistent_instance_that_shows_it(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        task = session.claim(Task)
        assert inspect(task).persistent
        assert task in session.sync_session
        shown = {
            name: task.__dict__[name] for name in ("status", "attempt", "claimed_by", "claimed_at", "available_at")
        }
    stored = load(db, Task, 1)
    assert shown == {name: getattr(stored, name) for name in shown}


@pytest.mark.filterwarnings("ignore::sqlqueue.SQLQueueWarning")  # it has read before it claims
def test_an_instance_loaded_before_shows_the_claim(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        before = session.get(Task, 1)
        assert before.status == "available"
        assert session.claim(Task) is before
        assert (before.__dict__["status"], before.__dict__["attempt"]) == ("running", 1)


def test_a_claim_of_an_empty_queue_returns_none(db: Database) -> None:
    with db.begin() as session:
        assert session.claim(Task) is None
        assert list(session.claim_many(Task, limit=5)) == []


def test_a_plain_insert_by_another_program_enqueues(db: Database) -> None:
    with db.engine.begin() as connection:
        connection.execute(text("INSERT INTO task (name, number) VALUES ('from outside', 0)"))
    with db.begin() as session:
        task = session.claim(Task)
        assert (task.name, task.priority, task.attempt, task.max_attempts) == ("from outside", 0, 1, 3)


def test_pending_instances_can_be_claimed(db: Database) -> None:
    with db.begin() as session:
        session.add(Task(name="pending"))
        assert session.claim(Task).name == "pending"


def test_lease_and_claimer_can_be_given_with_the_call(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        session.claim(Task, lease=timedelta(seconds=1.5), claimed_by="me")
    task = load(db, Task, 1)
    assert task.claimed_by == "me"
    assert task.claimed_at is not None
    assert abs(task.available_at - task.claimed_at - timedelta(seconds=1.5)) <= db.case.time_resolution


def test_ready_rows_are_claimed_by_priority_then_time_then_key(db: Database) -> None:
    early, late = PAST, PAST + timedelta(days=1)
    keys = {1: (1, early), 2: (0, late), 3: (0, early), 4: (-1, late), 5: (0, early), 6: (2, early)}
    db.insert(Task, [{"id": n, "priority": priority, "available_at": at} for n, (priority, at) in keys.items()])
    assert claimed(db) == [4, 3, 5, 2, 1, 6]


@pytest.mark.parametrize("status", ["scheduled", "retryable", "running"])
def test_due_rows_are_claimed(db: Database, status: str) -> None:
    db.insert(Task, [{"id": 1, "status": status, "attempt": 1, "available_at": PAST}])
    assert claimed(db) == [1]
    task = load(db, Task, 1)
    assert (task.status, task.attempt) == ("running", 2)
    assert task.available_at > PAST


@pytest.mark.parametrize("status", ["scheduled", "retryable", "running"])
def test_rows_that_are_not_due_are_not_claimed(db: Database, status: str) -> None:
    db.insert(Task, [{"id": 1, "status": status, "available_at": FUTURE}])
    assert claimed(db) == []


@pytest.mark.parametrize("status", ["completed", "cancelled", "discarded"])
def test_final_rows_are_not_claimed(db: Database, status: str) -> None:
    db.insert(Task, [{"id": 1, "status": status, "available_at": PAST, "finished_at": PAST}])
    assert claimed(db) == []


def test_a_due_row_without_attempts_left_is_never_claimed(db: Database) -> None:
    rows = [{"id": n, "status": "running", "attempt": n, "max_attempts": 3, "available_at": PAST} for n in (1, 2, 3, 4)]
    db.insert(Task, rows)
    assert claimed(db) == [1, 2]


def test_an_available_row_is_claimed_whatever_its_attempts(db: Database) -> None:
    db.insert(Task, [{"id": 1, "attempt": 3, "max_attempts": 3, "available_at": PAST}])
    assert claimed(db) == [1]


def test_ready_rows_are_claimed_before_due_rows_and_these_by_time(db: Database) -> None:
    due = [(1, "scheduled", 3), (2, "running", 1), (3, "retryable", 2)]
    moments = [PAST + timedelta(hours=hours) for _, _, hours in due]
    rows = [
        {"id": n, "status": s, "priority": 9 - n, "available_at": at}
        for (n, s, _), at in zip(due, moments, strict=True)
    ]
    db.insert(
        Task, [*rows, {"id": 4, "status": "available", "priority": 100, "available_at": PAST + timedelta(days=1)}]
    )
    assert claimed(db) == [4, 2, 3, 1]


def test_a_claim_returns_at_most_limit_tasks(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 6)])
    db.insert(Task, [{"id": n, "status": "scheduled", "available_at": PAST} for n in range(6, 9)])
    assert len(claimed(db, limit=2)) == 2
    assert len(claimed(db, limit=4)) == 4
    assert len(claimed(db, limit=99)) == 2


def test_nothing_is_claimed_twice(db: Database) -> None:
    db.insert(Task, [{"id": 1}, {"id": 2}])
    with db.begin() as session:
        assert session.claim(Task).id != session.claim(Task).id
        assert session.claim(Task) is None
    assert claimed(db) == []


def test_the_order_can_be_given_with_the_call(db: Database) -> None:
    db.insert(Task, [{"id": n, "number": n % 3, "available_at": PAST} for n in range(1, 7)])
    if not adapter_for(db.engine.dialect).locking.orders_freely:
        with pytest.raises(ArgumentError, match="order_by"):
            claimed(db, order_by=Task.number)
        return
    assert claimed(db, order_by=[desc(Task.number), Task.id], limit=3) == [2, 5, 1]
    assert claimed(db, order_by=Task.id.desc(), limit=2) == [6, 4]


def test_criteria_on_the_model(db: Database) -> None:
    db.insert(Task, [{"id": n, "number": n % 3, "name": "odd" if n % 2 else "even"} for n in range(1, 10)])
    assert sorted(claimed(db, Task.number == 1, Task.name == "odd")) == [1, 7]
    assert sorted(claimed(db, or_(Task.id == 2, Task.name.like("e%")))) == [2, 4, 6, 8]
    assert sorted(claimed(db, Task.id.in_([3, 5]))) == [3, 5]


def test_criteria_hold_for_due_rows(db: Database) -> None:
    db.insert(Task, [{"id": n, "number": n % 2, "status": "retryable", "available_at": PAST} for n in range(1, 5)])
    assert sorted(claimed(db, Task.number == 1)) == [1, 3]


def test_criteria_on_the_primary_key(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in range(1, 5)])
    assert claimed(db, Task.id == 3) == [3]
    assert claimed(db, Task.id == 3) == []


def _mails(db: Database) -> None:
    with db.begin() as session:
        for number, name in enumerate(("ada", "bob"), 1):
            account = Account(id=number, name=name)
            session.add(
                Mail(id=number, topic=name, account=account, attachments=[Attachment(name="x"), Attachment(name="y")])
            )


def test_criteria_on_relationships(db: Database) -> None:
    _mails(db)
    with db.begin() as session:
        assert session.claim(Mail, Mail.account.has(name="eve")) is None
        assert session.claim(Mail, Mail.account.has(name="bob")).id == 2
        assert session.claim(Mail, Mail.attachments.any(name="y")).id == 1


def test_a_claim_of_a_topic(db: Database) -> None:
    for values in ({}, {"topic": "b"}, {"topic": "c", "status": "scheduled", "available_at": PAST}):
        db.insert(Mail, [values])
    with db.begin() as session:
        assert session.claim(Mail, Mail.topic == "b").topic == "b"
        assert session.claim(Mail, Mail.topic == "c").attempt == 1
        assert session.claim(Mail, Mail.topic == "b") is None
        assert session.claim(Mail).topic == "default"


@pytest.mark.parametrize(("lease", "status"), [("default", "running"), (None, "available")])
@pytest.mark.parametrize("load", [selectinload, joinedload])
def test_loader_options(db: Database, load: Any, lease: Any, status: str) -> None:
    _mails(db)
    with db.begin() as session:
        options = [load(Mail.attachments), load(Mail.account)]
        mails = session.claim_many(Mail, limit=2, options=options, lease=lease)
        assert [len(mail.__dict__["attachments"]) for mail in mails] == [2, 2]
        assert [mail.__dict__["account"].name for mail in mails] == ["ada", "bob"]
        assert [mail.__dict__["status"] for mail in mails] == [status] * 2
        session.complete(mails)


# -- the state of claims in instances and sessions --------------------------------------------------------------------


def test_a_claim_takes_two_steps_at_most(db: Database) -> None:
    """A claim that finds nothing queries ready rows and due rows, and sends nothing else."""
    statements: list[str] = []
    with db.begin() as session:
        assert session.claim(Task) is None  # statements that are sent only once per engine
        event.listen(db.session_engine, "before_cursor_execute", record := lambda *args: statements.append(args[2]))
        try:
            session.claim(Task)
        finally:
            event.remove(db.session_engine, "before_cursor_execute", record)
    assert len(statements) == 2


def test_ready_rows_can_be_requested_alone(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "scheduled", "available_at": PAST}])
    db.insert(Task, [{"id": 2}, {"id": 3}])
    wanted = ClaimQuery(spec_of(Task))
    with db.begin() as actor:
        assert ids(actor.run(claim_matching, wanted.ready, 3)) == [2, 3]
        assert ids(actor.run(claim_matching, wanted.ready, 3)) == []
        assert ids(actor.run(claim_matching, wanted, 3)) == [1]
