"""The rows that claim() and consume() take, their order, and the values that are written."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

import pytest
from sqlalchemy import desc, inspect, or_
from sqlalchemy.orm import joinedload, selectinload

from sqlqueue import ArgumentError, IllegalTransitionError
from sqlqueue.dialects import adapter_for
from sqlqueue.operations.claiming import ClaimQuery, claim_matching
from sqlqueue.queue.spec import spec_of
from tests.support.harness import Database
from tests.support.models import Account, Attachment, Document, Mail, Order, Reminder, Seat, Spool, Task, Ticket
from tests.support.rows import DUE, FUTURE, PAST, analyze, clock, load, load_all, rows
from tests.support.workers import seen

FINAL = ("completed", "cancelled", "discarded")
OTHER_COLUMNS = ("priority", "max_attempts", "finished_at", "error", "created_at", "name", "number")


def in_order(tasks: Any) -> list[int]:
    return [task.id for task in tasks]


def claimed(db: Database, *where: Any, limit: int = 10, **arguments: Any) -> list[int]:
    return in_order(db.committed.claim_many(Task, *where, limit=limit, **arguments))


@pytest.mark.parametrize(
    ("arguments", "claimer", "lease"),
    [
        ({}, f"{socket.gethostname()}:{os.getpid()}", timedelta(minutes=5)),
        ({"lease": timedelta(seconds=1.5), "claimed_by": "me"}, "me", timedelta(seconds=1.5)),
    ],
    ids=["default", "given"],
)
def test_a_claim_writes_state_attempt_claimer_and_lease(
    db: Database, arguments: dict[str, Any], claimer: str, lease: timedelta
) -> None:
    db.insert(Task, [{"id": 1, "name": "a", "priority": 3, "available_at": PAST}])
    before = load(db, Task, 1)
    started = clock(db)
    db.committed.claim(Task, **arguments)
    after = load(db, Task, 1)
    assert (after.status, after.attempt, after.claimed_by) == ("running", 1, claimer)
    assert after.claimed_at is not None
    assert started <= after.claimed_at <= clock(db)
    assert abs(after.available_at - after.claimed_at - lease) <= db.case.time_resolution
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


def test_which_rows_are_claimed(db: Database) -> None:
    due = {"available_at": PAST, "attempt": 1}
    claimable = [
        *({**due, "status": status} for status in ("scheduled", "retryable", "running")),
        {**due, "status": "running", "attempt": 2},
        {**due, "status": "available", "attempt": 3},  # whatever its attempts
    ]
    others = [
        *({**due, "status": status, "available_at": FUTURE} for status in ("scheduled", "retryable", "running")),
        *({**due, "status": status, "attempt": 3} for status in ("scheduled", "retryable", "running")),
        {**due, "status": "running", "attempt": 4},
        *({**due, "status": status, "finished_at": PAST} for status in FINAL),
    ]
    given = [{"finished_at": None, "max_attempts": 3, **row} for row in [*claimable, *others]]
    db.insert(Task, [{"id": n, **row} for n, row in enumerate(given, start=1)])
    assert sorted(claimed(db, limit=99)) == [1, 2, 3, 4, 5]
    tasks = load_all(db, Task)
    assert [(task.status, task.attempt) for task in tasks[:5]] == [("running", n) for n in (2, 2, 2, 3, 4)]
    assert all(task.available_at > PAST for task in tasks[:5])
    assert [(task.status, task.attempt) for task in tasks[5:]] == [(row["status"], row["attempt"]) for row in others]


@pytest.mark.parametrize("lease", ["default", None])
def test_nothing_is_claimed_twice(db: Database, lease: Any) -> None:
    # SKIP LOCKED skips only rows that other transactions have locked
    db.insert(Task, [{"id": 1}, {"id": 2}, {"id": 3}])
    with db.begin() as session:
        tasks = [session.claim(Task, lease=lease), session.claim(Task, lease=lease), session.claim(Task)]
        assert [task.id for task in tasks] == [1, 2, 3]
        assert session.claim(Task) is None
        session.complete(tasks)
    assert claimed(db) == []


def test_the_order_can_be_given_with_the_call(db: Database) -> None:
    db.insert(Task, [{"id": n, "number": n % 3, "available_at": PAST} for n in range(1, 7)])
    if not adapter_for(db.engine.dialect).rows.locks_after_sorting:
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
    assert claimed(db, Task.id == 9) == [9]
    assert claimed(db, Task.id == 9) == []


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


@pytest.mark.parametrize("load", [selectinload, joinedload])
def test_loader_options(db: Database, load: Any) -> None:
    """Of a claim, of one that only locks, and of `consume_many`."""
    _mails(db)
    options: dict[str, Any] = {"limit": 2, "options": [load(Mail.attachments), load(Mail.account)]}
    with db.session() as session:
        for status, claim in (
            ("running", session.claim_many),
            ("available", partial(session.claim_many, lease=None)),
            ("completed", session.consume_many),
        ):
            mails = claim(Mail, **options)
            assert [len(mail.__dict__["attachments"]) for mail in mails] == [2, 2]
            assert [mail.__dict__["account"].name for mail in mails] == ["ada", "bob"]
            assert [mail.__dict__["status"] for mail in mails] == [status] * 2
            session.rollback()


# -- the state of claims in instances and sessions --------------------------------------------------------------------


def test_a_claim_takes_two_steps_at_most(db: Database) -> None:
    """A claim that finds nothing queries ready rows and due rows, and sends nothing else."""
    with db.begin() as session:
        assert session.claim(Task) is None  # statements that are sent only once per engine
        with seen(db, "before_cursor_execute") as statements:
            session.claim(Task)
    assert len(statements) == 2


def test_ready_rows_can_be_requested_alone(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "scheduled", "available_at": PAST}])
    db.insert(Task, [{"id": 2}, {"id": 3}])
    wanted = ClaimQuery(spec_of(Task))
    with db.begin() as actor:
        assert in_order(actor.run(claim_matching, wanted.ready, 3)) == [2, 3]
        assert in_order(actor.run(claim_matching, wanted.ready, 3)) == []
        assert in_order(actor.run(claim_matching, wanted, 3)) == [1]


# -- claims return the first tasks of the queue, in its order ---------------------------------------------------------

random = Random(7)


def shuffled(items: Sequence[Any]) -> list[Any]:
    return random.sample(items, len(items))


def tasks(*conditions: str) -> list[dict[str, Any]]:
    """Return many rows with few distinct values, so that most rows tie."""
    return [
        {
            **row,
            "id": n,
            "priority": random.choice([-3, 0, 0, 7]),
            "available_at": PAST + timedelta(seconds=random.choice([0, 0, 1, 60])),
        }
        for n, row in enumerate(rows(60, *conditions), start=1)
    ]


def ready_then_due(task: Task) -> Any:
    """Ready tasks go by priority; due ones come after them, by when they came due."""
    is_due = task.status != "available"
    return is_due, 0 if is_due else task.priority, task.available_at, task.id


ORDERS: dict[str, tuple[Any, list[dict[str, Any]], Callable[[Any], Any]]] = {
    "ready": (Task, tasks("ready"), ready_then_due),
    "due": (Task, tasks(*DUE), ready_then_due),
    "ready and due": (Task, tasks("ready", *DUE), ready_then_due),
    "own": (
        Ticket,
        [{**row, "id": n, "severity": n % 5, "priority": n % 3} for n, row in enumerate(rows(60), start=1)],
        lambda ticket: (-ticket.severity, ticket.id),
    ),
    "composite": (
        Seat,
        [{**row, "line": f"line {n % 4}", "number": n} for n, row in enumerate(rows(60))],
        lambda seat: (seat.line, seat.number),
    ),
    "strings": (
        Document,
        [{**row, "id": f"document {n:03}"} for n, row in enumerate(rows(60))],
        lambda document: document.id,
    ),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lease", ["default", None])
def test_claims_follow_the_order(db: Database, order: str, lease: Any) -> None:
    model, given, key = ORDERS[order]
    db.insert(model, shuffled(given))
    expected = [inspect(task).identity for task in sorted(load_all(db, model), key=key)]
    actor = db.session()
    for start in (0, 7, 14):
        got = actor.claim_many(model, limit=7, lease=lease)
        assert [inspect(task).identity for task in got] == expected[start : start + 7]
        actor.complete(got)
    rest = actor.claim_many(model, limit=100)
    assert [inspect(task).identity for task in rest] == expected[21:]


@pytest.mark.parametrize("conditions", [("ready",), DUE], ids=["ready", "due"])
def test_a_large_share_of_the_queue(sync_db: Database, conditions: tuple[str, ...]) -> None:
    given = [
        {**row, "id": n, "priority": -n, "available_at": PAST - timedelta(seconds=n)}
        for n, row in enumerate(rows(2_000, *conditions), start=1)
    ]
    sync_db.insert(Task, given)
    analyze(sync_db, Task)  # with so many, a plan may scan the table in storage order
    with sync_db.session() as session:
        for limit in (300, 1_500):
            assert in_order(session.claim_many(Task, limit=limit)) == list(range(2_000, 2_000 - limit, -1))
            session.rollback()


@pytest.mark.parametrize("condition", ["ready", "retryable"])
def test_a_criterion_keeps_the_order(db: Database, condition: str) -> None:
    given = [{**row, "id": n, "number": n % 3} for n, row in enumerate(rows(60, condition), start=1)]
    db.insert(Task, shuffled(given))
    actor = db.session()
    assert in_order(actor.claim_many(Task, Task.number == 2, limit=5)) == [2, 5, 8, 11, 14]


# -- consume() --------------------------------------------------------------------------------------------------------


def test_a_consumed_task_is_completed(db: Database) -> None:
    db.insert(Task, [{"id": 1, "available_at": PAST}])
    with db.begin() as session:
        task = session.consume(Task, claimed_by="me")
        assert task.__dict__["status"] == "completed"
        assert session.consume(Task) is None
        with pytest.raises(IllegalTransitionError):
            session.complete(task)
    (task,) = load_all(db, Task)
    assert (task.status, task.attempt, task.claimed_by, task.max_attempts) == ("completed", 1, "me", 3)
    assert PAST < task.available_at == task.finished_at == task.claimed_at


def test_many_tasks_are_consumed_in_claim_order(db: Database) -> None:
    db.insert(Task, [{"id": n, "priority": -n} for n in range(1, 5)])
    db.insert(Task, [{"id": 5, "status": "running", "attempt": 1, "available_at": PAST}])
    db.insert(Task, [{"id": 6, "status": "scheduled", "available_at": FUTURE}])
    assert [task.id for task in db.committed.consume_many(Task, Task.id > 1, limit=10)] == [4, 3, 2, 5]
    assert [task.status for task in load_all(db, Task)] == ["available"] + ["completed"] * 4 + ["scheduled"]


def test_a_task_deleted_on_completion_is_returned_detached(db: Database) -> None:
    db.insert(Spool, [{"id": n, "text": f"text {n}"} for n in (1, 2, 3)])
    with db.begin() as session:
        tasks = session.consume_many(Spool, limit=2)
        assert [task.text for task in tasks] == ["text 1", "text 2"]
        assert all(inspect(task).detached for task in tasks)
        assert session.get(Spool, 1) is None
    assert [task.id for task in load_all(db, Spool)] == [3]


def test_consume_with_renamed_columns_and_inheritance(db: Database) -> None:
    db.insert(Order, [{"id": 1, "status": "paid"}])
    with db.begin() as session:
        session.add(Reminder(id=1, about="milk"))
        assert session.consume(Reminder, Reminder.about == "milk").id == 1
        assert session.consume(Order).queue_status == "completed"
    assert load_all(db, Order)[0].status == "paid"
