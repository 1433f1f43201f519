"""Claimers that die: in mid-transaction, everything is undone; after the commit, the task is free when its lease
ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select

from sqlqueue import claim_of
from sqlqueue._support.errors import WorkerTokens
from sqlqueue.operations.claiming import ClaimQuery, claim_matching
from sqlqueue.operations.upkeep import Crash, Started, recover
from sqlqueue.queue.spec import spec_of
from sqlqueue.worker.jobs import Outcome, write_outcomes
from tests.suite import children
from tests.suite.settlements import ENDINGS, SETTLINGS
from tests.support.harness import Database
from tests.support.models import Job, Ledger, Listing, Report, Task
from tests.support.polling import next_due
from tests.support.processes import Processes
from tests.support.rows import PAST, TOMORROW, clock, count, end_leases, row, rows
from tests.support.workers import eventually


def test_killed_in_mid_transaction(sync_db: Database, processes: Processes) -> None:
    sync_db.insert(Task, rows(1))
    child = processes.spawn(children.claim_and_stay, sync_db.url)
    child.wait_until_arrived()
    child.kill()
    task = eventually(lambda: sync_db.committed.claim(Task))  # a server notices the death after a moment
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
    while (task := sync_db.committed.claim(Task)) is None:
        assert asked < lease_ends, "the lease had ended before the claim was tried"
        time.sleep(0.05)
        asked = clock(sync_db)
    assert clock(sync_db) >= lease_ends
    assert task.attempt == 2
    assert count(sync_db, Ledger) == 0


def test_a_row_that_crashes_every_claimer_is_given_up(db: Database) -> None:
    db.insert(Task, rows(1, max_attempts=3))
    attempts = [crash(db).attempt for _ in range(3)]
    assert attempts == [1, 2, 3]
    assert db.committed.claim(Task) is None
    with db.begin() as actor:
        assert actor.rescue(Task) == 1
        assert actor.rescue(Task) == 0
        (task,) = actor.scalars(select(Task))
    assert task.status == "discarded"
    assert PAST < task.finished_at == task.available_at
    assert "crashed in every attempt" in task.error
    assert db.committed.claim(Task) is None


def crash(db: Database) -> Task:
    """Commit a claim, and end its lease, as if its claimer had crashed."""
    task: Task = db.committed.claim(Task)
    end_leases(db)
    return task


def test_rescue_leaves_tasks_that_may_still_finish(db: Database) -> None:
    db.insert(Task, rows(1, max_attempts=2))
    db.insert(Task, [{**each, "attempt": 2} for each in rows(1, "retryable", max_attempts=2)])
    assert db.committed.rescue(Task) == 0  # no claim holds them
    crash(db)
    assert db.committed.rescue(Task) == 0  # there is an attempt left
    assert db.committed.claim(Task) is not None
    assert db.committed.rescue(Task) == 0  # the last attempt's lease has not ended
    end_leases(db)
    assert db.committed.rescue(Task) == 1


def test_the_last_attempt_can_still_be_finished(db: Database) -> None:
    db.insert(Task, rows(1, max_attempts=1))
    task = crash(db)
    db.committed.complete(claim_of(task))
    assert db.committed.rescue(Task) == 0
    assert row(db, task)["status"] == "completed"


SPEC = spec_of(Task)


def taken(db: Database, count: int, tokens: WorkerTokens | None = None) -> Sequence[Task]:
    """Claim ``count`` tasks for a worker."""
    tasks: Sequence[Task] = db.committed.run(claim_matching, ClaimQuery(SPEC), count, tokens=tokens or WorkerTokens())
    return tasks


def claimed_by_worker(db: Database) -> Task:
    """Claim like a worker that then disappears, and end the lease."""
    (task,) = taken(db, 1)
    end_leases(db)
    return task


def test_the_lapsed_lease_of_a_worker_counts_no_attempt_and_makes_a_suspect(db: Database) -> None:
    db.insert(Task, rows(1, max_attempts=1))
    claimed_by_worker(db)
    for _ in range(2):
        assert db.committed.rescue(Task) == 0
        assert db.committed.run(next_due, Task) == timedelta(0)
        task = claimed_by_worker(db)
        found = row(db, task)
        assert (found["crashes"], found["max_attempts"] - found["attempt"]) == (1, 0)
    assert found["attempt"] == 3


def test_tasks_that_crashed_too_many_processes_have_the_number_in_their_error(sync_db: Database) -> None:
    """A process that could not record what it ran may have held several, and ``max_crashes`` may have been lowered."""
    tokens = WorkerTokens()
    held = {"status": "running", "available_at": TOMORROW, "claimed_at": PAST, "attempt": 1}
    sync_db.insert(Task, [{**held, "id": n + 1, "claim_token": tokens(), "crashes": n} for n in (0, 1, 3, 5)])
    with sync_db.begin() as session:
        found = session.run(recover, spec_of(Task), Crash(tokens.worker, "was killed by SIGKILL", (), complete=False))
        errors = {task.id: task.error for task in session.scalars(select(Task))}
    assert [claim.identity for claim in found.suspects] == [(1,), (2,)]
    assert [claim.identity for claim in found.discarded] == [(4,), (6,)]
    assert [errors[n].partition(":")[0] for n in (4, 6)] == ["crashed 3 processes", "crashed 5 processes"]


def test_the_lapsed_lease_of_an_application_is_an_attempt(db: Database) -> None:
    db.insert(Task, rows(1, max_attempts=2))
    crash(db)
    found = row(db, crash(db))
    assert (found["attempt"], found["max_attempts"], found["crashes"]) == (2, 2, 0)
    assert db.committed.rescue(Task) == 1


def test_a_suspect_in_lock_mode_keeps_its_attempt(db: Database) -> None:
    db.insert(Task, rows(1, max_attempts=1))
    claimed_by_worker(db)
    with db.begin() as actor:
        task = actor.claim(Task, lease=None)
        assert (task.crashes, task.max_attempts) == (1, 2)
        actor.rollback()
        assert row(db, task)["crashes"] == 0
    claimed_by_worker(db)
    with db.begin() as actor:
        actor.fail(actor.claim(Task, lease=None), "in vain")
    assert row(db, task)["status"] == "discarded"  # limited by its single attempt, not by crashes
    assert row(db, task)["attempt"] == 3


def test_a_task_is_not_a_suspect_after_its_attempt_has_ended(db: Database) -> None:
    for call in ENDINGS:
        db.execute(delete(Task))
        db.insert(Task, rows(1))
        claimed_by_worker(db)
        with db.begin() as actor:
            task = actor.claim(Task)
            assert task.crashes == 1
            SETTLINGS[call](actor, task)
        left = 1 if call == "discard" else 0  # the dead letter's error mentions it
        assert row(db, task)["crashes"] == left, call
        db.committed.retry(Task)
        assert row(db, task)["crashes"] == 0, call


def test_another_run_is_not_a_suspect(db: Database) -> None:
    db.insert(Report, [{"schedule": "PT1M", "available_at": PAST, "crashes": 1}])
    db.insert(Listing, [each | {"unique_key": key} for key, each in zip("ab", rows(2, crashes=2), strict=True)])
    with db.begin() as actor:
        actor.complete(actor.claim(Report))
        actor.enqueue(Listing(unique_key="a"), on_conflict="replace")
        actor.enqueue(Listing(unique_key="b"), on_conflict="rerun")
        assert actor.scalars(select(Listing.crashes)).all() == [0, 0]
    assert count(db, Report, Report.status == "scheduled", Report.crashes == 0) == 1


# -- what the replacement of a dead worker process does with the tasks that the process held --------------------------


def die(db: Database, tokens: WorkerTokens, *running: Task) -> None:
    """Recover from the death of the process with these tokens while it ran these tasks."""
    started = [Started(SPEC.table.fullname, (task.id,), claim_of(task).token, counted=False) for task in running]
    db.committed.run(recover, SPEC, Crash(tokens.worker, "was killed by SIGKILL", tuple(started), complete=True))


def crashes(db: Database) -> dict[int, int]:
    """Return the crashes of the tasks that are available, by their numbers.  None of their attempts is counted."""
    wanted: Any = select(Task.__table__).where(Task.status == "available")
    with db.engine.connect() as connection:
        found = connection.execute(wanted).all()
    assert {row.max_attempts - row.attempt for row in found} == {SPEC.options.max_attempts}
    return {row.number: row.crashes for row in found}


def test_tasks_of_a_dead_process_are_claimed_before_those_that_wait(db: Database) -> None:
    db.insert(Task, [{"number": number} for number in range(6)])
    tokens = WorkerTokens()
    running, *_ = taken(db, 3, tokens)
    die(db, tokens, running)
    assert crashes(db) == {0: 1, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0}
    assert [task.number for task in taken(db, 4)] == [0, 1, 2, 3]


def test_a_suspect_that_crashed_its_own_process_is_claimed_before_those_that_wait(db: Database) -> None:
    db.insert(Task, [{"number": number} for number in range(3)])
    (suspect,) = taken(db, 1)
    db.committed.run(write_outcomes, [(claim_of(suspect), Outcome("suspected", "it died"))])
    assert crashes(db) == {0: 1, 1: 0, 2: 0}
    assert [task.number for task in taken(db, 2)] == [0, 1]


def test_a_task_whose_creation_is_dated_later_can_be_claimed_again_at_once(db: Database) -> None:
    db.insert(Task, [{"created_at": TOMORROW}])
    tokens = WorkerTokens()
    taken(db, 1, tokens)
    die(db, tokens)
    assert len(taken(db, 1)) == 1


def test_the_functions_of_suspects_are_known(sync_db: Database) -> None:
    """Of those that a lease held, and of those that only a lock held."""
    sync_db.insert(
        Job, [{"id": key, "task": name, "arguments": {}} for key, name in ((1, "shop.mail"), (2, "shop.bill"))]
    )
    spec, tokens = spec_of(Job), WorkerTokens()
    (leased,) = sync_db.committed.run(claim_matching, ClaimQuery(spec), 1, tokens=tokens)
    held = [(leased.id, claim_of(leased).token), (3 - leased.id, None)]
    started = [Started(spec.table.fullname, (key,), token, counted=False) for key, token in held]
    crash = Crash(tokens.worker, "was killed by SIGKILL", tuple(started), complete=True)
    found = sync_db.committed.run(recover, spec, crash)
    assert {found.functions[claim] for claim in found.suspects} == {"shop.mail", "shop.bill"}
