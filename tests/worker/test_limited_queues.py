"""Workers of limited queues."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from sqlqueue.worker import fetcher as poller
from tests.suite import children
from tests.suite.limited import claim, set_limit, visits
from tests.support.harness import Database
from tests.support.models import Slot, Visit
from tests.support.processes import Processes
from tests.support.rows import count
from tests.support.workers import (
    AT_ONCE,
    LONG,
    BlockingHandler,
    Workers,
    all_are,
    eventually,
    nothing,
    with_session,
    without_session,
)

SOAK = float(os.environ.get("SQLQUEUE_TEST_SOAK", "0"))
"""Seconds for which the storm lasts, for a soak test."""


def test_a_worker_with_more_room_than_the_limit(
    db: Database,
    workers: Workers,
    blocking: BlockingHandler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())  # it must be notified of free slots
    visits(db, *["a"] * 6, "b")
    workers.serve(Visit, without_session(db, blocking), poll=LONG, concurrency=6)
    blocking.wait_for(3)
    assert sorted(blocking.started) == [1, 2, 7]
    blocking.release()
    eventually(all_are(db, "completed", Visit))
    assert blocking.max_running == 3


def test_a_suspect_that_only_its_lock_holds_leaves_its_slot_until_it_runs_alone(db: Database, workers: Workers) -> None:
    set_limit(db, 1)
    visits(db, "a", crashes=1)
    workers.serve(Visit, with_session(db, nothing), mode="lock")
    eventually(all_are(db, "completed", Visit))
    assert count(db, Slot, Slot.status == "running") == 0


def test_a_worker_learns_of_tasks_cancelled_elsewhere(
    sync_db: Database,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller, "FIRST_LOOK", LONG.total_seconds())
    visits(sync_db, *"aaa")
    assert len(claim(sync_db)) == 2
    workers.serve(Visit, without_session(sync_db), poll=LONG)
    time.sleep(0.5)
    with sync_db.begin() as actor:
        assert actor.cancel(Visit, Visit.id < 3) == 2
    eventually(lambda: count(sync_db, Visit, Visit.status == "completed"), AT_ONCE)


@pytest.mark.requires("obeys_hints")
def test_a_worker_that_holds_its_tasks_by_their_locks(
    db: Database,
    workers: Workers,
    blocking: BlockingHandler,
) -> None:
    visits(db, *["a"] * 6, "b")
    workers.serve(Visit, with_session(db, during=blocking), concurrency=6, mode="lock")
    at_once = 1 if db.case.one_writer else 3
    blocking.wait_for(at_once)
    time.sleep(0.3)
    assert sorted(blocking.started) == [1, 2, 7][:at_once]
    blocking.release()
    eventually(all_are(db, "completed", Visit))
    assert blocking.max_running == at_once
    assert count(db, Slot, Slot.status == "running") == 0


@pytest.mark.requires("locks_rows" if SOAK else "notifies")
@pytest.mark.timeout(60 + 3 * SOAK)
def test_workers_that_are_killed(sync_db: Database, processes: Processes, tmp_path: Path) -> None:
    """Locks of the operating system, which end with a process, show whether more than three run at once."""
    size = 12 if SOAK else 4
    set_limit(sync_db, 3)
    visits(sync_db, *["a"] * (int(SOAK * 100) or 150), max_attempts=1_000)
    visitors = [processes.spawn(children.visit, sync_db.url, str(tmp_path)) for _ in range(size)]
    for child in visitors:
        child.wait_until_arrived()
    for child in visitors:
        child.let_pass()
    end = time.monotonic() + SOAK
    while time.monotonic() < end:
        time.sleep(random.uniform(0.2, 2))
        visitors.pop(random.randrange(size)).kill()
        visitors.append(processes.spawn(children.visit, sync_db.url, str(tmp_path)))
        visitors[-1].let_pass()
    for child in visitors[2:]:
        time.sleep(random.uniform(0.2, 0.6))
        child.kill()
    eventually(lambda: count(sync_db, Visit, Visit.status == "completed") >= 150)
    assert (tmp_path / "3").exists()
    assert not (tmp_path / "4").exists()
