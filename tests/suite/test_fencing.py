"""A lost claim settles nothing, whether passed as an instance or as a value."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from sqlqueue import ClaimLostError, IllegalTransitionError, claim_of
from tests.suite import children
from tests.suite.children import SETTLING
from tests.support.harness import Actor, Database
from tests.support.models import Ledger, Spool, Task
from tests.support.processes import Processes
from tests.support.rows import PAST, count, end_leases, row, rows

pytestmark = pytest.mark.asyncio_everywhere

every_call = pytest.mark.parametrize("call", SETTLING)


def claimed(db: Database, **options: Any) -> tuple[Actor, Task]:
    """Return a session that has committed its claim."""
    db.insert(Task, rows(1))
    actor = db.session(**options)
    task = actor.claim(Task, claimed_by="first")
    actor.commit()
    return actor, task


def succeed(db: Database) -> Any:
    """End the lease, and claim the row in another session."""
    end_leases(db)
    with db.begin() as actor:
        task = actor.claim(Task, claimed_by="second")
        assert task is not None
    return task


def assert_lost(db: Database, actor: Actor, call: str, task: Any, key: int) -> None:
    """Assert that the call is rejected, the transaction's writes are rolled back, and the row is unchanged."""
    successor = succeed(db)
    before = row(db, successor)
    actor.add(Ledger(task_id=key))
    actor.flush()
    with pytest.raises(ClaimLostError) as caught:
        SETTLING[call](actor, task)
    actor.rollback()
    assert (caught.value.model, caught.value.identity, caught.value.attempt) == (Task, (key,), 1)
    assert row(db, successor) == before
    assert count(db, Ledger) == 0


@every_call
def test_a_lost_claim_by_its_instance(db: Database, call: str) -> None:
    actor, task = claimed(db)
    assert_lost(db, actor, call, task, task.id)


@every_call
def test_a_lost_claim_by_an_expired_instance(sync_db: Database, call: str) -> None:
    actor, task = claimed(sync_db, expire_on_commit=True)
    key = claim_of(task).identity[0]
    actor.rollback()
    # a reload shows the successor's attempt, which differs from the claim's
    assert_lost(sync_db, actor, call, task, key)


@every_call
def test_a_lost_claim_by_a_refreshed_instance(db: Database, call: str) -> None:
    actor, task = claimed(db)
    successor = succeed(db)
    actor.refresh(task)
    assert (task.attempt, task.claimed_by) == (2, "second")
    assert claim_of(task).attempt == 1
    before = row(db, successor)
    with pytest.raises(ClaimLostError):
        SETTLING[call](actor, task)
    actor.rollback()
    assert row(db, successor) == before


@every_call
def test_a_lost_claim_by_an_instance_of_a_closed_session(db: Database, call: str) -> None:
    actor, task = claimed(db)
    actor.close()
    assert_lost(db, db.session(), call, task, task.id)


@every_call
def test_a_lost_claim_by_its_value(db: Database, call: str) -> None:
    _, task = claimed(db)
    assert_lost(db, db.session(), call, pickle.loads(pickle.dumps(claim_of(task))), task.id)


def test_a_lost_claim_by_its_value_in_another_process(sync_db: Database, processes: Processes) -> None:
    _, task = claimed(sync_db)
    before = row(sync_db, succeed(sync_db))
    outcome = processes.spawn(children.settle, sync_db.url, claim_of(task), list(SETTLING)).result()
    assert outcome == dict.fromkeys(SETTLING, f"lost Task {(task.id,)} 1")
    assert row(sync_db, task) == before
    assert count(sync_db, Ledger) == 0


def test_a_held_claim_settles_by_its_value_from_another_process(sync_db: Database, processes: Processes) -> None:
    _, task = claimed(sync_db)
    outcome = processes.spawn(children.settle, sync_db.url, claim_of(task), ["heartbeat", "complete", "fail"]).result()
    assert outcome == {"heartbeat": "done", "complete": "done", "fail": f"lost Task {(task.id,)} 1"}
    assert row(sync_db, task)["status"] == "completed"


