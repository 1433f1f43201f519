"""Recurring tasks that an application declares when it starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from sqlqueue import ArgumentError, Cron, DuplicateTaskError, Every, Worker
from tests.suite.simultaneous import race
from tests.support.harness import Database
from tests.support.models import Chore, Report
from tests.support.rows import PAST, clock, count

HOUR = timedelta(hours=1)
HOURLY, DAILY = Every(HOUR), Every(24 * HOUR)


def declare(db: Database, *tasks: Any, model: Any = Chore, **arguments: Any) -> dict[str, tuple[Any, ...]]:
    """Declare schedules; return the changes by kind, with their keys."""
    done = db.committed.declare_schedules(model, tasks, **arguments)
    return {name: keys for name in done.__slots__ if (keys := getattr(done, name))}


def chore(key: str = "a", schedule: Any = HOURLY, **values: Any) -> dict[str, Any]:
    return {"unique_key": key, "task": "app.chore", "schedule": schedule, **values}


def found(db: Database, key: str = "a") -> dict[str, Any]:
    """Return the row that has or had this key."""
    chores = Chore.__table__
    with db.engine.connect() as connection:
        mine = (chores.c.unique_key == key) | (chores.c.former_key == key)
        return dict(connection.execute(select(chores).where(mine)).mappings().one())


def run_now(db: Database) -> Any:
    """Claim the only chore."""
    db.execute(update(Chore.__table__).values(available_at=PAST))
    return db.committed.claim(Chore)


# -- what is declared -------------------------------------------------------------------------------------------------


def test_schedules_are_created_left_unchanged_or_updated(db: Database) -> None:
    before = clock(db)
    first = [chore(), chore("b", "0 3 * * * Europe/Berlin", arguments={"days": [1, 2]}), chore("c", available_at=PAST)]
    assert declare(db, *first) == {"created": ("a", "b", "c")}
    rows = {key: found(db, key) for key in "abc"}
    step = db.case.time_resolution
    assert before + HOUR - step <= rows["a"]["available_at"] <= clock(db) + HOUR + step
    assert rows["c"]["available_at"] == PAST
    assert {each["status"] for each in rows.values()} == {"scheduled"}

    again = [chore(schedule="PT60M", drift=False), chore("b", Cron("0 3 * * *", "Europe/Berlin"), note=None), first[2]]
    assert declare(db, *again) == {"unchanged": ("a", "b", "c")}
    assert {key: found(db, key) for key in "abc"} == rows

    changed = [chore(schedule=DAILY), chore("b", first[1]["schedule"], arguments={"days": [1]}, drift=True), first[2]]
    assert declare(db, *changed) == {"updated": ("a", "b"), "unchanged": ("c",)}
    assert found(db)["schedule"] == "P1DT0S"
    assert before + 24 * HOUR - step <= found(db)["available_at"] <= clock(db) + 24 * HOUR + step
    assert found(db, "b")["available_at"] == rows["b"]["available_at"]  # changes to other values do not move a run
    assert (found(db, "b")["arguments"], found(db, "b")["drift"]) == ({"days": [1]}, True)


def test_criteria_on_the_primary_key(db: Database) -> None:
    reports = [Report(id=7, schedule=HOURLY), {"id": 3, "schedule": DAILY}]
    assert declare(db, *reports, model=Report) == {"created": (3, 7)}
    assert declare(db, *reports, model=Report) == {"unchanged": (3, 7)}
    assert declare(db, reports[0], model=Report, remove_missing=True) == {"unchanged": (7,), "removed": (3,)}


def test_functions(db: Database) -> None:
    worker = Worker(db.sessions())

    @worker.task(Chore, name="tidy")
    def tidy(days: int) -> None:
        raise AssertionError(days)

    jobs = [tidy.options(unique_key="nightly", schedule=Cron("0 3 * * *")).job(days=30)]
    assert declare(db, *jobs) == {"created": ("nightly",)}
    assert declare(db, *jobs) == {"unchanged": ("nightly",)}
    assert (found(db, "nightly")["task"], found(db, "nightly")["arguments"]) == ("tidy", {"days": 30})


@pytest.mark.parametrize("by", ["another deployment", "the same"])
def test_a_run_in_progress_continues(db: Database, by: str) -> None:
    declare(db, chore(limit_key="x"))
    run = run_now(db)
    changed = chore(schedule=DAILY, limit_key="y", note="new") if by == "another deployment" else chore()
    assert declare(db, changed) == {"updated" if by == "another deployment" else "unchanged": ("a",)}
    assert (found(db)["status"], found(db)["limit_key"]) == ("running", "x")
    db.committed.complete(run)
    interval = 24 * HOUR if by == "another deployment" else HOUR
    assert found(db)["status"] == "scheduled"
    assert found(db)["available_at"] > clock(db)
    assert (found(db)["available_at"] - PAST) % interval == timedelta(0)
    assert declare(db, changed)  # a run that has ended holds no slot
    assert found(db)["limit_key"] == ("y" if by == "another deployment" else "x")


# -- stopped schedules ----------------------------------------------------------------------------------------

STOPS: dict[str, Callable[[Database], object]] = {
    "cancelled": lambda db: db.committed.cancel(Chore),
    "unscheduled": lambda db: db.committed.unschedule(Chore),
    "discarded": lambda db: (run := run_now(db), db.committed.discard(run, "no")),
    "cancelled while it ran": lambda db: (run_now(db), db.committed.cancel(Chore)),
    "unscheduled while it ran": lambda db: (run_now(db), db.committed.unschedule(Chore)),
    "and that run has ended": lambda db: (
        run := run_now(db),
        db.committed.unschedule(Chore),
        db.committed.complete(run),
    ),
}


@pytest.mark.parametrize("how", STOPS)
def test_schedules_stopped_by_hand_stay_stopped(db: Database, how: str, caplog: pytest.LogCaptureFixture) -> None:
    declare(db, chore())
    STOPS[how](db)
    before = found(db)
    with caplog.at_level(logging.WARNING, "sqlqueue"):
        assert declare(db, chore(schedule=DAILY), remove_missing=True) == {"stopped": ("a",)}
    assert "reschedule() restarts them" in caplog.text
    assert found(db) == before
    db.committed.reschedule(Chore, schedule=HOURLY)
    assert declare(db, chore(schedule=DAILY)) == {"updated": ("a",)}


def test_a_run_that_failed_in_every_attempt_is_not_stopped(db: Database) -> None:
    declare(db, chore())
    for _ in range(2):
        run = run_now(db)
        db.committed.fail(run, "no luck")
    assert declare(db, chore()) == {"unchanged": ("a",)}
    assert (found(db)["status"], found(db)["error"]) == ("scheduled", "no luck")


def test_an_ordinary_task_of_the_same_key_does_not_begin_to_recur(db: Database) -> None:
    db.committed.enqueue(Chore, [{"unique_key": "a", "task": "app.chore"}])
    assert declare(db, chore()) == {"stopped": ("a",)}
    assert (found(db)["status"], found(db)["schedule"]) == ("available", None)


# -- schedules that are no longer declared
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("running", [False, True])
def test_a_removed_schedule_can_be_declared_again(db: Database, running: bool) -> None:
    declare(db, chore())
    run = run_now(db) if running else None
    assert declare(db, remove_missing=False) == {}
    assert declare(db, remove_missing=True) == {"removed": ("a",)}
    assert (found(db)["status"], found(db)["error"]) == ("running" if running else "cancelled", "no longer declared")
    assert declare(db, remove_missing=True) == {}
    assert declare(db, chore(note="back")) == {"created": ("a",)}
    if run is not None:
        db.committed.complete(run)
    assert (found(db)["status"], found(db)["error"], found(db)["note"]) == ("scheduled", None, "back")
    assert found(db)["available_at"] > clock(db)


def test_a_removed_run_is_not_followed_by_another(db: Database) -> None:
    declare(db, chore())
    run = run_now(db)
    declare(db, chore("b"), remove_missing=True)
    db.committed.complete(run)
    assert found(db)["status"] == "completed"
    assert declare(db, chore()) == {"created": ("a",)}
    assert found(db)["status"] == "scheduled"


def test_tasks_of_others_are_not_removed(db: Database) -> None:
    others = [
        {"task": "app.chore", "schedule": HOURLY},
        {"task": "app.chore", "unique_key": "once"},
        chore("theirs", note="theirs"),
    ]
    db.committed.enqueue(Chore, others)
    ours = Chore.note.is_(None)
    assert declare(db, chore(), remove_missing=True) == {"created": ("a",), "removed": ("theirs",)}
    declare(db, chore("theirs", note="theirs"))
    done = db.committed.declare_schedules(Chore, [chore("b")], ours, remove_missing=True)
    assert (done.created, done.removed) == (("b",), ("a",))
    assert found(db, "theirs")["status"] == "scheduled"
    statuses = [
        each.status for each in db.session().find(Chore, Chore.unique_key.is_(None), Chore.former_key.is_(None))
    ]
    assert statuses == ["scheduled"]


# -- many at once -----------------------------------------------------------------------------------------------------


def test_eight_sessions_declare_at_once(sync_db: Database) -> None:
    """As the processes of an application do when it starts."""
    keys = [f"chore {n}" for n in range(12)]
    first, second = [chore(key) for key in keys], [chore(key, DAILY, note="new") for key in reversed(keys[6:])]
    done = race(sync_db, lambda actor, _: actor.declare_schedules(Chore, first))
    assert sorted(key for each in done for key in each.created) == sorted(keys)
    assert all(sorted(each.created + each.unchanged) == sorted(keys) for each in done)
    done = race(sync_db, lambda actor, _: actor.declare_schedules(Chore, second, remove_missing=True))
    assert all(sorted(each.updated + each.unchanged) == sorted(keys[6:]) for each in done)
    assert sorted(key for each in done for key in each.removed) == sorted(keys[:6])
    assert count(sync_db, Chore) == 12
    assert [found(sync_db, key)["schedule"] for key in keys[6:]] == ["P1DT0S"] * 6
    assert {found(sync_db, key)["status"] for key in keys[:6]} == {"cancelled"}


@pytest.mark.parametrize("looked_before", [False, pytest.param(True, marks=pytest.mark.requires("locks_rows"))])
def test_a_row_inserted_concurrently_is_left_unchanged(sync_db: Database, looked_before: bool) -> None:
    """A transaction with an older snapshot does not see the row, and must still detect it."""
    with sync_db.session() as actor:
        if looked_before:
            actor.declare_schedules(Chore, [])
        declare(sync_db, chore())
        assert actor.declare_schedules(Chore, [chore()]).unchanged == ("a",)
        actor.commit()
    assert count(sync_db, Chore) == 1


def test_a_rollback_undoes_the_declaration(db: Database) -> None:
    with db.session() as actor:
        actor.declare_schedules(Chore, [chore()])
        actor.rollback()
    assert count(db, Chore) == 0


def test_a_conflicting_key_raises_an_error(db: Database) -> None:
    declare(db, chore())
    with db.session() as actor, pytest.raises(DuplicateTaskError, match="another row has one of its unique keys"):
        actor.declare_schedules(Chore, [chore(id=999)])


# -- schedules are taken as they are ----------------------------------------------------------------------------------


def test_schedules_are_taken_wherever_one_is_given(db: Database) -> None:
    task = Report(schedule=HOURLY)
    task.schedule = Cron("0 3 * * *")
    assert task.schedule == "0 3 * * * UTC"
    with pytest.raises(ArgumentError, match="'hourly' is not a schedule"):
        Report(schedule="hourly")
    with db.begin() as actor:
        actor.add(task)
        actor.flush()
        actor.enqueue(Report, [{"schedule": DAILY}, {"schedule": "PT1H"}])
        actor.enqueue(Report, [{"id": 1_000_000, "schedule": HOURLY}], on_conflict="replace")
    stored = [each.schedule for each in db.session().find(Report)]
    assert sorted(stored) == ["0 3 * * * UTC", "P1DT0S", "PT1H", "PT3600S"]
