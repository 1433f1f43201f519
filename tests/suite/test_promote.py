"""`promote`: due tasks and those of crashed claimers become available, whatever waits."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from sqlqueue import ClaimLostError, claim_of
from tests.support.harness import Database
from tests.support.history import Parcel, archive, outcomes
from tests.support.models import Listing, Report, Slot, Task, Visit
from tests.support.rows import PAST, TOMORROW, count, end_leases, rows
from tests.support.workers import statuses

pytestmark = pytest.mark.sync_only

__all__ = ["archive"]

OF_WORKER = -77
"""The token of a claim that a worker has made."""


def stored(db: Database, model: Any = Task, name: str = "") -> Any:
    with db.engine.connect() as connection:
        named = [model.name == name] if name else []
        return connection.execute(select(model.__table__).where(*named)).one()


def test_due_tasks(db: Database) -> None:
    db.insert(Task, rows(2, "scheduled", "retryable"))
    db.insert(Task, [{"status": "scheduled", "available_at": TOMORROW}])
    assert db.committed.promote(Task, limit=1) == 1
    assert db.committed.promote(Task) == 1
    assert db.committed.promote(Task) == 0
    assert sorted(statuses(db).values()) == ["available", "available", "scheduled"]
    assert count(db, Task, Task.status == "available", Task.available_at == PAST) == 2


@pytest.mark.requires("locks_rows")
def test_locked_rows_are_skipped(db: Database) -> None:
    db.insert(Task, rows(3, "scheduled", "expired", "expired"))
    holder = db.session()
    assert len(holder.claim_many(Task, limit=2, lease=None)) == 2
    assert db.committed.promote(Task) == 1
    holder.rollback()
    assert db.committed.promote(Task) == 2


def test_tasks_of_crashed_claimers_account_for_the_crash_as_a_claim_does(db: Database) -> None:
    tokens = {"loop": 77, "worker": OF_WORKER}
    running = {"status": "running", "attempt": 1, "max_attempts": 3, "claimed_at": PAST, "created_at": PAST}
    for by, token in tokens.items():
        for when, other in (
            ("promoted", {"available_at": PAST}),
            ("claimed", {"available_at": PAST}),
            ("alive", {"available_at": TOMORROW}),
            ("exhausted", {"available_at": PAST, "attempt": 3}),
        ):
            db.insert(Task, [{"name": f"{by} {when}", "claim_token": token, **running, **other}])
    with db.begin() as actor:
        assert actor.promote(Task, Task.name.like("% promoted") | Task.name.like("% exhausted")) == 3
        assert actor.promote(Task, Task.name.like("% alive")) == 0
        assert len(actor.claim_many(Task, Task.name.like("% claimed"), limit=2)) == 2
    for by in tokens:
        ours = stored(db, name=f"{by} promoted")
        assert (ours.status, ours.claimed_by, ours.claimed_at) == ("available", None, None)
        assert ours.available_at == ours.created_at, "it stands where it stood before"
        as_claimed = stored(db, name=f"{by} claimed")
        assert (ours.max_attempts, ours.crashes) == (as_claimed.max_attempts, as_claimed.crashes)
        assert ours.attempt + 1 == as_claimed.attempt
    assert stored(db, name="worker exhausted").status == "available"  # a worker's crash is no attempt
    assert stored(db, name="loop exhausted").status == "running"  # `rescue` discards it


def test_the_crashed_claim_is_lost(db: Database) -> None:
    db.insert(Task, rows(1))
    claim = claim_of(db.committed.claim(Task))
    end_leases(db)
    assert db.committed.promote(Task) == 1
    with db.session() as zombie, pytest.raises(ClaimLostError):
        zombie.complete(claim)
    assert db.committed.claim(Task).attempt == 2


def test_a_task_that_was_enqueued_again_while_it_ran_has_all_its_attempts(db: Database) -> None:
    db.committed.enqueue(Listing(unique_key="a", max_attempts=5))
    assert db.committed.claim(Listing) is not None
    db.committed.enqueue(Listing(unique_key="a"), on_conflict="rerun")
    end_leases(db, Listing)
    assert db.committed.promote(Listing) == 1
    found = stored(db, Listing)
    assert (found.status, found.max_attempts - found.attempt) == ("available", Listing.__queue__.max_attempts)


def test_a_recurring_task_keeps_its_planned_time(db: Database) -> None:
    db.insert(Report, [{"schedule": "PT1H", "status": "scheduled", "available_at": PAST}])
    assert db.committed.claim(Report) is not None
    end_leases(db, Report)
    assert db.committed.promote(Report) == 1
    assert db.committed.claim(Report).scheduled_for == PAST


def test_slots_of_crashed_tasks_are_freed(db: Database) -> None:
    db.insert(Visit, [{"limit_key": "a"}] * 3)
    assert len(db.committed.claim_many(Visit, limit=3)) == 2
    end_leases(db, Visit)
    assert db.committed.promote(Visit) == 2
    assert count(db, Slot, Slot.status == "running") == 0
    assert len(db.committed.claim_many(Visit, limit=3)) == 2


@pytest.mark.usefixtures("archive")
def test_the_crashed_attempt_is_recorded(db: Database) -> None:
    db.committed.add(Parcel())
    task = db.committed.claim(Parcel, claimed_by="gone")
    end_leases(db, Parcel)
    assert db.committed.promote(Parcel) == 1
    with db.begin() as actor:
        (attempt,) = actor.history(task)
        assert outcomes([attempt]) == [(1, "crashed", "crashed: its lease expired without a settlement")]
        assert (attempt.claimed_by, attempt.started_at is not None) == ("gone", True)
