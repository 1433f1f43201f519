"""A handler fails because of another database, or because of what it does itself: that looks like an outage of the
queue's database, but is not repeated forever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, select, text, update
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import load_only

from sqlqueue import Snooze
from sqlqueue.worker.executor import TRIES
from sqlqueue.worker.jobs import RETURNS
from tests.support.harness import Database
from tests.support.models import Account, Task
from tests.support.rows import PAST
from tests.support.workers import (
    Running,
    Workers,
    eventually,
    nothing,
    raising,
    statuses,
    with_session,
    without_session,
)

pytestmark = pytest.mark.asyncio_everywhere

MOST = 3
"""The maximum number of attempts of a Task."""


def connect_elsewhere(db: Database) -> Any:
    """Return a function that fails to connect to a database of the same kind."""
    url = db.engine.url
    gone = url.set(database="/no/such/directory/task.db") if url.host is None else url.set(host="127.0.0.1", port=1)
    other = create_engine(gone)

    def during(_: Any) -> None:
        with other.connect():
            pass

    return during


def end_its_connection(db: Database) -> Any:
    """Return a handler that does so, as MySQL does if a statement is larger than its limit."""
    kill = (db.case.kill_sql or "").format(connection=f"{db.case.connection_id}()")
    return with_session(db, lambda session, _: session.execute(text(kill)))


HANDLERS: dict[str, Callable[[Database], Any]] = {
    "elsewhere": lambda db: with_session(db, nothing, during=connect_elsewhere(db)),
    "elsewhere, without a session": lambda db: without_session(db, connect_elsewhere(db)),
    "its own connection": end_its_connection,
}


def only_row(db: Database) -> tuple[str, int, int, str | None]:
    with db.engine.connect() as connection:
        found = connection.execute(select(Task.status, Task.attempt, Task.max_attempts, Task.error)).one()
    return tuple(found)


def returned_before(times: int) -> dict[str, Any]:
    """Return the row of a task that was returned so often, and has one attempt left."""
    attempt = times + MOST - 1
    return {
        "id": 1,
        "attempt": attempt,
        "max_attempts": attempt + 1,
        "error": f"OperationalError: gone{end(attempt, times)}",
    }


def end(attempt: int, times: int) -> str:
    """Return the end of the error of a task that was returned after this attempt."""
    return f" (returned after attempt {attempt}, {times} of {RETURNS} times in a row)"


@pytest.mark.parametrize(
    ("lost", "mode"),
    [
        ("elsewhere", "lease"),
        ("elsewhere", "lock"),
        ("elsewhere, without a session", "lease"),
        pytest.param("its own connection", "lease", marks=pytest.mark.requires("kill_sql")),
        pytest.param("its own connection", "lock", marks=pytest.mark.requires("kill_sql")),
    ],
)
@pytest.mark.parametrize(("returned", "status"), [(RETURNS - 1, "scheduled"), (RETURNS, "discarded")])
def test_an_outage_counts_after_too_many_returns(
    db: Database, workers: Workers, lost: str, mode: Any, returned: int, status: str
) -> None:
    db.insert(Task, [returned_before(returned)])
    workers.serve(Task, HANDLERS[lost](db), mode=mode, concurrency=1)
    eventually(lambda: statuses(db) == {1: status})
    _, attempt, most, error = only_row(db)
    assert "Error: " in (error or "")
    if status == "scheduled":
        assert most - attempt == 1, "it counted as an attempt"
        assert (error or "").endswith(end(returned + MOST, RETURNS))


GONE = f"OperationalError: gone{end(3, RETURNS)}"
LATER = [
    ({"attempt": 40, "max_attempts": 41, "error": "ValueError: another one"}, "many attempts were allowed later"),
    ({"attempt": 4, "max_attempts": 5, "error": GONE}, "another attempt ended otherwise"),
    ({"attempt": 0, "max_attempts": 3, "error": GONE}, "it is run again"),
    ({"attempt": 0, "max_attempts": 3}, "it is the first attempt"),
]
ELSEWHERE = {"lease": "elsewhere, without a session", "lock": "elsewhere"}


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock"])
@pytest.mark.parametrize(("row", "why"), LATER)
def test_only_returns_in_a_row_are_counted(
    sync_db: Database, workers: Workers, mode: Any, row: dict[str, Any], why: str
) -> None:
    sync_db.insert(Task, [{"id": 1, **row}])
    workers.serve(Task, HANDLERS[ELSEWHERE[mode]](sync_db), mode=mode, concurrency=1)
    eventually(lambda: statuses(sync_db) == {1: "scheduled"})
    _, attempt, most, error = only_row(sync_db)
    assert most - attempt == row["max_attempts"] - row["attempt"], "it counted as an attempt"
    assert (error or "").endswith(end(row["attempt"] + 1, 1)), why


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_an_attempt_that_is_snoozed_between_two_outages_ends_the_row(db: Database, workers: Workers, mode: Any) -> None:
    db.insert(Task, [returned_before(RETURNS)])
    last = RETURNS + MOST - 1
    errors = iter([Snooze(timedelta(0)), PoolTimeoutError("gone")])

    def during(_: Any) -> None:
        raise next(errors)

    workers.serve(Task, with_session(db, nothing, during=during), mode=mode, concurrency=1)
    eventually(lambda: (only_row(db)[3] or "").endswith(end(last + 2, 1)))
    status, attempt, most, _ = only_row(db)
    assert (status, attempt, most) == ("scheduled", last + 2, last + 3)


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_returns_are_counted_whatever_is_loaded(sync_db: Database, workers: Workers, mode: Any) -> None:
    sync_db.insert(Task, [returned_before(RETURNS)])
    handler = HANDLERS[ELSEWHERE[mode]](sync_db)
    workers.serve(Task, handler, mode=mode, concurrency=1, options=[load_only(Task.number)])
    eventually(lambda: statuses(sync_db) == {1: "discarded"})


@pytest.mark.one_engine
def test_the_number_of_returns_is_kept_of_a_long_error(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, [returned_before(1)])
    workers.serve(Task, raising(sync_db, PoolTimeoutError("x" * 5000), session=False), concurrency=1)
    eventually(lambda: statuses(sync_db) == {1: "scheduled"})
    assert (only_row(sync_db)[3] or "").endswith(f"…{end(MOST + 1, 2)}")


# -- handlers that time out waiting for a lock ------------------------------------------------------------------------

LONG = 90.0


def kept_waiting(db: Database, workers: Workers, outcome: str) -> tuple[Running, int]:
    """Wait until the only task has this outcome; return the number of calls."""
    db.insert(Account, [{"id": 1, "name": ""}])
    arrived, locked = threading.Event(), threading.Event()
    calls: list[int] = []

    def during(task: Any) -> None:
        calls.append(task.id)
        arrived.set()
        locked.wait(LONG)

    def write(session: Any, _: Any) -> None:
        session.execute(update(Account).where(Account.id == 1).values(name="handler"))

    engine = db.variant(pool_size=20, on_connect=db.case.impatient_sql)
    running = workers.serve(Task, with_session(db, write, during=during), engine=engine, concurrency=1)
    worker = running.worker
    assert arrived.wait(LONG)
    with db.engine.begin() as other:
        other.execute(update(Account).where(Account.id == 1).values(name="other"))
        locked.set()
        eventually(lambda: worker._reports.counts[outcome], LONG)
    return running, len(calls)


@pytest.mark.requires("impatient_sql")
def test_a_lock_timeout_does_not_count_as_an_attempt(db: Database, workers: Workers) -> None:
    db.insert(Task, [{"id": 1, "max_attempts": MOST}])
    running, calls = kept_waiting(db, workers, "snoozed")
    eventually(lambda: statuses(db) == {1: "scheduled"})
    assert calls == TRIES
    _, attempt, most, error = only_row(db)
    assert (attempt, most) == (1, MOST + 1)
    assert "Error: " in (error or ""), "it does not say why it is postponed"
    with db.engine.begin() as connection:
        connection.execute(update(Task).values(available_at=PAST))
    eventually(lambda: statuses(db) == {1: "completed"})
    assert running.worker._reports.counts["failed"] == 0


@pytest.mark.requires("impatient_sql")
def test_a_lock_timeout_counts_after_too_many_releases(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, [{"id": 1, "error": f"DBAPIError: it waits{end(0, RETURNS)}"}])
    kept_waiting(sync_db, workers, "failed")
    eventually(lambda: statuses(sync_db) == {1: "retryable"})
