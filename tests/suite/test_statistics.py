"""How it stands with a queue: stats by a column, the overview, and what was finished over time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Index, event, func
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateIndex, DropIndex

import sqlqueue
from sqlqueue import ArgumentError, Bucket, Durations, QueueOverview, Status, hung
from sqlqueue.dialects import adapter_for
from sqlqueue.sql.clock import NEVER
from tests.support.harness import Database
from tests.support.models import CreditNote, Invoice, Letter, Mail, Notice, Order, Reminder, Task
from tests.support.rows import PAST, TOMORROW, analyze, clock

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
MIDNIGHT = datetime(2020, 1, 6, tzinfo=UTC)  # a Monday


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This host, where the clocks change twice a year."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def elsewhere(db: Database) -> Database:
    """With sessions at +05:30, where sessions have a time zone: no hour of theirs begins when one of UTC does."""
    return db if db.case.time_zone_sql is None else db.variant(on_connect=next(db.case.time_zones()))


def finished(at: datetime, ran: timedelta = MINUTE, waited: timedelta = MINUTE, **columns: Any) -> dict[str, Any]:
    """A row that was completed, unless `columns` say otherwise."""
    moments = {"finished_at": at, "available_at": at, "claimed_at": at - ran, "created_at": at - ran - waited}
    return {"status": "completed", "attempt": 1, **moments, **columns}


def start_of(moment: datetime, bucket: timedelta) -> datetime:
    return moment - (moment - MIDNIGHT) % bucket


def by_start(buckets: Sequence[Bucket]) -> dict[datetime, Bucket]:
    found = {bucket.start: bucket for bucket in buckets}
    assert list(found) == sorted(found)
    assert len(found) == len(buckets)
    return found


def percentile(values: Sequence[timedelta], percent: int) -> timedelta:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


# -- over time ---------------------------------------------------------------------------------------------------------


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
    db.insert(Task, [finished(hour, status="cancelled")] * 9)  # without durations, and so nowhere among them
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
    # a task that is to be tried again, or runs, is not finished
    db.insert(Task, [finished(hour, status=status, finished_at=None) for status in ("retryable", "running")])
    with db.begin() as session:
        found = by_start(session.timeline(Task))
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
    """And by the same clock that they go by."""
    with db.begin() as session:
        session.enqueue(Task, [{}, {}])
    with db.begin() as session:
        time.sleep(0.05)
        first, second = session.claim_many(Task, limit=2)
        time.sleep(0.05)
        session.complete(first)
        session.discard(second, "no")
    with db.begin() as session:
        found = [bucket for bucket in session.timeline(Task, bucket=DAY) if bucket.completed]
    assert [(bucket.completed, bucket.failed, bucket.run_time.count) for bucket in found] == [(1, 1, 1)]
    for durations in (found[0].run_time, found[0].waiting_time):
        assert 0.05 * SECOND <= durations.mean < 10 * SECOND


def test_rows_are_read_by_an_index(sync_db: Database) -> None:
    """That of due rows holds the finished ones as well, where an index is of all rows; elsewhere one of the model's."""
    sync_db.insert(Task, [finished(PAST)] * 10_000)
    sync_db.insert(Task, [finished(clock(sync_db))] * 10)
    index = Index("ix_task_finished", Task.finished_at)
    Task.__table__.indexes.discard(index)
    asked: list[Any] = []
    with sync_db.engine.begin() as connection:
        if sync_db.case.partial_indexes:
            connection.execute(CreateIndex(index))
    try:
        analyze(sync_db, Task)
        sync_db.engine.dispose()  # SQLite reads what ANALYZE found when it connects
        with sync_db.session() as session, sync_db.engine.connect() as connection:
            event.listen(sync_db.bind, "before_execute", lambda _, statement, *__: asked.append(statement))
            assert sum(bucket.completed for bucket in session.timeline(Task, Task.number == 0)) == 10
            plan = adapter_for(connection.dialect).plans.of(connection, asked[-1])
            assert plan is None or plan.indexes == {
                "ix_task_finished" if sync_db.case.partial_indexes else "ix_task_due"
            }
    finally:
        if sync_db.case.partial_indexes:
            with sync_db.engine.begin() as connection:
                connection.execute(DropIndex(index))


# -- now ---------------------------------------------------------------------------------------------------------------


