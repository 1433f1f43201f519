"""Handlers for the stages of a pipeline, and what happens to the values that handlers return."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from sqlqueue import Retry, enqueue
from sqlqueue.testing import drain
from tests.support.harness import Database
from tests.support.models import Film, Task
from tests.support.rows import count, rows
from tests.support.workers import LONG, Workers, all_are, eventually, with_session

KINDS: dict[str, dict[str, Any]] = {"a session": {}, "the task alone": {}, "a lock": {"mode": "lock"}}


def returning(db: Database, kind: str, value: Callable[[Any], Any]) -> Any:
    """Return a handler of this kind for the worker of this database."""

    def of_task(task: Any) -> Any:
        return value(task)

    def of_session(session: Any, task: Any) -> Any:
        return value(task)

    async def of_task_later(task: Any) -> Any:
        return value(task)

    async def of_session_later(session: Any, task: Any) -> Any:
        return value(task)

    alone, together = (of_task_later, of_session_later) if db.is_async else (of_task, of_session)
    return alone if kind == "the task alone" else together


def films(db: Database) -> list[Any]:
    with db.engine.connect() as connection:
        return list(connection.execute(select(Film.__table__)).mappings())


def test_each_stage_has_its_handler_and_passes_its_result_on(db: Database, workers: Workers) -> None:
    db.insert(Film, rows(5))
    db.insert(Task, rows(1))
    worker = workers.make(poll=LONG)  # nothing polls for the next stage: the worker is notified
    for (kind, options), stage in zip(KINDS.items(), ("cut", "dub", "print"), strict=True):
        value = lambda task, stage=stage: [*(task.result or ()), stage]  # noqa: E731
        worker.handler(Film, Film.stage == stage, **options)(returning(db, kind, value))
    worker.handler(Task)(returning(db, "the task alone", lambda _: object()))  # the result is not stored
    workers.start(worker)
    eventually(all_are(db, "completed", Film))
    eventually(all_are(db, "completed", Task))
    assert [film["result"] for film in films(db)] == [["cut", "dub", "print"]] * 5


@pytest.mark.parametrize("options", [{}, {"mode": "lock"}], ids=["lease", "lock"])
def test_follow_up_jobs_are_enqueued_in_the_commit_of_the_completion(
    db: Database, workers: Workers, options: dict[str, Any]
) -> None:
    """They are enqueued together, or not at all: each handler fails once after enqueueing."""
    tried: set[int] = set()

    def hand_on(session: Any, task: Any) -> None:
        if task.number:
            enqueue(session, Task, [{"number": task.number - 1}])
        if task.number not in tried:
            tried.add(task.number)
            raise Retry(timedelta(0))

    db.insert(Task, rows(1, number=3))
    workers.serve(Task, with_session(db, hand_on), poll=LONG, **options)
    eventually(lambda: count(db, Task, Task.status == "completed") == 4)
    with db.begin() as session:
        assert [(task.number, task.attempt) for task in session.find(Task, order_by=Task.id)] == [
            (number, 2) for number in (3, 2, 1, 0)
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_that_is_not_json_is_a_failure(db: Database, workers: Workers, kind: str) -> None:
    """Only the task with that result fails."""
    db.insert(Film, rows(3, stage="print"))
    worker = workers.make(poll=LONG)
    result = lambda task: object() if task.id == min(film["id"] for film in films(db)) else "done"  # noqa: E731
    worker.handler(Film, **KINDS[kind])(returning(db, kind, result))
    workers.start(worker)
    eventually(lambda: sorted(film["status"] for film in films(db)) == ["completed", "completed", "retryable"])
    first = min(films(db), key=lambda film: film["id"])
    assert (first["status"], first["result"]) == ("retryable", None)
    assert "cannot be stored as JSON" in first["error"]
    assert worker._reports.counts["failed"] == 1


def test_a_test_sees_the_results(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Film, rows(2, stage="dub"))
    worker = workers.make()
    worker.handler(Film)(returning(sync_db, "the task alone", lambda task: [*(task.result or ()), task.stage]))
    assert drain(worker) == {"completed": 4}
    assert [film["result"] for film in films(sync_db)] == [["dub", "print"]] * 2
