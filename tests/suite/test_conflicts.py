"""Many sessions enqueue one key concurrently: the last values are stored, and are followed by a run."""

from __future__ import annotations

import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from sqlalchemy import Identity, Integer, String
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapped, mapped_column

from sqlqueue import DuplicateTaskError, QueueMixin, UniqueMixin
from sqlqueue.dialects import adapter_for
from tests.suite.simultaneous import THREADS, race
from tests.support.harness import Actor, Database
from tests.support.models import Base, Document, Listing
from tests.support.rows import PAST, count, load_all, rows


def document(db: Database) -> Document:
    (found,) = load_all(db, Document)
    return found


@pytest.mark.parametrize("how", ["rows", "instance"])
def test_raise_accepts_exactly_one_insert(db: Database, how: str) -> None:
    def enqueue(actor: Actor, version: int) -> None:
        if how == "rows":
            actor.enqueue(Document, [{"id": "a", "version": version}])
        else:
            actor.enqueue(Document(id="a", version=version))

    outcome = race(db, enqueue)
    assert Counter(map(type, outcome)) == {type(None): 1, DuplicateTaskError: THREADS - 1}
    assert document(db).version == outcome.index(None) + 1


STORED: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "a waiting row": rows(1, id="a", version=0),
    "a final row": [{"id": "a", "version": 0, "status": "completed", "available_at": PAST, "finished_at": PAST}],
}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("how", ["ignore", "replace", "rerun"])
def test_other_conflict_modes_accept_all_inserts_and_keep_one_row(db: Database, how: str, stored: str) -> None:
    db.insert(Document, STORED[stored])

    def enqueue(actor: Actor, version: int) -> None:
        actor.enqueue(Document, [{"id": "a", "version": version}], on_conflict=how)

    assert race(db, enqueue) == [None] * THREADS
    made = document(db)
    if how == "ignore" and stored != "nothing":
        assert (made.version, made.status) == (0, "completed" if stored == "a final row" else "available")
        return
    assert made.version in range(1, THREADS + 1)
    assert (made.status, made.attempt, made.finished_at) == ("available", 0, None)
    assert db.committed.claim(Document).version == made.version


@pytest.mark.parametrize("how", ["ignore", "replace", "rerun"])
def test_many_keys_are_enqueued_at_once(sync_db: Database, how: str) -> None:
    keys = [f"document {n}" for n in range(50)]

    def enqueue(actor: Actor, version: int) -> None:
        actor.enqueue(Document, [{"id": key, "version": version} for key in keys], on_conflict=how)

    assert race(sync_db, enqueue) == [None] * THREADS
    versions = [each.version for each in load_all(sync_db, Document)]
    assert len(versions) == 50
    assert len(set(versions)) == 1, "each statement is one: the rows are all of the first, or all of the last"


@pytest.mark.parametrize("how", ["ignore", "replace", "rerun"])
def test_many_rows_that_may_conflict_by_two_keys(db: Database, how: Any) -> None:
    """No engine has an upsert for this: new rows are inserted in bulk, and the others one by one, in order."""
    db.insert(Listing, [{"id": 1, "unique_key": "a", "version": 0}, {"id": 2, "unique_key": "b", "version": 0}])
    given = [(9, "new", 1), (1, "a", 2), (8, "other", 3), (2, "b", 4), (9, "new", 5), (7, "a", 6)]
    rows = [{"id": number, "unique_key": key, "version": version} for number, key, version in given]
    db.committed.enqueue(Listing, rows, on_conflict=how)
    first, last = {1: 0, 2: 0, 8: 3, 9: 1}, {1: 6, 2: 4, 8: 3, 9: 5}
    found = {each.id: each.version for each in load_all(db, Listing)}
    assert found == (first if how == "ignore" else last)


