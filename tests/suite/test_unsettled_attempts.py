"""The history of attempts that end without their own settlement: crashes, rescues, changes by criteria."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text, update

from sqlqueue import Claim, claim_of, utcnow
from tests.suite.attempts import HOUR, count, expire, outcomes, put
from tests.support.harness import Database
from tests.support.history import Boat, Flare, Parcel, Rota, kept_tables_in

LEASES: dict[str, Any] = {"claim": {}, "lock": {"lease": None}}


@pytest.fixture(autouse=True)
def tables(db: Database) -> Iterator[None]:
    for _ in kept_tables_in(db):
        yield


@pytest.mark.parametrize("lease", [HOUR, None])
def test_a_takeover_records_the_crash(db: Database, lease: timedelta | None) -> None:
    put(db, Parcel(), Parcel(), Parcel())
    with db.begin() as session:
        crashed = [claim_of(task) for task in session.claim_many(Parcel, limit=2, claimed_by="gone")]
    expire(db, Parcel)
    with db.session() as session:
        assert len(session.claim_many(Parcel, limit=3, lease=lease)) == 3
        session.rollback()
    assert count(db) == 0
    with db.begin() as session:
        taken = session.claim_many(Parcel, limit=3, lease=lease, claimed_by="next")
        session.complete(taken)
    assert count(db) == 5
    with db.begin() as session:
        for claim in crashed:
            done, gone = session.history(claim)
            assert (done.attempt, done.outcome, done.claimed_by) == (2, "completed", "next")
            assert (gone.attempt, gone.outcome, gone.claimed_by) == (1, "crashed", "gone")
            assert gone.took is not None
            assert "lease expired" in gone.error


@pytest.mark.parametrize("method", ["claim", "lock", "consume"])
@pytest.mark.parametrize("model", [Parcel, Flare])
def test_a_row_that_cannot_be_read_records_the_crash(db: Database, model: Any, method: str) -> None:
    put(db, Flare(region="north", number=1) if model is Flare else Parcel())
    with db.begin() as session:
        crashed = claim_of(session.claim(model, claimed_by="gone"))
    expire(db, model)

    def load(*_: object) -> None:
        raise ValueError("cannot be read")

    event.listen(model, "load", load)
    try:
        with db.begin() as session:
            took = session.consume(model) if method == "consume" else session.claim(model, **LEASES[method])
            assert took is None
    finally:
        event.remove(model, "load", load)
    with db.begin() as session:
        *_, attempt = attempts = session.history(crashed)
        assert (attempt.attempt, attempt.outcome, attempt.claimed_by) == (1, "crashed", "gone")
        assert [each.outcome for each in attempts[:-1]] in ([], ["snoozed"])


@pytest.mark.parametrize("method", ["claim", "lock", "promote"])
def test_a_claim_whose_time_cannot_be_read_stops_nothing(db: Database, method: str) -> None:
    put(db, Parcel())
    with db.begin() as session:
        crashed = claim_of(session.claim(Parcel, claimed_by="gone"))
    expire(db, Parcel)
    with db.engine.connect() as connection:
        if db.case.odd_mode:
            connection.execute(text(db.case.odd_mode))
        connection.execute(text(f"UPDATE past_parcel SET claimed_at = {db.case.odd_times[0]}"))
        connection.commit()
        connection.invalidate()
    with db.begin() as session:
        if method == "promote":
            assert session.promote(Parcel) == 1
        elif (task := session.claim(Parcel, **LEASES[method])) is not None:
            session.complete(task)
    with db.begin() as session:
        *_, attempt = session.history(crashed)
        assert (attempt.attempt, attempt.outcome, attempt.claimed_by) == (1, "crashed", "gone")


def test_a_rescue_records_the_crash(db: Database) -> None:
    put(db, Parcel(max_attempts=1), Rota(schedule="PT1S", max_attempts=1))
    with db.engine.begin() as connection:
        connection.execute(update(Rota).values(available_at=utcnow(-HOUR), created_at=utcnow(-2 * HOUR)))
    with db.begin() as session:
        tasks = [session.claim(model, claimed_by="gone") for model in (Parcel, Rota)]
    for model in (Parcel, Rota):
        expire(db, model)
        with db.begin() as session:
            assert session.rescue(model) == 1
    with db.begin() as session:
        for task in tasks:
            (attempt,) = session.history(task)
            assert (attempt.outcome, attempt.claimed_by) == ("crashed", "gone")


def test_a_retry_of_hung_tasks_records_the_crash(db: Database) -> None:
    put(db, Parcel())
    with db.begin() as session:
        task = session.claim(Parcel, claimed_by="gone")
    expire(db, Parcel)
    with db.begin() as session:
        assert session.retry(Parcel) == 1
    with db.begin() as session:
        (attempt,) = session.history(task)
    assert (attempt.outcome, attempt.claimed_by) == ("crashed", "gone")


@pytest.mark.parametrize("model", [Parcel, Boat])
def test_running_tasks_that_are_ended_by_criteria(db: Database, model: Any) -> None:
    with db.begin() as session:
        session.enqueue([model() for _ in range(4)])
    with db.begin() as session:
        running = session.claim_many(model, limit=2, claimed_by="busy")
    with db.begin() as session:
        assert session.cancel(model, model.id == running[0].id) == 1
        assert session.discard(model, error="no longer wanted") == 3
    assert count(db) == 2
    with db.begin() as session:
        assert outcomes(session.history(running[0])) == [(1, "cancelled", None)]
        assert outcomes(session.history(running[1])) == [(1, "discarded", "no longer wanted")]


@pytest.mark.parametrize("model", [Parcel, Flare, Boat])
def test_consumed_tasks(db: Database, model: Any) -> None:
    with db.begin() as session:
        session.enqueue(model(region="north", number=7) if model is Flare else model())
    with db.begin() as session:
        task = session.consume(model, claimed_by="eater")
        claim = Claim(model, ("north", 7) if model is Flare else (task.id,), 1)
    with db.begin() as session:
        (attempt,) = session.history(claim)
    assert (attempt.attempt, attempt.outcome, attempt.claimed_by) == (1, "completed", "eater")
