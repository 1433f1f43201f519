"""Tasks page by page, by position, and waiting tasks that are made due at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlqueue import Status
from sqlqueue.operations.paging import page
from tests.suite.scenes import PAST, TOMORROW, clock
from tests.support.harness import Database
from tests.support.models import Seat, Task, Ticket


def pages(db: Database, model: Any, status: Status | None, limit: int) -> list[list[Any]]:
    """Return the keys of each page, from the first to the last."""
    spec, after, found = model.__queue_spec__, None, list[list[Any]]()
    while True:
        with db.begin() as session:
            one = session.run(page, model, status=status, after=after, limit=limit)
        found.append([spec.identity_of(task) for task in one.tasks])
        if one.next is None:
            return found
        after = one.next


def test_each_task_is_on_one_page(sync_db: Database) -> None:
    sync_db.insert(Seat, [{"line": line, "number": n} for line in "ab" for n in (1, 2, 3)])
    expected = [[("b", 3), ("b", 2), ("b", 1), ("a", 3)], [("a", 2), ("a", 1)]]
    assert pages(sync_db, Seat, None, 4) == expected
    assert [len(each) for each in pages(sync_db, Seat, None, 3)] == [3, 3]


def test_available_tasks_are_in_claim_order(sync_db: Database) -> None:
    sync_db.insert(Ticket, [{"id": n, "severity": n % 3, "available_at": PAST} for n in range(1, 8)])
    assert [key for each in pages(sync_db, Ticket, Status.AVAILABLE, 2) for (key,) in each] == [2, 5, 1, 4, 7, 3, 6]


def test_unfinished_tasks_are_in_the_order_of_their_time(sync_db: Database) -> None:
    now = clock(sync_db)
    times = {1: 30, 2: 10, 3: 20, 4: 10, 5: 20}
    rows = [{"id": n, "status": "scheduled", "available_at": now + timedelta(days=day)} for n, day in times.items()]
    sync_db.insert(Task, [*rows, {"id": 6, "status": "running", "available_at": TOMORROW}])
    assert pages(sync_db, Task, Status.SCHEDULED, 2) == [[(2,), (4,)], [(3,), (5,)], [(1,)]]
    assert pages(sync_db, Task, Status.RUNNING, 2) == [[(6,)]]


def test_run_now(db: Database) -> None:
    waiting = [{"id": n, "status": status, "available_at": TOMORROW} for n, status in enumerate(Status, 1)]
    db.insert(Task, [{**each, "attempt": 1, "max_attempts": 3} for each in waiting])
    with db.begin() as session:
        assert session.run_now(Task, Task.id != 99) == 3
    now = clock(db)
    with db.begin() as session:
        hastened = {task.id for task in session.find(Task) if task.status == "available" and task.available_at <= now}
        assert hastened == {1, 2, 3}
        assert {task.max_attempts for task in session.find(Task)} == {3}
        assert session.run_now(Task) == 0
