"""Rows that exist run again: by `rerun`, and by enqueueing their instances."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm.attributes import instance_state

from sqlqueue import ArgumentError, ClaimLostError, DuplicateTaskError, Every, Reactivated, Status
from tests.support.harness import Database
from tests.support.models import Chore, CreditNote, Film, Listing, Order, Report, Spool, Task, Visit
from tests.support.rows import PAST, TOMORROW, clock, count

pytestmark = pytest.mark.sync_only

FINAL: tuple[Any, ...] = ("completed", "cancelled", "discarded")
ENDED = {"finished_at": PAST, "available_at": PAST, "attempt": 3, "max_attempts": 3}
ON_CONFLICT: tuple[Any, ...] = ("ignore", "replace", "rerun")


def row(db: Database, model: Any = Task, key: Any = 1) -> Any:
    with db.engine.connect() as connection:
        table = model.__table__
        return connection.execute(select(table).where(table.c.id == key)).one()


# -- rerun -------------------------------------------------------------------------------------------------------------


def test_final_rows_run_again_and_no_others(db: Database) -> None:
    for number, status in enumerate(Status, 1):
        ended = ENDED if status in FINAL else {"available_at": TOMORROW, "attempt": 1, "max_attempts": 3}
        db.insert(Task, [{"id": number, "status": status.value, "name": status.value, "error": "no", **ended}])
    before = {status: row(db, key=number) for number, status in enumerate(Status, 1)}
    assert db.committed.rerun(Task) == 3
    for number, status in enumerate(Status, 1):
        again = row(db, key=number)
        if status not in FINAL:
            assert again == before[status]
            continue
        assert (again.status, again.attempt, again.max_attempts, again.finished_at) == ("available", 3, 6, None)
        assert PAST < again.available_at <= clock(db)
    assert db.committed.rerun(Task) == 0


def test_rows_from_before_the_table_was_a_queue(db: Database) -> None:
    adopted = {"queue_status": "completed", "available_at": TOMORROW, "finished_at": None}
    db.insert(Order, [{"id": n, "status": "paid", **adopted} for n in (1, 2)])
    assert db.committed.rerun(Order, Order.id == 2) == 1
    with db.begin() as actor:
        order = actor.claim(Order)
        assert (order.id, order.status, order.attempt) == (2, "paid", 1)


def test_subclasses(db: Database) -> None:
    db.committed.add_all([CreditNote(amount=n) for n in (1, 2)])
    with db.begin() as actor:
        actor.complete(actor.claim_many(CreditNote, limit=2))
        assert actor.rerun(CreditNote, CreditNote.amount == 2) == 1
        assert actor.claim(CreditNote).amount == 2


def test_a_pipeline_starts_at_its_first_stage(db: Database) -> None:
    dead = {"stage": "print", "attempts_before": 2, **ENDED}
    db.insert(Film, [{"id": 1, "status": "completed", **dead}, {"id": 2, "status": "discarded", **dead}])
    assert db.committed.rerun(Film) == 2
    for key in (1, 2):
        again = row(db, Film, key)
        assert (again.stage, again.attempts_before, again.max_attempts) == ("cut", 3, 5)


def test_a_recurring_task_gets_its_next_run(db: Database) -> None:
    hourly, daily = (str(Every(timedelta(hours=number))) for number in (1, 24))
    ended = {"status": "cancelled", "attempts_before": 1, "scheduled_for": PAST, **ENDED}
    db.insert(Report, [{"id": n, "schedule": text, **ended} for n, text in enumerate((hourly, daily, hourly, None), 1)])
    before = clock(db)
    assert db.committed.rerun(Report) == 4
    for key, hours in ((1, 1), (2, 24), (3, 1)):
        again = row(db, Report, key)
        assert (again.status, again.attempts_before, again.scheduled_for) == ("scheduled", 3, None)
        due = again.available_at - before
        assert timedelta(0) < due <= timedelta(hours=hours) + timedelta(minutes=5)
    assert row(db, Report, 4).status == "available"


def test_a_claim_from_before_cannot_settle_the_new_run(db: Database) -> None:
    db.insert(Visit, [{"id": 1, "limit_key": "k"}])
    with db.session() as worker, db.session() as actor:
        old = worker.claim(Visit)
        worker.commit()
        assert actor.cancel(Visit) == 1
        assert actor.rerun(Visit) == 1
        actor.commit()
        with pytest.raises(ClaimLostError):
            worker.complete(old)
        worker.rollback()
        assert worker.claim(Visit).attempt == 2


def test_rerun_of_a_task_that_this_transaction_has_completed(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as actor:
        task = actor.claim(Task)
        actor.complete(task)
        assert actor.rerun(Task) == 1
        again = actor.claim(Task)
        assert (again is task, again.attempt) == (True, 2)
        actor.complete(again)
    assert row(db).status == "completed"


# -- keys that are taken -----------------------------------------------------------------------------------------------

CALLS: dict[str, Any] = {
    "retry": lambda actor, **limit: actor.retry(Listing, **limit),
    "rerun": lambda actor, **limit: actor.rerun(Listing, **limit),
}


@pytest.mark.every_engine
@pytest.mark.parametrize("limit", [{}, {"limit": 500}], ids=["all", "limited"])
@pytest.mark.parametrize("call", CALLS)
def test_a_taken_key_leaves_its_task_and_no_other(
    db: Database, call: str, limit: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Of 301 tasks, two want a key that an unfinished task has; one wants the key that another wants, too."""
    dead = {"status": "discarded", **ENDED}
    db.insert(Listing, [{"id": n, "former_key": f"k{n % 300}", **dead} for n in range(1, 302)])
    db.insert(Listing, [{"id": 400 + n, "unique_key": f"k{n}"} for n in (7, 8)])
    with db.begin() as actor, caplog.at_level(logging.WARNING, "sqlqueue"):
        done = CALLS[call](actor, **limit)
        assert (int(done), done.taken, type(done)) == (298, 3, Reactivated)
    assert "left listing " in caplog.text
    assert "and 0 more" not in caplog.text
    assert "another task has the same unique_key" in caplog.text
    assert count(db, Listing, Listing.status == "available") == 300
    assert count(db, Listing, Listing.status == "discarded", Listing.former_key.in_(["k1", "k7", "k8"])) == 3
    with db.begin() as actor:
        assert CALLS[call](actor, **limit) == 0