def scene(db: Database) -> dict[int, dict[str, Any]]:
    """One task in each situation that somebody on call tells apart."""
    now = clock(db)
    running = {"status": "running", "attempt": 1}
    crashed = {**running, "claimed_at": now - 50 * MINUTE, "available_at": now - 40 * MINUTE}
    return {
        1: {"available_at": now - 10 * MINUTE},
        2: {"available_at": now - 30 * MINUTE},
        3: {"status": "scheduled", "available_at": now - 2 * HOUR},
        4: {"status": "scheduled", "available_at": now + HOUR},
        5: {"status": "retryable", "attempt": 1, "available_at": now - 5 * MINUTE},
        6: {**running, "claimed_at": now - 20 * MINUTE, "available_at": now + HOUR},
        7: crashed,
        # it is for rescue(), and no claim takes it
        8: {**crashed, "attempt": 3, "claimed_at": now - 4 * HOUR, "available_at": now - 3 * HOUR},
        9: finished(now - 30 * SECOND),
        10: finished(now - 10 * SECOND, status="discarded"),
        11: finished(now - 30 * MINUTE, status="cancelled"),
        12: finished(now - 2 * HOUR, ran=DAY),
    }


def test_overview(db: Database) -> None:
    for number, columns in scene(db).items():
        db.insert(Task, [{"id": number, **columns}])
    with elsewhere(db).begin() as session:
        found, stats = session.overview(Task), session.stats(Task)
        some = session.overview(Task, Task.id > 3)
        waiting = session.overview(Task, Task.id == 1)
    assert (found.counts, found.total, found.unfinished) == (stats.counts, 12, 8)
    assert (found.hung, stats.hung, found.claimable, found.overdue) == (2, 2, 5, 2)
    assert (found.finished_last_minute, found.finished_last_hour) == (2, 3)
    assert 2 * HOUR <= found.oldest_claimable < 2 * HOUR + MINUTE
    assert 4 * HOUR <= found.oldest_running < 4 * HOUR + MINUTE
    assert (some.claimable, some.overdue, some["scheduled"]) == (2, 1, 1)
    assert 40 * MINUTE <= some.oldest_claimable < 41 * MINUTE
    assert 10 * MINUTE <= waiting.oldest_claimable < 11 * MINUTE
    assert waiting.oldest_running is None


def test_overview_of_nothing_and_of_what_is_available_for_tomorrow(db: Database) -> None:
    assert db.session().overview(Letter) == QueueOverview(dict.fromkeys(Status, 0))
    db.insert(Letter, [{"recipient": "ada", "available_at": TOMORROW}])  # no claim takes it before
    found = db.session().overview(Letter)
    assert found == QueueOverview({**dict.fromkeys(Status, 0), "scheduled": 1})


@pytest.mark.parametrize("model", [Task, Mail])  # without an index of what is finished, and with one
def test_counting_ends_at_the_cap_and_reports_it(db: Database, model: Any) -> None:
    now = clock(db)
    db.insert(model, [finished(now - 30 * SECOND)] * 4)
    db.insert(model, [finished(now - 2 * HOUR, status="discarded")])
    db.insert(model, [{"status": "scheduled", "available_at": now - HOUR}] * 3)
    db.insert(model, [{"available_at": now - HOUR}] * 2)
    with db.begin() as session:
        exact, limited = session.overview(model, cap=6), session.overview(model, cap=3)
        everything, stats = session.overview(model, cap=None), session.stats(model, cap=3)
    assert exact.capped == everything.capped == frozenset()
    assert (exact["completed"], exact["discarded"], exact.total, exact.finished_last_hour) == (4, 1, 10, 4)
    assert (everything.counts, everything.claimable, everything.finished_last_minute) == (exact.counts, 5, 4)
    unfinished = {"scheduled", "retryable", "running", "hung", "overdue", "claimable", "unfinished", "total"}
    ages = {"oldest_claimable", "oldest_running"}
    final = {"completed", "cancelled", "discarded", "finished_last_minute", "finished_last_hour"}
    assert limited.capped == unfinished | ages | final
    assert stats.capped == limited.capped - {"finished_last_minute", "finished_last_hour"}
    assert (limited["available"], limited["scheduled"], limited["completed"] + limited["discarded"]) == (2, 3, 3)
    assert stats.total == limited.total == 8


def test_one_group_at_the_cap_leaves_the_others_exact(db: Database) -> None:
    db.insert(Task, [finished(PAST)] * 3)
    db.insert(Task, [{}] * 2)
    with db.begin() as session:
        found = session.stats(Task, cap=3)
        some = session.stats(Task, Task.status == "available", cap=3)
    assert found.capped == {"completed", "cancelled", "discarded", "total"}
    assert (found["available"], found.unfinished, some.capped) == (2, 2, frozenset())


