"""Recurring tasks: when the next run is due, and that it is scheduled whatever the outcome of the current one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import column, insert, table

from sqlqueue import ArgumentError
from sqlqueue.model import declaration
from sqlqueue.operations import rows
from sqlqueue.operations import schedules as planning
from sqlqueue.queue import schedules
from tests.suite.recurring import HOUR, HOURLY, claim, make_due, recurring
from tests.suite.settlements import SETTLINGS
from tests.support.harness import Database
from tests.support.models import Ledger, Ping, QueuePause, Reading, Report, Task
from tests.support.rows import PAST, TICK, clock, count, end_leases, row
from tests.support.workers import Workers, eventually, without_session
from tests.worker.conftest import workers  # noqa: F401  (a fixture)


class _Wrong(datetime):
    """A host with a wrong clock."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(2040, 1, 1, tzinfo=tz)


def test_the_first_run_is_planned_by_the_databases_clock(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (schedules, declaration, rows, planning):
        monkeypatch.setattr(module, "datetime", _Wrong)
    before = clock(db)
    with db.begin() as actor:
        actor.add(Report(schedule=HOURLY))
        actor.flush()
        actor.enqueue(Report(schedule=HOURLY))
        actor.enqueue(Report, [{"schedule": HOURLY}, {"schedule": HOURLY, "drift": True}])
        first_four = actor.find(Report)
        actor.enqueue(Report, [{"schedule": HOURLY, "available_at": PAST}, {}])
    with db.engine.begin() as connection:  # another program, which does not set schedules
        connection.execute(insert(table("report", column("schedule"))).values(schedule=HOURLY))
    after = clock(db)
    found = db.session().find(Report)
    assert [task.status for task in found] == ["scheduled"] * 5 + ["available"] * 2
    assert all(before + HOUR <= task.available_at <= after + HOUR for task in found[:4])
    assert [task.drift for task in first_four] == [None, None, None, True]


EXPECTED = {
    "once": (Report, {}, lambda planned, now: planned + 2 * HOUR),
    "all": (Reading, {}, lambda planned, now: planned + HOUR),
    "drift": (Report, {"drift": True}, lambda planned, now: now + HOUR),
    "none": (Report, {"schedule": None}, lambda planned, now: None),
}


@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("kind", EXPECTED)
def test_a_completed_run_is_followed_by_the_next(db: Database, kind: str, lease: Any) -> None:
    model, columns, expected = EXPECTED[kind]
    task = recurring(db, model, **columns)
    planned, before = row(db, task)["available_at"], clock(db)
    with db.begin() as actor:
        actor.complete(actor.claim(model, lease=lease))
    found, after = row(db, task), clock(db)
    if expected(planned, before) is None:
        assert found["status"] == "completed"
        return
    assert (found["status"], found["scheduled_for"], found["finished_at"]) == ("scheduled", None, None)
    step = db.case.time_resolution
    assert expected(planned, before) - step <= found["available_at"] <= expected(planned, after) + step
    assert (found["attempt"], found["attempts_before"]) == (1, 1)


@pytest.mark.parametrize("lease", ["default", None])
def test_late_runs_are_skipped(db: Database, lease: Any) -> None:
    now = clock(db)
    moments = {"late": now - 2.5 * HOUR, "in time": now - HOUR / 2, "also late": now - 1.5 * HOUR}
    tasks = {name: recurring(db, Ping, available_at=moment) for name, moment in moments.items()}
    tried = recurring(db, Ping, available_at=PAST, status="retryable", attempt=1, max_attempts=5)
    with db.begin() as actor:
        claimed = actor.claim_many(Ping, limit=2, lease=lease)
        assert [task.id for task in claimed] == [tried.id, tasks["in time"].id]
        actor.complete(claimed)
    for name in ("late", "also late"):
        found = row(db, tasks[name])
        assert (found["status"], found["scheduled_for"]) == ("scheduled", None)
        assert timedelta(0) < found["available_at"] - clock(db) <= HOUR


@pytest.mark.requires("obeys_hints")
def test_each_missed_run_is_made_up_for_once(sync_db: Database) -> None:
    task = recurring(sync_db, Reading, available_at=clock(sync_db) - 11.5 * HOUR)
    planned = row(sync_db, task)["available_at"]

    def work(number: int) -> int:
        done = 0
        with sync_db.session() as actor:
            while row(sync_db, task)["available_at"] < clock(sync_db) or row(sync_db, task)["status"] == "running":
                run = actor.claim(Reading, claimed_by=str(number))
                if run is not None:
                    which = round((run.scheduled_for - planned) / HOUR)
                    actor.commit()
                    actor.add(Ledger(task_id=which))  # twice is an error
                    actor.complete(run)
                    done += 1
                actor.commit()
        return done

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == count(sync_db, Ledger) == 12
    assert row(sync_db, task)["available_at"] == planned + 12 * HOUR


def test_a_failing_run_has_its_attempts_and_is_followed_by_the_next(db: Database) -> None:
    task = recurring(db)
    for _ in range(2):
        for attempt in (1, 2):
            make_due(db)
            run = claim(db)
            with db.begin() as actor:
                before = clock(db)
                actor.fail(run, "no luck")
            found = row(db, task)
            assert found["error"] == "no luck"
            if attempt == 1:  # its delay counts from this attempt in each run
                assert found["status"] == "retryable"
                assert before - TICK <= found["available_at"] - timedelta(seconds=10) <= clock(db) + TICK
        assert (found["status"], found["scheduled_for"], found["finished_at"]) == ("scheduled", None, None)
        assert found["available_at"] > clock(db)
    make_due(db)
    with db.begin() as actor:
        run = actor.claim(Report)
        assert run.error == "no luck"
        actor.complete(run)
    assert (row(db, task)["error"], row(db, task)["attempt"]) == (None, 5)


def test_of_a_run_that_crashed_in_every_attempt_the_next_is_scheduled(db: Database) -> None:
    task, ordinary = recurring(db), recurring(db, schedule=None)
    for _ in range(2):
        with db.begin() as actor:
            assert len(actor.claim_many(Report, limit=2)) == 2
        end_leases(db, Report)
    with db.begin() as actor:
        assert actor.rescue(Report) == 2
        assert actor.rescue(Report) == 0
    assert [row(db, each)["status"] for each in (task, ordinary)] == ["scheduled", "discarded"]
    assert row(db, task)["error"].startswith("crashed in every attempt")
    make_due(db)
    assert claim(db).attempt == 3


@pytest.mark.parametrize("lease", ["default", None])
def test_a_run_keeps_its_plan_however_often_it_is_tried(db: Database, lease: Any) -> None:
    task = recurring(db, max_attempts=9)
    planned = row(db, task)["available_at"]
    with db.begin() as actor:
        assert actor.promote(Report) == 1
    for call in ("release", "snooze", "fail"):
        with db.begin() as actor:
            run = actor.claim(Report, lease=lease)
            SETTLINGS[call](actor, run)
        assert row(db, task)["scheduled_for"] == planned
        make_due(db)
    with db.begin() as actor:
        actor.discard(actor.claim(Report), "no use")
        assert actor.retry(Report) == 1
    with db.begin() as actor:
        run = actor.claim(Report)
        assert run.scheduled_for == planned
        actor.complete(run)
    assert row(db, task)["available_at"] == planned + 2 * HOUR


def test_a_running_task_that_is_enqueued_again_runs_again_at_once(db: Database) -> None:
    task = recurring(db)
    run = claim(db)
    with db.begin() as actor:
        actor.enqueue(Report, [{"id": task.id, "schedule": HOURLY}], on_conflict="rerun")
    before = clock(db)
    with db.begin() as actor:
        actor.complete(run)
    assert row(db, task)["status"] == "available"
    with db.begin() as actor:
        again = actor.claim(Report)
        assert again.scheduled_for >= before - db.case.time_resolution
        actor.complete(again)
    assert row(db, task)["available_at"] > clock(db)


def test_consumed_runs_are_followed_by_others(db: Database) -> None:
    task, last = recurring(db, Ping, available_at=clock(db) - TICK), recurring(db, Ping, schedule=None)
    with db.begin() as actor:
        consumed = actor.consume_many(Ping, limit=2)
        assert {each.id for each in consumed} == {task.id, last.id}
    assert row(db, task)["status"] == "scheduled"
    assert count(db, Ping) == 1


def test_by_a_worker_that_was_paused(db: Database, workers: Workers) -> None:  # noqa: F811
    task = recurring(db)
    planned = row(db, task)["available_at"]
    with db.begin() as actor:
        assert actor.pause(Report)
    seen: list[datetime] = []
    worker = workers.make(poll=timedelta(seconds=0.1))
    worker.handler(Report)(without_session(db, lambda run: seen.append(run.scheduled_for)))
    workers.start(worker)
    time.sleep(0.4)
    assert seen == []
    with db.begin() as actor:
        assert actor.resume(Report)
    eventually(lambda: row(db, task)["attempts_before"] == 1)
    assert (seen, row(db, task)["available_at"]) == ([planned], planned + 2 * HOUR)
    assert count(db, QueuePause) == 0


def test_invalid_schedules_are_rejected(sync_db: Database) -> None:
    with sync_db.session() as actor:
        with pytest.raises(ArgumentError, match="not a schedule"):
            actor.enqueue(Report, [{"schedule": "hourly"}])
        with pytest.raises(ArgumentError, match="not a schedule"):
            actor.enqueue(Report(schedule="hourly"))
        actor.rollback()
        for schedule in ("hourly", HOUR):
            with pytest.raises(ArgumentError, match="not a schedule"):
                actor.reschedule(Report, schedule=schedule)
        for call in (actor.reschedule, actor.unschedule):
            with pytest.raises(ArgumentError, match="Task has no schedules: derive it from RecurringMixin"):
                call(Task)
