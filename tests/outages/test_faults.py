"""Faults of a server while workers use it: they keep running, and each task has its effects once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread

import pytest
from sqlalchemy import NullPool, delete
from sqlalchemy.exc import DBAPIError

from sqlqueue.dialects import adapter_for
from sqlqueue.worker.database import passes
from tests.outages.models import MAX_ATTEMPTS, Receipt
from tests.outages.workload import BRIEF, SLOTS, WITHOUT_SESSION, Workload
from tests.support.harness import Database
from tests.support.workers import eventually

MANY = 30


@contextmanager
def only_outages(*databases: Database, renewed: bool = False) -> Iterator[list[tuple[Database, Exception]]]:
    """Yield the errors in this block, and assert that there are some, and that the adapter classifies all as outages.

    `renewed`: use new connections.
    """
    errors: list[tuple[Database, Exception]] = []
    stopped = Event()
    with ExitStack() as stack:
        for database in [each.variant(poolclass=NullPool) for each in databases] if renewed else databases:
            thread = Thread(target=_ask, args=(database, errors, stopped))
            stack.callback(thread.join)
            thread.start()
        try:
            yield errors
        finally:
            stopped.set()
    assert errors
    assert [error for database, error in errors if not _is_outage(database, error)] == []


def _is_outage(database: Database, error: Exception) -> bool:
    adapter = adapter_for(database.engine.dialect)
    return isinstance(error, DBAPIError) and adapter.connections.is_outage(error) and passes(error, adapter)


def _ask(database: Database, errors: list[tuple[Database, Exception]], stopped: Event) -> None:
    while not stopped.is_set():
        try:
            with database.session() as actor:
                while not stopped.is_set():
                    actor.execute(delete(Receipt).where(Receipt.id == -1))
                    actor.commit()
                    time.sleep(0.05)
        except Exception as error:
            errors.append((database, error))
            time.sleep(0.05)


def assert_recovered(workload: Workload) -> None:
    """Assert that each task is completed with its effect once, and that no failure was counted."""
    workload.wait_until_done()
    assert not any(running.ended for running in workload.workers)
    rows = workload.rows()
    assert workload.receipts() == {row.id: 1 for row in rows if row.topic not in WITHOUT_SESSION}
    assert workload.calls.keys() == {row.id for row in rows}
    assert workload.counts("failed") == 0


def counted_attempts(workload: Workload, *topics: str) -> set[int]:
    """Return the attempts counted against `max_attempts`, which uncounted attempts increase."""
    return {row.attempt - (row.max_attempts - MAX_ATTEMPTS) for row in workload.rows(*topics)}


def test_effects_are_exact_if_connections_are_killed(workload: Workload) -> None:
    workload.enqueue("steady", "plain", "locked", count=3 * SLOTS)
    workload.wait_until_busy("steady", "plain", "locked")
    workload.enqueue("brief", "brief-plain", count=MANY)
    with only_outages(*workload.databases):
        for _ in range(3):
            workload.server.kill_connections()
            time.sleep(0.1)
    workload.gate.set()
    assert_recovered(workload)
    assert workload.counts("snoozed") >= 2 * SLOTS
    assert counted_attempts(workload, "steady", "plain", "locked") == {1}


def test_effects_are_exact_after_a_restart(workload: Workload) -> None:
    workload.enqueue("steady", "plain", "locked", count=3 * SLOTS)
    workload.wait_until_busy("steady", "plain", "locked")
    workload.enqueue("brief", "brief-plain", count=MANY)
    with only_outages(*workload.databases):
        workload.server.restart()
    workload.gate.set()
    assert_recovered(workload)
    assert workload.counts("database_errors") > 0


def test_effects_are_exact_after_a_crash(workload: Workload) -> None:
    """Handlers end and workers start while the server is down; one worker is stopped in the meantime."""
    topics = ("steady", "plain", "locked")
    workload.enqueue(*topics, count=3 * SLOTS)
    workload.enqueue("held", count=1)
    workload.wait_until_busy(*topics)
    eventually(lambda: workload.ids("held") <= workload.present)
    held = workload.ids("held")
    with only_outages(*workload.databases), workload.server.crashed():
        leaver, stayer = workload.start(0, "brief"), workload.start(1, "late")
        workload.gate.set()
        eventually(lambda: workload.present == held)
        leaver.stop()
    before = workload.lease("held")
    workload.enqueue("late", count=4)
    eventually(lambda: workload.lease("held") > before)
    workload.release.set()
    assert_recovered(workload)
    assert not stayer.ended
    # a claim that was committed without the worker receiving the response counts as one attempt
    assert counted_attempts(workload, *topics, "held") <= {1, 2}
    assert {workload.calls[errand] for errand in workload.ids("plain", "held")} == {1}


def test_leases_end_while_the_server_is_frozen(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is frozen for longer than leases last; workers can be stopped in the meantime, and others take over
    their tasks."""
    monkeypatch.setattr("sqlqueue.worker.run.FINAL_WRITE_LIMIT", 0.5)
    workload.enqueue("steady", "plain", "locked", count=3 * SLOTS)
    workload.wait_until_busy("steady", "plain", "locked")
    leavers = [workload.start(number, "left") for number in range(2)]
    workload.enqueue("left", count=4)
    eventually(lambda: workload.ids("left") <= workload.present)
    workload.enqueue("brief", "brief-plain", count=MANY)
    eventually(lambda: workload.ids("brief", "brief-plain") & workload.present)
    with workload.server.frozen():
        workload.gate.set()
        frozen = time.monotonic()
        for leaver in leavers:
            leaver.stop(at_once=True)
        time.sleep(max(0, BRIEF.total_seconds() + 0.2 - (time.monotonic() - frozen)))
    assert_recovered(workload)


def test_a_server_that_refuses_work_is_an_outage(workload: Workload) -> None:
    """The server responds, but rejects statements."""
    for begin, end in workload.server.case.faults:
        workload.enqueue("steady", "plain", "brief", count=2 * SLOTS)
        workload.wait_until_busy("steady", "plain")
        with only_outages(*workload.databases, renewed=True) as errors, workload.server.suffering(begin, end):
            workload.gate.set()
            eventually(lambda errors=errors: errors)
        assert_recovered(workload)
        assert counted_attempts(workload) == {1}
        workload.gate.clear()


def test_unwritable_outcomes_do_not_block_others(workload: Workload) -> None:
    """Whatever class the driver's constraint error has; each is replaced by a failure."""
    workload.enqueue("refused", "plain", count=2)
    eventually(lambda: workload.ids("refused", "plain") <= workload.present)
    workload.gate.set()
    workload.wait_until_done("plain")
    workload.enqueue("plain", count=1)
    workload.wait_until_done("plain")
    eventually(lambda: {row.status for row in workload.rows("refused")} == {"retryable"})
    assert all(row.error for row in workload.rows("refused"))
