"""Pages of tasks in an order that an index has, and in others, for which a bounded number of tasks is examined."""

from __future__ import annotations

import uuid
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from sqlqueue import Status
from sqlqueue.operations.paging import Page, Sorting, page
from sqlqueue.sql import NEVER
from tests.support.harness import Actor, Database
from tests.support.models import Mail, Parcel, Seat, Task
from tests.support.rows import PAST, TOMORROW

pytestmark = pytest.mark.sync_only
KEYS: dict[Any, Any] = {
    Task: lambda n: {"id": n + 1},
    Mail: lambda n: {"id": n + 1, "topic": "a"},
    Parcel: lambda n: {"id": uuid.uuid5(uuid.NAMESPACE_URL, str(n))},
    Seat: lambda n: {"line": "abc"[n % 3], "number": n},
}


def stored(db: Database, model: Any) -> int:
    """Insert tasks in every state, of which some have the same times and priorities; return their number."""
    possible = [status for status in Status if status is not Status.WAITING]  # these are no members of batches
    states = [*possible, *possible, Status.AVAILABLE, Status.AVAILABLE]
    rows = [
        {
            **KEYS[model](n),
            "status": status,
            "priority": n % 3,
            "created_at": PAST + timedelta(minutes=n * 7 % 5),
            "available_at": (TOMORROW if status is Status.SCHEDULED else PAST) + timedelta(minutes=n * 11 % 7),
            "finished_at": PAST if status in (Status.COMPLETED, Status.CANCELLED, Status.DISCARDED) else None,
        }
        for n, status in enumerate(states)
    ]
    rows[5] |= {"status": "completed", "available_at": NEVER, "finished_at": None}  # before it became a queue
    db.insert(model, rows)
    return len(rows)


def there_and_back(session: Actor, model: Any, *where: Any, limit: int = 4, **options: Any) -> list[Any]:
    """Return the tasks of all pages, having seen that each leads back to the one before it."""
    look = partial(session.run, page, model, *where, limit=limit, **options)
    seen: list[Page[Any]] = [look()]
    while seen[-1].next is not None:
        seen.append(look(after=seen[-1].next))
    for earlier, later in pairwise(seen):
        again = look(before=later.previous)
        assert (list(again.tasks), again.next, again.previous) == (list(earlier.tasks), earlier.next, earlier.previous)
    return [task for each in seen for task in each.tasks]


def places(task: Any, sorting: Sorting) -> tuple[Any, ...]:
    match sorting:
        case Sorting.CREATED:
            return (task.id,) if isinstance(task, (Task, Mail)) else (task.created_at,)
        case Sorting.TIME:
            return (task.available_at,)
        case Sorting.PRIORITY:
            return (task.priority, task.available_at)


@pytest.mark.parametrize("model", KEYS, ids=lambda model: model.__name__)
def test_every_task_is_on_one_page_in_each_order(sync_db: Database, model: Any) -> None:
    """Newest first, whatever the key."""
    number, spec = stored(sync_db, model), model.__queue_spec__
    with sync_db.begin() as session:
        for sorting in Sorting:
            for descending in (False, True):
                order = sorting.order(spec, descending=descending)
                tasks = there_and_back(session, model, order=order, limit=7)
                assert len({spec.identity_of(task) for task in tasks}) == len(tasks) == number
                values = [places(task, sorting) for task in tasks]
                assert values == sorted(values, reverse=descending), (sorting, descending)


def test_the_tasks_of_a_state_in_each_order(sync_db: Database) -> None:
    stored(sync_db, Parcel)
    expected = {Status.AVAILABLE: 4, Status.RUNNING: 2, Status.COMPLETED: 3}
    with sync_db.begin() as session:
        for status, number in expected.items():
            for sorting in Sorting:
                order = sorting.order(Parcel.__queue_spec__, descending=True)
                tasks = there_and_back(session, Parcel, order=order, status=status)
                assert [task.status for task in tasks] == [status] * number
                values = [places(task, sorting) for task in tasks]
                assert values == sorted(values, reverse=True)
        order = Sorting.TIME.order(Parcel.__queue_spec__, descending=False)
        assert len(there_and_back(session, Parcel, Parcel.priority == 1, order=order)) == 5


def test_of_too_many_tasks_the_first_and_the_last_are_sorted(sync_db: Database) -> None:
    """In the order of claims, 1, 2 and 9, 10 are at its ends; they were created in the opposite order."""
    sync_db.insert(
        Parcel,
        [
            {**KEYS[Parcel](n), "priority": n, "available_at": PAST, "created_at": PAST - timedelta(minutes=n)}
            for n in range(1, 11)
        ],
    )
    order = Sorting.CREATED.order(Parcel.__queue_spec__, descending=True)
    with sync_db.begin() as session:
        found = session.run(page, Parcel, order=order, scan=4)
        assert ([task.priority for task in found.tasks], found.is_cut, found.next) == ([1, 2, 9, 10], True, None)
        whole = session.run(page, Parcel, order=order, scan=11)
        assert ([task.priority for task in whole.tasks], whole.is_cut) == (list(range(1, 11)), False)


def test_some_tasks_of_each_group_of_states_are_examined_if_asked_for(sync_db: Database) -> None:
    """By an index of all tasks, only the last ones would be examined."""
    sync_db.insert(Mail, [{"id": 1, "topic": "a", "subject": "lost", "available_at": PAST}])
    done = {"topic": "a", "subject": "", "status": "completed", "available_at": PAST, "finished_at": PAST}
    sync_db.insert(Mail, [{"id": n, **done} for n in range(2, 12)])
    order = Sorting.CREATED.order(Mail.__queue_spec__, descending=True)
    with sync_db.begin() as session:
        look = partial(session.run, page, Mail, Mail.subject == "lost", order=order, scan=4)
        assert list(look().tasks) == []
        found = look(by_state=True)
        assert ([task.id for task in found.tasks], found.is_cut) == ([1], True)