@pytest.mark.parametrize("how", ["ignore", "replace", "rerun"])
def test_two_at_once_with_many_rows_that_may_conflict_by_two_keys(db: Database, how: Any) -> None:
    keys = [{"id": number, "unique_key": f"key {number}"} for number in range(1, 21)]
    raised = race(db, lambda actor, n: actor.enqueue(Listing, [{**key, "version": n} for key in keys], on_conflict=how))
    # MySQL and MariaDB find deadlocks there, see enqueue()
    adapter = adapter_for(db.session_engine.dialect)
    assert [error for error in raised if error is not None and not adapter.connections.is_transient(error)] == []
    found = [each.version for each in load_all(db, Listing)]
    assert len(found) == len(keys)
    assert len(set(found)) == 1


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("on_conflict", ["ignore", "replace", "rerun"])
def test_enqueueing_the_same_key_does_not_deadlock(sync_db: Database, on_conflict: str, lease: Any) -> None:
    sync_db.insert(Listing, [{"unique_key": "k"}])
    row = {"unique_key": "k", "version": 1}
    with ThreadPoolExecutor(1) as pool, sync_db.begin() as actor:
        task = actor.claim(Listing, lease=lease)
        other = pool.submit(sync_db.committed.enqueue, Listing, [row], on_conflict=on_conflict)
        wait([other], 0.2)
        actor.complete(task)
        actor.commit()
        other.result(10)


@pytest.mark.requires("locks_rows")
def test_a_deadlock_between_two_enqueuers_is_reported_as_one(sync_db: Database) -> None:
    adapter, both = adapter_for(sync_db.session_engine.dialect), threading.Barrier(2)

    def enqueue(first: dict[str, Any], second: dict[str, Any]) -> None:
        with sync_db.begin() as actor:
            actor.enqueue(Listing, [first], on_conflict="ignore")
            both.wait(10)
            actor.enqueue(Listing, [second], on_conflict="ignore")

    rows = [{"id": number, "unique_key": key} for number, key in enumerate("xyyx", 1)]
    with ThreadPoolExecutor(2) as pool:
        errors = [each.exception() for each in [pool.submit(enqueue, *rows[:2]), pool.submit(enqueue, *rows[2:])]]
    (error,) = filter(None, errors)
    assert isinstance(error, DBAPIError)
    assert adapter.connections.is_transient(error)


# -- a violated unique constraint of the application is not blamed on the keys that `on_conflict` handles -------------


class Badge(QueueMixin, Base):
    __tablename__ = "badge"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    slug: Mapped[str] = mapped_column(String(20), unique=True)


class Permit(UniqueMixin, Base):
    __tablename__ = "permit"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    slug: Mapped[str] = mapped_column(String(20), unique=True)


ANY: tuple[Any, ...] = ("ignore", "replace", "rerun")
OTHER = r"one of these tasks \(id 2\) violates another unique constraint of badge, whatever on_conflict says: roll back"
EITHER = (
    r"another unfinished Permit has the unique_key of one of these tasks \(unique_key 'b'\), or it violates another"
    r" unique constraint of permit, whatever on_conflict says: roll back"
)


def refused(db: Database, model: Any, row: dict[str, Any], how: str, *, as_rows: bool) -> str:
    with db.session() as actor, pytest.raises(DuplicateTaskError) as duplicate:
        actor.enqueue(*((model, [row]) if as_rows else (model(**row),)), on_conflict=how)
    assert {name for key in duplicate.value.keys for name in key} <= row.keys()
    return str(duplicate.value)


@pytest.mark.parametrize("as_rows", [False, True], ids=["instance", "rows"])
@pytest.mark.parametrize(
    ("model", "mine", "other", "said"),
    [
        (Badge, {"id": 1}, {"id": 2}, OTHER),
        (Permit, {"unique_key": "a"}, {"unique_key": "b"}, EITHER),
    ],
    ids=["primary", "unique"],
)
def test_another_constraint(db: Database, model: Any, mine: Any, other: Any, said: str, as_rows: bool) -> None:
    db.committed.enqueue(model(slug="s", **mine))
    for how in ANY:
        assert re.fullmatch(said, refused(db, model, {"slug": "s", "priority": 7, **other}, how, as_rows=as_rows))
    text = refused(db, model, {"slug": "s", **other}, "raise", as_rows=as_rows)
    assert (
        f"exists, or one of these rows violates another unique constraint of {model.__tablename__}: roll back" in text
    )
    assert "then give other values, or, if it is the key that exists, choose on_conflict=" in text
    for how in ANY:
        db.committed.enqueue(model, [{"slug": "s", **mine}], on_conflict=how)  # this is the row itself
    assert count(db, model) == count(db, model, model.priority == 0) == 1


def test_without_any_key_no_option_helps(db: Database) -> None:
    db.committed.enqueue(Permit, [{"slug": "s"}])
    text = refused(db, Permit, {"slug": "s"}, "raise", as_rows=True)
    assert text.endswith("has the same values as this Permit in a unique key: roll back, and give it other values")
