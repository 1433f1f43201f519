"""What was found by trying to break the kinds of queue."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import RowMapping, event, insert, select, update
from sqlalchemy.exc import DBAPIError

from sqlqueue import ArgumentError, Claim, ClaimLostError, Worker, claim_of
from sqlqueue.dialects import adapter_for
from sqlqueue.operations.upkeep import extend
from sqlqueue.worker.handling.outcomes import COMPLETED, write_what_is_free
from tests.harness import Database
from tests.models import Film, Leaflet, Listing, Ping, Reminder, Report, Slot, Spool, Task, Visit
from tests.suite.scenes import clock, end_leases


def row(db: Database, claim: Claim) -> RowMapping:
    table = claim.entity.__table__
    with db.engine.connect() as connection:
        return connection.execute(select(table).where(table.c.id == claim.identity[0])).mappings().one()


def test_a_lost_slot_costs_no_other_its_lease(db: Database) -> None:
    db.insert(Visit, [{"id": 1, "limit_key": "a"}, {"id": 2, "limit_key": "b"}])
    with db.begin() as actor:
        claims = [claim_of(task) for task in actor.claim_many(Visit, limit=2)]
    with db.engine.begin() as connection:
        connection.execute(update(Slot).where(Slot.slot_key == "a").values(claimed_by="somebody else"))
    end_leases(db, Visit)
    with db.begin() as actor:
        assert actor.run(extend, claims, timedelta(minutes=5)) == [claims[0]]
    assert row(db, claims[1])["available_at"] > clock(db)


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("on_conflict", ["ignore", "replace", "rerun"])
def test_an_enqueuer_of_the_same_key_is_no_victim_and_makes_none(
    sync_db: Database, on_conflict: str, lease: Any
) -> None:
    sync_db.insert(Listing, [{"unique_key": "k"}])
    errors: list[BaseException] = []
    began = threading.Event()

    def enqueue() -> None:
        try:
            with sync_db.begin() as actor:
                began.set()
                actor.enqueue(Listing, [{"unique_key": "k", "version": 1}], on_conflict=on_conflict)
        except BaseException as error:
            errors.append(error)

    with sync_db.begin() as actor:
        task = actor.claim(Listing, lease=lease)
        other = threading.Thread(target=enqueue)
        other.start()
        began.wait()
        other.join(0.2)
        actor.complete(task)
    other.join(10)
    assert not errors


@pytest.mark.requires("locks_rows")
def test_a_deadlock_of_two_who_enqueue_the_same_keys_is_told_as_one(sync_db: Database) -> None:
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
    assert adapter.errors.is_transient(error)


@pytest.mark.parametrize("call", ["discard", "rescue"])
def test_a_staged_task_keeps_its_error(db: Database, call: str) -> None:
    db.insert(Leaflet, [{"id": 1}])
    with db.begin() as actor:
        claim = claim_of(actor.claim(Leaflet))
        if call == "discard":
            actor.discard(claim, "for a reason")
    if call == "rescue":
        end_leases(db, Leaflet)
        with db.begin() as actor:
            assert actor.rescue(Leaflet) == 1
    found = row(db, claim)
    assert found["status"] == "discarded"
    assert found["error"]


@pytest.mark.parametrize("model", [Report, Ping])
def test_a_schedule_that_cannot_be_read_ends_its_own_task_alone(db: Database, model: Any) -> None:
    with db.engine.begin() as connection:  # as any program may
        connection.execute(insert(model), [{"id": 1, "schedule": "now and then"}, {"id": 2, "schedule": "PT60S"}])
    with db.begin() as actor:
        claims = [claim_of(task) for task in actor.claim_many(model, limit=2)]
        assert {claim.identity for claim in claims} >= {(1,)}
        actor.complete(claims)
    with db.begin() as actor:
        found = dict(actor.run(lambda session: session.execute(select(model.id, model.status)).all()))
    assert found == {2: "scheduled"} | ({} if model.__queue__.on_complete == "delete" else {1: "completed"})


def test_a_crashed_task_without_a_readable_schedule_is_rescued(db: Database) -> None:
    with db.engine.begin() as connection:
        connection.execute(insert(Report), [{"id": 1, "schedule": "now and then", "max_attempts": 1}])
    with db.begin() as actor:
        claim = claim_of(actor.claim(Report))
    end_leases(db, Report)
    with db.begin() as actor:
        assert actor.rescue(Report) == 1
    assert row(db, claim)["status"] == "discarded"


def test_keys_are_the_same_to_the_letter(db: Database) -> None:
    keys = ["abC", "aBc", "a", "\u65e5\u672c", "\u6771\u4eac"]
    with db.begin() as actor:
        actor.enqueue(Listing, [{"unique_key": key} for key in keys], on_conflict="ignore")
        found = actor.scalars(select(Listing.unique_key)).all()
    assert sorted(found) == sorted(keys)


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


def test_a_running_task_keeps_the_key_whose_slot_it_holds(db: Database) -> None:
    db.insert(Visit, [{"id": 1, "limit_key": "a"}])
    with db.begin() as actor:
        claim = claim_of(actor.claim(Visit))
    with db.begin() as actor:
        actor.enqueue(Visit, [{"id": 1, "limit_key": "b"}], on_conflict="replace")
    assert row(db, claim)["limit_key"] == "a"
    with db.begin() as actor:
        actor.heartbeat(claim)


def test_no_limit_holds_for_what_is_completed_first(sync_db: Database) -> None:
    with pytest.raises(ArgumentError, match="would have no effect"):
        Worker(sync_db.sessions()).handler(Visit, mode="at-most-once")(lambda visit: None)


def test_the_columns_of_the_queue_are_no_versions(sync_db: Database) -> None:
    with sync_db.begin() as actor, pytest.raises(ArgumentError, match="version="):
        actor.enqueue(Listing, [{"unique_key": "k", "priority": 1}], on_conflict="replace", version=Listing.priority)


@pytest.mark.parametrize("on_conflict", ["ignore", "replace", "rerun"])
def test_a_primary_key_made_here_is_no_way_around_the_unique_key(db: Database, on_conflict: str) -> None:
    db.insert(Listing, [{"id": 1, "unique_key": "k", "version": 1}])
    with db.begin() as actor:
        actor.enqueue(Listing, [{"id": 99, "unique_key": "k", "version": 2}], on_conflict=on_conflict)
    with db.begin() as actor:
        (listing,) = actor.scalars(select(Listing)).all()
        assert (listing.id, listing.version) == (1, 1 if on_conflict == "ignore" else 2)


def test_rows_of_an_inheriting_class_say_so(db: Database) -> None:
    with db.begin() as actor:
        actor.enqueue(Reminder, [{"id": 1}], on_conflict="ignore")
    with db.begin() as actor:
        assert actor.claim(Reminder) is not None


@pytest.mark.requires("locks_rows")
def test_a_beat_waits_for_no_slot(db: Database) -> None:
    """Whose task is settled already by a handler that works on in its transaction."""
    db.insert(Visit, [{"id": 1, "limit_key": "a"}, {"id": 2, "limit_key": "b"}])
    with db.begin() as actor:
        claims = [claim_of(task) for task in actor.claim_many(Visit, limit=2)]
    end_leases(db, Visit)
    with db.begin() as handler:
        handler.complete(claims[0])
        with ThreadPoolExecutor() as pool:
            assert pool.submit(beat, db, claims).result(timeout=10) == []
    assert row(db, claims[1])["available_at"] > clock(db)
    assert row(db, claims[0])["status"] == "completed"


def beat(db: Database, claims: list[Claim]) -> list[Claim]:
    with db.begin() as actor:
        return actor.run(extend, claims, timedelta(minutes=5))


@pytest.mark.requires("locks_rows")
@pytest.mark.parametrize("settle", [extend, write_what_is_free])
def test_what_a_worker_writes_is_read_committed(sync_db: Database, settle: Any) -> None:
    """Whatever the engine's level is, which might know of no lock that is passed over."""
    sync_db.insert(Task, [{"id": 1}])
    with sync_db.begin() as actor:
        claim = claim_of(actor.claim(Task))
    given = ([claim], timedelta(minutes=5)) if settle is extend else ([(claim, COMPLETED)],)
    with sync_db.variant(isolation_level="SERIALIZABLE").begin() as actor:
        actor.run(settle, *given)
        connection = actor.sync_session.connection(bind_arguments=Task.__queue_spec__.bind_arguments)
        assert connection.get_isolation_level() == "READ COMMITTED"


