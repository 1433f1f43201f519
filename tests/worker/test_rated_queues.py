"""Workers of queues whose keys have rates."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sqlqueue import Rate
from tests.suite.limited import visits
from tests.support.harness import Database
from tests.support.models import Visit
from tests.support.rows import count
from tests.support.workers import Workers, eventually


@pytest.mark.one_engine
@pytest.mark.parametrize(("mode", "handler"), [("lease", lambda task: None), ("lock", lambda session, task: None)])
def test_an_idle_worker_wakes_when_a_key_may_start_its_next_task(
    sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, mode: str, handler: Any
) -> None:
    monkeypatch.setattr("sqlqueue.worker.fetcher.FIRST_LOOK", 600.0)
    sync_db.committed.set_rate(Visit, "a", Rate(1, per=timedelta(seconds=0.2)))
    visits(sync_db, *"aaaa")
    with workers.serve(Visit, handler, mode=mode, poll=timedelta(minutes=10)):
        eventually(lambda: count(sync_db, Visit, Visit.status == "completed") == 4)


@pytest.mark.one_engine
def test_a_worker_claims_nothing_ahead_of_a_rate(sync_db: Database, workers: Workers) -> None:
    sync_db.committed.set_rate(Visit, "a", Rate(1_000, per=timedelta(seconds=1)))
    sync_db.committed.set_limit(Visit, "a", None)
    visits(sync_db, *["a"] * 200)
    ahead = []

    def handle(task: Visit) -> None:
        ahead.append(count(sync_db, Visit, Visit.status != "available") - len(ahead))

    with workers.serve(Visit, handle, concurrency=2):
        eventually(lambda: count(sync_db, Visit, Visit.status == "completed") == 200)
    assert max(ahead) <= 4
