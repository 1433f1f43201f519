"""A claim is distinguished from another one with the same primary key and attempt."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from sqlqueue import Claim, ClaimLostError, claim_of
from sqlqueue._support.errors import new_token
from sqlqueue.operations.upkeep import extend, still_held
from sqlqueue.outbox import claim_messages
from sqlqueue.worker.jobs import COMPLETED, RELEASED, write_outcomes, write_what_is_free
from tests.suite.settlements import SETTLINGS
from tests.support.harness import Actor, Database
from tests.support.models import Ledger, Listing, Outgoing, Seat, Slot, Spool, Task, Visit
from tests.support.rows import count

NAME = "mailer 1"
"""The same name for every process."""
MINUTE = timedelta(minutes=1)


def claims(db: Database, model: Any = Task, limit: int = 1, **arguments: Any) -> list[Claim]:
    return [claim_of(task) for task in db.committed.claim_many(model, limit=limit, claimed_by=NAME, **arguments)]


def content(db: Database, model: Any) -> list[dict[str, Any]]:
    with db.engine.connect() as connection:
        found = connection.execute(select(model.__table__).order_by(*model.__table__.primary_key)).mappings()
        return [dict(row) for row in found]


@contextmanager
def undone(db: Database, *models: Any) -> Iterator[None]:
    """Undo the commits within the block, like a failover to a standby or a restored backup."""
    before = {model: content(db, model) for model in models}
    yield
    with db.engine.begin() as connection:
        for model, rows in before.items():
            key = model.__table__.primary_key
            for row in rows:
                same = [column == row[column.name] for column in key]
                connection.execute(update(model.__table__).where(*same).values(**row))


def at_the_same_moment(db: Database, earlier: dict[str, Any], model: Any = Task) -> None:
    """Give both claims the same time as well."""
    moments = {name: earlier[name] for name in ("claimed_at", "available_at")}
    with db.engine.begin() as connection:
        connection.execute(update(model.__table__).where(model.id == earlier["id"]).values(moments))


def twice(db: Database) -> tuple[Claim, Claim]:
    """Return two claims of one row, with the same attempt, name and time."""
    db.insert(Task, [{"id": 1}])
    with undone(db, Task):
        (first,) = claims(db)
        (earlier,) = content(db, Task)
    (second,) = claims(db)
    at_the_same_moment(db, earlier)
    return first, second


def assert_lost(db: Database, actor: Actor, call: str, claim: Claim) -> None:
    """Assert that the call is rejected and changes nothing."""
    model: Any = claim.entity
    before = content(db, model)
    actor.add(Ledger(task_id=1))
    with pytest.raises(ClaimLostError) as caught:
        SETTLINGS[call](actor, claim)
    actor.rollback()
    assert caught.value.claims == (claim,)
    assert content(db, model) == before
    assert count(db, Ledger) == 0


def test_a_repeated_attempt_has_another_token(db: Database) -> None:
    for call in SETTLINGS:
        first, second = twice(db)
        assert (first.identity, first.attempt) == (second.identity, second.attempt)
        assert first != second
        with db.session() as actor:
            assert_lost(db, actor, call, first)
            SETTLINGS[call](actor, second)
            actor.commit()
        db.execute(delete(Task))


def test_a_worker_sees_which_of_them_holds_the_row(db: Database) -> None:
    first, second = twice(db)
    with db.begin() as actor:
        assert actor.run(extend, [first, second], MINUTE) == [first]
        assert actor.run(still_held, [first, second]) == {second}
        assert actor.run(write_what_is_free, [(first, COMPLETED)]) == ({first}, set())
        assert actor.run(write_outcomes, [(first, RELEASED), (second, COMPLETED)]) == [first]
    assert content(db, Task)[0]["status"] == "completed"


def test_a_lost_claim_among_others_has_another_token(db: Database) -> None:
    """One call claimed the lost row and another one, so both claims have the same token."""
    for settling in SETTLINGS.values():
        db.insert(Task, [{"id": number} for number in (1, 2, 3)])
        with undone(db, Task):
            lost, *_ = claims(db, limit=2)
        (_, *kept), (another,) = claims(db, limit=2), claims(db)
        before = content(db, Task)
        with db.session() as actor:
            with pytest.raises(ClaimLostError) as caught:
                settling(actor, [lost, *kept, another])
            assert caught.value.claims == (lost,)
            actor.rollback()
            assert content(db, Task) == before
            settling(actor, [*kept, another])
            actor.commit()
        db.execute(delete(Task))


def test_a_key_of_two_columns(db: Database) -> None:
    db.insert(Seat, [{"line": "a", "number": number} for number in (1, 2)])
    with undone(db, Seat):
        lost, _ = claims(db, Seat, 2)
    kept = [*claims(db, Seat), *claims(db, Seat)]
    with db.begin() as actor:
        assert actor.run(extend, [lost, *kept], MINUTE) == [lost]
        assert actor.run(write_outcomes, [(each, COMPLETED) for each in (lost, *kept)]) == [lost]
    assert {row["status"] for row in content(db, Seat)} == {"completed"}


def test_a_reused_primary_key_has_another_token(db: Database) -> None:
    """An application may reuse its own keys; SQLite reuses generated ones."""
    db.insert(Spool, [{"id": 1}])
    (first,) = claims(db, Spool)
    db.committed.complete(first)
    db.insert(Spool, [{"id": 1}])
    (second,) = claims(db, Spool)
    assert (first.identity, first.attempt) == (second.identity, second.attempt)
    with db.session() as actor:
        for call in SETTLINGS:
            assert_lost(db, actor, call, first)
        actor.complete(second)
        actor.commit()


def test_a_rolled_back_attempt_has_another_token(db: Database) -> None:
    """The claim was passed on before its commit."""
    db.insert(Task, [{"id": 1}])
    with db.session() as actor:
        first = claim_of(actor.claim(Task, claimed_by=NAME))
        actor.rollback()
    (second,) = claims(db)
    assert (first.identity, first.attempt) == (second.identity, second.attempt)
    with db.session() as actor:
        assert_lost(db, actor, "complete", first)


def test_tokens_of_lock_only_claims(db: Database) -> None:
    """They hold their row only by its lock, and are still distinguished."""
    db.insert(Task, [{"id": 1}])
    found = []
    for _ in range(2):
        with db.session() as actor:
            found.append(claim_of(actor.claim(Task, lease=None, claimed_by=NAME)))
            actor.rollback()
    first, second = found
    assert (first.identity, first.attempt) == (second.identity, second.attempt)
    assert first != second
    with db.session() as actor:
        task = actor.claim(Task, lease=None, claimed_by=NAME)
        with pytest.raises(ClaimLostError):
            actor.complete(first)
        actor.complete(claim_of(task))
        actor.commit()
    assert content(db, Task)[0]["status"] == "completed"


def test_a_row_to_be_rerun_keeps_its_token(db: Database) -> None:
    """A rerun clears claimed_at, but not the token."""
    db.insert(Listing, [{"id": 1}])
    with undone(db, Listing):
        (first,) = claims(db, Listing)
    (second,) = claims(db, Listing)
    db.committed.enqueue(Listing, [{"id": 1, "version": 2}], on_conflict="rerun")
    with db.session() as actor:
        assert_lost(db, actor, "complete", first)
        actor.complete(second)
        actor.commit()
    (row,) = content(db, Listing)
    assert (row["status"], row["version"]) == ("available", 2)


def test_messages(db: Database) -> None:
    db.insert(Outgoing, [{"id": number, "message_key": "a"} for number in (1, 2)])

    def claim() -> list[Claim]:
        return [claim_of(each) for each in db.committed.run(claim_messages, Outgoing, limit=2, claimed_by=NAME)]

    with undone(db, Outgoing):
        first = claim()
    second = claim()
    with db.begin() as actor:
        assert actor.run(write_outcomes, [(each, COMPLETED) for each in first]) == first
        assert actor.run(write_outcomes, [(each, COMPLETED) for each in second]) == []
    assert content(db, Outgoing) == []


@pytest.mark.parametrize("outcome", [COMPLETED, RELEASED])
def test_a_reassigned_slot_has_another_token(db: Database, outcome: Any) -> None:
    """A lost claim frees only its own slot, never that of its successor."""
    db.committed.set_limit(Visit, "a", 1)
    db.insert(Visit, [{"id": number, "limit_key": "a"} for number in (1, 2)])
    with undone(db, Visit, Slot):
        (first,) = claims(db, Visit)
    (second,) = claims(db, Visit)
    assert (first.identity, first.attempt) == (second.identity, second.attempt)
    with db.begin() as actor:
        assert actor.run(extend, [first], MINUTE) == [first]
        assert actor.run(write_outcomes, [(first, outcome)]) == [first]
    assert claims(db, Visit) == [], "the limit is exceeded"
    db.committed.complete(second)
    assert len(claims(db, Visit)) == 1


def test_tasks_started_by_other_programs_have_no_token(db: Database) -> None:
    """Changes to sets end such tasks; a claim without a token holds the row."""
    db.insert(Task, [{"id": number, "status": "running", "attempt": 1} for number in (1, 2)])
    with db.begin() as actor:
        assert actor.cancel(Task, Task.id == 1) == 1
        actor.complete(Claim(Task, (2,), 1))
    db.insert(Task, [{"id": 3}])
    claims(db)
    with db.session() as actor, pytest.raises(ClaimLostError):
        actor.complete(Claim(Task, (3,), 1))


@pytest.mark.parametrize("limit_key", ["a", None])
def test_limited_tasks_that_run_by_other_means(db: Database, limit_key: str | None) -> None:
    db.insert(Visit, [{"id": 1, "status": "running", "attempt": 1, "limit_key": limit_key}])
    assert db.committed.cancel(Visit, Visit.id == 1) == 1


def _tell(answers: Any) -> None:
    answers.put(new_token())


def test_forked_processes_generate_their_own_tokens() -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    children = [context.Process(target=_tell, args=(answers,)) for _ in range(4)]
    for child in children:
        child.start()
    tokens = {answers.get() for _ in children} | {new_token()}
    for child in children:
        child.join()
    assert len(tokens) == 5
