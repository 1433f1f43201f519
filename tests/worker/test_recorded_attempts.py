"""Each attempt that a worker makes leaves exactly one row in the history, however it ends, without secrets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sqlqueue import Cancel, Claim, Discard, PastAttempt, Retry, Snooze, utcnow
from tests.support.harness import Database
from tests.support.history import Flare, Parcel, Past, archive, sync_archive
from tests.support.rows import clock, count
from tests.support.workers import BlockingHandler, Workers, eventually, nothing, statuses, with_session, without_session
from tests.worker.crashing import DELIVERIES, stopped, supervised

__all__ = ["archive", "sync_archive"]

HOUR = timedelta(hours=1)
FINAL = {"completed", "cancelled", "discarded"}
EXPECTED: dict[int, list[tuple[str, str | None]]] = {
    1: [("completed", None)],
    2: [("failed", "ValueError: no stamp"), ("completed", None)],
    3: [("failed", "ValueError: no stamp")] * 3,
    4: [("snoozed", None), ("completed", None)],
    5: [("discarded", "unwanted")],
    6: [("cancelled", None)],
    7: [("failed", "later"), ("completed", None)],
}
"""The expected outcomes and errors of the attempts at each parcel, by key."""


def deliver(parcel: Parcel) -> None:
    hidden = "hush" * 3  # noqa: F841
    if parcel.id == 3 or (parcel.id == 2 and parcel.attempt == 1):
        raise ValueError("no stamp")
    if parcel.id == 4 and parcel.attempt == 1:
        raise Snooze(timedelta(0))
    if parcel.id == 5:
        raise Discard("unwanted")
    if parcel.id == 6:
        raise Cancel
    if parcel.id == 7 and parcel.attempt == 1:
        raise Retry(timedelta(0), "later")


def attempts(db: Database, key: int) -> list[PastAttempt]:
    """Return the attempts, oldest first."""
    with db.begin() as session:
        return list(reversed(session.history(Claim(Parcel, (key,), 0))))


def all_final(db: Database) -> bool:
    return set(statuses(db, Parcel).values()) <= FINAL


@pytest.mark.parametrize("session", [True, False], ids=["with a session", "without"])
def test_each_outcome_leaves_one_row_for_each_attempt(archive: Database, workers: Workers, session: bool) -> None:
    before = clock(archive)
    archive.insert(Parcel, [{"id": key} for key in EXPECTED])
    handler = with_session(archive, nothing, during=deliver) if session else without_session(archive, during=deliver)
    running = workers.serve(Parcel, handler, name="ada")
    eventually(lambda: all_final(archive))
    running.stop()
    found = {key: attempts(archive, key) for key in EXPECTED}
    assert {key: [(each.outcome.value, each.error) for each in some] for key, some in found.items()} == EXPECTED
    for some in found.values():
        assert [each.attempt for each in some] == list(range(1, len(some) + 1))
        assert {each.claimed_by for each in some} == {"ada"}
        assert all(before <= each.started_at <= each.finished_at for each in some if each.started_at)
        assert all(each.started_at for each in some)
    every = [each for some in found.values() for each in some]
    assert count(archive, Past) == len(every)
    with_traceback = [each for each in every if each.traceback]
    assert [each.error for each in with_traceback] == ["ValueError: no stamp"] * 4
    for each in with_traceback:
        assert each.traceback.startswith("Traceback")
        assert "in deliver" in each.traceback
        assert "hushhushhush" not in each.traceback
        assert "sqlqueue/worker" not in each.traceback


def test_tasks_released_by_a_stopping_worker_leave_no_failure(
    archive: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    archive.insert(Parcel, [{"id": 1}])
    running = workers.serve(Parcel, with_session(archive, nothing, during=blocking), name="ada", grace=timedelta(0))
    blocking.wait_for()
    running.stop()
    (released,) = attempts(archive, 1)
    assert (released.outcome, released.claimed_by, released.error) == ("released", "ada", None)
    assert released.started_at <= released.finished_at


def test_the_worker_that_takes_over_records_the_lost_lease(archive: Database, workers: Workers) -> None:
    archive.insert(Parcel, [{"id": 1}])
    with archive.begin() as session:
        session.claim(Parcel, claimed_by="gone")
    with archive.engine.begin() as connection:
        connection.execute(update(Parcel).values(available_at=utcnow(-HOUR)))
    running = workers.serve(Parcel, with_session(archive, nothing), name="ada")
    eventually(lambda: all_final(archive))
    running.stop()
    lost, completed = attempts(archive, 1)
    assert (lost.attempt, lost.outcome, lost.claimed_by, lost.traceback) == (1, "crashed", "gone", None)
    assert "its lease expired" in lost.error
    assert (completed.attempt, completed.outcome, completed.claimed_by) == (2, "completed", "ada")


@pytest.mark.one_engine
def test_the_supervisor_records_the_attempt_that_killed_its_process(sync_archive: Database) -> None:
    sync_archive.insert(Parcel, [{"id": 1}])
    with supervised(sync_archive.url, program=DELIVERIES) as supervisor:
        eventually(lambda: all_final(sync_archive), 150)
        stopped(supervisor)
    crashed, completed = attempts(sync_archive, 1)
    assert (crashed.outcome, completed.outcome) == ("crashed", "completed")
    assert crashed.error.startswith("its process exited with status 7")
    assert (crashed.attempt, completed.attempt) == (1, 2)
    assert crashed.claimed_by
    assert crashed.started_at <= crashed.finished_at


# -- the SQL and the parameters of a statement that fails in a handler are not stored or logged -----------------------


SECRET = "hunter2"


def insert_again(session: Session) -> None:
    session.add(Flare(region="a", number=1, error=SECRET))
    session.flush()


def wrap(session: Session) -> None:
    try:
        insert_again(session)
    except IntegrityError as error:
        raise LookupError("no flare") from error


def fail_while_handling(session: Session) -> None:
    try:
        insert_again(session)
    finally:
        int("no flare")


def group(session: Session) -> None:
    try:
        insert_again(session)
    except IntegrityError as error:
        raise ExceptionGroup("several", [error]) from None


def go_on(session: Session) -> None:
    with suppress(IntegrityError):
        insert_again(session)
    session.get(Flare, ("b", 2))


FAILURES = {
    insert_again: "IntegrityError: (",
    wrap: "LookupError: no flare",
    fail_while_handling: "ValueError: invalid literal",
    group: "ExceptionGroup: several (1 sub-exception)",
    go_on: "PendingRollbackError: This Session's transaction has been rolled back",
}


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock"])
@pytest.mark.parametrize("fails", FAILURES)
def test_the_parameters_of_a_statement_are_kept_secret(
    archive: Database, workers: Workers, caplog: pytest.LogCaptureFixture, fails: Callable[[Session], None], mode: Any
) -> None:
    archive.insert(Flare, [{"region": "a", "number": 1}])
    archive.insert(Parcel, [{"id": 1, "max_attempts": 1}])
    with caplog.at_level(logging.DEBUG, "sqlqueue"):
        running = workers.serve(Parcel, with_session(archive, lambda session, _: fails(session)), mode=mode)
        eventually(lambda: statuses(archive, Parcel) == {1: "discarded"})
        running.stop()
    with archive.begin() as session:
        parcel = session.get(Parcel, 1)
        (attempt,) = session.history(Claim(Parcel, (1,), 0))
        (found,) = session.errors(Parcel)
    for text in (parcel.error, attempt.error, found.message):
        assert text.startswith(FAILURES[fails])
    assert f"in {fails.__name__}" in attempt.traceback
    logged = caplog.text + "".join(record.exc_text or "" for record in caplog.records)
    for text in (parcel.error, attempt.error, attempt.traceback, found.message, logged):
        assert SECRET not in text
        assert "[SQL: " not in text