@pytest.mark.requires("locks_rows")
@pytest.mark.parametrize("model", [Spool, Leaflet])
def test_what_was_locked_for_a_moment_is_deleted_or_still_running(sync_db: Database, model: Any) -> None:
    sync_db.insert(model, [{"id": 1, "stage": "post"} if model is Leaflet else {"id": 1}])
    with sync_db.begin() as actor:
        claim = claim_of(actor.claim(model))
    settler = sync_db.variant()
    with sync_db.session() as other:
        other.execute(select(model).with_for_update())

        def let_go(_: Any, __: Any, statement: str, *___: Any) -> None:
            if model.__tablename__ in statement:
                other.rollback()

        event.listen(settler.session_engine, "after_cursor_execute", let_go)
        with settler.begin() as actor:
            assert actor.run(write_what_is_free, [(claim, COMPLETED)]) == (set(), {claim})
    assert row(sync_db, claim)["status"] == "running"
    with sync_db.begin() as actor:
        assert actor.run(write_what_is_free, [(claim, COMPLETED)]) == (set(), set())
    with sync_db.engine.connect() as connection:
        assert connection.execute(select(model.__table__)).all() == []


def test_two_claims_of_one_row_are_told_apart(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    stale = take(db)
    end_leases(db)
    live = take(db)
    with db.begin() as actor:
        with pytest.raises(ClaimLostError) as lost:
            actor.complete([stale, live])
        assert lost.value.claims == (stale,)
        actor.rollback()
    with db.begin() as actor:
        actor.complete([live])


def take(db: Database) -> Claim:
    with db.begin() as actor:
        return claim_of(actor.claim(Task))
