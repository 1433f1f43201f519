"""Claims with lease=None: only the row lock, nothing written before they are settled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete

from sqlqueue import ClaimLostError, UnsettledClaimError, claim_of
from sqlqueue.queue.spec import QUEUE_ROLES
from tests.support.harness import Database
from tests.support.models import Seat, Task
from tests.support.rows import PAST, load

SOON = timedelta(minutes=2)


def columns(task: Any) -> dict[str, Any]:
    return {role: getattr(task, role) for role in QUEUE_ROLES}


def test_a_lock_only_claim_writes_nothing(db: Database) -> None:
    db.insert(Task, [{"id": 1, "available_at": PAST}])
    session = db.session()
    task = session.claim(Task, lease=None)
    assert claim_of(task).attempt == 1
    stored = load(db, Task, 1)
    assert columns(task) == columns(stored)
    assert (stored.status, stored.attempt, stored.claimed_by) == ("available", 0, None)


@pytest.mark.parametrize(("call", "arguments"), [("release", ()), ("snooze", (SOON,))])
def test_a_lock_only_claim_that_is_handed_back_is_numbered(db: Database, call: str, arguments: Any) -> None:
    db.insert(Task, [{"id": 1, "status": "retryable", "attempt": 2, "max_attempts": 3, "available_at": PAST}])
    with db.begin() as session:
        getattr(session, call)(session.claim(Task, lease=None, claimed_by="me"), *arguments)
    stored = load(db, Task, 1)
    assert (stored.attempt, stored.max_attempts, stored.claimed_by) == (3, 4, "me")


def test_a_deleted_row_raises_claim_lost(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    session = db.session()
    task = session.claim(Task, lease=None)
    session.execute(delete(Task).execution_options(synchronize_session=False))
    with pytest.raises(ClaimLostError):
        session.complete(task)


def test_any_number_of_keys_may_be_held(sync_db: Database) -> None:
    """SQLite limits the depth of expressions to 1,000."""
    many = 1_500
    sync_db.insert(Seat, [{"line": "x", "number": number} for number in range(many + 1)])
    with sync_db.begin() as actor:
        held = actor.claim_many(Seat, limit=many, lease=None)
        last = actor.claim_many(Seat, limit=many, lease=None)
        assert (len(held), len(last)) == (many, 1)
        actor.complete([*held, *last])


def test_a_row_that_is_only_locked_is_not_claimed_again_in_its_transaction(db: Database) -> None:
    # SKIP LOCKED skips only rows that other transactions have locked
    db.insert(Task, [{"id": 1}, {"id": 2}, {"id": 3}])
    with db.session() as session:
        claimed = [session.claim(Task, lease=None), session.claim(Task, lease=None), session.claim(Task)]
        assert [task.id for task in claimed] == [1, 2, 3]
        assert session.claim(Task) is None
        session.complete(claimed)
        session.commit()


def test_no_commit_drops_a_claim_that_only_locks(sync_db: Database) -> None:
    # the outermost transaction is committed within a savepoint that was left open
    sync_db.insert(Task, [{"id": 1}])
    session = sync_db.session()
    transaction = session.begin()
    session.begin_nested()
    session.claim(Task, lease=None)
    with pytest.raises(UnsettledClaimError):
        transaction.commit()
    session.close()
    # through another pool: this one could return the connection of the rejected commit
    assert sync_db.variant().session().claim(Task).attempt == 1
