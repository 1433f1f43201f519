"""Waiting until tasks have ended, in short transactions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from sqlqueue import ArgumentError, find, wait_for
from sqlqueue.operations import waiting
from tests.support.harness import Database
from tests.support.models import Film, Leaflet, Task
from tests.support.rows import rows

SOON, NOW = timedelta(seconds=60), timedelta(0)


def waits(db: Database, tasks: Any, timeout: timedelta = SOON) -> Any:
    """Call `wait_for`, and await it if the sessions are asyncio's."""
    sessions: Any = db.sessions()
    found: Any = wait_for(sessions, tasks, timeout=timeout)
    return db._loop.run(found) if db.is_async else found


def stored(db: Database, model: Any, number: int) -> list[Any]:
    db.insert(model, [{"id": n, **row} for n, row in enumerate(rows(number), 1)])
    return list(db.committed.find(model))


def looked(db: Database, act: Callable[[], object]) -> Callable[[], int]:
    """Call `act` after the second look, and return a function that returns how many there were."""
    looks: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and "status" in statement and "finished_at" not in statement:
            looks.append(statement)
            if len(looks) == 2:
                Thread(target=act).start()

    event.listen(db.session_engine, "after_cursor_execute", note)
    return lambda: len(looks)


def test_it_returns_tasks_once_all_have_ended(db: Database) -> None:
    tasks = stored(db, Film, 3)
    other = db.variant(pool_size=1)

    def end() -> None:
        with other.begin() as session:
            session.complete(session.claim(Film, Film.id == 1), {"scenes": 7}, stage="print")
            session.cancel(Film, Film.id == 2)
            session.discard(Film, Film.id == 3, error="no")
        with other.begin() as session:
            session.complete(session.claim(Film), {"scenes": 8})

    looks = looked(db, end)
    found = waits(db, reversed(tasks))
    assert looks() >= 3
    assert [(film.id, film.status, film.result) for film in found] == [
        (3, "discarded", None),
        (2, "cancelled", None),
        (1, "completed", {"scenes": 8}),
    ]
    assert waits(db, tasks[0], NOW).result == {"scenes": 8}


@pytest.mark.one_engine
def test_no_transaction_is_held_between_looks(db: Database) -> None:
    (task,) = stored(db, Task, 1)
    held: list[bool] = []
    pool = db.variant(pool_size=1, max_overflow=0)

    def end() -> None:
        held.append(pool.engine.pool.checkedout() == 0)  # type: ignore[attr-defined]
        db.committed.cancel(Task)

    looked(pool, end)
    assert waits(pool, [task])[0].status == "cancelled"


@pytest.mark.one_engine
def test_a_timeout_names_what_has_not_ended(db: Database) -> None:
    tasks = stored(db, Task, 6)
    db.committed.cancel(Task, Task.id == 1)
    with pytest.raises(TimeoutError, match=r"5 of 6 tasks have not ended after 0.1 s: task 2 is available, .* 2 more"):
        waits(db, tasks, timedelta(seconds=0.1))


@pytest.mark.one_engine
def test_bad_input(sync_db: Database) -> None:
    def complains(about: str, tasks: Any, timeout: Any = NOW) -> None:
        with pytest.raises(ArgumentError, match=about):
            wait_for(sync_db.sessions(), tasks, timeout=timeout)

    complains("has no identity", Task())
    with sync_db.session() as session:
        task = Task(number=1)
        session.add(task)
        session.flush()
        complains("has no row: it is not committed yet", [task])
        with pytest.raises(ArgumentError, match="neither a sessionmaker"):
            wait_for(session, task, timeout=NOW)  # type: ignore[call-overload]
    complains("timeout=5", [], 5)
    complains("give a task", None)
    leaflet = Leaflet()
    sync_db.committed.add(leaflet)
    complains("on_complete='keep'", leaflet)
    assert wait_for(sync_db.sessions(), list[Task](), timeout=NOW) == []


@pytest.mark.one_engine
def test_a_task_that_is_deleted_meanwhile_is_missed_at_once(sync_db: Database) -> None:
    (task,) = stored(sync_db, Task, 1)

    def remove() -> None:
        with Session(sync_db.engine) as session:
            session.delete(session.get_one(Task, 1))
            session.commit()

    looked(sync_db, remove)
    with pytest.raises(ArgumentError, match="or was deleted"):
        waits(sync_db, task)


@pytest.mark.one_engine
def test_a_task_that_runs_again_before_it_is_loaded_is_waited_for(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = stored(sync_db, Task, 1)
    sync_db.committed.cancel(Task)

    db = sync_db.read_committed  # in an older snapshot, it has ended

    def find_later(*call: Any) -> list[Any]:
        monkeypatch.undo()
        db.committed.rerun(Task)
        found = find(*call)
        Thread(target=db.committed.discard, args=(Task,), kwargs={"error": "no"}).start()
        return found

    monkeypatch.setattr(waiting, "find", find_later)
    assert waits(db, task).status == "discarded"
