"""A handler fails because of another database, or because of what it does itself: that looks like an outage of the
queue's database, but is not repeated forever."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, select, text

from sqlqueue.worker.running.executor import RETURNS
from tests.support.harness import Database
from tests.support.models import Task
from tests.support.workers import Workers, eventually, statuses, with_session, without_session

MOST = 3
"""The maximum number of attempts of a Task."""
MODES = [("lease", True), ("lease", False), ("lock", True)]


def connect_elsewhere(db: Database) -> Any:
    """Return a function that fails to connect to a database of the same kind."""
    url = db.engine.url
    gone = url.set(database="/no/such/directory/task.db") if url.host is None else url.set(host="127.0.0.1", port=1)
    other = create_engine(gone)

    def during(_: Any) -> None:
        with other.connect():
            pass

    return during


def handler(db: Database, *, session: bool) -> Any:
    during = connect_elsewhere(db)
    if session:
        return with_session(db, lambda session, task: during(task))
    return without_session(db, during)


def only_row(db: Database) -> tuple[str, int, int, str | None]:
    with db.engine.connect() as connection:
        found = connection.execute(select(Task.status, Task.attempt, Task.max_attempts, Task.error)).one()
    return tuple(found)


@pytest.mark.parametrize(("mode", "session"), MODES)
def test_an_outage_elsewhere_is_returned_with_its_reason(
    db: Database, workers: Workers, mode: Any, session: bool
) -> None:
    db.insert(Task, [{"id": 1}])
    worker = workers.make()
    worker.handler(Task, mode=mode, concurrency=1)(handler(db, session=session))
    workers.start(worker)
    eventually(lambda: statuses(db) == {1: "scheduled"})
    _, attempt, most, error = only_row(db)
    assert (attempt, most) == (1, MOST + 1)
    assert "Error: " in (error or "")


@pytest.mark.parametrize(("mode", "session"), MODES)
def test_an_outage_elsewhere_counts_after_too_many_returns(
    db: Database, workers: Workers, mode: Any, session: bool
) -> None:
    db.insert(Task, [{"id": 1, "attempt": RETURNS + MOST - 1, "max_attempts": RETURNS + MOST}])
    worker = workers.make()
    worker.handler(Task, mode=mode, concurrency=1)(handler(db, session=session))
    workers.start(worker)
    eventually(lambda: statuses(db) == {1: "discarded"})
    assert "Error: " in (only_row(db)[3] or "")


@pytest.mark.requires("kill_sql")
@pytest.mark.parametrize("mode", ["lease", "lock"])
@pytest.mark.parametrize(("returned", "status"), [(RETURNS, "discarded"), (RETURNS - 1, "scheduled")])
def test_a_task_that_ends_its_own_connection_is_not_run_forever(
    db: Database, workers: Workers, mode: Any, returned: int, status: str
) -> None:
    """MySQL ends it too if a statement is larger than its limit, for example."""
    db.insert(Task, [{"id": 1, "attempt": returned + MOST - 1, "max_attempts": returned + MOST}])
    kill = (db.case.kill_sql or "").format(connection=f"{db.case.connection_id}()")
    worker = workers.make()
    worker.handler(Task, mode=mode, concurrency=1)(with_session(db, lambda session, _: session.execute(text(kill))))
    workers.start(worker)
    eventually(lambda: statuses(db) == {1: status})
    assert "Error: " in (only_row(db)[3] or "")