def test_early_rows_count_towards_the_cap_of_available_ones(db: Database) -> None:
    db.insert(Task, [{"available_at": TOMORROW}] * 2)
    db.insert(Task, [{"available_at": PAST}])
    with db.begin() as session:
        exact, limited, stats = session.overview(Task, cap=4), session.overview(Task, cap=3), session.stats(Task, cap=3)
    assert exact.capped == frozenset()
    for found in (exact, limited, stats):
        assert (found["available"], found["scheduled"], found.unfinished) == (1, 2, 3)
    assert (exact.claimable, limited.claimable, exact.overdue) == (1, 1, 0)
    assert limited.capped == {"available", "scheduled", "claimable", "oldest_claimable", "unfinished", "total"}
    assert stats.capped == limited.capped


@pytest.mark.parametrize("model", [Task, Mail])
def test_rows_from_before_the_table_became_a_queue_were_not_finished_lately(db: Database, model: Any) -> None:
    db.insert(model, [{"status": "completed", "available_at": NEVER}] * 2)
    with db.begin() as session:
        found, some = session.overview(model), session.overview(model, cap=1)
    assert found == QueueOverview({**dict.fromkeys(Status, 0), "completed": 2})
    assert (some.total, some.finished_last_hour, some.claimable) == (1, 0, 0)


def test_errors_of_the_last_failures(db: Database) -> None:
    for number, text in enumerate("aabbc"):
        db.insert(Task, [{"id": number + 1, "status": "discarded", "error": text, "finished_at": PAST}])
    with db.begin() as session:
        last, everything = session.errors(Task, cap=3), session.errors(Task, cap=6)
        assert session.errors(Task, cap=None) == everything
    assert [(group.message, group.count, group.example, group.capped) for group in last] == [
        ("b", 2, (4,), True),
        ("c", 1, (5,), True),
    ]
    assert [(group.message, group.count, group.capped) for group in everything] == [
        ("a", 2, False),
        ("b", 2, False),
        ("c", 1, False),
    ]


@pytest.mark.parametrize("model", [Task, Mail])  # without an index of what is finished, and with one
def test_a_criterion_is_evaluated_for_so_many_rows_as_may_be_looked_at(sync_db: Database, model: Any) -> None:
    now = clock(sync_db)
    for number in range(10, 0, -1):
        failed = finished(now - number * SECOND, status="discarded", error=f"odd {number % 2}")
        sync_db.insert(model, [failed])
    sync_db.insert(model, [{"status": "scheduled", "available_at": TOMORROW, "error": "odd 1"}] * 2)
    odd = model.error == "odd 1"
    with sync_db.begin() as session:
        some, all_of_them = session.stats(model, odd, scan=4), session.stats(model, odd, scan=99)
        last, everything = session.errors(model, scan=4), session.errors(model, scan=99)
        looked_over = session.overview(model, odd, scan=4)
    assert (all_of_them["discarded"], all_of_them["scheduled"], all_of_them.capped) == (5, 2, frozenset())
    assert 1 <= some["discarded"] <= 2
    assert "discarded" in some.capped
    assert (some["scheduled"], "scheduled" in some.capped) == (2, False)
    assert (looked_over.counts, looked_over.capped - some.capped) == (
        some.counts,
        {"finished_last_minute", "finished_last_hour"},
    )
    assert [(group.message, group.count, group.capped) for group in everything] == [
        ("odd 1", 7, False),
        ("odd 0", 5, False),
    ]
    assert all(group.capped for group in last)
    assert sum(group.count for group in last) < 12


@pytest.mark.parametrize("call", [sqlqueue.stats, sqlqueue.overview, sqlqueue.errors])
def test_a_cap_is_a_positive_number(db: Database, call: Any) -> None:
    with db.session() as session, pytest.raises(ArgumentError, match="cap"):
        session.run(call, Task, cap=0)


def test_hung_tasks_can_be_found(db: Database) -> None:
    for number, columns in scene(db).items():
        db.insert(Task, [{"id": number, **columns}])
    with db.begin() as session:
        assert [task.id for task in session.find(Task, hung(Task))] == [7, 8]
        assert session.stats(Task, hung(Task)).counts == {**dict.fromkeys(Status, 0), "running": 2}


