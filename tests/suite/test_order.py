"""Claims return the first tasks of the queue, in its order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import update

from tests.support.harness import Database
from tests.support.models import Document, Seat, Task, Ticket
from tests.support.rows import DUE, PAST, analyze, rows

random = Random(7)


def shuffled(items: Sequence[Any]) -> list[Any]:
    return random.sample(items, len(items))


def tasks(count: int) -> list[dict[str, Any]]:
    """Return many rows with few distinct values, so that most rows tie."""
    return [
        {
            **row,
            "id": n,
            "priority": random.choice([-3, 0, 0, 7]),
            "available_at": PAST + timedelta(seconds=random.choice([0, 0, 1, 60])),
        }
        for n, row in enumerate(rows(count), start=1)
    ]


ORDERS: dict[str, tuple[Any, list[dict[str, Any]], Callable[[Any], Any], str]] = {
    "ties": (Task, tasks(60), lambda row: (row["priority"], row["available_at"], row["id"]), "id"),
    "own": (
        Ticket,
        [{**row, "id": n, "severity": n % 5, "priority": n % 3} for n, row in enumerate(rows(60), start=1)],
        lambda row: (-row["severity"], row["id"]),
        "id",
    ),
    "composite": (
        Seat,
        [{**row, "line": f"line {n % 4}", "number": n} for n, row in enumerate(rows(60))],
        lambda row: (row["line"], row["number"]),
        "number",
    ),
    "strings": (
        Document,
        [{**row, "id": f"document {n:03}"} for n, row in enumerate(rows(60))],
        lambda row: row["id"],
        "id",
    ),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lease", ["default", None])
def test_claims_follow_the_order(db: Database, order: str, lease: Any) -> None:
    model, rows, key, name = ORDERS[order]
    db.insert(model, shuffled(rows))
    expected = [row[name] for row in sorted(rows, key=key)]
    actor = db.session()
    for start in (0, 7, 14):
        got = actor.claim_many(model, limit=7, lease=lease)
        assert [getattr(task, name) for task in got] == expected[start : start + 7]
        actor.complete(got)
    rest = actor.claim_many(model, limit=100)
    assert [getattr(task, name) for task in rest] == expected[21:]


def test_rows_inserted_in_descending_order(db: Database) -> None:
    db.insert(Task, [{**row, "id": n, "priority": 100 - n} for n, row in enumerate(rows(100), start=1)])
    actor = db.session()
    assert [task.id for task in actor.claim_many(Task, limit=10)] == list(range(100, 90, -1))


def test_a_priority_that_is_changed_while_it_waits(db: Database) -> None:
    db.insert(Task, [{**row, "id": n} for n, row in enumerate(rows(3), start=1)])
    with db.begin() as actor:
        actor.execute(update(Task).where(Task.id == 3).values(priority=-1))
    with db.begin() as actor:
        assert [task.id for task in actor.claim_many(Task, limit=3)] == [3, 1, 2]


@pytest.mark.parametrize("limit", [300, 1_500])
@pytest.mark.parametrize("conditions", [("ready",), DUE], ids=["ready", "due"])
def test_a_large_share_of_the_queue(sync_db: Database, conditions: tuple[str, ...], limit: int) -> None:
    given = [
        {**row, "id": n, "priority": -n, "available_at": PAST - timedelta(seconds=n)}
        for n, row in enumerate(rows(2_000, *conditions), start=1)
    ]
    sync_db.insert(Task, given)
    analyze(sync_db, Task)  # with so many, a plan may scan the table in storage order
    got = sync_db.session().claim_many(Task, limit=limit)
    assert [task.id for task in got] == list(range(2_000, 2_000 - limit, -1))


def test_due_rows_by_when_they_came_due(db: Database) -> None:
    given = [
        {**row, "id": n, "priority": n % 3, "available_at": PAST + timedelta(seconds=n % 7)}
        for n, row in enumerate(rows(60, *DUE), start=1)
    ]
    db.insert(Task, shuffled(given))
    expected = [row["id"] for row in sorted(given, key=lambda row: (row["available_at"], row["id"]))]
    actor = db.session()
    assert [task.id for task in actor.claim_many(Task, limit=10)] == expected[:10]
    assert [task.id for task in actor.claim_many(Task, limit=100)] == expected[10:]


def test_due_rows_come_after_ready_ones(db: Database) -> None:
    due = [{**row, "id": n, "priority": -9} for n, row in enumerate(rows(5, *DUE), start=1)]
    ready = [{**row, "id": n, "available_at": PAST + timedelta(days=1)} for n, row in enumerate(rows(5), start=11)]
    db.insert(Task, due)
    db.insert(Task, ready)
    actor = db.session()
    assert [task.id for task in actor.claim_many(Task, limit=3)] == [11, 12, 13]
    assert [task.id for task in actor.claim_many(Task, limit=4)] == [14, 15, 1, 2]
    assert [task.id for task in actor.claim_many(Task, limit=9)] == [3, 4, 5]


@pytest.mark.parametrize("condition", ["ready", "retryable"])
def test_a_criterion_keeps_the_order(db: Database, condition: str) -> None:
    given = [{**row, "id": n, "number": n % 3} for n, row in enumerate(rows(60, condition), start=1)]
    db.insert(Task, shuffled(given))
    actor = db.session()
    assert [task.id for task in actor.claim_many(Task, Task.number == 2, limit=5)] == [2, 5, 8, 11, 14]
