"""SQL requests whose server does not respond: their time ends, and their place is free for others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqlqueue import enqueue
from sqlqueue.dialects.connections import StatementResult
from sqlqueue.sqltasks import RequestFailed, SQLTaskDatabase, execution
from sqlqueue.sqltasks.execution import RequestExecutor, response
from tests.outages.blackhole import BlackHole, through
from tests.sqltasks.test_sql_requests import DIGITS
from tests.sqltasks.test_sql_tasks import TASK, found, running, tasks
from tests.support.harness import Database
from tests.support.workers import eventually

__all__ = ["tasks"]
pytestmark = pytest.mark.requires("container")
LONG = f"SELECT REPEAT('x', 1000) AS wide FROM {', '.join(f'({DIGITS}) d{n}' for n in range(5))}"
"""A query with 100 MB of rows, of which the first are sent at once."""
TIMEOUT = 5.0
"""Seconds, which are enough for the first rows on a busy machine."""


@pytest.fixture
def hole(sync_db: Database) -> Iterator[BlackHole]:
    found = BlackHole(sync_db.url)
    yield found
    found.close()


def silencing(hole: BlackHole, monkeypatch: pytest.MonkeyPatch, *, others: bool) -> Event:
    """Silence the connection of the first request while its rows are read and, with ``others``, all later ones."""
    is_silent = Event()

    def reading(answer: StatementResult, limit: int) -> str:
        if not is_silent.is_set():
            hole.is_greedy = others
            hole.swallow()
            is_silent.set()
        return response(answer, limit)

    monkeypatch.setattr(execution, "response", reading)
    return is_silent


def execute(url: URL, request: str, *, timeout: float) -> str:
    executor = RequestExecutor(url, {}, timeout=timedelta(minutes=5), limit=100)
    return executor.execute(request, user=None, timeout=timeout)


def test_a_request_ends_although_the_server_does_not_respond(
    sync_db: Database, hole: BlackHole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to the connections that would cancel it."""
    silenced = silencing(hole, monkeypatch, others=True)
    with pytest.raises(RequestFailed, match=r"timeout: stopped after 5 s"):
        execute(through(hole, sync_db.url), LONG, timeout=TIMEOUT)
    assert silenced.is_set()


def test_a_host_that_accepts_connections_and_is_silent_is_an_outage(
    sync_db: Database, hole: BlackHole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "CONNECTING", timedelta(seconds=2))
    hole.is_greedy = True
    with pytest.raises(DBAPIError):
        execute(through(hole, sync_db.url), "SELECT 1", timeout=60)


def test_other_tasks_get_the_place_of_a_request_that_hangs(
    tasks: Database, hole: BlackHole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the statement, but the worker does not hear of it."""
    silenced = silencing(hole, monkeypatch, others=False)
    url = tasks.url.render_as_string(hide_password=False)
    by = through(hole, tasks.url).render_as_string(hide_password=False)
    served = SQLTaskDatabase(url=url, execute_url=by, table="request", poll=timedelta(seconds=0.1), concurrency=1)
    _add(tasks, {"request": LONG, "timeout": TIMEOUT, "queue": "stuck"})
    with running(served):
        assert silenced.wait(60)
        _add(tasks, {"request": "SELECT 1", "queue": "other"})
        eventually(lambda: [task.status for task in found(tasks)] == ["discarded", "completed"])
    assert "timeout: stopped after 5 s" in found(tasks)[0].error


def _add(db: Database, row: dict[str, Any]) -> None:
    with Session(db.engine) as session:
        enqueue(session, TASK, [row])
        session.commit()
