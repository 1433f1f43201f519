"""Recurring tasks: when the next run is due, and that it is scheduled whatever the outcome of the current one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import column, insert, select, table
from sqlalchemy.exc import DBAPIError

from sqlqueue import ArgumentError, Every, QueueSession, claim_of
from sqlqueue.model import declaration
from sqlqueue.operations import enqueueing
from sqlqueue.operations import schedules as planning
from sqlqueue.queue import schedules
from tests.suite.settlements import SETTLINGS
from tests.support.harness import Database
from tests.support.models import Ledger, Ping, Reading, Report, Task
from tests.support.rows import PAST, TICK, clock, count, end_leases, make_due, row, row_of

pytestmark = pytest.mark.sync_only

HOUR, HOURLY = timedelta(hours=1), "PT3600S"


def recurring(db: Database, model: Any = Report, **columns: Any) -> Any:
    """Enqueue a task that was due an hour and a half ago by default."""
    with db.begin() as actor:
        values = {"schedule": HOURLY, "available_at": clock(db) - 1.5 * HOUR, **columns}
        actor.enqueue(task := model(**values))
    return task


class _Wrong(datetime):
    """A host with a wrong clock."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(2040, 1, 1, tzinfo=tz)


def test_the_first_run_is_planned_by_the_databases_clock(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (schedules, declaration, enqueueing, planning):
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
            make_due(db, Report)
            run = db.committed.claim(Report)
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
    make_due(db, Report)
    with db.begin() as actor:
        run = actor.claim(Report)
        assert run.error == "no luck"
        actor.complete(run)
    assert (row(db, task)["error"], row(db, task)["attempt"]) == (None, 5)


def test_of_a_run_that_crashed_in_every_attempt_the_next_is_scheduled(db: Database) -> None:
    task, ordinary = recurring(db), recurring(db, schedule=None)
    for _ in range(2):
        assert len(db.committed.claim_many(Report, limit=2)) == 2
        end_leases(db, Report)
    with db.begin() as actor:
        assert actor.rescue(Report) == 2
        assert actor.rescue(Report) == 0
    assert [row(db, each)["status"] for each in (task, ordinary)] == ["scheduled", "discarded"]
    assert row(db, task)["error"].startswith("crashed in every attempt")
    make_due(db, Report)
    assert db.committed.claim(Report).attempt == 3


@pytest.mark.parametrize("lease", ["default", None])
def test_a_run_keeps_its_plan_however_often_it_is_tried(db: Database, lease: Any) -> None:
    task = recurring(db, max_attempts=9)
    planned = row(db, task)["available_at"]
    assert db.committed.promote(Report) == 1
    for call in ("release", "snooze", "fail"):
        with db.begin() as actor:
            run = actor.claim(Report, lease=lease)
            SETTLINGS[call](actor, run)
        assert row(db, task)["scheduled_for"] == planned
        make_due(db, Report)
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
    run = db.committed.claim(Report)
    db.committed.enqueue(Report, [{"id": task.id, "schedule": HOURLY}], on_conflict="rerun")
    before = clock(db)
    db.committed.complete(run)
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


def test_invalid_schedules_are_rejected() -> None:
    calls: list[Callable[[QueueSession], Any]] = [
        lambda session: session.enqueue(Report, [{"schedule": "hourly"}]),
        lambda session: session.enqueue(Report(schedule="hourly")),
        lambda session: session.reschedule(Report, schedule="hourly"),
        lambda session: session.reschedule(Report, schedule=HOUR),  # type: ignore[arg-type]
    ]
    for call in calls:
        with QueueSession() as session, pytest.raises(ArgumentError, match="not a schedule"):
            call(session)
    for name in ("reschedule", "unschedule"):
        with QueueSession() as session, pytest.raises(ArgumentError, match="Task has no schedules: derive it from Rec"):
            getattr(session, name)(Task)


# -- recurring tasks whose schedule is changed or removed -------------------------------------------------------------

NEVER = "0 0 29 2 *"
"""A date on which the tests do not run, in a leap year."""


@pytest.mark.parametrize("running", [False, True])
def test_reschedule(db: Database, running: bool) -> None:
    task = recurring(db)
    run = db.committed.claim(Report) if running else None
    before = clock(db)
    with db.begin() as actor:
        assert actor.reschedule(Report, Report.id == task.id, schedule=Every(24 * HOUR), drift=True) == 1
        assert actor.reschedule(Report, Report.id == 0, schedule=HOURLY) == 0
    if run is not None:
        assert row(db, task)["status"] == "running"
        db.committed.complete(run)
    found = row(db, task)
    assert (found["schedule"], found["drift"], found["status"]) == ("P1DT0S", True, "scheduled")
    step = db.case.time_resolution
    assert before + 24 * HOUR - step <= found["available_at"] <= clock(db) + 24 * HOUR + step


def test_a_change_counts_even_if_the_running_transaction_has_not_seen_it(db: Database) -> None:
    task = recurring(db)
    run = db.committed.claim(Report)
    with db.session() as actor:
        actor.find(Report)
        db.committed.reschedule(Report, schedule=Every(24 * HOUR))
        try:
            actor.complete(run)
        except DBAPIError:  # an engine that cannot write rows newer than its snapshot
            actor.rollback()
            actor.complete(run)
        actor.commit()
    assert row(db, task)["available_at"] - clock(db) > 22 * HOUR


def test_unschedule_a_waiting_task_and_start_it_again(db: Database) -> None:
    tasks = [recurring(db), recurring(db, schedule=NEVER), recurring(db, schedule=None)]
    assert db.committed.unschedule(Report) == 2
    assert [row(db, task)["status"] for task in tasks] == ["cancelled", "cancelled", "scheduled"]
    assert db.committed.reschedule(Report) == 2
    assert all(row(db, task)["available_at"] > clock(db) for task in tasks[:2])
    make_due(db, Report)
    assert len(db.committed.claim_many(Report, limit=9)) == 3


@pytest.mark.parametrize("end", ["complete", "fail", "crash"])
def test_unschedule_a_running_task(db: Database, end: str) -> None:
    """There is no further run, however often this one is retried."""
    task = recurring(db, Ping, available_at=clock(db) - TICK, max_attempts=2)
    run = db.committed.claim(Ping)
    assert db.committed.unschedule(Ping) == 1
    assert row(db, task)["status"] == "running"
    if end == "fail":
        db.committed.fail(run, "no luck", retry_in=timedelta(0))
    end_leases(db, Ping)
    with db.begin() as actor:
        actor.complete(run if end == "complete" else actor.claim(Ping))
    assert count(db, Ping) == 0


@pytest.mark.parametrize("end", ["complete", "fail", "release"])
def test_unschedule_a_task_that_this_transaction_holds_only_by_a_lock(db: Database, end: str) -> None:
    tasks = [recurring(db, max_attempts=1), recurring(db)]
    with db.begin() as actor:
        run = actor.claim(Report, lease=None)
        assert actor.unschedule(Report) == 2
        {"complete": actor.complete, "fail": lambda run: actor.fail(run, "no"), "release": actor.release}[end](run)
    ended = {"complete": "completed", "fail": "discarded", "release": "available"}[end]
    assert [row(db, task)["status"] for task in tasks] == [ended, "cancelled"]
    assert [row(db, task)["schedule"] for task in tasks] == [None, HOURLY]


def test_cancel_and_delete(db: Database) -> None:
    tasks = [recurring(db), recurring(db)]
    with db.begin() as actor:
        runs = actor.claim_many(Report, limit=1)
        actor.cancel(runs)
        assert actor.cancel(Report) == 1
    assert [row(db, task)["status"] for task in tasks] == ["cancelled", "cancelled"]
    assert db.session().reschedule(Report) == 2


# -- an unreadable schedule ends only its own task --------------------------------------------------------------------


@pytest.mark.parametrize("model", [Report, Ping])
def test_an_unreadable_schedule_ends_only_its_own_task(db: Database, model: Any) -> None:
    with db.engine.begin() as connection:  # as any program can
        connection.execute(insert(model), [{"id": 1, "schedule": "now and then"}, {"id": 2, "schedule": "PT60S"}])
    with db.begin() as actor:
        claims = [claim_of(task) for task in actor.claim_many(model, limit=2)]
        assert {claim.identity for claim in claims} >= {(1,)}
        actor.complete(claims)
    found = dict(db.committed.run(lambda session: session.execute(select(model.id, model.status)).all()))
    assert found == {2: "scheduled"} | ({} if model.__queue__.on_complete == "delete" else {1: "completed"})


def test_a_crashed_task_without_a_readable_schedule_is_rescued(db: Database) -> None:
    with db.engine.begin() as connection:
        connection.execute(insert(Report), [{"id": 1, "schedule": "now and then", "max_attempts": 1}])
    claim = claim_of(db.committed.claim(Report))
    end_leases(db, Report)
    assert db.committed.rescue(Report) == 1
    assert row_of(db, claim)["status"] == "discarded"