def test_stats_by_a_column(db: Database) -> None:
    db.insert(Mail, [{"topic": topic} for topic in ("news", "billing", "news")])
    db.insert(Mail, [{"topic": "news", "status": "running", "attempt": 1, "available_at": PAST, "claimed_at": PAST}])
    db.insert(Mail, [{"topic": "news", "status": "running", "attempt": 1, "available_at": TOMORROW}])
    with db.begin() as session:
        found = session.stats_by(Mail, Mail.topic)
        running = session.stats_by(Mail, Mail.topic, Mail.status == "running")
        assert session.stats_by(Letter, Letter.recipient) == {}
    assert list(found) == ["billing", "news"]
    assert (found["billing"]["available"], found["billing"].total, found["billing"].hung) == (1, 1, 0)
    assert (found["news"]["available"], found["news"]["running"], found["news"].hung) == (2, 2, 1)
    assert found["news"].counts == {**dict.fromkeys(Status, 0), "available": 2, "running": 2}
    assert (list(running), running["news"].total) == (["news"], 2)


def test_stats_by_an_expression_and_by_nothing(db: Database) -> None:
    db.insert(Task, [{"number": number} for number in range(5)])
    db.insert(Mail, [{"account_id": None}])
    with db.begin() as session:
        odd = session.stats_by(Task, func.coalesce(Task.number % 2, 7))
        assert {value: stats.total for value, stats in odd.items()} == {0: 3, 1: 2}
        assert session.stats_by(Mail, Mail.account_id)[None]["available"] == 1


# -- renamed, inheriting, plain sessions -------------------------------------------------------------------------------


def test_on_renamed_columns(db: Database) -> None:
    now = clock(db)
    row = finished(now, 3 * SECOND, 5 * SECOND)
    moments = {
        "queued_at": row.pop("created_at"),
        "created_at": datetime(2000, 1, 1),
        "queue_status": row.pop("status"),
    }
    db.insert(Order, [{**row, **moments, "status": "paid"}])
    db.insert(Order, [{"status": "new", "available_at": now - HOUR}])
    with db.begin() as session:
        (bucket,) = (each for each in session.timeline(Order) if each.completed)
        assert (bucket.run_time.p95, bucket.waiting_time.mean) == (3 * SECOND, 5 * SECOND)
        found = session.stats_by(Order, Order.status)
        assert (found["paid"]["completed"], found["new"]["available"], len(found)) == (1, 1, 2)
        assert session.overview(Order).claimable == 1


def test_a_class_of_one_table_is_a_queue_of_its_own(db: Database) -> None:
    now = clock(db)
    with db.begin() as session:
        session.add_all([Notice(**finished(now)), Reminder(about="milk", **finished(now)), Reminder(about="tea")])
    with db.begin() as session:
        counted = [sum(bucket.completed for bucket in session.timeline(model)) for model in (Notice, Reminder)]
        assert counted == [2, 1]
        assert [session.overview(model).total for model in (Notice, Reminder)] == [3, 2]
        assert {kind: each.total for kind, each in session.stats_by(Notice, Notice.kind).items()} == {
            "notice": 1,
            "reminder": 2,
        }
        assert list(session.stats_by(Reminder, Reminder.about)) == ["milk", "tea"]


def test_a_class_of_two_tables(db: Database) -> None:
    now = clock(db)
    with db.begin() as session:
        session.add_all([Invoice(**finished(now)), CreditNote(amount=1, **finished(now))])
        session.add_all([CreditNote(amount=9, **finished(now)), CreditNote(amount=9)])
    with db.begin() as session:
        assert sum(bucket.completed for bucket in session.timeline(CreditNote, CreditNote.amount < 9)) == 1
        assert session.overview(CreditNote, CreditNote.amount > 1).claimable == 1
        for amount in (CreditNote.amount, CreditNote.__table__.c.amount):
            by_amount = session.stats_by(CreditNote, amount, CreditNote.amount > 0)
            assert [(value, each.total) for value, each in by_amount.items()] == [(1, 1), (9, 2)]
        assert {kind: each.total for kind, each in session.stats_by(Invoice, Invoice.kind).items()} == {
            "credit_note": 3,
            "invoice": 1,
        }


def test_functions_on_a_plain_session(db: Database) -> None:
    db.insert(Task, [{"number": 7}])
    db.insert(Task, [finished(clock(db))])
    with db.begin(class_=AsyncSession if db.is_async else Session) as session:
        assert session.run(sqlqueue.overview, Task).finished_last_hour == 1
        assert session.run(sqlqueue.stats_by, Task, Task.number)[7].total == 1
        assert sum(bucket.completed for bucket in session.run(sqlqueue.timeline, Task, bucket=DAY)) == 1