@pytest.mark.parametrize("call", CALLS)
def test_with_a_limit_the_loop_goes_on_behind_the_tasks_that_stay(db: Database, call: str) -> None:
    dead = {"status": "discarded", **ENDED}
    db.insert(Listing, [{"id": 1, "unique_key": "taken"}])
    db.insert(Listing, [{"id": n, "former_key": "taken" if n < 8 else f"k{n}", **dead} for n in range(2, 12)])
    done = []
    with db.session() as actor:
        while number := CALLS[call](actor, limit=2):
            actor.commit()
            done.append(int(number))
    assert done == [2, 2]


def test_recurring_tasks_with_keys(db: Database) -> None:
    """Each schedule is a statement of its own; one of them meets a taken key."""
    ended = {"status": "cancelled", "attempts_before": 0, **ENDED}
    given = [("a", "PT1H"), ("b", "PT2H"), ("taken", "PT2H"), ("c", None), ("taken too", None)]
    for number, (key, schedule) in enumerate(given, 1):
        db.insert(Chore, [{"id": number, "task": "t", "former_key": key, "schedule": schedule, **ended}])
    for number, key in enumerate(("taken", "taken too"), 11):
        db.insert(Chore, [{"id": number, "task": "t", "unique_key": key}])
    with db.begin() as actor:
        done = actor.rerun(Chore)
        assert (int(done), done.taken) == (3, 2)
    states = ["scheduled", "scheduled", "cancelled", "available", "cancelled"]
    assert [row(db, Chore, number).status for number in range(1, 6)] == states


def test_what_the_transaction_did_before_stays(db: Database) -> None:
    dead = {"status": "discarded", **ENDED}
    db.insert(Listing, [{"id": 1, "former_key": "a", **dead}])
    db.insert(Listing, [{"id": 2, "unique_key": "a"}])
    with db.begin() as actor:
        actor.add(Task(id=1))
        assert actor.retry(Listing, Listing.id == 1).taken == 1
    assert count(db, Task) == 1


# -- enqueue of an instance that is stored -----------------------------------------------------------------------------


@pytest.mark.parametrize("on_conflict", ON_CONFLICT)
@pytest.mark.parametrize("detached", [False, True], ids=["persistent", "detached"])
def test_a_stored_instance_acts_by_its_key(db: Database, on_conflict: str, detached: bool) -> None:
    ended = {"name": "mine", "error": "no", **ENDED}
    db.insert(Task, [{"id": n, "status": status, **ended} for n, status in enumerate(FINAL, 1)])
    stays = on_conflict == "ignore"
    with db.session() as actor:
        tasks = actor.find(Task)
        for task in tasks if detached else ():
            actor.expunge(task)
        actor.enqueue(tasks, on_conflict=on_conflict)
        for task, status in () if detached else zip(tasks, FINAL, strict=True):
            assert task.status == (status if stays else "available")
        actor.commit()
    for key, status in enumerate(FINAL, 1):
        again = row(db, key=key)
        expected = (status, 3, 3) if stays else ("available", 3, 6)
        assert (again.status, again.attempt, again.max_attempts, again.name) == (*expected, "mine")
        assert (again.finished_at is None) != stays


