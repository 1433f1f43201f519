"""Recurring tasks as operators see them: their last and next runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from sqlqueue import Cron, Every
from sqlqueue.operations import RecurringTask, recurring_tasks
from tests.support.harness import Database
from tests.support.models import Chore
from tests.support.rows import clock

BERLIN = Cron("30 2 * * *", "Europe/Berlin")


def listed(db: Database, first: int | None = None) -> dict[str | None, RecurringTask]:
    found, _ = db.committed.run(recurring_tasks, Chore, first=first)
    return {each.unique_key: each for each in found}


def test_recurring_tasks_show_their_last_and_next_runs(sync_db: Database) -> None:
    db, now = sync_db, clock(sync_db)
    with db.begin() as session:
        session.add(Chore(task="once", arguments={}))
        for key, schedule in (("hourly", Every(timedelta(hours=1))), ("nightly", BERLIN), ("gone", BERLIN)):
            session.add(Chore(task=f"app.{key}", arguments={}, unique_key=key, schedule=schedule))
        session.flush()
        session.unschedule(Chore, Chore.unique_key == "gone")
        session.run_now(Chore, Chore.unique_key == "hourly")
    with db.begin() as session:
        chore = session.claim(Chore, Chore.unique_key == "hourly")
        assert chore is not None
    hourly = listed(db)["hourly"]
    assert (hourly.status, hourly.last_run) == ("running", chore.claimed_at)
    db.committed.fail(chore, "no", retry_in=timedelta(minutes=1))
    found = listed(db)
    assert list(found) == ["hourly", "nightly", "gone"]
    hourly, nightly, gone = found.values()
    assert (hourly.function, hourly.status, hourly.error) == ("app.hourly", "retryable", "no")
    assert (hourly.last_run, hourly.zone, hourly.has_ended) == (chore.claimed_at, UTC, False)
    retry, second, _ = hourly.next_runs
    assert second - retry == timedelta(hours=1)
    assert (nightly.last_run, nightly.zone) == (None, ZoneInfo("Europe/Berlin"))
    assert nightly.next_runs == (first := BERLIN.after(now), second := BERLIN.after(first), BERLIN.after(second))
    assert (gone.status, gone.has_ended, gone.next_runs) == ("cancelled", True, ())


def test_the_next_run_of_a_running_task_follows_its_plan(sync_db: Database) -> None:
    with sync_db.begin() as session:
        session.add(Chore(task="a", arguments={}, unique_key="a", schedule=Every(timedelta(hours=1))))
        session.flush()
        session.run_now(Chore)
    assert (claimed := sync_db.committed.claim(Chore)) is not None
    (found,) = listed(sync_db).values()
    assert timedelta(minutes=59) < found.next_runs[0] - claimed.claimed_at <= timedelta(hours=1)  # not the lease's end


@pytest.mark.one_engine
def test_schedules_that_cannot_be_evaluated_have_no_later_runs(sync_db: Database) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    row = {"task": "a", "arguments": {}, "status": "scheduled", "available_at": moment}
    sync_db.insert(Chore, [{**row, "unique_key": "bad", "schedule": "now and then"}])
    assert [(each.zone, each.next_runs) for each in listed(sync_db).values()] == [(UTC, (moment,))]


@pytest.mark.one_engine
def test_rows_beyond_a_bound_are_not_read(sync_db: Database) -> None:
    plan = {"task": "a", "arguments": {}, "schedule": "PT1H", "status": "scheduled"}
    sync_db.insert(Chore, [{"task": "a", "arguments": {}}])
    sync_db.insert(Chore, [{**plan, "unique_key": key} for key in "abc"])
    with sync_db.begin() as session:
        some, is_cut = session.run(recurring_tasks, Chore, first=3)
        assert ([each.unique_key for each in some], is_cut) == (["a", "b"], True)
        every, is_cut = session.run(recurring_tasks, Chore, first=4)
        assert (len(every), is_cut) == (3, False)
        some, is_cut = session.run(recurring_tasks, Chore, first=4, limit=2)
        assert ([each.unique_key for each in some], is_cut) == (["a", "b"], True)
        every, is_cut = session.run(recurring_tasks, Chore, limit=3)
        assert (len(every), is_cut) == (3, False)
