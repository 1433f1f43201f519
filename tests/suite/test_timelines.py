"""Finished tasks over time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Index, event
from sqlalchemy.schema import CreateIndex, DropIndex

from sqlqueue import Bucket, Durations
from sqlqueue.dialects import adapter_for
from tests.suite.finished import DAY, HOUR, MINUTE, SECOND, elsewhere, finished
from tests.support.harness import Database
from tests.support.models import Task
from tests.support.rows import PAST, analyze, clock

pytestmark = pytest.mark.sync_only

MICROSECOND = timedelta(microseconds=1)
MIDNIGHT = datetime(2020, 1, 6, tzinfo=UTC)  # a Monday


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a time zone whose clocks change twice a year."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def start_of(moment: datetime, bucket: timedelta) -> datetime:
    return moment - (moment - MIDNIGHT) % bucket


def by_start(buckets: Sequence[Bucket]) -> dict[datetime, Bucket]:
    found = {bucket.start: bucket for bucket in buckets}
    assert list(found) == sorted(found)
    assert len(found) == len(buckets)
    return found


def percentile(values: Sequence[timedelta], percent: int) -> timedelta:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


@pytest.mark.requires("sql_modes")
def test_sessions_whose_sql_has_another_meaning(db: Database) -> None:
    now = clock(db)
    db.insert(Task, [finished(now - number * HOUR) for number in range(3)])
    for mode in db.case.sql_modes:
        with db.variant(connect_args=mode).begin() as session:
            buckets = session.timeline(Task)
        ended = {start: bucket.completed for start, bucket in by_start(buckets).items() if bucket.completed}
        assert ended == {start_of(now - number * HOUR, HOUR): 1 for number in range(3)}, mode


def test_an_empty_queue_has_empty_buckets(db: Database) -> None:
    with elsewhere(db).begin() as session:
        before = clock(db)
        buckets = session.timeline(Task)
        after = clock(db)
    assert buckets[-1].start in (start_of(before, HOUR), start_of(after, HOUR))
    assert [bucket.start for bucket in buckets] == [buckets[-1].start - n * HOUR for n in range(24, -1, -1)]
    assert buckets == [Bucket(bucket.start) for bucket in buckets]
    assert (buckets[0].completed, buckets[0].run_time) == (0, Durations(0, None, None, None))


def test_durations_equal_those_of_python(db: Database) -> None:
    chance = random.Random(7)
    hour = start_of(clock(db), HOUR) - 3 * HOUR
    ran = [chance.randrange(1, 10**9) * MICROSECOND for _ in range(39)]
    waited = [chance.randrange(0, 10**12) * MICROSECOND for _ in ran]
    db.insert(Task, [finished(hour + 7 * SECOND, *took) for took in zip(ran, waited, strict=True)])
    db.insert(Task, [finished(hour, status="cancelled")] * 9)  # without durations, so not counted in them
    db.insert(Task, [finished(hour + HOUR, 7 * SECOND, DAY), finished(hour + HOUR, 9 * SECOND, 2 * DAY)])
    with elsewhere(db).begin() as session:
        found = by_start(session.timeline(Task))
    many, two = found[hour], found[hour + HOUR]
    for durations, values in ((many.run_time, ran), (many.waiting_time, waited)):
        assert (durations.count, many.completed) == (39, 39)
        assert abs(durations.mean - sum(values, timedelta(0)) / 39) <= MICROSECOND
        assert (durations.p50, durations.p95) == (percentile(values, 50), percentile(values, 95))
    assert two.run_time == Durations(2, 8 * SECOND, 7 * SECOND, 9 * SECOND)
    assert two.waiting_time == Durations(2, 1.5 * DAY, DAY, 2 * DAY)


def test_a_bucket_ends_where_the_next_begins(db: Database) -> None:
    last = start_of(clock(db), HOUR)
    first = last - 2 * HOUR
    moments = [first - MICROSECOND, first, first + HOUR - MICROSECOND, first + HOUR, last, last + 2 * HOUR]
    db.insert(Task, [finished(moment) for moment in moments])
    with elsewhere(db).begin() as session:
        buckets = session.timeline(Task, since=2 * HOUR)
    if buckets[0].start == first:  # no hour has begun meanwhile
        assert [bucket.completed for bucket in buckets] == [2, 1, 1]
    assert len(buckets) == 3


def test_only_the_completed_have_durations(db: Database) -> None:
    hour = start_of(clock(db), HOUR) - 2 * HOUR
    unclaimed = {"claimed_at": None, "attempt": 0}
    db.insert(Task, [finished(hour, 3 * SECOND, 5 * SECOND), finished(hour, DAY, DAY, status="discarded")])
    db.insert(Task, [finished(hour, DAY, DAY, status="cancelled"), finished(hour, **unclaimed, status="cancelled")])
    db.insert(Task, [finished(hour, **unclaimed), finished(hour + HOUR, **unclaimed, status="discarded")])
    # tasks to be retried, and running ones, are not finished
    db.insert(Task, [finished(hour, status=status, finished_at=None) for status in ("retryable", "running")])
    found = by_start(db.committed.timeline(Task))
    took = [Durations(1, each, each, each) for each in (3 * SECOND, 5 * SECOND)]
    assert found[hour] == Bucket(hour, 2, 1, 2, *took)
    assert found[hour + HOUR] == Bucket(hour + HOUR, failed=1)


@pytest.mark.parametrize("bucket", [SECOND, 15 * MINUTE, DAY, 7 * DAY])
def test_buckets_of_other_sizes(sync_db: Database, bucket: timedelta) -> None:
    now = clock(sync_db)
    sync_db.insert(Task, [finished(now - 4 * bucket), finished(now - bucket), finished(now - bucket)])
    with elsewhere(sync_db).begin() as session:
        buckets = session.timeline(Task, bucket=bucket, since=30 * bucket)
    found = by_start(buckets)
    assert len(buckets) == 31
    assert {start_of(start, bucket) - start for start in found} == {timedelta(0)}
    assert found[start_of(now - 4 * bucket, bucket)].completed == 1
    assert found[start_of(now - bucket, bucket)].completed == 2


def test_a_repeated_hour_has_two_buckets(sync_db: Database, in_berlin: None) -> None:
    october = clock(sync_db).replace(month=10, day=31, hour=0, minute=0, second=0, microsecond=0)
    year = october if october < clock(sync_db) else october.replace(year=october.year - 1)
    night = year - (year.weekday() + 1) % 7 * DAY  # its last Sunday: clocks go back at 01:00 UTC
    sync_db.insert(Task, [finished(night + n * HOUR, ran=3 * HOUR, waited=DAY) for n in (0, 1, 1, 2)])
    with elsewhere(sync_db).begin() as session:
        found = by_start(session.timeline(Task, since=400 * DAY))
        days = by_start(session.timeline(Task, since=400 * DAY, bucket=DAY))
    assert [found[night + n * HOUR].completed for n in (-1, 0, 1, 2, 3)] == [0, 1, 2, 1, 0]
    assert (days[night].run_time.p95, days[night].waiting_time.p50) == (3 * HOUR, DAY)


def test_timelines_measure_run_and_waiting_times(db: Database) -> None:
    """All times of a task come from the same clock."""
    db.committed.enqueue(Task, [{}, {}])
    with db.begin() as session:
        time.sleep(0.05)
        first, second = session.claim_many(Task, limit=2)
        time.sleep(0.05)
        session.complete(first)
        session.discard(second, "no")
    found = [bucket for bucket in db.committed.timeline(Task, bucket=DAY) if bucket.completed]
    assert [(bucket.completed, bucket.failed, bucket.run_time.count) for bucket in found] == [(1, 1, 1)]
    for durations in (found[0].run_time, found[0].waiting_time):
        assert 0.05 * SECOND <= durations.mean < 10 * SECOND


def test_rows_are_read_by_an_index(sync_db: Database) -> None:
    sync_db.insert(Task, [finished(PAST)] * 10_000)
    sync_db.insert(Task, [finished(clock(sync_db))] * 10)
    index = Index("ix_task_finished", Task.finished_at)
    Task.__table__.indexes.discard(index)
    asked: list[Any] = []
    with sync_db.engine.begin() as connection:
        connection.execute(CreateIndex(index))
    try:
        analyze(sync_db, Task)
        sync_db.engine.dispose()  # SQLite reads the statistics of ANALYZE when it connects
        with sync_db.session() as session, sync_db.engine.connect() as connection:
            event.listen(sync_db.bind, "before_execute", lambda _, statement, *__: asked.append(statement))
            assert sum(bucket.completed for bucket in session.timeline(Task, Task.number == 0)) == 10
            plan = adapter_for(connection.dialect).inspection.plan(connection, asked[-1])
            assert plan is None or plan.indexes == {"ix_task_finished"}
    finally:
        with sync_db.engine.begin() as connection:
            connection.execute(DropIndex(index))
