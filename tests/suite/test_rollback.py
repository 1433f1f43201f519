"""A rolled-back claim or settlement has no effect: instances show the values of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import inspect
from sqlalchemy.orm import Session

from sqlqueue import IllegalTransitionError, claim_of
from sqlqueue.outbox import claim_messages
from tests.support.harness import Actor, Database
from tests.support.models import Film, Outgoing, Spool, Task
from tests.support.rows import rows

pytestmark = pytest.mark.asyncio_everywhere

AVAILABLE = ("available", 0, None)


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
@pytest.mark.parametrize("lease", ["default", None])
def test_a_claim_in_a_savepoint(db: Database, lease: Any, expire_on_commit: bool) -> None:
    db.insert(Task, rows(3))
    with db.begin(expire_on_commit=expire_on_commit) as actor:
        kept = actor.claim(Task, claimed_by="kept")
        with undone(actor):
            lost = actor.claim_many(Task, limit=2, lease=lease, claimed_by="lost")
        assert [shown(actor, task) for task in lost] == [AVAILABLE] * 2
        assert shown(actor, kept) == ("running", 1, "kept")
        for task in lost:
            with pytest.raises(IllegalTransitionError):
                claim_of(task)
        again = actor.claim_many(Task, limit=2, claimed_by="again")
        assert {*again} == {*lost}
        assert [shown(actor, task) for task in again] == [("running", 1, "again")] * 2


def test_a_claim_in_a_released_savepoint_that_is_rolled_back(db: Database) -> None:
    db.insert(Task, rows(1))
    with db.begin() as actor:
        with undone(actor):
            inner = actor.run(lambda session: session.begin_nested())
            task = actor.claim(Task)
            actor.run(lambda _: inner.commit())
            assert shown(actor, task)[:2] == ("running", 1)
        assert shown(actor, task) == AVAILABLE


def test_a_claim_in_a_transaction_that_is_rolled_back(db: Database) -> None:
    db.insert(Task, rows(1))
    with db.session() as actor:
        task = actor.claim(Task)
        actor.rollback()
        assert shown(actor, task) == AVAILABLE


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
    with db.begin() as actor:
        actor.enqueue(Outgoing(payload={}))
    with db.begin() as actor:
        with undone(actor):
            (message,) = actor.run(claim_messages, Outgoing, limit=1)
        assert shown(actor, message) == AVAILABLE


SETTLEMENTS: tuple[Callable[[Session, Any], None], ...] = (
    lambda session, task: session.complete(task),  # type: ignore[attr-defined]
    lambda session, task: session.fail(task, "error"),  # type: ignore[attr-defined]
    lambda session, task: session.snooze(task, timedelta(hours=1)),  # type: ignore[attr-defined]
    lambda session, task: session.heartbeat(task, timedelta(hours=9)),  # type: ignore[attr-defined]
)


@pytest.mark.parametrize("settle", SETTLEMENTS)
@pytest.mark.parametrize("model", [Task, Film])
def test_a_settlement_in_a_savepoint(db: Database, model: Any, settle: Any) -> None:
    db.insert(model, rows(1))
    with db.begin() as actor:
        task = actor.claim(model, claimed_by="me")
        until = task.available_at
        with undone(actor):
            actor.run(settle, task)
            actor.run(lambda _: task.available_at)  # it shows the values that are about to be undone
        assert shown(actor, task) == ("running", 1, "me")
        assert task.available_at == until
        actor.complete(task)


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
