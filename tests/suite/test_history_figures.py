"""Errors and the timeline count attempts where there is a history, and tasks otherwise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, func, insert, select, update
from sqlalchemy.orm import with_loader_criteria
from typer.testing import CliRunner

from sqlqueue import Bucket, Cause, Claim, ErrorGroup, utcnow
from sqlqueue.cli import application
from tests.support.harness import Database
from tests.support.history import Crate, Flare, FragileCrate, Parcel, Past, Rota, archive, expire, sync_archive
from tests.support.rows import PAST, clock

__all__ = ["archive", "sync_archive"]

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def attempt(db: Database, model: Any, call: str, *arguments: Any) -> Any:
    """Claim a task, and settle it by this call."""
    with db.begin() as session:
        task = session.claim(model)
        getattr(session, call)(task, *arguments)
    return task


def stored(db: Database, rows: Sequence[dict[str, Any]], queue: str = "past_parcel") -> None:
    common = {"queue": queue, "task": "1", "attempt": 1, "outcome": "failed", "claimed_by": "a", "error": "no"}
    db.execute(insert(Past), [{**common, **row} for row in rows])


def told(groups: Sequence[ErrorGroup]) -> list[tuple[str, int | None, Any]]:
    return [(group.message, group.attempts, group.example) for group in groups]


# -- errors ------------------------------------------------------------------------------------------------------------


def test_every_failed_attempt_counts_and_not_only_the_last_error(archive: Database) -> None:
    archive.committed.add(Parcel())
    attempt(archive, Parcel, "fail", "no stamp")
    attempt(archive, Parcel, "fail", "no stamp")
    done = attempt(archive, Parcel, "complete")
    archive.committed.add(Parcel())
    given_up = attempt(archive, Parcel, "discard", "no address")
    groups = archive.committed.errors(Parcel)
    assert told(groups) == [("no stamp", 2, (done.id,)), ("no address", 1, (given_up.id,))]
    assert [(group.tasks, group.capped) for group in groups] == [(0, frozenset()), (1, frozenset())]
    assert PAST < groups[0].first_seen <= groups[0].last_seen <= groups[1].last_seen


def test_crashes_count_and_released_attempts_do_not(archive: Database) -> None:
    archive.committed.add(Parcel())
    archive.committed.claim(Parcel)
    expire(archive, Parcel)
    attempt(archive, Parcel, "release")
    attempt(archive, Parcel, "cancel")
    (group,) = archive.committed.errors(Parcel)
    assert (group.attempts, group.tasks, "lease expired" in group.message) == (1, 0, True)


def test_of_deleted_tasks_with_several_keys(archive: Database) -> None:
    archive.committed.add(Flare(region='north,"east"', number=7))
    attempt(archive, Flare, "fail", "wet")
    attempt(archive, Flare, "complete")
    with archive.begin() as session:
        assert told(session.errors(Flare)) == [("wet", 1, ('north,"east"', 7))]
        assert session.errors(Parcel) == []


def test_the_example_of_a_key_that_is_only_a_hash(archive: Database) -> None:
    stored(archive, [{"task": "sha256:" + "0" * 64}])
    assert told(archive.committed.errors(Parcel)) == [("no", 1, None)]


def test_the_last_failures_to_end_are_counted(archive: Database) -> None:
    outcomes = ["failed", "crashed", "discarded", "failed", "completed"]
    rows = [
        {"outcome": outcome, "error": None if outcome == "completed" else "abcde"[n], "finished_at": PAST + n * HOUR}
        for n, outcome in enumerate(outcomes)
    ]
    stored(archive, rows)
    with archive.begin() as session:
        last, everything = session.errors(Parcel, cap=3), session.errors(Parcel, cap=5)
        assert session.errors(Parcel, cap=None) == everything
    assert [(group.message, group.capped) for group in last] == [(text, {"attempts"}) for text in "bcd"]
    assert [(group.message, group.capped) for group in everything] == [(text, set()) for text in "abcd"]
    assert (last[0].first_seen, last[0].last_seen) == (PAST + HOUR, PAST + HOUR)


def some_tasks(db: Database) -> None:
    """Create three failed attempts at two tasks, one of which has been completed since."""
    db.committed.add_all([Crate(id=1), FragileCrate(id=2)])
    for text in ("torn", "torn", "wet"):
        attempt(db, Crate, "fail", text)
    with db.begin() as session:
        session.complete(session.claim(Crate, Crate.id == 2))


@pytest.mark.parametrize("how", ["criteria", "the session's criteria", "a class that shares its table"])
def test_some_tasks_of_a_queue_count_by_their_last_error(archive: Database, how: str) -> None:
    some_tasks(archive)
    with archive.begin() as session:
        assert sum(group.attempts for group in session.errors(Crate)) == 3
        if how == "the session's criteria":

            @event.listens_for(session.sync_session, "do_orm_execute")
            def mine(state: Any) -> None:
                state.statement = state.statement.options(with_loader_criteria(Crate, Crate.id == 1))

            found, buckets = session.errors(Crate), session.timeline(Crate)
        elif how == "criteria":
            found, buckets = session.errors(Crate, Crate.id == 1), session.timeline(Crate, Crate.id == 1)
        else:
            found, buckets = session.errors(FragileCrate), session.timeline(FragileCrate)
    assert all(group.attempts is None for group in found)
    assert not any(bucket.attempts for bucket in buckets)
    if how == "a class that shares its table":
        assert (found, sum(bucket.completed for bucket in buckets)) == ([], 1)
    else:
        assert [group.tasks for group in found] == [1]
        assert sum(bucket.completed for bucket in buckets) == 0


# -- over time ---------------------------------------------------------------------------------------------------------


def start_of_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def counts(buckets: Sequence[Bucket]) -> dict[datetime, tuple[int, int, int]]:
    found = {each.start: (each.completed, each.failed, each.cancelled) for each in buckets}
    return {start: each for start, each in found.items() if any(each)}


def test_attempts_are_counted_when_they_ended(archive: Database) -> None:
    hour = start_of_hour(clock(archive)) - 3 * HOUR
    ends = ["completed", "completed", "failed", "discarded", "crashed", "cancelled", "released", "snoozed"]
    early = [{"outcome": outcome, "finished_at": hour, "started_at": hour - SECOND} for outcome in ends]
    late = {"outcome": "completed", "finished_at": hour + 2 * HOUR}
    rows = [*early, {**late, "started_at": hour}, {**late, "started_at": None}]
    stored(archive, [{"started_at": None, **row} for row in rows])
    stored(archive, [{"outcome": "completed", "finished_at": hour, "started_at": hour}], queue="past_flare")
    task = {"status": "completed", "finished_at": hour, "claimed_at": hour - MINUTE, "created_at": hour - HOUR}
    archive.insert(Parcel, [{**task, "available_at": hour}])
    buckets = archive.committed.timeline(Parcel)
    assert counts(buckets) == {hour: (2, 3, 1), hour + 2 * HOUR: (2, 0, 0)}
    found = {each.start: each for each in buckets}
    assert len(buckets) == 25
    assert all(each.attempts for each in buckets)
    assert (found[hour].run_time.count, found[hour].run_time.p95) == (2, SECOND)
    assert (found[hour].waiting_time.count, found[hour].waiting_time.p50) == (1, 59 * MINUTE)
    assert (found[hour + 2 * HOUR].run_time.count, found[hour + 2 * HOUR].run_time.mean) == (1, 2 * HOUR)


def test_retried_attempts_and_runs_of_recurring_tasks_count(archive: Database) -> None:
    archive.committed.add_all([Parcel(), Rota(schedule="PT1S")])
    attempt(archive, Parcel, "fail", "no stamp")
    attempt(archive, Parcel, "complete")
    for _ in range(2):
        archive.execute(update(Rota).values(available_at=utcnow(-HOUR), created_at=utcnow(-2 * HOUR)))
        attempt(archive, Rota, "complete")
    with archive.begin() as session:
        parcels, runs = (counts(session.timeline(model, bucket=DAY)) for model in (Parcel, Rota))
    assert [sum(each) for each in zip(*parcels.values(), strict=True)] == [1, 1, 0]
    assert [sum(each) for each in zip(*runs.values(), strict=True)] == [2, 0, 0]


def test_at_a_cap_the_last_attempts_to_end_are_read(archive: Database) -> None:
    hour = start_of_hour(clock(archive)) - 5 * HOUR
    outcomes = ["completed", "failed", "completed", "cancelled"]
    stored(archive, [{"outcome": outcome, "finished_at": hour + n * HOUR} for n, outcome in enumerate(outcomes)])
    with archive.begin() as session:
        some, everything = session.timeline(Parcel, cap=2), session.timeline(Parcel, cap=5)
    assert counts(some) == {hour + 2 * HOUR: (1, 0, 0), hour + 3 * HOUR: (0, 0, 1)}
    assert [each.start for each in some if each.capped] == [
        each.start for each in some if each.start <= hour + 2 * HOUR
    ]
    assert (len(counts(everything)), any(each.capped for each in everything)) == (4, False)


def test_an_estimate_by_the_attempts_of_the_last_minute(archive: Database) -> None:
    now = clock(archive)
    ends = [{"outcome": outcome} for outcome in ("completed", "failed", "released", "crashed")]
    stored(archive, [{**each, "finished_at": now} for each in ends])
    stored(archive, [{**each, "finished_at": now - HOUR} for each in ends])
    archive.insert(Parcel, [{"id": n, "available_at": PAST} for n in range(1, 8)])
    (reason,) = archive.committed.why(Claim(Parcel, (7,), 0)).reasons
    assert (reason.cause, reason.ahead, reason.estimate) == (Cause.ORDER, 6, 2 * MINUTE)


# -- commands ----------------------------------------------------------------------------------------------------------


def test_the_commands(sync_archive: Database) -> None:
    sync_archive.committed.add(Parcel(id=1))
    for text in ("no stamp", "no stamp"):
        attempt(sync_archive, Parcel, "fail", text)
    url = sync_archive.url.render_as_string(hide_password=False)

    def called(command: str, *arguments: str) -> Any:
        return CliRunner().invoke(application(), [command, "--url", url, "tests.support.history:Parcel", *arguments])

    (group,) = json.loads(called("errors", "--json").stdout)
    assert (group["attempts"], group["tasks"], group["example"]) == (2, 1, "1")
    assert "attempts" in called("errors").stdout
    (group,) = json.loads(called("errors", "--status", "retryable", "--json").stdout)
    assert (group["attempts"], group["tasks"]) == (None, 1)
    buckets = json.loads(called("stats", "--timeline", "--json").stdout)
    assert sum(each["failed"] for each in buckets) == 2
    assert all(each["attempts"] for each in buckets)


def test_pruning_by_command(sync_archive: Database) -> None:
    stored(sync_archive, [{"finished_at": clock(sync_archive) - DAY * n} for n in range(5)])
    stored(sync_archive, [{"finished_at": PAST}], queue="past_flare")
    url = sync_archive.url.render_as_string(hide_password=False)

    def called(*arguments: str, queue: str = "tests.support.history:Parcel") -> Any:
        return CliRunner().invoke(application(), ["prune", "--url", url, queue, "--history", *arguments])

    refused = called()
    assert (refused.exit_code, "delete 4 finished attempts at tasks of past_parcel" in refused.output) == (2, True)
    assert json.loads(called("--limit", "1", "--older-than", "2d", "--json").stdout)["attempts"] == 1
    assert json.loads(called("--yes", "--json").stdout) == {
        "queue": "past_parcel",
        "action": "prune",
        "attempts": 3,
        "stopped": False,
    }
    assert called("--adopted").exit_code == 2
    assert called(queue="tests.support.models:Task").exit_code == 2, "it has no history"
    with sync_archive.engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(Past)) == 2
