"""A host that lacks a time zone or a package leaves recurring tasks to others."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

from sqlqueue import ArgumentError, Claim, Cron, check, claim_of, utcnow
from sqlqueue.queue import schedules
from tests.support.harness import Database
from tests.support.models import Chore, Ping, Report
from tests.support.rows import PAST, TOMORROW, row_of
from tests.support.workers import Workers, eventually, without_session

NIGHTLY = "0 3 * * * Europe/Berlin"
FIRST = {"status": "scheduled", "available_at": PAST}


def without_cronsim(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "cronsim", None)


def without_zones(patch: pytest.MonkeyPatch) -> None:
    zoneinfo.reset_tzpath(to=[])
    patch.setitem(sys.modules, "tzdata", None)


@pytest.fixture(params=[without_cronsim, without_zones], ids=["cronsim", "zones"])
def poor(request: pytest.FixtureRequest) -> Iterator[pytest.MonkeyPatch]:
    """A host without cronsim, or without time zones, until it is undone."""
    with pytest.MonkeyPatch.context() as patch:
        _forget()
        request.param(patch)
        yield patch
    _mend()


def _forget() -> None:
    zoneinfo.ZoneInfo.clear_cache()
    schedules._parse.cache_clear()
    schedules.unknown_here.clear()


def _mend() -> None:
    zoneinfo.reset_tzpath()
    _forget()


def stored(db: Database, model: Any, **values: Any) -> Any:
    with db.engine.begin() as connection:
        connection.execute(insert(model), [{"id": 1, "schedule": NIGHTLY, **values}])
    return Claim(model, (1,), 0)


@pytest.mark.parametrize("model", [Report, Ping, Chore])
def test_a_claim_leaves_it_to_other_hosts(db: Database, poor: pytest.MonkeyPatch, model: Any) -> None:
    planned = {"limit_key": "a", "task": "t", "arguments": {}} if model is Chore else {}
    task = stored(db, model, **FIRST, attempt=1, max_attempts=2, **planned)
    for _ in range(2):
        with db.begin() as actor:
            assert actor.claim(model) is None
        row = row_of(db, task)
        assert (row["status"], row["scheduled_for"]) == ("scheduled", PAST)
        assert row["attempt"] - row["attempts_before"] == 1
        assert row["max_attempts"] - row["attempt"] == 1
        with db.engine.begin() as connection:
            assert connection.execute(update(model).values(available_at=PAST)).rowcount == 1
    poor.undo()
    _mend()
    if model is Ping:
        return  # a run that has been missed since 2020
    with db.begin() as actor:
        assert actor.claim(model).scheduled_for == PAST


def test_attempts_do_not_overflow(db: Database, poor: pytest.MonkeyPatch) -> None:
    largest = 2**31 - 1
    task = stored(db, Report, **FIRST, attempt=largest - 1, max_attempts=largest, attempts_before=largest)
    with db.begin() as actor:
        assert actor.claim(Report) is None
    row = row_of(db, task)
    assert (row["status"], row["max_attempts"], row["attempts_before"]) == ("scheduled", largest, largest)


@pytest.mark.parametrize("lease", ["default", None])
def test_a_task_without_a_time_does_not_run_at_once(db: Database, poor: pytest.MonkeyPatch, lease: Any) -> None:
    task = stored(db, Report)
    created = row_of(db, task)["created_at"]
    for _ in range(2):
        with db.begin() as actor:
            assert actor.claim(Report, lease=lease) is None
        assert row_of(db, task)["scheduled_for"] == created
        with db.engine.begin() as connection:
            connection.execute(update(Report).values(available_at=utcnow(-timedelta(hours=1))))
    poor.undo()
    _mend()
    with db.begin() as actor:
        assert actor.claim(Report, lease=lease) is None
    row = row_of(db, task)
    assert row["available_at"] == Cron("0 3 * * *", "Europe/Berlin").after(created)
    assert row["scheduled_for"] is None


def test_a_task_that_is_running_when_the_host_turns_poor_keeps_its_next_run(
    db: Database, poor: pytest.MonkeyPatch
) -> None:
    stored(db, Report, **FIRST)
    with pytest.MonkeyPatch.context() as good:
        good.setattr("sqlqueue.kinds.recurring.is_known_here", lambda _: True)
        with db.begin() as actor:
            claim = claim_of(actor.claim(Report))
    with db.session() as actor, pytest.raises(ArgumentError):
        actor.complete(claim)
    assert row_of(db, claim)["status"] == "running"


def test_a_worker_says_so_and_leaves_it_alone(
    db: Database, workers: Workers, poor: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = stored(db, Report, status="scheduled", available_at=TOMORROW)
    worker = workers.serve(Report, without_session(db)).worker
    health = eventually(lambda: (state := worker.health()) is not None and state.unknown_schedules and state)
    assert list(health.unknown_schedules) == [NIGHTLY]
    assert health.alive
    assert not health.ready
    eventually(lambda: "left to workers on other hosts" in caplog.text)  # logged just after it becomes visible
    with db.engine.begin() as connection:
        connection.execute(update(Report).values(available_at=PAST))
    eventually(lambda: row_of(db, task)["scheduled_for"] == PAST)
    assert row_of(db, task)["status"] == "scheduled"


def test_an_unknown_zone_alone_does_not_keep_a_worker_from_being_ready(db: Database, workers: Workers) -> None:
    task = stored(db, Report, **FIRST | {"schedule": "0 3 * * * Mars/Olympus"})
    worker = workers.serve(Report, without_session(db)).worker
    eventually(lambda: row_of(db, task)["scheduled_for"] == PAST)
    health = worker.health()
    assert health is not None
    assert health.ready
    assert list(health.unknown_schedules) == ["0 3 * * * Mars/Olympus"]
    _forget()


def test_check_finds_unknown_and_stopped_schedules(sync_db: Database, poor: pytest.MonkeyPatch) -> None:
    stored(sync_db, Report, **FIRST)
    sync_db.insert(Report, [{"id": 2, "status": "completed", "schedule": "now and then", "finished_at": PAST}])
    with sync_db.engine.connect() as connection:
        found = {finding.code: finding.message for finding in check(connection, Report)}
    assert repr(NIGHTLY) in found["unknown-schedule"]
    assert "now and then" in found["stopped-schedule"]
