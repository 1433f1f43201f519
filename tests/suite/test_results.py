"""The result of a task is stored with it, as JSON."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from sqlqueue import ArgumentError
from tests.support.harness import Database
from tests.support.models import Film, Task

RESULTS: list[Any] = [{"pages": [1, 2.5, None], "title": "Ünïcode"}, [], "text", 0, False, "null"]


def stored(db: Database) -> list[Any]:
    with db.begin() as actor:
        return list(actor.scalars(select(Film.result).order_by(Film.id)).all())


def test_a_result_is_kept(db: Database) -> None:
    with db.begin() as actor:
        actor.enqueue(Film, [{"stage": "print"} for _ in (*RESULTS, None)])
    with db.begin() as actor:
        tasks = actor.claim_many(Film, limit=100)
        for task, result in zip(tasks, RESULTS, strict=False):
            actor.complete(task, result)
        actor.complete(tasks[-1])
    assert [repr(each) for each in stored(db)] == [repr(each) for each in (*RESULTS, None)]


def test_a_result_of_a_stage_waits_for_the_next(db: Database) -> None:
    with db.begin() as actor:
        actor.enqueue(Film, [{}, {}])
    with db.begin() as actor:
        actor.complete(actor.claim_many(Film, limit=2), {"scenes": 3})
    with db.begin() as actor:
        task = actor.claim(Film, Film.stage == "dub")
        assert task.result == {"scenes": 3}
        actor.complete(task)
    assert stored(db) == [{"scenes": 3}] * 2


def test_a_result_without_a_column_is_rejected(db: Database) -> None:
    db.insert(Task, [{}])
    with db.session() as actor:
        task = actor.claim(Task)
        with pytest.raises(ArgumentError, match="ResultMixin"):
            actor.complete(task, "done")
        actor.complete(task)  # nothing was sent
        actor.commit()
        assert actor.stats(Task)["completed"] == 1


def test_a_new_life_has_no_result_yet(db: Database) -> None:
    with db.begin() as actor:
        actor.enqueue(Film, [{"id": 1, "stage": "print"}])
    with db.begin() as actor:
        actor.complete(actor.claim(Film), {"reels": 3})
    with db.begin() as actor:
        actor.enqueue(Film, [{"id": 1}], on_conflict="rerun")
    with db.begin() as actor:
        (film,) = actor.scalars(select(Film)).all()
        assert (film.status, film.stage, film.result) == ("available", "cut", None)
