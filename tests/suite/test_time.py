"""All times are from the database's clock, in UTC, and keep their precision."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

from sqlqueue import utcnow
from sqlqueue.dialects import key_type, timestamp_type
from tests.support.harness import Database
from tests.support.models import Task
from tests.support.rows import clock, row, rows, zones

pytestmark = pytest.mark.sync_only

HOUR = timedelta(hours=1)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(params=["UTC", "Etc/GMT+8", "Europe/Berlin"])
def host_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


MOMENTS = {
    "microseconds": datetime(2031, 5, 6, 7, 8, 9, 123_457, tzinfo=UTC),
    "one microsecond": datetime(2031, 5, 6, 7, 8, 9, 1, tzinfo=UTC),
    "west": datetime(2031, 5, 6, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-8))),
    "before the clocks go back": datetime(2031, 10, 26, 2, 30, tzinfo=BERLIN),
    "after the clocks went back": datetime(2031, 10, 26, 2, 30, fold=1, tzinfo=BERLIN),
    "in UTC at that hour": datetime(2031, 10, 26, 2, 30, tzinfo=UTC),
    "when the clocks go forward": datetime(2031, 3, 30, 2, 30, tzinfo=UTC),
}


@pytest.mark.parametrize("how", ["instance", "rows"])
def test_a_stored_time_is_read_back_unchanged(sync_db: Database, host_zone: str, how: str) -> None:
    given = [{"name": name, "available_at": moment} for name, moment in MOMENTS.items()]
    for db in zones(sync_db):
        with db.begin() as actor:
            if how == "instance":
                for values in given:
                    actor.enqueue(Task(**values))
            else:
                actor.enqueue(Task, given)
        for reader in zones(sync_db):
            actor = reader.session()
            tasks = {task.name: task for task in actor.query(Task).all()}
            actor.close()
            assert {name: task.available_at for name, task in tasks.items()} == {
                name: moment.astimezone(UTC) for name, moment in MOMENTS.items()
            }
            assert {task.available_at.utcoffset() for task in tasks.values()} == {timedelta(0)}
            assert {task.status for task in tasks.values()} == {"scheduled"}
        with db.begin() as actor:
            actor.query(Task).delete()


def test_a_lease_has_the_given_length_in_any_time_zone(sync_db: Database) -> None:
    sync_db.insert(Task, rows(4))
    for db in zones(sync_db):
        with db.begin() as actor:
            before = clock(sync_db)
            task = actor.claim(Task, lease=timedelta(minutes=7))
            after = clock(sync_db)
        assert before <= task.claimed_at <= after
        assert task.available_at - task.claimed_at == timedelta(minutes=7)


def test_the_database_clock_is_in_utc(db: Database) -> None:
    # this machine's clock and the server's may differ, but by no time zone
    for each in zones(db):
        assert abs(clock(each) - datetime.now(UTC)) < timedelta(minutes=10)
        assert abs(each.session().scalar(select(utcnow())) - clock(db)) < timedelta(seconds=10)


def test_retries_snoozes_and_heartbeats_go_by_the_databases_clock(sync_db: Database) -> None:
    sync_db.insert(Task, rows(3))
    for db in zones(sync_db):
        actor = db.session()
        failed, snoozed, held = actor.claim_many(Task, limit=3)
        before = clock(sync_db)
        actor.fail(failed, "later", retry_in=HOUR)
        actor.snooze(snoozed, 2 * HOUR)
        actor.heartbeat(held, 3 * HOUR)
        after = clock(sync_db)
        delays = {1: failed, 2: snoozed, 3: held}
        assert all(before <= task.available_at - n * HOUR <= after for n, task in delays.items())
        actor.rollback()


def test_time_advances_within_a_transaction(db: Database) -> None:
    db.insert(Task, rows(2))
    actor = db.session()
    first = actor.claim(Task)
    time.sleep(0.05)
    second = actor.claim(Task)
    assert second.claimed_at - first.claimed_at >= timedelta(seconds=0.05)
    actor.heartbeat(first)
    actor.refresh(first)
    assert first.available_at > second.available_at


def test_the_clock_is_as_fine_as_the_engine_makes_it(db: Database) -> None:
    db.insert(Task, rows(12))
    actor = db.session()
    moments = [actor.claim(Task).claimed_at for _ in range(12)]
    step = db.case.time_resolution
    assert all(timedelta(microseconds=moment.microsecond) % step == timedelta(0) for moment in moments)
    # a coarser clock would give whole multiples of ten steps throughout
    assert any(timedelta(microseconds=moment.microsecond) % (10 * step) for moment in moments)


@pytest.mark.parametrize("whole", [timedelta(seconds=1), timedelta(days=40)], ids=str)
def test_fractions_of_a_second_count(db: Database, whole: timedelta) -> None:
    lease = whole + 457 * db.case.time_resolution
    db.insert(Task, rows(1))
    task = db.session().claim(Task, lease=lease)
    assert task.available_at - task.claimed_at == lease


def test_a_lease_ends_exactly_on_time(db: Database) -> None:
    db.insert(Task, rows(1))
    task = db.committed.claim(Task, lease=timedelta(seconds=0.4))
    ends = row(db, task)["available_at"]
    again, asked = None, clock(db)
    while again is None:
        again = db.committed.claim(Task)
        assert again is not None or asked < ends
        asked = clock(db)
    assert again.claimed_at >= ends


def test_the_type_of_a_moment_can_be_pickled() -> None:
    kind = Task.__table__.c.available_at.type
    copy = pickle.loads(pickle.dumps(kind))
    for dialect in (mysql.dialect(), postgresql.dialect()):
        assert copy.compile(dialect) == kind.compile(dialect)


@pytest.mark.parametrize("kind", [timestamp_type(), key_type(9)], ids=["time", "key"])
def test_a_type_that_was_not_used_yet_is_pickled_with_its_arguments(kind: TypeEngine[Any]) -> None:
    assert repr(pickle.loads(pickle.dumps(kind))) == repr(kind)
