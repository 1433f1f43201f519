"""The history: one row for each finished attempt, in the transaction that settles it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text, update
from sqlalchemy.orm import DeclarativeBase

from sqlqueue import Claim, ClaimLostError, ConfigurationError, HistoryMixin, claim_of, utcnow
from sqlqueue.dialects import adapter_for
from sqlqueue.outbox import claim_messages
from tests.suite.attempts import HOUR, count, expire, outcomes, put
from tests.support.harness import Database
from tests.support.history import Boat, Cable, Flare, Parcel, Past, Reel, Rota, archive
from tests.support.models import Task

__all__ = ["archive"]

pytestmark = pytest.mark.usefixtures("archive")


def refuse(reason: str) -> None:
    local = "a secret"  # noqa: F841
    raise ValueError(reason)


def test_each_settlement_ends_an_attempt(db: Database) -> None:
    put(db, Parcel())
    ways: list[Any] = [
        lambda session, task: session.release(task),
        lambda session, task: session.snooze(task, timedelta(0)),
        lambda session, task: session.fail(task, "no stamp"),
        lambda session, task: session.complete(task),
    ]
    for number, way in enumerate(ways):
        with db.begin() as session:
            task = session.claim(Parcel, claimed_by=f"worker {number}")
            way(session, task)
    with db.begin() as session:
        found = session.history(task)
        assert session.history(task, limit=2) == found[:2]
    assert outcomes(found) == [
        (4, "completed", None),
        (3, "failed", "no stamp"),
        (2, "snoozed", None),
        (1, "released", None),
    ]
    assert [each.claimed_by for each in found] == [f"worker {number}" for number in (3, 2, 1, 0)]
    assert all(timedelta(0) <= each.took < HOUR for each in found if each.took is not None)
    assert all(each.started_at for each in found)


@pytest.mark.parametrize("how", ["discard", "cancel"])
def test_discarded_and_cancelled_attempts_are_recorded(db: Database, how: str) -> None:
    put(db, Parcel())
    with db.begin() as session:
        task = session.claim(Parcel)
        session.discard(task, "no address") if how == "discard" else session.cancel(task)
    with db.begin() as session:
        told = ("discarded", "no address") if how == "discard" else ("cancelled", None)
        assert outcomes(session.history(task)) == [(1, *told)]


def test_many_in_one_statement(db: Database) -> None:
    put(db, *(Parcel() for _ in range(20)))
    claims = [claim_of(task) for task in db.committed.claim_many(Parcel, limit=20)]
    sent: list[str] = []
    event.listen(db.session_engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    db.committed.complete(claims)
    assert len([statement for statement in sent if statement.startswith("INSERT INTO past ")]) == 1
    assert count(db) == 20
    with db.begin() as session:
        assert all(outcomes(session.history(claim)) == [(1, "completed", None)] for claim in claims)


def test_a_rollback_undoes_the_history(db: Database) -> None:
    put(db, Parcel())
    with db.session() as session:
        session.complete(session.claim(Parcel))
        session.rollback()
    assert count(db) == 0


def test_a_lost_claim_ends_nothing(db: Database) -> None:
    put(db, Parcel())
    zombie = claim_of(db.committed.claim(Parcel))
    db.execute(update(Parcel).values(attempt=2))
    with db.session() as session, pytest.raises(ClaimLostError):
        session.complete(zombie)
    with db.begin() as session, pytest.raises(ClaimLostError):
        session.fail(zombie, "too late")
    assert count(db) == 0


def test_deleted_tasks_of_several_keys(db: Database) -> None:
    put(db, Flare(region="north,east", number=1), Flare(region="north", number=1))
    with db.begin() as session:
        claims = [claim_of(task) for task in session.claim_many(Flare, limit=2, claimed_by="watch")]
        session.complete(claims)
    with db.begin() as session:
        for claim in claims:
            (attempt,) = session.history(claim)
            assert (attempt.outcome, attempt.claimed_by) == ("completed", "watch")
            assert attempt.started_at is not None


def test_a_lock_only_claim_has_no_start_time(db: Database) -> None:
    put(db, Parcel())
    with db.begin() as session:
        task = session.claim(Parcel, lease=None, claimed_by="locker")
        session.complete(task)
    (attempt,) = db.committed.history(task)
    assert (attempt.attempt, attempt.claimed_by, attempt.started_at, attempt.took) == (1, "locker", None, None)


def test_the_claiming_block_records_a_traceback(db: Database) -> None:
    put(db, Parcel())
    with db.begin() as session, session.claiming(Parcel) as task:
        refuse("torn")
    (attempt,) = db.committed.history(task)
    assert (attempt.outcome, attempt.error) == ("failed", "ValueError: torn")
    assert "in refuse" in attempt.traceback
    assert "raise ValueError(reason)" in attempt.traceback
    assert "a secret" not in attempt.traceback
    assert "sqlqueue/operations" not in attempt.traceback


@pytest.mark.requires("narrow_options")
def test_a_traceback_that_the_character_set_of_a_session_lacks(db: Database) -> None:
    put(db, Parcel())
    with db.variant(connect_args=db.case.narrow_options).begin() as session:
        task = session.claim(Parcel)
        try:
            raise ValueError("no stamp")  # it costs 5 €
        except ValueError as error:
            session.fail(task, error)
    (attempt,) = db.committed.history(task)
    assert (attempt.error, attempt.traceback) == ("ValueError: no stamp", None)


@pytest.mark.requires("sends_long_texts")
def test_long_tracebacks_lose_their_middle(db: Database) -> None:
    put(db, Parcel())
    reason = "first " + "ä\U0001f4e6" * 3_000 + " last"
    with db.begin() as session, session.claiming(Parcel) as task:
        refuse(reason)
    (attempt,) = db.committed.history(task)
    assert len(attempt.traceback) == 2_000
    assert attempt.traceback.startswith("Traceback")
    assert attempt.traceback.endswith(" last")


def test_runs_and_stages(db: Database) -> None:
    put(db, Rota(schedule="PT1S"), Reel())
    with db.begin() as session:
        for stage in ("cut", "mix"):
            reel = session.claim(Reel, Reel.stage == stage)
            session.complete(reel)
    db.execute(update(Rota).values(available_at=utcnow(-HOUR), created_at=utcnow(-2 * HOUR)))
    for way in ("complete", "fail"):
        with db.begin() as session:
            rota = session.claim(Rota)
            session.complete(rota) if way == "complete" else session.fail(rota, "late")
        db.execute(update(Rota).values(available_at=utcnow(-HOUR)))
    with db.begin() as session:
        assert outcomes(session.history(reel)) == [(2, "completed", None), (1, "completed", None)]
        assert outcomes(session.history(rota)) == [(2, "failed", "late"), (1, "completed", None)]


def test_limited_tasks(db: Database) -> None:
    db.committed.enqueue([Boat(limit_key="a"), Boat(limit_key="a")])
    with db.begin() as session:
        boats = session.claim_many(Boat, limit=5)
        session.complete(boats)
    with db.begin() as session:
        assert [outcomes(session.history(boat)) for boat in boats] == [[(1, "completed", None)]] * 2


def test_messages_of_an_outbox(db: Database) -> None:
    """Published messages are deleted; the history shows which relay published them, and when."""
    put(db, Cable(message_key="a"), Cable(message_key="a"))
    with db.begin() as session:
        cables = session.run(claim_messages, Cable, limit=5, claimed_by="relay 1")
        assert {cable.claimed_by for cable in cables} == {"relay 1"}
        assert all(cable.claimed_at for cable in cables)
        claims = [claim_of(cable) for cable in cables]
        session.complete(claims)
    with db.begin() as session:
        assert session.stats(Cable).total == 0
        for claim in claims:
            (attempt,) = session.history(claim)
            assert (attempt.outcome, attempt.claimed_by) == ("completed", "relay 1")
            assert attempt.started_at <= attempt.finished_at


def test_the_next_relay_records_the_crash_of_a_relay(db: Database) -> None:
    put(db, Cable(message_key="a"), Cable(message_key="a"))
    for relay in ("gone", "next"):
        claims = [claim_of(each) for each in db.committed.run(claim_messages, Cable, limit=5, claimed_by=relay)]
        expire(db, Cable)
    with db.begin() as session:
        for claim in claims:
            (attempt,) = session.history(claim)
            assert (attempt.attempt, attempt.outcome, attempt.claimed_by) == (1, "crashed", "gone")
            assert attempt.took is not None


def test_pruning(db: Database) -> None:
    put(db, *(Parcel(id=number) for number in range(1, 6)), Flare(region="north", number=1))
    with db.begin() as session:
        session.complete(session.claim_many(Parcel, limit=5))
        session.complete(session.claim(Flare))
    db.execute(update(Past).values(finished_at=utcnow(-timedelta(days=2))).where(Past.task != "1"))
    with db.begin() as session:
        assert session.prune_history(Parcel, limit=3) == 3
        assert session.prune_history(Parcel, limit=3) == 1
        assert session.prune_history(Parcel) == 0
    assert count(db) == 2
    assert db.committed.prune_history(Parcel, timedelta(0)) == 1
    assert count(db) == 1


def test_pruning_reads_no_more_keys_than_it_deletes_at_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    put(db, *(Parcel(id=number) for number in range(1, 6)))
    with db.begin() as session:
        session.complete(session.claim_many(Parcel, limit=5))
    keys = adapter_for(db.engine.dialect).rows
    monkeypatch.setattr(type(keys), "most", lambda *_: 2)
    sent: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        sent.append(statement.partition(" ")[0].strip())

    with db.begin() as session:
        event.listen(session.run(lambda inner: inner.connection()), "before_cursor_execute", note)
        assert session.prune_history(Parcel, timedelta(0), limit=5) == 5
    assert [verb for verb in sent if verb in ("SELECT", "DELETE")][-6:] == ["SELECT", "DELETE"] * 3


def test_a_missing_model_is_an_error(db: Database) -> None:
    with db.begin() as session:
        task = Task()
        session.add(task)
        session.flush()
        with pytest.raises(ConfigurationError, match=r"class QueueHistory\(HistoryMixin, Base\):"):
            session.history(task)


def test_one_table_for_all_queues() -> None:
    class Common(DeclarativeBase):
        pass

    class First(HistoryMixin, Common):
        __tablename__ = "first"

    with pytest.raises(ConfigurationError, match="derive only one model from HistoryMixin"):

        class Second(HistoryMixin, Common):
            __tablename__ = "second"

    assert {index.name for index in First.__table__.indexes} == {"ix_first_task", "ix_first_outcome"}


# -- the history of attempts that end without their own settlement ----------------------------------------------------

LEASES: dict[str, Any] = {"claim": {}, "lock": {"lease": None}}


@pytest.mark.parametrize("lease", [HOUR, None])
def test_a_takeover_records_the_crash(db: Database, lease: timedelta | None) -> None:
    put(db, Parcel(), Parcel(), Parcel())
    crashed = [claim_of(task) for task in db.committed.claim_many(Parcel, limit=2, claimed_by="gone")]
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
    crashed = claim_of(db.committed.claim(model, claimed_by="gone"))
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
    crashed = claim_of(db.committed.claim(Parcel, claimed_by="gone"))
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
    db.execute(update(Rota).values(available_at=utcnow(-HOUR), created_at=utcnow(-2 * HOUR)))
    with db.begin() as session:
        tasks = [session.claim(model, claimed_by="gone") for model in (Parcel, Rota)]
    for model in (Parcel, Rota):
        expire(db, model)
        assert db.committed.rescue(model) == 1
    with db.begin() as session:
        for task in tasks:
            (attempt,) = session.history(task)
            assert (attempt.outcome, attempt.claimed_by) == ("crashed", "gone")


def test_a_retry_of_hung_tasks_records_the_crash(db: Database) -> None:
    put(db, Parcel())
    task = db.committed.claim(Parcel, claimed_by="gone")
    expire(db, Parcel)
    assert db.committed.retry(Parcel) == 1
    (attempt,) = db.committed.history(task)
    assert (attempt.outcome, attempt.claimed_by) == ("crashed", "gone")


@pytest.mark.parametrize("model", [Parcel, Boat])
def test_running_tasks_that_are_ended_by_criteria(db: Database, model: Any) -> None:
    db.committed.enqueue([model() for _ in range(4)])
    running = db.committed.claim_many(model, limit=2, claimed_by="busy")
    with db.begin() as session:
        assert session.cancel(model, model.id == running[0].id) == 1
        assert session.discard(model, error="no longer wanted") == 3
    assert count(db) == 2
    with db.begin() as session:
        assert outcomes(session.history(running[0])) == [(1, "cancelled", None)]
        assert outcomes(session.history(running[1])) == [(1, "discarded", "no longer wanted")]


@pytest.mark.parametrize("model", [Parcel, Flare, Boat])
def test_consumed_tasks(db: Database, model: Any) -> None:
    db.committed.enqueue(model(region="north", number=7) if model is Flare else model())
    with db.begin() as session:
        task = session.consume(model, claimed_by="eater")
        claim = Claim(model, ("north", 7) if model is Flare else (task.id,), 1)
    (attempt,) = db.committed.history(claim)
    assert (attempt.attempt, attempt.outcome, attempt.claimed_by) == (1, "completed", "eater")