@pytest.mark.parametrize("detached", [False, True], ids=["persistent", "detached"])
def test_what_was_set_since_it_was_loaded_is_stored(db: Database, detached: bool) -> None:
    db.insert(Task, [{"id": n, "status": "completed", "name": "old", **ENDED} for n in (1, 2)])
    with db.session() as actor:
        tasks = [actor.get_one(Task, key) for key in (1, 2)]
        actor.commit()  # MariaDB changes no row that is newer than the transaction's snapshot
        for task in tasks if detached else ():
            actor.expunge(task)
        db_rename(db, "elsewhere")
        tasks[0].number, tasks[1].available_at = 5, TOMORROW
        actor.enqueue(tasks, on_conflict="replace")
        actor.commit()
    first, second = row(db), row(db, key=2)
    assert (first.status, first.number, first.name) == ("available", 5, "elsewhere")
    assert (second.status, second.number, second.name) == ("scheduled", 0, "elsewhere")
    assert second.available_at == TOMORROW


def db_rename(db: Database, name: str) -> None:
    with db.engine.begin() as connection:
        connection.execute(Task.__table__.update().values(name=name))


def test_a_delay(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "completed", **ENDED}])
    with db.begin() as actor:
        actor.enqueue(actor.get_one(Task, 1), on_conflict="replace", delay=timedelta(hours=1))
    assert row(db).status == "scheduled"
    assert row(db).available_at > clock(db) + timedelta(minutes=50)


@pytest.mark.parametrize(("on_conflict", "runs"), [("ignore", 1), ("replace", 1), ("rerun", 2)])
def test_a_running_task(db: Database, on_conflict: str, runs: int) -> None:
    db.insert(Task, [{"id": 1}])
    with db.session() as actor:
        task = actor.claim(Task)
        actor.commit()
        actor.enqueue(task, on_conflict=on_conflict)
        actor.commit()
        assert row(db).status == "running"
        actor.complete(task)
        actor.commit()
        assert (actor.claim(Task) is not None) == (runs == 2)


def test_a_recurring_instance_is_scheduled(db: Database) -> None:
    db.insert(Report, [{"id": 1, "status": "cancelled", "schedule": str(Every(timedelta(hours=1))), **ENDED}])
    with db.begin() as actor:
        actor.enqueue(actor.get_one(Report, 1), on_conflict="rerun")
    assert (row(db, Report).status, row(db, Report).scheduled_for) == ("scheduled", None)


def test_a_key_that_another_task_has_by_now(db: Database) -> None:
    db.insert(Listing, [{"id": 1, "former_key": "a", "status": "completed", **ENDED}])
    with db.begin() as actor:
        actor.enqueue(actor.get_one(Listing, 1), on_conflict="rerun")
    assert (row(db, Listing).unique_key, row(db, Listing).former_key) == ("a", None)
    db.insert(Listing, [{"id": 2, "former_key": "a", "status": "completed", **ENDED}])
    with db.session() as actor, pytest.raises(DuplicateTaskError, match="another unfinished Listing has"):
        actor.enqueue(actor.get_one(Listing, 2), on_conflict="rerun")


@pytest.mark.parametrize("detached", [False, True], ids=["persistent", "detached"])
def test_raise_always_raises(db: Database, detached: bool) -> None:
    db.insert(Task, [{"id": 1, "status": "completed", **ENDED}])
    with db.session() as actor:
        task = actor.get_one(Task, 1)
        if detached:
            actor.expunge(task)
        said = r"^Task with id 1 is stored already: .*rerun"
        with pytest.raises(DuplicateTaskError, match=said) as duplicate:
            actor.enqueue([Task(id=2), task])
        assert duplicate.value.keys == ({"id": 1},)
        actor.commit()
    assert (row(db).status, count(db, Task)) == ("completed", 1)


@pytest.mark.parametrize("on_conflict", ON_CONFLICT)
def test_a_row_that_is_gone(db: Database, on_conflict: str) -> None:
    db.insert(Spool, [{"id": 1}])
    with db.session() as actor:
        task = actor.claim(Spool)
        actor.complete(task)
        actor.commit()
        assert instance_state(task).detached
        with pytest.raises(ArgumentError, match="Spool 1 has no row any more"):
            actor.enqueue(task, on_conflict=on_conflict)


def test_a_version_is_for_new_rows(db: Database) -> None:
    db.insert(Listing, [{"id": 1, "version": 1, "status": "completed", **ENDED}])
    with db.session() as actor:
        listing = actor.get_one(Listing, 1)
        listing.version = 2
        with pytest.raises(ArgumentError, match="version= compares new rows with stored ones"):
            actor.enqueue(listing, on_conflict="rerun", version=Listing.version)


def test_new_and_stored_instances_in_one_call(db: Database) -> None:
    db.insert(Task, [{"id": 1, "status": "completed", **ENDED}])
    with db.begin() as actor:
        actor.enqueue([Task(id=2), actor.get_one(Task, 1), Task(id=3)], on_conflict="rerun")
    assert count(db, Task, Task.status == "available") == 3
