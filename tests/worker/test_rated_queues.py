"""Workers of queues whose keys have rates."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sqlqueue import Rate
from sqlqueue.operations.upkeep import poll
from sqlqueue.worker.fetcher import Fetcher
from tests.suite.limited import visits
from tests.suite.test_rates import started, worst
from tests.support.harness import Database
from tests.support.models import Visit
from tests.support.processes import Processes
from tests.support.rows import clock, count
from tests.support.workers import Workers, eventually, seen
from tests.worker import children


@pytest.mark.parametrize(("mode", "handler"), [("lease", lambda task: None), ("lock", lambda session, task: None)])
def test_an_idle_worker_wakes_when_a_key_may_start_its_next_task(
    sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, mode: str, handler: Any
) -> None:
    monkeypatch.setattr("sqlqueue.worker.fetcher.FIRST_LOOK", 600.0)
    sync_db.committed.set_rate(Visit, "a", Rate(1, per=timedelta(seconds=0.2)))
    visits(sync_db, *"aaaa")
    with workers.serve(Visit, handler, mode=mode, poll=timedelta(minutes=10)):
        eventually(lambda: count(sync_db, Visit, Visit.status == "completed") == 4)


def test_a_worker_that_a_rate_has_woken_searches_no_due_tasks(
    sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.worker.fetcher.FIRST_LOOK", 600.0)
    claim, found = Fetcher._claim, list[Any]()

    async def observed(self: Fetcher, limit: int, *, only_ready: bool) -> Any:
        jobs = await claim(self, limit, only_ready=only_ready)
        found.extend([only_ready] * len(jobs))
        return jobs

    monkeypatch.setattr(Fetcher, "_claim", observed)
    sync_db.committed.set_rate(Visit, "a", Rate(1, per=timedelta(seconds=2)))
    visits(sync_db, *"aa")
    with workers.serve(Visit, lambda task: None, poll=timedelta(minutes=10)):
        eventually(lambda: count(sync_db, Visit, Visit.status == "completed") == 2)
    assert found == [False, True]


def test_a_look_tells_whether_a_rate_allows_a_start_before_a_task_is_due(sync_db: Database) -> None:
    sync_db.committed.set_rate(Visit, "a", Rate(1, per=timedelta(hours=1)))
    visits(sync_db, *"aa")
    sync_db.committed.complete(sync_db.committed.claim(Visit))
    assert sync_db.committed.run(poll, Visit, used_up=["a"]).of_rate
    later = clock(sync_db) + timedelta(minutes=1)
    sync_db.insert(Visit, [{"id": 9, "limit_key": "b", "status": "scheduled", "available_at": later}])
    assert not sync_db.committed.run(poll, Visit, used_up=["a"]).of_rate


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


def test_rates_go_by_the_clock_of_the_database(sync_db: Database, processes: Processes) -> None:
    rate = Rate(3, per=timedelta(seconds=0.5))
    sync_db.committed.set_rate(Visit, "a", rate)
    sync_db.committed.set_limit(Visit, "a", None)
    visits(sync_db, *["a"] * 20)
    running = [processes.spawn(children.work_at_another_time, sync_db.url, hours) for hours in (1, -1)]
    for child in running:
        child.wait_until_arrived()
        child.let_pass()
    eventually(lambda: count(sync_db, Visit, Visit.status == "completed") == 20)
    for child in running:
        child.kill()
    assert worst(started(sync_db, "a"), rate.per) <= rate.starts


def test_a_key_whose_rate_is_used_up_costs_an_idle_worker_no_statement(sync_db: Database, workers: Workers) -> None:
    for key in ("a", "b"):
        sync_db.committed.set_rate(Visit, key, Rate(1, per=timedelta(hours=1)))
    engine = sync_db.variant(pool_size=20)

    def has_one_statement_a_look() -> bool:
        """Whether the worker sends what it sends while its queue is empty: one statement now and then."""
        with seen(engine, "before_cursor_execute") as statements:
            found = eventually(
                lambda: len(of := [each[2] for each in statements if "FROM visit" in each[2]]) > 5 and of
            )
            return len(set(found[1:])) == 1

    def all_start(started: int, *keys: str | None) -> None:
        visits(sync_db, *keys)
        eventually(lambda: count(sync_db, Visit, Visit.status == "completed") == started)
        eventually(has_one_statement_a_look)

    with workers.serve(Visit, lambda task: None, engine=engine, poll=timedelta(milliseconds=100)):
        all_start(0)
        all_start(2, *"aaabbb")
        all_start(3, "c")
        all_start(4, None)
        sync_db.committed.set_rate(Visit, "a", None)
        all_start(6)
