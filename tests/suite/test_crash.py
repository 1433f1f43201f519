"""Claimers that die: in mid-transaction nothing has happened, after a commit the lease decides."""

from __future__ import annotations

import time
from datetime import timedelta

from sqlalchemy import select

from tests.suite import children
from tests.suite.scenes import clock, count, end_leases, row, rows
from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.processes import Processes


def test_killed_in_mid_transaction(sync_db: Database, processes: Processes) -> None:
    sync_db.insert(Task, rows(1))
    child = processes.spawn(children.claim_and_stay, sync_db.url)
    child.wait_until_arrived()
    child.kill()
    task = claimed_within(sync_db, timedelta(seconds=5))
    assert (task.attempt, row(sync_db, task)["status"]) == (1, "running")
    assert count(sync_db, Ledger) == 0


def test_killed_after_its_claim_was_committed(sync_db: Database, processes: Processes) -> None:
    sync_db.insert(Task, rows(1))
    child = processes.spawn(children.claim_and_commit, sync_db.url, timedelta(seconds=1.5))
    child.wait_until_arrived()
    with sync_db.engine.connect() as connection:
        lease_ends = connection.scalar(select(Task.available_at))
    child.kill()
    asked = clock(sync_db)
    while (task := claimed(sync_db)) is None:
        assert asked < lease_ends, "the lease had ended before the claim was tried"
        time.sleep(0.05)
        asked = clock(sync_db)
    assert clock(sync_db) >= lease_ends
    assert task.attempt == 2
    assert count(sync_db, Ledger) == 0


def claimed(db: Database) -> Task | None:
    with db.begin() as actor:
        return actor.claim(Task)


def claimed_within(db: Database, patience: timedelta) -> Task:
    """It takes the server a moment to see that a connection is dead."""
    deadline = time.monotonic() + patience.total_seconds()
    while (task := claimed(db)) is None:
        assert time.monotonic() < deadline, "the row of a dead claimer was not given back"
        time.sleep(0.02)
    return task


def crash(db: Database) -> Task:
    """A claimer commits its claim, and is not heard of again."""
    task = claimed(db)
    assert task is not None
    end_leases(db)
    return task


def test_a_row_that_crashes_every_claimer_is_given_up(db: Database) -> None:
    db.insert(Task, rows(1, max_attempts=3))
    attempts = [crash(db).attempt for _ in range(3)]
    assert attempts == [1, 2, 3]
    assert claimed(db) is None
    with db.begin() as actor:
        assert actor.rescue(Task) == 1
        (task,) = actor.scalars(select(Task))
    assert task.status == "discarded"
    assert task.finished_at is not None
    assert "crashed in every attempt" in task.error
    assert claimed(db) is None


def test_rescue_leaves_who_may_yet_finish(db: Database) -> None:
    db.insert(Task, rows(1, max_attempts=2))
    assert rescued(db) == 0  # nobody has it
    crash(db)
    assert rescued(db) == 0  # there is an attempt left
    assert claimed(db) is not None
    assert rescued(db) == 0  # the last attempt's lease has not ended
    end_leases(db)
    assert rescued(db) == 1


def rescued(db: Database) -> int:
    with db.begin() as actor:
        return actor.rescue(Task)


def test_the_last_attempt_can_still_be_finished(db: Database) -> None:
    db.insert(Task, rows(1, max_attempts=1))
    actor = db.session()
    task = actor.claim(Task)
    actor.commit()
    end_leases(db)
    actor.complete(task)
    actor.commit()
    assert rescued(db) == 0
    assert row(db, task)["status"] == "completed"