@every_call
def test_one_lost_claim_among_many_refuses_them_all(sync_db: Database, call: str) -> None:
    sync_db.insert(Task, rows(3))
    with sync_db.begin() as first:
        tasks = first.claim_many(Task, limit=3)
    with sync_db.begin() as other:
        other.cancel(Task, Task.id == tasks[1].id)
    before = [row(sync_db, task) for task in tasks]
    actor = sync_db.session()
    with pytest.raises(ClaimLostError) as caught:
        SETTLING[call](actor, [claim_of(task) for task in tasks])
    actor.rollback()
    assert caught.value.claims == (claim_of(tasks[1]),)
    assert [row(sync_db, task) for task in tasks] == before


# the attempt is still the claim's here, but the status is not
CHANGES: dict[str, Callable[[Actor, Task], None]] = {
    "cancelled": lambda actor, task: actor.cancel(Task, Task.id == task.id),
    "completed": lambda actor, task: actor.complete(claim_of(task)),
    "released": lambda actor, task: actor.release(claim_of(task)),
    "deleted": lambda actor, task: actor.delete(actor.get(Task, task.id)),
}


@every_call
@pytest.mark.parametrize("change", CHANGES)
def test_a_row_that_another_claimer_has_settled(sync_db: Database, call: str, change: str) -> None:
    actor, task = claimed(sync_db)
    with sync_db.begin() as other:
        CHANGES[change](other, task)
    with pytest.raises(ClaimLostError):
        SETTLING[call](actor, task)
    actor.rollback()


def test_a_deleting_queue_deletes_nothing_for_a_zombie(db: Database) -> None:
    db.insert(Spool, rows(1))
    with db.begin() as actor:
        task = actor.claim(Spool)
    end_leases(db, Spool)
    with db.begin() as other:
        assert other.claim(Spool) is not None
    with db.session() as actor, pytest.raises(ClaimLostError):
        actor.complete(claim_of(task))
    assert count(db, Spool) == 1


@every_call
def test_an_ended_lease_that_was_not_taken_over_still_holds(sync_db: Database, call: str) -> None:
    actor, task = claimed(sync_db)
    end_leases(sync_db)
    SETTLING[call](actor, task)
    actor.commit()
    assert row(sync_db, task)["available_at"] > PAST


# -- rollbacks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", ["default", None])
def test_a_rolled_back_claim_cannot_be_settled(db: Database, lease: Any) -> None:
    db.insert(Task, rows(1))
    actor = db.session()
    task = actor.claim(Task, lease=lease)
    actor.rollback()
    with db.begin() as other:
        again = other.claim(Task)
        assert claim_of(again).attempt == 1  # the same attempt number as the first claim
    with pytest.raises(IllegalTransitionError):
        actor.complete(task)
    assert row(db, again)["status"] == "running"


@pytest.mark.parametrize("end", ["rollback", "close"])
@every_call
def test_every_end_of_the_transaction_ends_the_claim(sync_db: Database, call: str, end: str) -> None:
    sync_db.insert(Task, rows(1))
    actor = sync_db.session()
    task = actor.claim(Task)
    getattr(actor, end)()
    with sync_db.begin() as other:
        assert other.claim(Task) is not None
    with pytest.raises(IllegalTransitionError):
        SETTLING[call](actor, task)


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("call", [name for name in SETTLING if name != "heartbeat"])
def test_a_savepoint_rollback_undoes_the_claim(sync_db: Database, call: str, lease: Any) -> None:
    sync_db.insert(Task, rows(1))
    actor = sync_db.session()
    task = actor.claim(Task, lease=lease)
    savepoint = actor.begin_nested()
    SETTLING[call](actor, task)
    with pytest.raises(IllegalTransitionError):
        actor.complete(task)
    savepoint.rollback()
    actor.complete(task)
    actor.commit()
    assert row(sync_db, task)["status"] == "completed"


def test_a_savepoint_rolled_back_takes_the_claims_made_in_it(sync_db: Database) -> None:
    sync_db.insert(Task, rows(2))
    actor = sync_db.session()
    kept = actor.claim(Task)
    savepoint = actor.begin_nested()
    undone = actor.claim(Task)
    savepoint.rollback()
    with pytest.raises(IllegalTransitionError):
        actor.complete(undone)
    actor.complete(kept)
    actor.commit()
    assert row(sync_db, kept)["status"] == "completed"
    assert row(sync_db, undone)["status"] == "available"


def test_a_settlement_rolled_back_can_be_made_again(db: Database) -> None:
    actor, task = claimed(db)
    actor.complete(task)
    actor.rollback()
    actor.fail(task, "after all")
    actor.commit()
    assert row(db, task)["status"] == "retryable"
