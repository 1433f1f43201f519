"""Recurring tasks whose schedule is changed or removed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.exc import DBAPIError

from sqlqueue import Every
from tests.suite.recurring import HOUR, HOURLY, claim, make_due, recurring
from tests.support.harness import Database
from tests.support.models import Ping, Report
from tests.support.rows import TICK, clock, count, end_leases, row

NEVER = "0 0 29 2 *"
"""A date on which the tests do not run, in a leap year."""


@pytest.mark.parametrize("running", [False, True])
def test_reschedule(db: Database, running: bool) -> None:
    task = recurring(db)
    run = claim(db) if running else None
    before = clock(db)
    with db.begin() as actor:
        assert actor.reschedule(Report, Report.id == task.id, schedule=Every(24 * HOUR), drift=True) == 1
        assert actor.reschedule(Report, Report.id == 0, schedule=HOURLY) == 0
    if run is not None:
        assert row(db, task)["status"] == "running"
        with db.begin() as actor:
            actor.complete(run)
    found = row(db, task)
    assert (found["schedule"], found["drift"], found["status"]) == ("P1DT0S", True, "scheduled")
    step = db.case.time_resolution
    assert before + 24 * HOUR - step <= found["available_at"] <= clock(db) + 24 * HOUR + step


def test_a_change_counts_even_if_the_running_transaction_has_not_seen_it(db: Database) -> None:
    task = recurring(db)
    run = claim(db)
    with db.session() as actor:
        actor.find(Report)
        with db.begin() as other:
            other.reschedule(Report, schedule=Every(24 * HOUR))
        try:
            actor.complete(run)
        except DBAPIError:  # an engine that cannot write rows newer than its snapshot
            actor.rollback()
            actor.complete(run)
        actor.commit()
    assert row(db, task)["available_at"] - clock(db) > 22 * HOUR


def test_unschedule_a_waiting_task_and_start_it_again(db: Database) -> None:
    tasks = [recurring(db), recurring(db, schedule=NEVER), recurring(db, schedule=None)]
    with db.begin() as actor:
        assert actor.unschedule(Report) == 2
    assert [row(db, task)["status"] for task in tasks] == ["cancelled", "cancelled", "scheduled"]
    with db.begin() as actor:
        assert actor.reschedule(Report) == 2
    assert all(row(db, task)["available_at"] > clock(db) for task in tasks[:2])
    make_due(db)
    with db.begin() as actor:
        assert len(actor.claim_many(Report, limit=9)) == 3


@pytest.mark.parametrize("end", ["complete", "fail", "crash"])
def test_unschedule_a_running_task(db: Database, end: str) -> None:
    """There is no further run, however often this one is retried."""
    task = recurring(db, Ping, available_at=clock(db) - TICK, max_attempts=2)
    run = claim(db, Ping)
    with db.begin() as actor:
        assert actor.unschedule(Ping) == 1
    assert row(db, task)["status"] == "running"
    if end == "fail":
        with db.begin() as actor:
            actor.fail(run, "no luck", retry_in=timedelta(0))
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
