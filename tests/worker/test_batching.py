"""What a worker sends for its tasks: claims and completions go many at a time, and a commit does for a whole task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sqlqueue.worker.fetching import fetcher
from tests.suite.scenes import rows
from tests.support.harness import Database
from tests.support.models import Task
from tests.worker.crew import LONG, Workers, all_are, eventually, seen, with_session, without_session

TASKS = 100


class Sent(NamedTuple):
    statements: int
    """On the tasks themselves."""
    commits: int


@pytest.fixture
def drain(db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Sent]:
    monkeypatch.setattr(fetcher, "AHEAD", 60.0)  # or a slow machine's tasks were long ones, of which few are claimed

    def drained(handler: Any) -> Sent:
        """What a worker sends until all is done."""
        db.insert(Task, rows(TASKS))
        engine = db.variant(pool_size=20)
        worker = workers.make(poll=LONG, engine=engine)
        worker.handler(Task, concurrency=4)(handler)
        with seen(engine, "before_cursor_execute") as statements, seen(engine, "commit") as commits:
            workers.start(worker)
            eventually(all_are(db, "completed"))
            worker.stop()
        of_tasks = [each[2] for each in statements if "task" in each[2]]
        return Sent(len(of_tasks), len(commits))

    return drained


@pytest.mark.parametrize("takes_session", [False, True], ids=["without session", "with session"])
def test_what_a_drain_costs(db: Database, drain: Callable[[Any], Sent], takes_session: bool) -> None:
    sent = drain((with_session if takes_session else without_session)(db))
    if takes_session:  # its own and the completion's, in one commit; and claims, in batches
        assert TASKS <= sent.commits < 1.5 * TASKS
        assert sent.statements < 3 * TASKS
    else:
        assert sent.commits < TASKS / 2
        assert sent.statements < TASKS
