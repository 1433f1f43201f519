"""A rolled-back claim or settlement has no effect: instances show the values of their rows, and hold no claim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import delete, inspect

from sqlqueue import IllegalTransitionError, claim_of
from sqlqueue.outbox import claim_messages
from tests.suite.settlements import ENDINGS, SETTLINGS
from tests.support.harness import Actor, Database
from tests.support.models import Film, Outgoing, Spool, Task
from tests.support.rows import load, row, rows

pytestmark = pytest.mark.asyncio_everywhere

AVAILABLE = ("available", 0, None)
leases = pytest.mark.parametrize("lease", ["default", None])


def shown(actor: Actor, task: Any) -> tuple[str, int, str | None]:
    """Return the columns of an instance, reloading the expired ones."""
    return actor.run(lambda _: (task.status, task.attempt, task.claimed_by))


@contextmanager
def undone(actor: Actor) -> Iterator[None]:
    """Run the block in a savepoint that is rolled back."""
    savepoint = actor.run(lambda session: session.begin_nested())
    yield
    actor.run(lambda _: savepoint.rollback())


@pytest.mark.parametrize("expire_on_commit", [False, True])
@leases
def test_a_claim_in_a_savepoint(db: Database, lease: Any, expire_on_commit: bool) -> None:
    db.insert(Task, rows(3))
    with db.begin(expire_on_commit=expire_on_commit) as actor:
        kept = actor.claim(Task, claimed_by="kept")
        with undone(actor):
            lost = actor.claim_many(Task, limit=2, lease=lease, claimed_by="lost")
        assert [shown(actor, task) for task in lost] == [AVAILABLE] * 2
        assert shown(actor, kept) == ("running", 1, "kept")
        for task in lost:
            for use in (claim_of, actor.complete):
                with pytest.raises(IllegalTransitionError):
                    use(task)
        again = actor.claim_many(Task, limit=2, claimed_by="again")
        assert {*again} == {*lost}
        assert [shown(actor, task) for task in again] == [("running", 1, "again")] * 2
        actor.release(again[:1])
        actor.complete(kept)
    assert [row(db, task)["status"] for task in (kept, *again)] == ["completed", "available", "running"]


def test_a_claim_in_a_released_savepoint_that_is_rolled_back(db: Database) -> None:
    db.insert(Task, rows(1))
    with db.begin() as actor:
        with undone(actor):
            inner = actor.run(lambda session: session.begin_nested())
            task = actor.claim(Task)
            actor.run(lambda _: inner.commit())
            assert shown(actor, task)[:2] == ("running", 1)
        assert shown(actor, task) == AVAILABLE


@pytest.mark.parametrize("end", ["rollback", "close"])
@leases
def test_a_claim_in_a_transaction_that_is_rolled_back(db: Database, lease: Any, end: str) -> None:
    db.insert(Task, rows(1))
    actor = db.session()
    task = actor.claim(Task, lease=lease)
    getattr(actor, end)()
    stored = load(db, Task, task.id) if end == "close" else task
    assert shown(actor, stored) == AVAILABLE
    actor.rollback()
    again = db.committed.claim(Task)
    assert claim_of(again).attempt == 1  # the same attempt number as the first claim
    with pytest.raises(IllegalTransitionError, match="rolled back"):
        claim_of(task)
    for settling in SETTLINGS.values():
        with pytest.raises(IllegalTransitionError):
            settling(actor, task)
    assert row(db, again)["status"] == "running"


@pytest.mark.parametrize("model", [Task, Spool])
def test_a_savepoint_rollback_undoes_a_consume(db: Database, model: Any) -> None:
    db.insert(model, rows(1))
    with db.begin() as actor:
        with undone(actor):
            task = actor.consume(model)
        if model is Task:
            assert shown(actor, task) == AVAILABLE
        again = actor.consume(model)
        assert (again.id, again is task) == (task.id, model is Task)


def test_a_message_that_was_claimed(db: Database) -> None:
    db.committed.enqueue(Outgoing(payload={}))
    with db.begin() as actor:
        with undone(actor):
            (message,) = actor.run(claim_messages, Outgoing, limit=1)
        assert shown(actor, message) == AVAILABLE


@pytest.mark.parametrize("model", [Task, Film])
@leases
def test_a_settlement_in_a_savepoint(db: Database, model: Any, lease: Any) -> None:
    for call in SETTLINGS if lease else ENDINGS:  # without a lease there is none to extend
        db.insert(model, rows(1))
        with db.begin() as actor:
            task = actor.claim(model, lease=lease, claimed_by="me")
            before, until = shown(actor, task), task.available_at
            with undone(actor):
                SETTLINGS[call](actor, task)
                if call != "heartbeat":
                    with pytest.raises(IllegalTransitionError):
                        actor.complete(task)
                actor.run(lambda _, task=task: task.available_at)  # it shows the values that are about to be undone
            assert shown(actor, task) == before, call
            assert task.available_at == until, call
            actor.complete(task)
        assert row(db, task)["status"] == ("completed" if model is Task else "available"), call
        db.execute(delete(model))


def test_a_settlement_in_a_savepoint_that_is_kept(db: Database) -> None:
    db.insert(Task, rows(1))
    with db.begin() as actor:
        task = actor.claim(Task)
        savepoint = actor.run(lambda session: session.begin_nested())
        actor.complete(task)
        actor.run(lambda _: savepoint.commit())
        with pytest.raises(IllegalTransitionError):
            actor.complete(task)
    assert row(db, task)["status"] == "completed"


def test_a_settlement_in_a_transaction_that_is_rolled_back(db: Database) -> None:
    db.insert(Task, rows(1))
    task = db.committed.claim(Task)
    actor = db.session()
    actor.complete(task)
    actor.rollback()
    assert claim_of(task).attempt == 1
    actor.fail(task, "after all")
    actor.commit()
    assert row(db, task)["status"] == "retryable"


def test_expunged_instances_are_left_alone(db: Database) -> None:
    db.insert(Task, rows(1))
    with db.begin() as actor:
        with undone(actor):
            task = actor.claim(Task)
            actor.expunge(task)
        assert inspect(task).detached
        assert task.id
        with pytest.raises(IllegalTransitionError):
            claim_of(task)
        assert actor.claim(Task).id == task.id
