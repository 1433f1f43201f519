"""Unique keys: one unfinished task for each, for any kind of insert; free again once the task is final, by any
means."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import RowMapping, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError

from sqlqueue import ArgumentError, DuplicateTaskError
from tests.suite.simultaneous import THREADS, Transaction, simultaneously
from tests.support.harness import Actor, Database
from tests.support.models import CreditNote, Document, Invoice, Leaflet, Listing
from tests.support.rows import TOMORROW, clock, count, end_leases

pytestmark = pytest.mark.sync_only

MINUTE = timedelta(minutes=1)


def listings(db: Database) -> list[RowMapping]:
    with db.engine.connect() as connection:
        return list(connection.execute(select(Listing.__table__).order_by(Listing.id)).mappings())


def last(db: Database) -> RowMapping:
    return listings(db)[-1]


INSERTS: dict[str, tuple[Callable[[Actor], Any], type[Exception]]] = {
    "add": (lambda actor: (actor.add(Listing(unique_key="a")), actor.flush()), IntegrityError),
    "instance": (lambda actor: actor.enqueue(Listing(unique_key="a")), DuplicateTaskError),
    "rows": (lambda actor: actor.enqueue(Listing, [{"unique_key": "a"}]), DuplicateTaskError),
    "SQL": (lambda actor: actor.execute(text("INSERT INTO listing (unique_key) VALUES ('a')")), IntegrityError),
}


@pytest.mark.parametrize("way", INSERTS)
def test_every_insert_respects_the_unique_key(db: Database, way: str) -> None:
    enqueue, error = INSERTS[way]
    with db.begin() as actor:
        enqueue(actor)
        actor.enqueue(
            Listing, [{"unique_key": "b"}, {"version": 1}, {"version": 2}]
        )  # without a key there is no conflict
    for status in ("available", "scheduled", "retryable", "running"):
        with db.engine.begin() as connection:
            connection.execute(update(Listing.__table__).values(status=status))
        with db.session() as actor, pytest.raises(error):
            enqueue(actor)
    assert count(db, Listing) == 4


def _exhaust(actor: Actor, db: Database) -> None:
    actor.claim(Listing)
    actor.commit()
    end_leases(db, Listing)
    assert actor.rescue(Listing) == 1


ENDINGS: dict[str, Callable[[Actor, Database], Any]] = {
    "complete": lambda actor, _: actor.complete(actor.claim(Listing)),
    "complete, only locked": lambda actor, _: actor.complete(actor.claim(Listing, lease=None)),
    "consume": lambda actor, _: actor.consume(Listing),
    "discard": lambda actor, _: actor.discard(actor.claim(Listing), "no"),
    "cancel": lambda actor, _: actor.cancel(actor.claim(Listing)),
    "fail for good": lambda actor, _: actor.fail(actor.claim(Listing), "no"),
    "rescue": _exhaust,
    "discard by criteria": lambda actor, _: actor.discard(Listing, Listing.unique_key == "a", error="no"),
    "cancel by criteria": lambda actor, _: actor.cancel(Listing, Listing.unique_key == "a"),
}


def test_every_end_of_a_task_frees_its_key(db: Database) -> None:
    for number, (way, end) in enumerate(ENDINGS.items(), start=1):
        db.committed.enqueue(Listing(unique_key="a"))  # there is another after each of them
        with db.begin() as actor:
            end(actor, db)
        ended = last(db)
        assert (ended["unique_key"], ended["former_key"], ended["finished_at"] is None) == (None, "a", False), way
        assert count(db, Listing) == number


def test_a_deleted_task_frees_its_key(db: Database) -> None:
    for _ in range(2):
        db.committed.enqueue(Leaflet(unique_key="a", stage="post"))
        with db.begin() as actor:
            actor.complete(actor.claim(Leaflet))
        assert count(db, Leaflet) == 0


def test_unfinished_tasks_keep_their_key(db: Database) -> None:
    """They keep it even if they fail permanently but were enqueued again in the meantime, and in the next stage."""
    with db.begin() as actor:
        actor.enqueue(Listing(unique_key="a"))
        actor.enqueue(Leaflet(unique_key="a"))
    with db.begin() as actor:
        task = actor.claim(Listing)
        actor.complete(actor.claim(Leaflet))
    with db.begin() as actor:
        actor.enqueue(Listing(unique_key="a"), on_conflict="rerun")
        actor.fail(task, "no")
    assert (last(db)["status"], last(db)["unique_key"], last(db)["former_key"]) == ("available", "a", None)
    assert count(db, Leaflet, Leaflet.unique_key == "a", Leaflet.former_key.is_(None)) == 1


def test_retry_gives_the_key_back(db: Database) -> None:
    db.committed.enqueue(Listing(unique_key="a"))
    for _ in range(2):
        with db.begin() as actor:
            actor.fail(actor.claim(Listing), "no")
        assert db.committed.retry(Listing) == 1
        assert (last(db)["status"], last(db)["unique_key"], last(db)["former_key"]) == ("available", "a", None)
    with db.begin() as actor:
        actor.discard(actor.claim(Listing), "no")
        actor.enqueue(Listing(unique_key="a"))
    assert db.committed.retry(Listing).taken == 1
    assert [each["status"] for each in listings(db)] == ["discarded", "available"]


BY_THREE = "^Listing with one of these keys exists: unique_key 'b', unique_key 'a', unique_key 'c' and 1 more: "
BY_EITHER = "^Listing with id 1 or an unfinished Listing with unique_key 'a' exists: "


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"unique_key": "a"}], "^an unfinished Listing with unique_key 'a' exists: roll back, or choose on_conflict="),
        ([{"id": 1}], "^Listing with id 1 exists: "),
        ([{"id": 1, "unique_key": "a"}], BY_EITHER),
        ([{"unique_key": key} for key in "bacd"], BY_THREE),
        ([{"unique_key": key} for key in ("x", "y", "x")], "^two of these rows of Listing have unique_key 'x': "),
    ],
    ids=["unique", "primary", "both", "many", "twice"],
)
@pytest.mark.every_engine
@pytest.mark.parametrize("as_rows", [False, True], ids=["instances", "rows"])
def test_a_duplicate_is_named(db: Database, rows: list[dict[str, Any]], said: str, as_rows: bool) -> None:
    db.committed.enqueue(Listing(id=1, unique_key="a"))
    with db.session() as actor, pytest.raises(DuplicateTaskError, match=said) as duplicate:
        actor.enqueue(Listing, rows) if as_rows else actor.enqueue([Listing(**row) for row in rows])
    assert {name for key in duplicate.value.keys for name in key} == {name for row in rows for name in row}


@pytest.mark.parametrize(
    "key", [{"unique_key": "a"}, {"id": 1}, {"id": 1, "unique_key": "a"}, {"id": 99, "unique_key": "a"}], ids=str
)
def test_on_conflict_by_either_key(db: Database, key: dict[str, Any]) -> None:
    db.committed.enqueue(Listing(id=1, unique_key="a", version=1))
    for version, (how, kept) in enumerate([("ignore", 1), ("replace", 3), ("rerun", 4)], start=2):
        db.committed.enqueue(Listing, [{**key, "version": version}], on_conflict=how)
        assert (last(db)["id"], last(db)["version"], last(db)["unique_key"]) == (1, kept, "a")
    assert count(db, Listing) == 1


def test_a_final_task_lives_again_by_its_primary_key_alone(db: Database) -> None:
    def complete() -> None:
        with db.begin() as actor:
            actor.complete(actor.claim(Listing))

    def enqueue(how: str, **row: Any) -> None:
        db.committed.enqueue(Listing, [row], on_conflict=how)

    enqueue("replace", id=1, unique_key="a")
    complete()
    enqueue("replace", id=1)
    assert (last(db)["status"], last(db)["unique_key"], last(db)["former_key"]) == ("available", "a", None)
    complete()
    enqueue("replace", unique_key="a")
    assert [each["status"] for each in listings(db)] == ["completed", "available"]
    with pytest.raises(DuplicateTaskError, match=r"^another unfinished Listing has"):  # the other has the key now
        enqueue("rerun", id=1)


@pytest.mark.parametrize("how", ["replace", "rerun"])
def test_debouncing(db: Database, how: str) -> None:
    """The last of many calls wins, and its delay starts then."""
    for number, delay in enumerate((3 * MINUTE, MINUTE, 2 * MINUTE), start=1):
        before = clock(db)
        db.committed.enqueue(Listing(unique_key="a", version=number), on_conflict=how, delay=delay)
        (task,) = listings(db)
        assert (task["status"], task["version"]) == ("scheduled", number)
        assert before + delay <= task["available_at"] <= clock(db) + delay
        if number == 2:  # one that is due is put off as well
            with db.engine.begin() as connection:
                connection.execute(update(Listing.__table__).values(status="available"))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("options", [{}, {"version": Listing.version}])
def test_a_task_is_put_off_until_its_longest_delay(db: Database, rows: int, options: dict[str, Any]) -> None:
    """Whatever calls follow; a new task with the same key starts anew."""

    def call(version: int, delay: timedelta, how: str = "replace") -> list[Any]:
        given = [{"unique_key": key, "version": version} for key in "ab"[:rows]]
        db.committed.enqueue(Listing, given, on_conflict=how, delay=delay, max_delay=3 * MINUTE, **options)
        return listings(db)

    first = call(1, 2 * MINUTE)
    assert first[0]["available_at"] - first[0]["created_at"] <= 2 * MINUTE + timedelta(seconds=9)
    with db.engine.begin() as connection:
        connection.execute(update(Listing.__table__).values(created_at=clock(db) - 2 * MINUTE))
    begun = [task["created_at"] for task in listings(db)]
    for version, how in ((2, "replace"), (3, "rerun")):
        for task, since in zip(call(version, 2 * MINUTE, how), begun, strict=True):
            assert abs(task["available_at"] - since - 3 * MINUTE) < timedelta(milliseconds=2)
            assert (task["status"], task["version"], task["created_at"]) == ("scheduled", version, since)
    shorter = call(4, MINUTE / 2)
    assert shorter[0]["available_at"] < begun[0] + 3 * MINUTE - timedelta(seconds=9)
    db.committed.cancel(Listing)
    assert call(5, 2 * MINUTE)[-1]["available_at"] > clock(db) + MINUTE


@pytest.mark.one_engine
@pytest.mark.sync_only
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on_conflict": "replace"}, "max_delay= needs delay="),
        ({"on_conflict": "ignore", "delay": MINUTE}, "and on_conflict='replace' or 'rerun'"),
        ({"on_conflict": "replace", "delay": 5 * MINUTE}, "is shorter than delay="),
        ({"on_conflict": "replace", "delay": MINUTE, "id": 7}, "with the same primary key is never new again"),
        ({"on_conflict": "replace", "delay": MINUTE, "model": Document, "id": "x"}, "derive Document from UniqueMixin"),
    ],
)
def test_arguments_of_the_longest_delay(db: Database, given: dict[str, Any], said: str) -> None:
    options, model = dict(given), given.get("model", Listing)
    row = {key: options.pop(key) for key in ("id",) if key in options}
    options.pop("model", None)
    with db.session() as actor:
        for call in ((model, [{"version": 1, **row}]), (model(version=1, **row),)):
            with pytest.raises(ArgumentError, match=said):
                actor.enqueue(*call, max_delay=3 * MINUTE, **options)


@pytest.mark.one_engine
@pytest.mark.parametrize("on_conflict", ["raise", "replace"])
@pytest.mark.parametrize("said", [{"available_at": TOMORROW}, {"status": "available"}])
def test_delay_cannot_be_combined_with_a_time_in_the_row(db: Database, said: dict[str, Any], on_conflict: Any) -> None:
    how = {"on_conflict": on_conflict, "delay": timedelta(minutes=1)}
    with db.session() as actor:
        tasks = [Listing(unique_key="a"), Listing(unique_key="b", **said)]
        for given in ([tasks], [Listing, [{"unique_key": "a"}, {"unique_key": "b", **said}]]):
            with pytest.raises(
                ArgumentError, match="row 1: delay= and expires= set the times: leave out available_at and status"
            ):
                actor.enqueue(*given, **how)
        assert [task.available_at for task in tasks] == [None, said.get("available_at")]
        assert list(actor.new) == []


@pytest.mark.parametrize("on_conflict", ["ignore", "replace", "rerun"])
def test_rows_in_several_tables_meet_no_others(db: Database, on_conflict: Any) -> None:
    for given in ([CreditNote(id=1, amount=2)], [CreditNote, [{"id": 1, "amount": 2}]]):
        with db.begin() as actor, pytest.raises(ArgumentError, match="the rows of CreditNote are in several"):
            actor.enqueue(*given, on_conflict=on_conflict)
    with db.begin() as actor:  # of the base there is one
        actor.enqueue(Invoice, [{"id": 1}], on_conflict=on_conflict)
        actor.enqueue(CreditNote, [{"id": 2, "amount": 3}], delay=timedelta(minutes=1))
    with db.begin() as actor:
        assert actor.claim(Invoice).id == 1
        (note,) = actor.find(CreditNote)
        assert (note.amount, note.status) == (3, "scheduled")


def test_a_row_that_the_snapshot_does_not_contain(db: Database) -> None:
    early = db.session()
    assert early.scalar(select(Listing.id)) is None
    if db.case.one_writer:
        early.rollback()  # a transaction with an outdated snapshot can no longer write
    db.committed.enqueue(Listing(id=1, unique_key="a"))
    with suppress(OperationalError):  # an engine may reject writes to rows that its snapshot does not contain
        early.enqueue(Listing, [{"id": 1}], on_conflict="ignore")
        early.commit()
    assert count(db, Listing) == 1


@pytest.mark.parametrize("how", ["ignore", "replace", "rerun"])
def test_a_race_for_many_keys(sync_db: Database, how: str) -> None:
    keys = [f"listing {n}" for n in range(200)]

    def part(transaction: Transaction[None]) -> None:
        transaction(lambda actor: actor.enqueue(Listing, [{"unique_key": key} for key in keys], on_conflict=how))

    assert simultaneously(sync_db, *[part] * THREADS) == 0
    assert sorted(each["unique_key"] for each in listings(sync_db)) == sorted(keys)
