"""Tasks that crash their process, under a supervisor: only they are charged."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from tests.support.harness import Database
from tests.support.models import Ledger, Task
from tests.support.workers import eventually
from tests.worker.crashing import ALONE, APART, POISON, stopped, supervised

PATIENCE = 150
CALLS = 8
"""More calls of the poison task than any test allows."""
pytestmark = pytest.mark.timeout(220)


def found(db: Database) -> list[Any]:
    with db.engine.connect() as connection:
        return list(connection.execute(select(Task.__table__).order_by(Task.id)))


def is_over(db: Database) -> bool:
    """Return whether all tasks are final, or the poison task is not discarded in time."""
    rows = found(db)
    is_endless = any(row.name.startswith(POISON) and row.attempt > CALLS for row in rows)
    return is_endless or all(row.status in ("completed", "discarded") for row in rows)


def insert(db: Database, how: str, *, beside: int, milliseconds: int) -> None:
    """Insert a poison task among innocent ones."""
    innocents = [{"name": "innocent", "number": milliseconds}] * (beside // 2)
    db.insert(Task, [*innocents, {"name": f"{POISON}:{how}", "number": milliseconds // 2}, *innocents])


def judge(db: Database, said: str) -> None:
    """Assert that only the poison task is a dead letter, and that no other task was charged an attempt."""
    (poison,) = (row for row in found(db) if row.name.startswith(POISON))
    assert (poison.status, poison.crashes) == ("discarded", 3)
    assert poison.error.startswith("crashed 3 processes: its process ")
    assert said in poison.error
    for row in found(db):
        if row is not poison and row.id != poison.id:
            assert row.status == "completed", row
            assert row.crashes == 0, row
            assert row.max_attempts - row.attempt == 2, row  # of three attempts, only the one that completed it counts
    with db.engine.connect() as connection:
        done = connection.scalars(select(Ledger.task_id)).all()
    assert sorted(done) == [row.id for row in found(db) if row.id != poison.id]


def crash(db: Database, how: str, said: str, program: str, processes: int) -> None:
    insert(db, how, beside=8, milliseconds=300)
    with supervised(db.url, processes, program=program) as supervisor:
        eventually(lambda: is_over(db), PATIENCE)
        log = stopped(supervisor)
    judge(db, said)
    assert log.count("given up") == 1
    assert log.count("has died") == (3 if program == ALONE else 1)  # the others in child processes
    assert "is suspected: its process " in log


def test_the_poison_task_alone_is_discarded(sync_db: Database) -> None:
    crash(sync_db, "exit", "exited with status 7", APART, 2)


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("how", "said", "program"),
    [
        ("segv", "was killed by SIGSEGV", APART),
        ("leave", "exited with status 0", APART),
        ("kill", "was killed by SIGKILL, possibly because memory ran out", ALONE),
    ],
)
def test_the_poison_task_is_discarded_however_it_crashes(sync_db: Database, how: str, said: str, program: str) -> None:
    crash(sync_db, how, said, program, 1)


def test_in_lock_mode_the_poison_task_alone_is_discarded(sync_db: Database) -> None:
    insert(sync_db, "kill", beside=6, milliseconds=100)
    with supervised(sync_db.url, mode="lock") as supervisor:
        eventually(lambda: is_over(sync_db), PATIENCE)
        stopped(supervisor)
    judge(sync_db, "was killed by SIGKILL")
