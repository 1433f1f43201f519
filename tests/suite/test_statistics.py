"""The state of a queue: stats by a column, and the overview."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import func

from sqlqueue import ArgumentError, QueueOverview, QueueSession, Status, abandoned
from sqlqueue.sql import NEVER
from tests.suite.finished import DAY, HOUR, MINUTE, SECOND, elsewhere, finished
from tests.support.harness import Database
from tests.support.models import CreditNote, Invoice, Letter, Mail, Notice, Order, Reminder, Task
from tests.support.rows import PAST, TOMORROW, clock

pytestmark = pytest.mark.sync_only


def situations(db: Database) -> dict[int, dict[str, Any]]:
    """Insert one task in each situation that operators distinguish."""
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


def test_rows_with_an_unknown_status_are_shown(db: Database) -> None:
    db.insert(Mail, [{"status": each, "topic": each} for each in ("pending", "completed", "x", "x", "available")])
    with elsewhere(db).begin() as session:
        found, some, by_topic = session.overview(Mail), session.stats(Mail, cap=2), session.stats_by(Mail, Mail.topic)
        exact = session.stats(Mail, cap=None)
    for each in (found, exact):
        assert each.unknown == {"pending": 1, "x": 2}
        assert (each["completed"], each["available"], each.total, each.unfinished) == (1, 1, 2, 1)
    assert by_topic["x"].unknown == {"x": 2}
    assert by_topic["available"].unknown == {}
    assert sum(some.unknown.values()) + some["completed"] == 2
    assert {"completed", "discarded", "total"} <= some.capped  # there may be more that were not reached


def test_overview(db: Database) -> None:
    for number, columns in situations(db).items():
        db.insert(Task, [{"id": number, **columns}])
    with elsewhere(db).begin() as session:
        found, stats = session.overview(Task), session.stats(Task)
        some = session.overview(Task, Task.id > 3)
        waiting = session.overview(Task, Task.id == 1)
        crashed = session.stats(Task, Task.id == 7)
        assert [task.id for task in session.find(Task, abandoned(Task))] == [7, 8]
        assert session.stats(Task, abandoned(Task)).counts == {**dict.fromkeys(Status, 0), "running": 2}
    assert (found.counts, found.total, found.unfinished) == (stats.counts, 12, 8)
    assert (found.abandoned, stats.abandoned, found.claimable, found.overdue) == (2, 2, 5, 2)
    assert (found.finished_last_minute, found.finished_last_hour) == (2, 3)
    assert 2 * HOUR <= found.oldest_claimable < 2 * HOUR + MINUTE
    assert 4 * HOUR <= found.oldest_running < 4 * HOUR + MINUTE
    assert (some.claimable, some.overdue, some["scheduled"]) == (2, 1, 1)
    assert 40 * MINUTE <= some.oldest_claimable < 41 * MINUTE
    assert 10 * MINUTE <= waiting.oldest_claimable < 11 * MINUTE
    assert waiting.oldest_running is None
    assert (crashed["running"], crashed.abandoned) == (1, 1)


def test_overview_of_an_empty_queue_and_of_later_tasks(db: Database) -> None:
    assert db.session().overview(Letter) == QueueOverview(dict.fromkeys(Status, 0))
    db.insert(Letter, [{"recipient": "ada", "available_at": TOMORROW}])  # no claim takes it before that time
    found = db.session().overview(Letter)
    assert found == QueueOverview({**dict.fromkeys(Status, 0), "scheduled": 1})


@pytest.mark.parametrize("model", [Task, Mail])  # without an index of finished tasks, and with one
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
    unfinished = {"scheduled", "retryable", "running", "abandoned", "overdue", "claimable", "unfinished", "total"}
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


def test_early_rows_count_towards_the_cap(db: Database) -> None:
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
        assert sum(bucket.completed for bucket in session.timeline(model, since=10 * DAY)) == 0
    assert found == QueueOverview({**dict.fromkeys(Status, 0), "completed": 2})
    assert (some.total, some.finished_last_hour, some.claimable) == (1, 0, 0)
    with db.begin() as session:
        assert session.claim(model) is None
        assert session.retry(model) == session.cancel(model) == session.rescue(model) == 0


def test_errors_of_the_last_failures(db: Database) -> None:
    for number, text in enumerate("aabbc"):
        db.insert(Task, [{"id": number + 1, "status": "discarded", "error": text, "finished_at": PAST}])
    with db.begin() as session:
        last, everything = session.errors(Task, cap=3), session.errors(Task, cap=6)
        assert session.errors(Task, cap=None) == everything
    assert [(group.message, group.tasks, group.example, group.capped) for group in last] == [
        ("b", 2, (4,), {"tasks", "unfinished", "retriable"}),
        ("c", 1, (5,), {"tasks", "unfinished", "retriable"}),
    ]
    assert [(group.message, group.tasks, group.capped) for group in everything] == [
        ("a", 2, set()),
        ("b", 2, set()),
        ("c", 1, set()),
    ]


@pytest.mark.parametrize("model", [Task, Mail])  # without an index of finished tasks, and with one
def test_a_criterion_is_evaluated_for_a_limited_number_of_rows(sync_db: Database, model: Any) -> None:
    now = clock(sync_db)
    for number in range(10, 0, -1):
        failed = finished(now - number * SECOND, status="discarded", error=f"odd {number % 2}")
        sync_db.insert(model, [failed])
    sync_db.insert(model, [{"status": "scheduled", "available_at": TOMORROW, "error": "odd 1"}] * 2)
    odd = model.error == "odd 1"
    with sync_db.begin() as session:
        some, all_of_them = session.stats(model, odd, scan=4), session.stats(model, odd, scan=99)
        last, everything = session.errors(model, cap=4), session.errors(model, cap=99)
        looked_over = session.overview(model, odd, scan=4)
    assert (all_of_them["discarded"], all_of_them["scheduled"], all_of_them.capped) == (5, 2, frozenset())
    assert 1 <= some["discarded"] <= 2
    assert "discarded" in some.capped
    assert (some["scheduled"], "scheduled" in some.capped) == (2, False)
    assert (looked_over.counts, looked_over.capped - some.capped) == (
        some.counts,
        {"finished_last_minute", "finished_last_hour"},
    )
    assert [(group.message, group.tasks, group.capped) for group in everything] == [
        ("odd 1", 7, set()),
        ("odd 0", 5, set()),
    ]
    assert all(group.capped == {"tasks", "unfinished", "retriable"} for group in last)
    assert sum(group.tasks for group in last) < 12


@pytest.mark.parametrize("call", ["stats", "overview", "errors"])
def test_a_cap_is_a_positive_number(call: str) -> None:
    with QueueSession() as session, pytest.raises(ArgumentError, match="cap"):
        getattr(session, call)(Task, cap=0)


def test_stats_by_a_column(db: Database) -> None:
    db.insert(Mail, [{"topic": topic} for topic in ("news", "billing", "news")])
    db.insert(Mail, [{"topic": "news", "status": "running", "attempt": 1, "available_at": PAST, "claimed_at": PAST}])
    db.insert(Mail, [{"topic": "news", "status": "running", "attempt": 1, "available_at": TOMORROW}])
    with db.begin() as session:
        found = session.stats_by(Mail, Mail.topic)
        running = session.stats_by(Mail, Mail.topic, Mail.status == "running")
        assert session.stats_by(Letter, Letter.recipient) == {}
    assert list(found) == ["billing", "news"]
    assert (found["billing"]["available"], found["billing"].total, found["billing"].abandoned) == (1, 1, 0)
    assert (found["news"]["available"], found["news"]["running"], found["news"].abandoned) == (2, 2, 1)
    assert found["news"].counts == {**dict.fromkeys(Status, 0), "available": 2, "running": 2}
    assert (list(running), running["news"].total) == (["news"], 2)


def test_stats_by_an_expression_and_by_nothing(db: Database) -> None:
    db.insert(Task, [{"number": number} for number in range(5)])
    db.insert(Mail, [{"account_id": None}])
    with db.begin() as session:
        odd = session.stats_by(Task, func.coalesce(Task.number % 2, 7))
        assert {value: stats.total for value, stats in odd.items()} == {0: 3, 1: 2}
        assert session.stats_by(Mail, Mail.account_id)[None]["available"] == 1


def test_renamed_columns(db: Database) -> None:
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
    db.committed.add_all([Notice(**finished(now)), Reminder(about="milk", **finished(now)), Reminder(about="tea")])
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
