"""Rows that other programs insert by plain SQL, in any time zone: none starts before its time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import column, insert, select, table, update

from sqlqueue.operations.upkeep import poll, postpone
from tests.support.harness import Database
from tests.support.models import Mail, Report, Seat, Task, Ticket
from tests.support.polling import next_due
from tests.support.rows import PAST, TOMORROW, clock, ids, load_all, row, waited, without_waiting, zones
from tests.support.workers import eventually, statuses

pytestmark = pytest.mark.sync_only

HOUR = timedelta(hours=1)
OWN: Mapping[Any, Mapping[str, Any]] = {
    Task: {"name": "", "number": 0},
    Mail: {"topic": "a", "subject": ""},
    Seat: {"line": "a", "number": 1},
    Ticket: {"severity": 0},
    Report: {},
}
"""The columns without a default in the table."""


def by_plain_sql(db: Database, model: Any, **given: Any) -> None:
    """Insert a row as another program would, with the table's defaults where possible."""
    row = {**OWN[model], **given}
    bare = table(model.__tablename__, *(column(name, model.__table__.c[name].type) for name in row))
    with db.begin() as actor:
        actor.execute(insert(bare).values(row))


def test_a_task_inserted_without_a_time_is_available_now(sync_db: Database) -> None:
    for number, db in enumerate(zones(sync_db)):
        before = clock(sync_db) - sync_db.case.time_resolution
        by_plain_sql(db, Task, name=f"now {number}")
        after = clock(sync_db)
        with db.begin() as actor:
            task = actor.claim(Task)
            assert (task.name, task.attempt) == (f"now {number}", 1)
            assert before <= task.created_at <= after


def test_defaults_are_as_fine_as_the_clock(sync_db: Database) -> None:
    for number in range(12):
        by_plain_sql(sync_db, Task, name=str(number))
    with sync_db.engine.connect() as connection:
        rows = connection.execute(select(Task.available_at, Task.created_at)).all()
    assert all(available_at == created_at for available_at, created_at in rows)
    assert any(each.microsecond for each, _ in rows)


def test_a_task_inserted_for_later_is_not_claimed_before(sync_db: Database) -> None:
    now = clock(sync_db)
    for db in zones(sync_db):
        for hours in (-9, -5, -1, 1, 5, 9):
            by_plain_sql(db, Task, number=hours, available_at=now + hours * HOUR)
            db.committed.enqueue(Task(number=hours, available_at=now + hours * HOUR))
        for claimer in zones(sync_db):
            with claimer.session() as actor:
                assert sorted(task.number for task in actor.claim_many(Task, limit=20)) == [-9, -9, -5, -5, -1, -1]
        with sync_db.begin() as actor:
            actor.query(Task).delete()


@pytest.mark.parametrize("model", [Mail, Seat, Ticket], ids=lambda model: model.__name__)
def test_early_rows_are_never_claimed(sync_db: Database, model: Any) -> None:
    by_plain_sql(sync_db, model, available_at=TOMORROW)
    for where in ([], [Mail.topic == "a"] if model is Mail else [model.priority == 0]):
        for arguments in ({}, {"lease": None}):
            assert sync_db.committed.claim(model, *where, **arguments) is None
            assert sync_db.committed.claim_many(model, *where, limit=100, **arguments) == []
        assert sync_db.committed.consume(model, *where) is None


def test_an_early_row_is_not_claimed_by_its_key(sync_db: Database) -> None:
    by_plain_sql(sync_db, Task, id=7, name="later", available_at=TOMORROW)
    assert sync_db.committed.claim(Task, Task.id == 7) is None


def test_an_early_row_is_claimed_once_its_time_has_come(db: Database) -> None:
    moment = clock(db) + timedelta(seconds=0.4)
    by_plain_sql(db, Task, name="soon", available_at=moment)
    task = eventually(lambda: db.committed.claim(Task))
    assert task.claimed_at >= moment


@pytest.mark.requires("locks_rows")
@pytest.mark.parametrize("model", [Task, Ticket], ids=lambda model: model.__name__)
def test_a_claim_does_not_lock_rows_that_it_skips(sync_db: Database, model: Any) -> None:
    first: dict[str, Any] = {"priority": -1} if model is Task else {"severity": 9}
    sync_db.insert(model, [{**first, "available_at": TOMORROW}] * 3)
    sync_db.insert(model, [{"available_at": PAST}] * 2)
    sync_db.insert(model, [{"available_at": TOMORROW}] * 3)
    holder, other = sync_db.session(), sync_db.session()
    assert len(holder.claim_many(model, limit=5)) == 2
    waiting = other.scalars(select(model.id).where(model.available_at > PAST, model.status == "available")).all()
    other.rollback()
    assert len(waiting) == 6
    for key in waiting:
        sooner = update(model.__table__).where(model.id == key).values(available_at=PAST)
        without_waiting(holder, lambda sooner=sooner: other.execute(sooner))
        other.commit()
    assert ids(other.claim_many(model, limit=9)) == set(waiting)
    holder.rollback()


