"""What a worker leaves alone: functions and schedules that it does not know, and rows that it cannot read."""

from __future__ import annotations

import logging
import re
import sys
import time
import zoneinfo
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import delete, event, insert, select, text, update

from sqlqueue import ArgumentError, Claim, Cron, QueueSession, check, claim_of, current_job, utcnow
from sqlqueue.operations.upkeep import poll
from sqlqueue.queue import schedules
from sqlqueue.worker import fetcher
from tests.suite.limited import visits
from tests.suite.test_unreadable_rows import seen, signs, waits
from tests.support.harness import Database
from tests.support.models import Chore, Job, Ledger, Ping, Report, Sign, Spool, Task, Visit
from tests.support.polling import next_due
from tests.support.rows import PAST, TOMORROW, clock, count, row_of, rows
from tests.support.workers import (
    AT_ONCE,
    LEASE,
    LONG,
    Running,
    Workers,
    all_are,
    eventually,
    nothing,
    of_kind,
    statuses,
    with_session,
    without_session,
)

CONDITIONS = ("ready", "scheduled", "retryable", "expired")


def jobs(db: Database, *criteria: Any) -> list[Any]:
    with db.engine.connect() as connection:
        return list(connection.execute(select(Job.__table__).where(*criteria).order_by(Job.id)))


def calls_of(names: str, number: int, *conditions: str, **values: Any) -> list[dict[str, Any]]:
    made = rows(number, *conditions)
    bare = ({name: value for name, value in row.items() if name in Job.__table__.columns} for row in made)
    own = {"priority": 0, "arguments": {}, **values}
    return [{**row, "task": names[n % len(names)], **own} for n, row in enumerate(bare)]


def test_ready_tasks_without_a_key_are_none_of_a_worker_of_some_keys(sync_db: Database) -> None:
    hour = timedelta(hours=1)
    visits(sync_db, None)
    visits(sync_db, "a", status="scheduled", available_at=clock(sync_db) + hour)
    assert timedelta(0) < sync_db.committed.run(next_due, Visit, Visit.limit_key.in_(["a", "b"])) <= hour


def test_unknown_calls_stay_unchanged_and_in_place(db: Database, workers: Workers) -> None:
    called: list[str] = []
    worker, other = workers.make(), workers.make()
    for name in "ac":
        worker.task(Job, name=name)(of_kind(db, lambda name=name: called.append(name)))
    other.task(Job, name="b")(of_kind(db, lambda: called.append("b")))
    db.insert(Job, [*calls_of("b", 8, *CONDITIONS, priority=-1), *calls_of("ac", 8, *CONDITIONS)])
    untouched = jobs(db, Job.task == "b")
    running = workers.start(worker)
    eventually(lambda: count(db, Job, Job.status == "completed") == 8)
    db.insert(Job, calls_of("a", 2))
    eventually(lambda: count(db, Job, Job.status == "completed") == 10)
    assert jobs(db, Job.task == "b") == untouched
    running.stop()
    assert "b" not in called
    workers.start(other)
    eventually(lambda: set(statuses(db, Job).values()) == {"completed"})
    assert called.count("b") == 8


def test_maintenance_leaves_unknown_calls_alone(db: Database) -> None:
    db.insert(Job, [*calls_of("b", 4, "ready", "scheduled", priority=-1), *calls_of("ac", 4, "retryable")])
    untouched = jobs(db, Job.task == "b")
    known = Job.task.in_(["a", "c"])
    with db.begin() as session:
        assert session.run(next_due, Job, known) == timedelta(0)
    with db.begin() as session:
        assert session.promote(Job, known) == 4
    with db.begin() as session:
        assert session.run(next_due, Job, Job.task.in_(["x", "y"])) is None
    assert jobs(db, Job.task == "b") == untouched


def test_old_and_new_workers_side_by_side(sync_db: Database, workers: Workers) -> None:
    """No attempt is lost during a rolling deployment, and nothing is discarded."""

    def start(*functions: str) -> Running:
        def write_down(session: QueueSession) -> None:
            key = current_job().claim.identity[0]
            session.add(Ledger(task_id=key, worker=functions[-1]))

        worker = workers.make(name=functions[-1])
        for name in functions:
            worker.task(Job, name=name, concurrency=2)(write_down)
        return workers.start(worker)

    def enqueue(*names: str) -> None:
        sync_db.insert(Job, [{"task": name, "arguments": {}} for name in names * 10])

    def done(*criteria: Any) -> int:
        return count(sync_db, Job, Job.status == "completed", *criteria)

    old = start("both", "old")
    enqueue("both", "new")
    eventually(lambda: done(Job.task == "both") == 10)
    assert not done(Job.task == "new")
    new = start("both", "new")
    for _ in range(4):
        enqueue("old", "both", "new")
        time.sleep(0.05)
    eventually(lambda: done() == 140)
    old.stop()
    enqueue("both", "new")
    eventually(lambda: done() == 160)
    new.stop()
    assert count(sync_db, Job, Job.attempt == 1, Job.error.is_(None)) == 160
    with sync_db.engine.connect() as connection:
        each = connection.execute(select(Job.task, Ledger.worker).join(Ledger, Ledger.task_id == Job.id)).all()
    assert len(each) == 160
    assert {worker for task, worker in each if task != "both"} == {"old", "new"}
    assert all(task in ("both", worker) for task, worker in each)


