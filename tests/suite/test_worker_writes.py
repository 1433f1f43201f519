"""Workers write heartbeats and outcomes of many tasks at once; a lost claim does not affect the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, select, update

from sqlqueue import Claim, ClaimLostError, claim_of
from sqlqueue.operations.upkeep import extend
from sqlqueue.worker.jobs import COMPLETED, write_what_is_free
from tests.support.harness import Database
from tests.support.models import Leaflet, Slot, Spool, Task, Visit
from tests.support.rows import clock, end_leases, row_of


def test_a_lost_slot_does_not_end_other_leases(db: Database) -> None:
    db.insert(Visit, [{"id": 1, "limit_key": "a"}, {"id": 2, "limit_key": "b"}])
    claims = [claim_of(task) for task in db.committed.claim_many(Visit, limit=2)]
    with db.engine.begin() as connection:
        connection.execute(update(Slot).where(Slot.slot_key == "a").values(claimed_by="somebody else"))
    end_leases(db, Visit)
    assert db.committed.run(extend, claims, timedelta(minutes=5)) == [claims[0]]
    assert row_of(db, claims[1])["available_at"] > clock(db)


@pytest.mark.requires("locks_rows")
def test_a_heartbeat_does_not_wait_for_a_slot(db: Database) -> None:
    """The slot's task is already settled by a handler whose transaction is still open."""
    db.insert(Visit, [{"id": 1, "limit_key": "a"}, {"id": 2, "limit_key": "b"}])
    claims = [claim_of(task) for task in db.committed.claim_many(Visit, limit=2)]
    end_leases(db, Visit)
    with db.begin() as handler:
        handler.complete(claims[0])
        with ThreadPoolExecutor() as pool:
            assert pool.submit(beat, db, claims).result(timeout=10) == []
    assert row_of(db, claims[1])["available_at"] > clock(db)
    assert row_of(db, claims[0])["status"] == "completed"


def beat(db: Database, claims: list[Claim]) -> list[Claim]:
    return db.committed.run(extend, claims, timedelta(minutes=5))


@pytest.mark.requires("locks_rows")
@pytest.mark.parametrize("settle", [extend, write_what_is_free])
def test_workers_write_in_read_committed(sync_db: Database, settle: Any) -> None:
    """This is independent of the engine's level, which might not support skipping locks."""
    sync_db.insert(Task, [{"id": 1}])
    claim = claim_of(sync_db.committed.claim(Task))
    given = ([claim], timedelta(minutes=5)) if settle is extend else ([(claim, COMPLETED)],)
    with sync_db.variant(isolation_level="SERIALIZABLE").begin() as actor:
        actor.run(settle, *given)
        connection = actor.sync_session.connection(bind_arguments=Task.__queue_spec__.bind_arguments)
        assert connection.get_isolation_level() == "READ COMMITTED"


@pytest.mark.requires("locks_rows")
@pytest.mark.parametrize("model", [Spool, Leaflet])
def test_briefly_locked_rows_are_deleted_or_still_running(sync_db: Database, model: Any) -> None:
    sync_db.insert(model, [{"id": 1, "stage": "post"} if model is Leaflet else {"id": 1}])
    claim = claim_of(sync_db.committed.claim(model))
    settler = sync_db.variant()
    with sync_db.session() as other:
        other.execute(select(model).with_for_update())

        def release(_: Any, __: Any, statement: str, *___: Any) -> None:
            if model.__tablename__ in statement:
                other.rollback()

        event.listen(settler.session_engine, "after_cursor_execute", release)
        assert settler.committed.run(write_what_is_free, [(claim, COMPLETED)]) == (set(), {claim})
    assert row_of(sync_db, claim)["status"] == "running"
    assert sync_db.committed.run(write_what_is_free, [(claim, COMPLETED)]) == (set(), set())
    with sync_db.engine.connect() as connection:
        assert connection.execute(select(model.__table__)).all() == []


def test_two_claims_of_one_row_are_distinguished(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    stale = take(db)
    end_leases(db)
    live = take(db)
    with db.begin() as actor:
        with pytest.raises(ClaimLostError) as lost:
            actor.complete([stale, live])
        assert lost.value.claims == (stale,)
        actor.rollback()
    db.committed.complete([live])


def take(db: Database) -> Claim:
    return claim_of(db.committed.claim(Task))
