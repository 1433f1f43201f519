"""While there is always work, tasks that came due and tasks of crashed workers still take their turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sqlqueue.worker import fetcher
from sqlqueue.worker import fetcher as readiness
from sqlqueue.worker import lock_mode as locking_executor
from tests.outbox.messages import relay_of
from tests.support.harness import Database
from tests.support.models import Mail, Outgoing, Task, Visit
from tests.support.rows import PAST, count, rows
from tests.support.workers import Workers, eventually, with_session

BACKLOG = 20
DUE: Sequence[dict[str, Any]] = [
    *rows(3, "scheduled", "retryable", "expired", claim_token=77, max_attempts=2),
    *rows(1, "expired", claim_token=-77, max_attempts=1),
]
"""Tasks that came due, and tasks whose claimer has crashed: a loop of the application, and a worker."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "EVERY", 0.0)
    monkeypatch.setattr(fetcher, "AHEAD", 0.0)
    monkeypatch.setattr(locking_executor, "AHEAD", 0.0)


def due(**values: Any) -> list[dict[str, Any]]:
    return [{"priority": -1, "created_at": PAST, **row, **values} for row in DUE]


@pytest.mark.parametrize("mode", ["lease", "lock"])
@pytest.mark.parametrize(
    ("model", "values"),
    [(Task, {}), (Mail, {"topic": "a"}), (Visit, {"limit_key": "a"})],
    ids=["plain", "topic", "limited"],
)
def test_they_take_their_turn_before_the_backlog_ends(
    db: Database, workers: Workers, model: Any, values: dict[str, Any], mode: Any
) -> None:
    """Each task enqueues another. A limited queue has more room than its key, so no claim gets all it wants."""
    db.insert(model, rows(BACKLOG, **values))
    db.insert(model, due(**values))
    where = [model.topic == "a"] if model is Mail else []
    worker = workers.make()
    handle = with_session(db, lambda session, task: session.add(model(**values)) if task.priority == 0 else None)
    worker.handler(model, *where, mode=mode, concurrency=4 if model is Visit else 1)(handle)
    workers.start(worker)
    eventually(lambda: count(db, model, model.priority == -1, model.status == "completed") == len(DUE))
    assert count(db, model, model.status == "available") > BACKLOG // 2


def test_messages_take_their_turn_before_the_backlog_ends(db: Database, workers: Workers) -> None:
    db.insert(Outgoing, [{"payload": {}, **row} for row in rows(BACKLOG)])
    db.insert(Outgoing, due(payload={}))
    engine = db.variant(pool_size=20)
    workers.start(relay_of(engine, lambda _: db.insert(Outgoing, [{"payload": {}}]), batch=1), engine=engine)
    eventually(lambda: count(db, Outgoing, Outgoing.priority == -1) == 0)
    assert count(db, Outgoing, Outgoing.status == "available") > BACKLOG // 2
