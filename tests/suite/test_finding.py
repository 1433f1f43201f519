"""Find tasks, page through them, and get an example of each error."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy.orm import selectinload

from sqlqueue import Status, utcnow
from sqlqueue.operations.filtering import containing
from sqlqueue.operations.paging import page
from sqlqueue.operations.reactivating import set_priority, set_time, set_value
from tests.support.harness import Database
from tests.support.models import (
    Account,
    CreditNote,
    Invoice,
    Job,
    Mail,
    Notice,
    Reminder,
    Seat,
    Task,
    Ticket,
)
from tests.support.rows import PAST, TOMORROW, clock, contenders, row, without_waiting

ABANDONED = {"status": "running", "attempt": 1, "claimed_at": PAST, "available_at": PAST}
RUNNING = {**ABANDONED, "available_at": TOMORROW}


def ids(tasks: Any) -> list[Any]:
    return [task.id for task in tasks]


# -- find --------------------------------------------------------------------------------------------------------------


def test_find(db: Database) -> None:
    db.insert(Task, [{"id": n, "number": n % 3, "name": "x"} for n in range(1, 10)])
    with db.begin() as session:
        assert ids(session.find(Task)) == list(range(1, 10))
        assert ids(session.find(Task, Task.number == 0, Task.id > 3)) == [6, 9]
        assert ids(session.find(Task, limit=2, order_by=Task.id.desc())) == [9, 8]
        assert ids(session.find(Task, limit=4, order_by=[Task.number, Task.id.desc()])) == [9, 6, 3, 7]
        assert session.find(Task, Task.name == "nobody") == []


def test_tasks_of_every_state_are_found(db: Database) -> None:
    now = clock(db)
    db.insert(
        Task,
        [
            {"id": n, "status": status, "available_at": PAST, "created_at": now - timedelta(minutes=58 + n)}
            for n, status in enumerate(Status, 1)
        ],
    )
    with db.begin() as session:
        assert {task.status for task in session.find(Task)} == set(Status)
        assert ids(session.find(Task, Task.status == Status.DISCARDED)) == [8]
        # by the clock of the database
        assert ids(session.find(Task, Task.created_at <= utcnow(-timedelta(hours=1)))) == [2, 3, 4, 5, 6, 7, 8]


def test_found_instances_are_refreshed(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        (task,) = session.find(Task)
        session.commit()
        db.committed.cancel(Task)
        (again,) = session.find(Task)
        assert again is task
        assert task.status == "cancelled"


def test_nothing_is_locked_and_nothing_claimed(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    looking, claimer = contenders(db)
    (task,) = looking.find(Task)
    assert without_waiting(looking, lambda: claimer.claim(Task)).id == 1
    claimer.commit()
    assert row(db, task)["attempt"] == 1
    looking.rollback()


def test_with_loader_options(db: Database) -> None:
    db.insert(Account, [{"id": 1, "name": "ada"}])
    db.insert(Mail, [{"id": 1, "account_id": 1}])
    (mail,) = db.committed.find(Mail, options=[selectinload(Mail.account)])
    assert mail.account.name == "ada"


def test_find_among_inheriting_classes(db: Database) -> None:
    db.committed.add_all([Notice(id=1), Reminder(id=2, about="tea"), Invoice(id=1), CreditNote(id=2, amount=7)])
    with db.begin() as session:
        assert [type(task) for task in session.find(Notice)] == [Notice, Reminder]
        assert ids(session.find(Reminder, Reminder.about == "tea")) == [2]
        assert ids(session.find(CreditNote, CreditNote.amount == 7)) == [2]
        assert ids(session.find(Invoice)) == [1, 2]


def test_a_text_is_searched_in_columns_of_every_type(sync_db: Database) -> None:
    given = [{"to": "100%"}, {"to": 'Jörg "x"'}, {"n": 1_000}]
    rows = [{"task": f"shop.{'abc'[n]}", "arguments": each} for n, each in enumerate(given)]
    sync_db.insert(Job, [{**row, "id": n, "error": "No" if n == 2 else None} for n, row in enumerate(rows, 1)])
    expected = {"0%": [1], 'jörg "X"': [2], "1000": [3], "no": [2], "SHOP.": [1, 2, 3], "2": [2], "shop_a": []}
    with sync_db.begin() as session:
        for text, keys in expected.items():
            where = containing(Job.__queue_spec__, text, ["arguments", "priority", "created_at"])
            assert [job.id for job in session.find(Job, where)] == keys, text


# -- paging through tasks by position, and making waiting tasks due at once -------------------------------------------


def pages(db: Database, model: Any, status: Status | None, limit: int) -> list[list[Any]]:
    """Return the keys of each page, from the first to the last."""
    spec, after, found = model.__queue_spec__, None, list[list[Any]]()
    while True:
        one = db.committed.run(page, model, status=status, after=after, limit=limit)
        found.append([spec.identity_of(task) for task in one.tasks])
        if one.next is None:
            return found
        after = one.next


def test_each_task_is_on_one_page(sync_db: Database) -> None:
    sync_db.insert(Seat, [{"line": line, "number": n} for line in "ab" for n in (1, 2, 3)])
    expected = [[("b", 3), ("b", 2), ("b", 1), ("a", 3)], [("a", 2), ("a", 1)]]
    assert pages(sync_db, Seat, None, 4) == expected
    assert [len(each) for each in pages(sync_db, Seat, None, 3)] == [3, 3]


@pytest.mark.parametrize(("model", "status"), [(Seat, None), (Ticket, Status.AVAILABLE), (Task, Status.SCHEDULED)])
def test_pages_lead_back_to_those_before(sync_db: Database, model: Any, status: Status | None) -> None:
    rows = [{"line": "ab"[n % 2], "number": n} if model is Seat else {"id": n} for n in range(1, 6)]
    at = TOMORROW if status is Status.SCHEDULED else PAST
    sync_db.insert(model, [{**row, "status": status or "available", "available_at": at} for row in rows])
    with sync_db.begin() as session:
        look = partial(session.run, page, model, status=status, limit=2)
        first = look()
        second = look(after=first.next)
        third = look(after=second.next)
        assert (first.previous, third.next, len(third.tasks)) == (None, None, 1)
        again = look(before=third.previous)
        assert (again.tasks, again.next) == (second.tasks, second.next)
        start = look(before=again.previous)
        assert (start.tasks, start.next, start.previous) == (first.tasks, first.next, None)


def test_a_criterion_without_an_index_is_evaluated_for_some_rows_at_a_time(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": n, "number": 7 if n in (3, 4, 25) else 0} for n in range(1, 31)])
    found, places = [], [None]
    with sync_db.begin() as session:
        look = partial(session.run, page, Task, Task.number == 7, limit=2, scan=10)
        while (one := look(after=places[-1])).next is not None:
            found.append(([task.id for task in one.tasks], one.is_cut))
            places.append(one.next)
        assert found == [([25], True), ([], True), ([4, 3], True)]
        assert places[1:] == [(21,), (11,), (1,)]
        assert (one.tasks, one.is_cut) == ([], False)
        assert look(before=(21,)).previous is None
        assert [task.id for task in look(before=(11,)).tasks] == []
        assert look(before=(11,)).previous == (21,)
        (task,) = look(Task.id == 3).tasks
        assert task.id == 3


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


def test_waiting_tasks_are_run_now(db: Database) -> None:
    waiting = [{"id": n, "status": status, "available_at": TOMORROW} for n, status in enumerate(Status, 1)]
    db.insert(Task, [{**each, "attempt": 1, "max_attempts": 3} for each in waiting])
    assert db.committed.run_now(Task, Task.id != 99) == 3
    now = clock(db)
    with db.begin() as session:
        hastened = {task.id for task in session.find(Task) if task.status == "available" and task.available_at <= now}
        assert hastened == {1, 2, 3}
        assert {task.max_attempts for task in session.find(Task)} == {3}
        assert session.run_now(Task) == 0


def test_pending_tasks_are_edited(sync_db: Database) -> None:
    rows = [{"id": n, "status": status, "available_at": TOMORROW} for n, status in enumerate(Status, 1)]
    sync_db.insert(Task, rows)
    at = PAST + timedelta(days=9_000, microseconds=7)
    with sync_db.begin() as session:
        assert session.run(set_priority, Task, Task.id != 1, priority=-7) == 2
        assert session.run(set_time, Task, Task.id != 3, time=at) == 2
        assert session.run(set_value, Task, name="number", value=5) == 5
        found = [(each.id, each.status, each.priority, each.available_at == at) for each in session.find(Task)]
        assert found[:3] == [(1, "scheduled", 0, True), (2, "scheduled", -7, True), (3, "retryable", -7, False)]
        assert {each[2:] for each in found[3:]} == {(0, False)}
        assert {each.status for each in session.find(Task, Task.number != 5)} == {"waiting", "running", "completed"}
