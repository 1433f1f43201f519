"""The effect of enqueue() on an existing task with the same key, waiting, running or finished."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from sqlqueue import DuplicateTaskError
from tests.support.harness import Database
from tests.support.models import Document, Letter, Order, Seat
from tests.support.rows import FUTURE, PAST, clock, load, load_all

FINAL = ["completed", "cancelled", "discarded"]


@pytest.mark.parametrize("as_rows", [False, True], ids=["instances", "rows"])
def test_on_conflict_raise(db: Database, as_rows: bool) -> None:
    db.insert(Document, [{"id": "a"}])
    session = db.session()
    with pytest.raises(DuplicateTaskError, match=r"^Document with id 'a' exists: .*on_conflict") as duplicate:
        session.enqueue(Document, [{"id": "a"}]) if as_rows else session.enqueue(Document(id="a"))
    assert (duplicate.value.model, duplicate.value.keys) == (Document, ({"id": "a"},))
    assert isinstance(duplicate.value.__cause__, IntegrityError)
    session.rollback()
    db.committed.enqueue(Document(id="b"))


def test_other_violations_are_not_duplicates(db: Database) -> None:
    with pytest.raises(DBAPIError):
        db.session().enqueue(Letter, [{"recipient": None}])


def test_on_conflict_ignore(db: Database) -> None:
    db.insert(Document, [{"id": "a", "version": 1, "priority": 1}])
    before = vars(load(db, Document, "a")).copy()
    with db.begin() as session:
        session.enqueue([Document(id="a", version=2), Document(id="b", version=2)], on_conflict="ignore")
        session.enqueue(Document, [{"id": "b", "version": 3}, {"id": "c", "version": 3}], on_conflict="ignore")
    assert [document.version for document in load_all(db, Document)] == [1, 2, 3]
    after = vars(load(db, Document, "a")).copy()
    del before["_sa_instance_state"], after["_sa_instance_state"]
    assert after == before


@pytest.mark.parametrize("on_conflict", ["replace", "rerun"])
def test_a_task_that_does_not_run_is_available_with_the_new_values(db: Database, on_conflict: Any) -> None:
    final = {"available_at": PAST, "finished_at": PAST}
    waiting = {"available_at": FUTURE, "finished_at": None}
    stored = [
        *({"id": status, "status": status, **final} for status in FINAL),
        *({"id": status, "status": status, **waiting} for status in ("scheduled", "retryable")),
    ]
    db.insert(Document, [{"version": 1, "attempt": 5, "max_attempts": 5, **row} for row in stored])
    started = clock(db)
    with db.begin() as session:
        for number, row in enumerate(stored):
            given = {"id": row["id"], "version": 2, "priority": number}
            session.enqueue(*((Document, [given]) if number % 2 else (Document(**given),)), on_conflict=on_conflict)
    for document in load_all(db, Document):
        assert document.id not in FINAL or document.max_attempts == 10
        assert (document.version, document.status, document.attempt) == (2, "available", 5)
        assert document.finished_at is None
        assert started <= document.available_at <= clock(db)
    assert db.committed.claim(Document).attempt == 6


@pytest.mark.parametrize("on_conflict", ["replace", "rerun"])
def test_the_values_of_the_row_are_stored(db: Database, on_conflict: Any) -> None:
    db.insert(Document, [{"id": key, "attempt": 2, "status": "completed", "finished_at": PAST} for key in "ab"])
    db.committed.enqueue(Document(id="a", available_at=FUTURE), on_conflict=on_conflict)
    db.committed.enqueue(Document, [{"id": "b", "priority": 7, "max_attempts": 1}], on_conflict=on_conflict)
    later, other = load_all(db, Document)
    assert (later.status, later.available_at) == ("scheduled", FUTURE)
    assert (other.priority, other.max_attempts - other.attempt) == (7, 1)


def test_conflicts_on_two_columns_and_on_renamed_ones(db: Database) -> None:
    db.insert(Seat, [{"line": "a", "number": 1, "priority": 1}])
    db.insert(Order, [{"id": 1, "status": "paid", "queue_status": "completed", "finished_at": PAST}])
    with db.begin() as session:
        session.enqueue(Seat, [{"line": "a", "number": n, "priority": 9} for n in (1, 2)], on_conflict="replace")
        session.enqueue(Order(id=1, status="shipped"), on_conflict="rerun")
    assert [seat.priority for seat in load_all(db, Seat)] == [9, 9]
    assert (load(db, Order, 1).status, load(db, Order, 1).queue_status) == ("shipped", "available")


def _running(db: Database, model: Any, key: Any, on_conflict: str, **values: Any) -> Any:
    """Claim a task and enqueue it again."""
    db.committed.add(model(id=key))
    task = db.committed.claim(model)
    db.committed.enqueue(model, [{"id": key, **values}], on_conflict=on_conflict)
    assert load(db, model, key).status == "running"
    return task


def test_rerun_after_a_failure_with_attempts_left_is_the_retry(db: Database) -> None:
    task = _running(db, Document, "a", "rerun")
    db.committed.fail(task, "no")
    document = load(db, Document, "a")
    assert (document.status, document.error) == ("retryable", "no")


def test_rerun_survives_a_crash(db: Database) -> None:
    """The next claim sees the enqueued values, so it is the requested run."""
    _running(db, Document, "a", "rerun")
    db.execute(Document.__table__.update().values(available_at=PAST))
    with db.begin() as session:
        session.complete(session.claim(Document))
    assert load(db, Document, "a").status == "completed"
