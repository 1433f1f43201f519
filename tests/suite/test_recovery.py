"""What the replacement of a dead worker process does with the tasks that the process held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from sqlqueue import claim_of
from sqlqueue._support.errors import WorkerTokens
from sqlqueue.operations.claiming import ClaimQuery, claim_matching
from sqlqueue.operations.upkeep import Crash, Started, recover
from sqlqueue.queue.spec import spec_of
from sqlqueue.worker.handling.outcomes import Outcome, write_outcomes
from tests.support.harness import Database
from tests.support.models import Task
from tests.support.rows import TOMORROW

SPEC = spec_of(Task)


def claimed(db: Database, count: int, tokens: WorkerTokens | None = None) -> Sequence[Task]:
    """Claim ``count`` tasks for a worker."""
    with db.begin() as actor:
        tasks: Sequence[Task] = actor.run(claim_matching, ClaimQuery(SPEC), count, tokens=tokens or WorkerTokens())
    return tasks


def crash(db: Database, tokens: WorkerTokens, *running: Task) -> None:
    """Recover from the death of the process with these tokens while it ran these tasks."""
    started = [Started(SPEC.table.fullname, (task.id,), claim_of(task).token, counted=False) for task in running]
    with db.begin() as actor:
        actor.run(recover, SPEC, Crash(tokens.worker, -9, tuple(started), complete=True))


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
    running, *_ = claimed(db, 3, tokens)
    crash(db, tokens, running)
    assert crashes(db) == {0: 1, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0}
    assert [task.number for task in claimed(db, 4)] == [0, 1, 2, 3]


def test_a_suspect_that_crashed_its_own_process_is_claimed_before_those_that_wait(db: Database) -> None:
    db.insert(Task, [{"number": number} for number in range(3)])
    (suspect,) = claimed(db, 1)
    with db.begin() as actor:
        actor.run(write_outcomes, [(claim_of(suspect), Outcome("suspected", "it died"))])
    assert crashes(db) == {0: 1, 1: 0, 2: 0}
    assert [task.number for task in claimed(db, 2)] == [0, 1]


def test_a_task_whose_creation_is_dated_later_can_be_claimed_again_at_once(db: Database) -> None:
    db.insert(Task, [{"created_at": TOMORROW}])
    tokens = WorkerTokens()
    claimed(db, 1, tokens)
    crash(db, tokens)
    assert len(claimed(db, 1)) == 1
