"""The history: one row for each finished attempt, in the transaction that settles it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, text, update
from sqlalchemy.orm import DeclarativeBase

from sqlqueue import Claim, ClaimLostError, ConfigurationError, HistoryMixin, claim_of, utcnow
from sqlqueue.dialects import adapter_for
from sqlqueue.outbox import claim_messages
from tests.support.harness import Database
from tests.support.history import HOUR, Boat, Cable, Flare, Parcel, Past, Reel, Rota, archive, expire, outcomes
from tests.support.models import Task
from tests.support.rows import count
from tests.support.workers import seen

__all__ = ["archive"]

pytestmark = pytest.mark.usefixtures("archive")


def refuse(reason: str) -> None:
    local = "a secret"  # noqa: F841
    raise ValueError(reason)


def test_each_settlement_ends_an_attempt(db: Database) -> None:
    ways: list[tuple[Any, str, str | None]] = [
        (lambda session, task: session.release(task), "released", None),
        (lambda session, task: session.snooze(task, timedelta(0)), "snoozed", None),
        (lambda session, task: session.fail(task, "no stamp"), "failed", "no stamp"),
        (lambda session, task: session.complete(task), "completed", None),
        (lambda session, task: session.cancel(task), "cancelled", None),
        (lambda session, task: session.discard(task, "no address"), "discarded", "no address"),
    ]
    db.committed.add(Parcel())
    for number, (way, _, _) in enumerate(ways, 1):
        with db.begin() as session:
            task = session.claim(Parcel, claimed_by=f"worker {number}")
            way(session, task)
        db.committed.rerun(Parcel)
    with db.begin() as session:
        found = session.history(task)
        assert session.history(task, limit=2) == found[:2]
    assert outcomes(found[::-1]) == [(number, *told) for number, (_, *told) in enumerate(ways, 1)]
    assert [each.claimed_by for each in found[::-1]] == [f"worker {number}" for number in range(1, 7)]
    assert all(timedelta(0) <= each.took < HOUR for each in found if each.took is not None)
    assert all(each.started_at for each in found)


def test_many_in_one_statement(db: Database) -> None:
    db.committed.add_all([Parcel() for _ in range(20)])
    claims = [claim_of(task) for task in db.committed.claim_many(Parcel, limit=20)]
    with seen(db, "before_cursor_execute") as sent:
        db.committed.complete(claims)
    assert len([statement for _, _, statement, *_ in sent if statement.startswith("INSERT INTO past ")]) == 1
    assert count(db, Past) == 20
    with db.begin() as session:
        assert all(outcomes(session.history(claim)) == [(1, "completed", None)] for claim in claims)


def test_a_rollback_undoes_the_history(db: Database) -> None:
    db.committed.add(Parcel())
    with db.session() as session:
        session.complete(session.claim(Parcel))
        session.rollback()
    assert count(db, Past) == 0


def test_a_lost_claim_ends_nothing(db: Database) -> None:
    db.committed.add(Parcel())
    zombie = claim_of(db.committed.claim(Parcel))
    db.execute(update(Parcel).values(attempt=2))
    with db.session() as session, pytest.raises(ClaimLostError):
        session.complete(zombie)
    with db.begin() as session, pytest.raises(ClaimLostError):
        session.fail(zombie, "too late")
    assert count(db, Past) == 0


def test_deleted_tasks_of_several_keys(db: Database) -> None:
    db.committed.add_all([Flare(region="north,east", number=1), Flare(region="north", number=1)])
    with db.begin() as session:
        claims = [claim_of(task) for task in session.claim_many(Flare, limit=2, claimed_by="watch")]
        session.complete(claims)
    with db.begin() as session:
        for claim in claims:
            (attempt,) = session.history(claim)
            assert (attempt.outcome, attempt.claimed_by) == ("completed", "watch")
            assert attempt.started_at is not None


def test_a_lock_only_claim_has_no_start_time(db: Database) -> None:
    db.committed.add(Parcel())
    with db.begin() as session:
        task = session.claim(Parcel, lease=None, claimed_by="locker")
        session.complete(task)
    (attempt,) = db.committed.history(task)
    assert (attempt.attempt, attempt.claimed_by, attempt.started_at, attempt.took) == (1, "locker", None, None)


def test_the_claiming_block_records_a_traceback(db: Database) -> None:
    db.committed.add(Parcel())
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
    db.committed.add(Parcel())
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
    db.committed.add(Parcel())
    reason = "first " + "ä\U0001f4e6" * 3_000 + " last"
    with db.begin() as session, session.claiming(Parcel) as task:
        refuse(reason)
    (attempt,) = db.committed.history(task)
    assert len(attempt.traceback) == 2_000
    assert attempt.traceback.startswith("Traceback")
    assert attempt.traceback.endswith(" last")


def test_tasks_of_other_kinds(db: Database) -> None:
    db.committed.enqueue([Rota(schedule="PT1S"), Reel(), Boat(limit_key="a"), Boat(limit_key="a")])
    with db.begin() as session:
        boats = session.claim_many(Boat, limit=5)
        session.complete(boats)
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
        assert [outcomes(session.history(boat)) for boat in boats] == [[(1, "completed", None)]] * 2
        assert outcomes(session.history(reel)) == [(2, "completed", None), (1, "completed", None)]
        assert outcomes(session.history(rota)) == [(2, "failed", "late"), (1, "completed", None)]


def test_messages_of_an_outbox(db: Database) -> None:
    """Published messages are deleted; the history shows which relay published them, and when."""
    db.committed.add_all([Cable(message_key="a"), Cable(message_key="a")])
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
    db.committed.add_all([Cable(message_key="a"), Cable(message_key="a")])
    for relay in ("gone", "next"):
        claims = [claim_of(each) for each in db.committed.run(claim_messages, Cable, limit=5, claimed_by=relay)]
        expire(db, Cable)
    assert_crashed(db, *claims)
    assert all(attempt.took is not None for claim in claims for attempt in db.committed.history(claim))


def test_pruning(db: Database) -> None:
    db.committed.add_all([*(Parcel(id=number) for number in range(1, 6)), Flare(region="north", number=1)])
    with db.begin() as session:
        session.complete(session.claim_many(Parcel, limit=5))
        session.complete(session.claim(Flare))
    db.execute(update(Past).values(finished_at=utcnow(-timedelta(days=2))).where(Past.task != "1"))
    with db.begin() as session:
        assert session.prune_history(Parcel, limit=3) == 3
        assert session.prune_history(Parcel, limit=3) == 1
        assert session.prune_history(Parcel) == 0
    assert count(db, Past) == 2
    assert db.committed.prune_history(Parcel, timedelta(0)) == 1
    assert count(db, Past) == 1


def test_pruning_reads_no_more_keys_than_it_deletes_at_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.committed.add_all([Parcel(id=number) for number in range(1, 6)])
    db.committed.consume_many(Parcel, limit=5)
    monkeypatch.setattr(type(adapter_for(db.engine.dialect).rows), "most", lambda *_: 2)
    with seen(db, "before_cursor_execute") as sent:
        assert db.committed.prune_history(Parcel, timedelta(0), limit=5) == 5
    verbs = [statement.partition(" ")[0].strip() for _, _, statement, *_ in sent]
    assert [verb for verb in verbs if verb in ("SELECT", "DELETE")][-6:] == ["SELECT", "DELETE"] * 3


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


def crashed(db: Database, *tasks: Any) -> list[Claim]:
    """Claim each of these new tasks, as by a claimer that is gone, and end the lease."""
    claims = []
    for task in tasks:
        db.committed.add(task)
        db.execute(update(Rota).values(available_at=utcnow(-HOUR), created_at=utcnow(-2 * HOUR)))
        claims.append(claim_of(db.committed.claim(type(task), claimed_by="gone")))
        expire(db, type(task))
    return claims


def assert_crashed(db: Database, *claims: Claim) -> None:
    with db.begin() as session:
        for claim in claims:
            *_, attempt = session.history(claim)
            assert (attempt.attempt, attempt.outcome, attempt.claimed_by) == (1, "crashed", "gone")


@pytest.mark.parametrize("lease", [HOUR, None])
def test_a_takeover_records_the_crash(db: Database, lease: timedelta | None) -> None:
    gone = crashed(db, Parcel(id=1))
    db.committed.add(Parcel(id=2))
    with db.session() as session:
        assert len(session.claim_many(Parcel, limit=2, lease=lease)) == 2
        session.rollback()
    assert count(db, Past) == 0
    with db.begin() as session:
        session.complete(session.claim_many(Parcel, limit=2, lease=lease, claimed_by="next"))
    assert count(db, Past) == 3
    assert_crashed(db, *gone)
    done, first = db.committed.history(gone[0])
    assert (done.attempt, done.outcome, done.claimed_by) == (2, "completed", "next")
    assert first.took is not None
    assert "lease expired" in first.error


@pytest.mark.parametrize("method", ["claim", "lock", "consume"])
@pytest.mark.parametrize("task", [Parcel, partial(Flare, region="north", number=1)], ids=["Parcel", "Flare"])
def test_a_row_that_cannot_be_read_records_the_crash(db: Database, task: Callable[[], Any], method: str) -> None:
    (gone,) = crashed(db, task())

    def load(*_: object) -> None:
        raise ValueError("cannot be read")

    event.listen(gone.entity, "load", load)
    try:
        take = db.committed.consume if method == "consume" else partial(db.committed.claim, **LEASES[method])
        assert take(gone.entity) is None
    finally:
        event.remove(gone.entity, "load", load)
    assert_crashed(db, gone)
    assert [each.outcome for each in db.committed.history(gone)[:-1]] in ([], ["snoozed"])


@pytest.mark.parametrize("method", ["claim", "lock", "promote"])
def test_a_claim_whose_time_cannot_be_read_stops_nothing(db: Database, method: str) -> None:
    gone = crashed(db, Parcel())
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
    assert_crashed(db, *gone)


def test_a_rescue_records_the_crash(db: Database) -> None:
    gone = crashed(db, Parcel(max_attempts=1), Rota(schedule="PT1S", max_attempts=1))
    assert [db.committed.rescue(model) for model in (Parcel, Rota)] == [1, 1]
    assert_crashed(db, *gone)
    assert count(db, Past) == 2


def test_a_retry_of_hung_tasks_records_the_crash(db: Database) -> None:
    gone = crashed(db, Parcel())
    assert db.committed.retry(Parcel) == 1
    assert_crashed(db, *gone)
    assert count(db, Past) == 1


@pytest.mark.parametrize("model", [Parcel, Boat])
def test_running_tasks_that_are_ended_by_criteria(db: Database, model: Any) -> None:
    db.committed.enqueue([model() for _ in range(4)])
    running = db.committed.claim_many(model, limit=2, claimed_by="busy")
    with db.begin() as session:
        assert session.cancel(model, model.id == running[0].id) == 1
        assert session.discard(model, error="no longer wanted") == 3
    assert count(db, Past) == 2
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
