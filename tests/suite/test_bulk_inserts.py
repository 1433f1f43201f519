"""Thousands of rows in one call are sent in bulk, in the session's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event

from sqlqueue import ArgumentError
from tests.support.harness import Database
from tests.support.models import Document, Letter, Parcel, Reminder, Task
from tests.support.rows import TOMORROW, count, rows

MANY = 20_000


@contextmanager
def executions(db: Database) -> Iterator[list[str]]:
    """Record the statements of cursors; one with many sets of parameters counts once."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(db.session_engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(db.session_engine, "before_cursor_execute", note)


def test_many_rows_are_not_inserted_one_by_one(sync_db: Database) -> None:
    with executions(sync_db) as seen, sync_db.begin() as actor:
        actor.enqueue(Task, [{"name": f"task {n}", "number": n} for n in range(MANY)])
    assert sum("INSERT" in statement for statement in seen) < 50
    assert count(sync_db, Task, Task.status == "available", Task.attempt == 0, Task.max_attempts == 3) == MANY
    assert [task.name for task in sync_db.session().claim_many(Task, limit=2)] == ["task 0", "task 1"]


def test_rows_with_conflicts_are_written_in_bulk(db: Database) -> None:
    db.insert(Document, [{**row, "id": str(n), "version": 1} for n, row in enumerate(rows(100))])
    with executions(db) as seen, db.begin() as actor:
        actor.enqueue(Document, [{"id": str(n), "version": 2} for n in range(2_000)], on_conflict="replace")
    assert sum("INSERT" in statement for statement in seen) < 50
    assert count(db, Document, Document.version == 2) == 2_000


def test_many_rows_are_rolled_back_together(sync_db: Database) -> None:
    actor = sync_db.session()
    actor.enqueue(Task, [{"number": n} for n in range(1_000)])
    actor.rollback()
    assert count(sync_db, Task) == 0


# -- COPY -----------------------------------------------------------------------------------------------------------

copies = pytest.mark.requires("copies")


@copies
def test_copy_loads_the_given_rows(db: Database) -> None:
    text = 'tab\t, newline\n, backslash \\, quote ", \\N and ö'
    with executions(db) as seen, db.begin() as actor:
        actor.enqueue(Task, [{"name": text, "number": n} for n in range(MANY)], copy=True)
    assert not any("INSERT" in statement for statement in seen)
    assert count(db, Task, Task.name == text, Task.status == "available") == MANY
    (task,) = db.session().claim_many(Task, limit=1)
    assert (task.name, task.number, task.max_attempts, task.priority) == (text, 0, 3, 0)


@copies
def test_copy_matches_columns_by_name(db: Database) -> None:
    with db.begin() as actor:
        actor.enqueue(Task, [{"name": "one", "number": 1}, {"number": 2, "name": "two"}], copy=True)
    assert [(task.name, task.number) for task in db.session().claim_many(Task, limit=2)] == [("one", 1), ("two", 2)]


@copies
def test_copy_schedules_and_makes_keys(db: Database) -> None:
    moment = datetime(2031, 5, 6, 7, 8, 9, 123_457, tzinfo=UTC)
    with db.begin() as actor:
        actor.enqueue(Parcel, [{"name": "later", "available_at": moment} for _ in range(100)], copy=True)
        actor.enqueue(Letter, [{"recipient": "ada"}], copy=True)
        assert actor.claim(Letter).recipient == "ada"
    assert count(db, Parcel, Parcel.available_at == moment, Parcel.status == "scheduled") == 100


@copies
def test_copy_is_part_of_the_transaction(db: Database) -> None:
    actor = db.session()
    actor.add(Task(name="by hand"))
    actor.flush()
    actor.enqueue(Task, [{"name": f"copied {n}"} for n in range(100)], copy=True)
    assert len(actor.claim_many(Task, limit=200)) == 101
    assert count(db, Task) == 0, "other transactions do not see it before the commit"
    actor.rollback()
    assert count(db, Task) == 0


def test_copy_without_support_is_rejected(db: Database) -> None:
    actor = db.session()
    if db.case.copies:
        pytest.skip("it copies")
    with pytest.raises(ArgumentError, match="copy"):
        actor.enqueue(Task, [{"available_at": TOMORROW}], copy=True)
    actor.rollback()
    assert count(db, Task) == 0


def test_rows_of_an_inheriting_class_store_their_identity(db: Database) -> None:
    with db.begin() as actor:
        actor.enqueue(Reminder, [{"id": 1}], on_conflict="ignore")
    with db.begin() as actor:
        assert actor.claim(Reminder) is not None