def test_next_due_returns_the_time_of_the_next_task(db: Database) -> None:
    by_plain_sql(db, Task, name="later", available_at=clock(db) + 2 * HOUR)
    db.insert(Task, [{"status": "scheduled", "available_at": clock(db) + 3 * HOUR}])
    for each in zones(db):
        due = each.session().run(next_due, Task)
        assert HOUR < due <= 2 * HOUR
        assert each.session().run(poll, Task).early
    by_plain_sql(db, Task, name="now")
    seen = db.session().run(poll, Task)
    assert (seen.due, seen.early) == (timedelta(0), False)


def test_statistics_count_waiting_tasks(sync_db: Database) -> None:
    for number, db in enumerate(zones(sync_db), 1):
        by_plain_sql(db, Mail, topic="a", available_at=TOMORROW)
        by_plain_sql(db, Mail, topic="a")
        for reader in zones(sync_db):
            with reader.begin() as actor:
                found, by_topic = actor.overview(Mail), actor.stats_by(Mail, Mail.topic)["a"]
                counts = actor.stats(Mail).counts
            assert (found["available"], found["scheduled"]) == (number, number)
            assert counts == found.counts == by_topic.counts
            assert (found.claimable, found.overdue) == (number, 0)
            assert found.oldest_claimable < timedelta(minutes=10)


def postponed(db: Database, *where: Any, limit: int = 1_000) -> int:
    return db.committed.run(postpone, Task, *where, limit=limit)


def test_postpone(db: Database) -> None:
    for number in range(3):
        by_plain_sql(db, Task, name="later", number=number, available_at=TOMORROW)
    by_plain_sql(db, Task, name="due", number=9, available_at=PAST)
    by_plain_sql(db, Task, name="running", status="running", available_at=TOMORROW)
    assert postponed(db, Task.number == 1) == 1
    assert postponed(db, limit=2) == 1  # one of the first two is due
    assert postponed(db) == 1
    assert postponed(db) == 0
    assert sorted(statuses(db).values()) == ["available", "running", "scheduled", "scheduled", "scheduled"]
    with db.begin() as actor:
        assert set(actor.scalars(select(Task.available_at).where(Task.status == "scheduled"))) == {TOMORROW}


@pytest.mark.requires("locks_rows")
def test_postpone_skips_locked_rows(db: Database) -> None:
    for _ in range(3):
        by_plain_sql(db, Task, name="later", available_at=TOMORROW)
    holder = db.session()
    holder.scalars(select(Task).limit(1).with_for_update()).all()
    late, found = waited(holder, lambda: postponed(db), 5)
    assert (late, found) == (False, 2)
    holder.rollback()


@pytest.mark.parametrize("lease", [HOUR, None], ids=["lease", "lock"])
def test_a_schedule_alone_is_planned_by_the_first_claim(sync_db: Database, lease: timedelta | None) -> None:
    for number, db in enumerate(zones(sync_db), 1):
        by_plain_sql(db, Report, id=number, schedule="PT1H")
        by_plain_sql(db, Report, id=number + 10, schedule="PT1H", available_at=PAST)
        assert (overview(db)["scheduled"], overview(db).claimable) == (1 + 2 * (number - 1), 1)
        with db.begin() as actor:
            task = actor.claim(Report, lease=lease)
            assert task.id == number + 10
            assert actor.claim(Report, lease=lease) is None
            actor.complete(task)
        with sync_db.begin() as actor:
            planned = actor.scalars(select(Report).where(Report.id == number)).one()
        assert planned.status == "scheduled"
        assert planned.available_at == planned.created_at + HOUR
    assert timedelta(0) < sync_db.committed.run(next_due, Report) <= HOUR


def overview(db: Database) -> Any:
    return db.committed.overview(Report)


def test_a_plain_insert_with_a_schedule_runs_and_recurs(db: Database) -> None:
    by_plain_sql(db, Report, schedule="PT1S")
    task = eventually(lambda: db.committed.claim(Report))
    assert task.claimed_at >= task.scheduled_for == task.created_at + timedelta(seconds=1)
    db.committed.complete(task)
    assert row(db, task)["status"] == "scheduled"


def test_a_schedule_with_a_time_begins_at_that_time(db: Database) -> None:
    by_plain_sql(db, Report, schedule="PT1H", available_at=TOMORROW)
    assert db.committed.claim(Report) is None
    assert db.committed.run(postpone, Report) == 1
    assert [task.available_at for task in load_all(db, Report)] == [TOMORROW]