def test_functions_that_no_worker_takes_are_shown(db: Database) -> None:
    day = timedelta(days=1)
    db.insert(Job, calls_of("a", 4, "ready"))
    db.insert(Job, calls_of("b", 4, "retryable"))
    db.insert(Job, calls_of("c", 4, "ready", available_at=clock(db) - timedelta(seconds=1)))
    db.insert(Job, calls_of("d", 4, "scheduled", available_at=TOMORROW))
    db.insert(Job, calls_of("e", 4, "ready"))
    with db.begin() as session:
        assert session.claim(Job, Job.task == "e") is not None
    with db.begin() as session:
        for found in (session.overview(Job).unserved_functions, session.stats(Job).unserved_functions):
            assert found.keys() == {"a", "b"}
            assert all(age > day for age in found.values())
        assert session.stats(Job, Job.task == "b").unserved_functions.keys() == {"b"}


@pytest.mark.one_engine
def test_a_worker_warns_at_its_start_of_functions_that_it_has_not_registered(
    sync_db: Database, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    sync_db.insert(Job, calls_of("b", 4, "scheduled", available_at=TOMORROW))
    worker = workers.make()
    worker.task(Job, name="a")(of_kind(sync_db, lambda: None))
    workers.start(worker)
    said = "job has unfinished calls of functions that this worker has not registered: b; register what replaces"
    eventually(lambda: any(record.getMessage().startswith(said) for record in caplog.records))


@pytest.mark.one_engine
def test_a_worker_warns_of_them_once(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("sqlqueue.worker.registration.REPORT_EVERY", timedelta(seconds=0.1))
    db.insert(Job, calls_of("b", 4, "ready"))
    worker = workers.make()
    worker.task(Job, name="a")(of_kind(db, lambda: None))
    workers.start(worker)

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if "no worker seems to have" in each.getMessage()]

    eventually(warnings)
    time.sleep(0.5)
    (only,) = warnings()
    assert "job: no worker seems to have the function b registered" in only


# -- a host that lacks a time zone or a package leaves recurring tasks to others --------------------------------------


NIGHTLY = "0 3 * * * Europe/Berlin"
FIRST = {"status": "scheduled", "available_at": PAST}


def without_cronsim(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "cronsim", None)


def without_zones(patch: pytest.MonkeyPatch) -> None:
    zoneinfo.reset_tzpath(to=[])
    patch.setitem(sys.modules, "tzdata", None)


@pytest.fixture
def poor(request: pytest.FixtureRequest) -> Iterator[pytest.MonkeyPatch]:
    """A host without time zones, or without cronsim if a parameter says so, until it is undone."""
    with pytest.MonkeyPatch.context() as patch:
        _forget()
        getattr(request, "param", without_zones)(patch)
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


@pytest.mark.parametrize(
    ("poor", "model"),
    [(without_cronsim, Report), (without_zones, Report), (without_zones, Ping), (without_zones, Chore)],
    ids=["cronsim", "zones", "zones-deleted", "zones-limited"],
    indirect=["poor"],
)
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


@pytest.mark.one_engine
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


@pytest.mark.one_engine
def test_an_unknown_zone_alone_does_not_keep_a_worker_from_being_ready(db: Database, workers: Workers) -> None:
    task = stored(db, Report, **FIRST | {"schedule": "0 3 * * * Mars/Olympus"})
    worker = workers.serve(Report, without_session(db)).worker
    eventually(lambda: row_of(db, task)["scheduled_for"] == PAST)
    health = worker.health()
    assert health is not None
    assert health.ready
    assert list(health.unknown_schedules) == ["0 3 * * * Mars/Olympus"]
    _forget()


@pytest.mark.one_engine
def test_check_finds_unknown_and_stopped_schedules(sync_db: Database, poor: pytest.MonkeyPatch) -> None:
    stored(sync_db, Report, **FIRST)
    sync_db.insert(Report, [{"id": 2, "status": "completed", "schedule": "now and then", "finished_at": PAST}])
    with sync_db.engine.connect() as connection:
        found = {finding.code: finding.message for finding in check(connection, Report)}
    assert repr(NIGHTLY) in found["unknown-schedule"]
    assert "now and then" in found["stopped-schedule"]


# -- rows that cannot be read, whatever the reason --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["lease", "lock", "at-most-once"])
def test_a_worker_goes_on(sync_db: Database, workers: Workers, mode: str) -> None:
    signs(sync_db, "dove", "rose", "lion", "rose")
    handler = with_session(sync_db, nothing) if mode == "lock" else without_session(sync_db)
    worker = workers.serve(Sign, handler, mode=mode).worker
    eventually(lambda: [row.status for row in seen(sync_db).values()] == ["scheduled", "completed"] * 2)
    rows = seen(sync_db)
    assert waits(sync_db, rows[1])
    assert waits(sync_db, rows[3])
    sync_db.insert(Sign, [{"id": 5}])
    eventually(lambda: seen(sync_db)[5].status == "completed")
    assert worker.health().counts["unreadable"] == 2


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_only_unreadable_rows(db: Database, workers: Workers, mode: str) -> None:
    signs(db, "dove")
    workers.serve(Sign, with_session(db, nothing) if mode == "lock" else without_session(db), mode=mode)
    eventually(lambda: seen(db)[1].status == "scheduled")


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock", "at-most-once"])
def test_a_worker_claims_at_once_after_rows_that_cannot_be_read(
    sync_db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Its claims return early if there are many of them."""
    monkeypatch.setattr(sys.modules["sqlqueue.operations.claiming"], "PATIENCE", 0)
    monkeypatch.setattr(fetcher, "FIRST_LOOK", LONG.total_seconds())
    signs(sync_db, *["dove"] * 12, "rose")
    handler = with_session(sync_db, nothing) if mode == "lock" else without_session(sync_db)
    workers.serve(Sign, handler, poll=LONG, mode=mode, concurrency=1)
    eventually(lambda: seen(sync_db)[13].status == "completed", AT_ONCE)


def insert_odd_times(db: Database, column: str, status: str, *some: str) -> int:
    """Insert a task for each, or for some, of the times that the engine has and Python has not; return how many."""
    with db.engine.connect() as connection:
        if db.case.odd_mode:
            connection.execute(text(db.case.odd_mode))
        for moment in some or db.case.odd_times:
            others = ", available_at" if column != "available_at" else ""
            given = f"'{status}', {moment}" + (f", '{PAST:%Y-%m-%d %H:%M:%S}'" if others else "")
            connection.execute(
                text(f"INSERT INTO task (name, number, status, {column}{others}) VALUES ('', 0, {given})")
            )
        connection.commit()
        connection.invalidate()
    return len(db.case.odd_times)


def test_a_worker_starts_and_goes_on(sync_db: Database, workers: Workers) -> None:
    for column, status in product(("available_at", "created_at"), ("available", "scheduled")):
        assert insert_odd_times(sync_db, column, status) >= 2
    odd = statuses(sync_db).keys()
    worker = workers.make()
    worker.handler(Task)(without_session(sync_db))
    worker.handler(Spool)(without_session(sync_db))
    running = workers.start(worker)
    sync_db.insert(Task, [{"name": "readable"}])
    sync_db.insert(Spool, [{"id": 1}])
    (readable,) = statuses(sync_db).keys() - odd
    eventually(lambda: statuses(sync_db)[readable] == "completed" and not statuses(sync_db, Spool))
    assert running.error is None


@pytest.mark.parametrize("status", ["available", "scheduled"])
def test_polls(sync_db: Database, status: str) -> None:
    for moment in sync_db.case.odd_times:
        insert_odd_times(sync_db, "available_at", status, moment)
        with sync_db.begin() as actor:
            assert actor.run(poll, Task).due is not None
        with sync_db.engine.begin() as connection:
            connection.execute(delete(Task))
    insert_odd_times(sync_db, "available_at", status)
    with sync_db.begin() as actor:
        assert actor.run(poll, Task).due == timedelta(0)
    with sync_db.begin() as actor:
        actor.complete(actor.claim_many(Task, limit=100))
    with sync_db.begin() as actor:
        left = actor.run(poll, Task).due
        assert left is None or left > timedelta(days=10_000)


@pytest.mark.one_engine
def test_claims_that_always_fail_show(sync_db: Database, workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """A worker is not ready, and a metric names the queue, until claims succeed again."""
    sync_db.insert(Task, [{"id": 1}])
    engine = sync_db.variant(pool_size=20)
    broken = True

    def fail(*arguments: Any) -> None:
        if broken and re.search("UPDATE `?task`? ", arguments[2]):
            raise ValueError("broken")

    event.listen(engine.session_engine, "before_cursor_execute", fail)
    worker = workers.make(engine=engine)
    worker.handler(Task, lease=LEASE)(without_session(sync_db))
    worker.handler(Spool)(without_session(sync_db))
    with caplog.at_level(logging.CRITICAL):
        workers.start(worker)
        eventually(lambda: (health := worker.health()) and not health.ready and health.alive)
        assert set(worker.health().failing_seconds) == {"task"}
        found = {
            sample.labels["queue"]: sample.value
            for family in text_string_to_metric_families(worker.metrics().decode())
            for sample in family.samples
            if sample.name == "sqlqueue_claims_failing_seconds"
        }
        assert found["task"] > 0
        assert found["spool"] == 0
        broken = False
        eventually(all_are(sync_db, "completed"))
        eventually(lambda: worker.health().ready)
        assert not worker.health().failing_seconds
