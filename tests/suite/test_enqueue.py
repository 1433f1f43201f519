"""Enqueueing: by session.add(), enqueue(), rows; and what a conflict does."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeVar

import pytest
from sqlalchemy import event, inspect, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from sqlqueue import ArgumentError, DuplicateTaskError, Status
from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.parts.inserts import Inserts
from sqlqueue.sql.clock import utcnow
from tests.support.harness import Database
from tests.support.models import Base, CreditNote, Document, Letter, Order, Parcel, Reminder, Seat, Spool, Task

M = TypeVar("M", bound=Base)
PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2090, 1, 1, tzinfo=UTC)
FINAL = ["completed", "cancelled", "discarded"]


def row(db: Database, model: type[M], key: Any) -> M:
    with Session(db.engine) as session:
        return session.get_one(model, key)


def rows(db: Database, model: type[M]) -> list[M]:
    with Session(db.engine) as session:
        return list(session.scalars(select(model).order_by(*model.__table__.primary_key)))


def now(db: Database) -> datetime:
    with db.engine.connect() as connection:
        return connection.scalars(select(utcnow())).one()


def test_add_is_enough(db: Database) -> None:
    started = now(db)
    with db.begin() as session:
        session.add(Task(id=1))
    task = row(db, Task, 1)
    assert (task.status, task.priority, task.attempt, task.max_attempts) == ("available", 0, 0, 3)
    assert started <= task.available_at <= now(db)
    assert started <= task.created_at <= now(db)
    assert task.claimed_by is task.claimed_at is task.finished_at is task.error is None


def test_with_a_moment_it_is_scheduled(db: Database) -> None:
    with db.begin() as session:
        session.add(Task(id=1, available_at=FUTURE))
        session.enqueue(Task(id=2, available_at=FUTURE.astimezone(timezone(timedelta(hours=5)))))
        session.enqueue(Task, [{"id": 3, "available_at": FUTURE}, {"id": 4}])
        session.add(Task(id=5, available_at=FUTURE, status=Status.AVAILABLE))
        session.add(Task(id=6, status="available"))
    assert [task.status for task in rows(db, Task)] == ["scheduled"] * 3 + ["available"] * 3
    assert {task.available_at for task in rows(db, Task) if task.id not in (4, 6)} == {FUTURE}


def test_instances_become_persistent(db: Database) -> None:
    with db.begin() as session:
        one, *more = tasks = [Task(name=str(n)) for n in range(5)]
        assert session.enqueue(one) is None
        session.enqueue(task for task in more)
        assert all(inspect(task).persistent for task in tasks)
        assert len({task.id for task in tasks}) == 5
    assert [task.name for task in rows(db, Task)] == list("01234")


def test_models_of_several_kinds_at_once(db: Database) -> None:
    with db.begin() as session:
        session.enqueue([Task(name="a"), Document(id="d"), Task(name="b"), Letter("ada", priority=4)])
    assert [len(rows(db, model)) for model in (Task, Document, Letter)] == [2, 1, 1]
    assert rows(db, Letter)[0].priority == 4


def test_rows_make_no_instances(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Task, [{"name": str(n), "priority": n} for n in range(300)])
        session.enqueue(Task, iter([{"name": "from an iterator"}]))
        session.enqueue(Task, [])
        assert len(list(session.sync_session)) == 0
    assert len(rows(db, Task)) == 301


def test_rows_of_different_shapes(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Task, [{"id": 1, "name": "a"}, {"id": 2, "priority": 5}, {"id": 3, "available_at": FUTURE}])
    assert [(task.name, task.priority, task.status) for task in rows(db, Task)] == [
        ("a", 0, "available"),
        ("", 5, "available"),
        ("", 0, "scheduled"),
    ]


def test_none_means_the_default(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Task, [{"id": 1, "priority": None}, {"id": 2, "priority": 5}])
        session.enqueue(Task, [{"id": 3, "priority": 6}, {"id": 4, "priority": None}])
        session.enqueue(Parcel, [{"id": uuid.uuid4(), "name": None}, {"id": uuid.uuid4(), "name": None}])
    assert [task.priority for task in rows(db, Task)] == [0, 5, 6, 0]
    assert {parcel.name for parcel in rows(db, Parcel)} == {""}


def test_orm_execute_listeners_see_the_inserts(db: Database) -> None:
    seen: list[Any] = []
    with db.begin() as session:
        event.listen(session.sync_session, "do_orm_execute", lambda state: seen.append(list(state.all_mappers)))
        session.enqueue(Task, [{"id": 1}, {"id": 2}])
    assert [inspect(Task)] in seen


def test_rows_of_every_sort_of_key(db: Database) -> None:
    key = uuid.uuid4()
    with db.begin() as session:
        session.enqueue(Parcel, [{"id": key, "name": "given"}])
        session.enqueue(Parcel, [{"name": "made"}])
        session.enqueue(Seat, [{"line": "a", "number": 1}])
        session.enqueue(Order, [{"id": 1, "status": "paid", "available_at": FUTURE}])
    assert row(db, Parcel, key).name == "given"
    assert len(rows(db, Parcel)) == 2
    assert row(db, Seat, ("a", 1)).status == "available"
    order = row(db, Order, 1)
    assert (order.status, order.queue_status, order.available_at) == ("paid", "scheduled", FUTURE)


def test_rows_of_inheriting_classes(db: Database) -> None:
    with db.begin() as session:
        session.enqueue(Reminder, [{"id": 1, "about": "milk"}])
        session.enqueue(CreditNote, [{"id": 1, "amount": 7}])
    assert row(db, Reminder, 1).about == "milk"
    assert (row(db, CreditNote, 1).amount, row(db, CreditNote, 1).status) == (7, "available")


def test_copy(db: Database) -> None:
    tasks = [{"name": f"tab\t{n}\\N\n", "number": n} for n in range(100)]
    adapter = adapter_for(db.engine.dialect)
    if type(adapter.inserts).copy is Inserts.copy:
        with pytest.raises(ArgumentError, match="COPY"):
            db.session().enqueue(Task, tasks, copy=True)
        return
    with db.begin() as session:
        session.enqueue(Task, tasks, copy=True)
        session.enqueue(Parcel, [{"name": "made here"}], copy=True)
        session.enqueue(Order, [{"id": 1, "status": "paid"}], copy=True)
    stored = rows(db, Task)
    assert [(task.name, task.number) for task in stored] == [(each["name"], each["number"]) for each in tasks]
    assert {(task.status, task.attempt, task.max_attempts) for task in stored} == {("available", 0, 3)}
    assert rows(db, Parcel)[0].name == "made here"
    assert row(db, Order, 1).queue_status == "available"


def test_a_rollback_enqueues_nothing(db: Database) -> None:
    session = db.session()
    session.enqueue([Task(), Document(id="d")])
    session.enqueue(Task, [{"name": "x"}])
    session.enqueue(Document, [{"id": "e"}], on_conflict="replace")
    session.rollback()
    assert rows(db, Task) == rows(db, Document) == []


# -- conflicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_rows", [False, True], ids=["instances", "rows"])
def test_raise(db: Database, as_rows: bool) -> None:
    db.insert(Document, [{"id": "a"}])
    session = db.session()
    with pytest.raises(DuplicateTaskError, match=r"^Document with id 'a' exists: .*on_conflict") as duplicate:
        session.enqueue(Document, [{"id": "a"}]) if as_rows else session.enqueue(Document(id="a"))
    assert (duplicate.value.model, duplicate.value.keys) == (Document, ({"id": "a"},))
    assert isinstance(duplicate.value.__cause__, IntegrityError)
    session.rollback()
    with db.begin() as session:
        session.enqueue(Document(id="b"))


def test_other_violations_are_not_duplicates(db: Database) -> None:
    with pytest.raises(DBAPIError):
        db.session().enqueue(Letter, [{"recipient": None}])


def test_ignore(db: Database) -> None:
    db.insert(Document, [{"id": "a", "version": 1, "priority": 1}])
    before = vars(row(db, Document, "a")).copy()
    with db.begin() as session:
        session.enqueue([Document(id="a", version=2), Document(id="b", version=2)], on_conflict="ignore")
        session.enqueue(Document, [{"id": "b", "version": 3}, {"id": "c", "version": 3}], on_conflict="ignore")
    assert [document.version for document in rows(db, Document)] == [1, 2, 3]
    after = vars(row(db, Document, "a")).copy()
    del before["_sa_instance_state"], after["_sa_instance_state"]
    assert after == before


@pytest.mark.parametrize("on_conflict", ["replace", "rerun"])
@pytest.mark.parametrize("status", FINAL)
def test_a_final_task_gets_a_new_life(sync_db: Database, on_conflict: Any, status: str) -> None:
    db = sync_db
    final = {"status": status, "attempt": 5, "max_attempts": 5, "available_at": PAST, "finished_at": PAST}
    db.insert(Document, [{"id": "a", "version": 1, **final}])
    with db.begin() as session:
        session.enqueue(Document(id="a", version=2), on_conflict=on_conflict)
    document = row(db, Document, "a")
    assert (document.version, document.status, document.attempt, document.max_attempts) == (2, "available", 5, 10)
    assert document.finished_at is None
    assert document.available_at > PAST
    with db.begin() as session:
        assert session.claim(Document).attempt == 6


@pytest.mark.parametrize("on_conflict", ["replace", "rerun"])
@pytest.mark.parametrize("status", ["scheduled", "retryable"])
def test_a_waiting_task_is_available_at_once(sync_db: Database, on_conflict: Any, status: str) -> None:
    sync_db.insert(Document, [{"id": "a", "status": status, "available_at": FUTURE}])
    with sync_db.begin() as session:
        session.enqueue(Document, [{"id": "a", "version": 2}], on_conflict=on_conflict)
    document = row(sync_db, Document, "a")
    assert (document.version, document.status) == (2, "available")
    assert document.available_at <= now(sync_db)


@pytest.mark.parametrize("on_conflict", ["replace", "rerun"])
def test_a_new_available_at_is_stored(db: Database, on_conflict: Any) -> None:
    final = {"status": "completed", "available_at": PAST, "finished_at": PAST}
    db.insert(Document, [{"id": "a", **final}])
    with db.begin() as session:
        session.enqueue(Document(id="a", available_at=FUTURE), on_conflict=on_conflict)
    assert (row(db, Document, "a").status, row(db, Document, "a").available_at) == ("scheduled", FUTURE)


def test_replace_gives_the_values_of_the_row(db: Database) -> None:
    db.insert(Document, [{"id": "a", "attempt": 2, "status": "completed", "finished_at": PAST}])
    with db.begin() as session:
        session.enqueue(Document, [{"id": "a", "priority": 7, "max_attempts": 1}], on_conflict="replace")
    document = row(db, Document, "a")
    assert document.priority == 7
    assert document.max_attempts - document.attempt == 1


def test_several_keys_of_which_some_exist(db: Database) -> None:
    db.insert(Document, [{"id": "a", "version": 1}, {"id": "c", "version": 1}])
    with db.begin() as session:
        session.enqueue(Document, [{"id": key, "version": 2} for key in "abcd"], on_conflict="replace")
    assert [(document.id, document.version) for document in rows(db, Document)] == [(key, 2) for key in "abcd"]


def test_conflicts_on_two_columns_and_on_renamed_ones(db: Database) -> None:
    db.insert(Seat, [{"line": "a", "number": 1, "priority": 1}])
    db.insert(Order, [{"id": 1, "status": "paid", "queue_status": "completed", "finished_at": PAST}])
    with db.begin() as session:
        session.enqueue(Seat, [{"line": "a", "number": n, "priority": 9} for n in (1, 2)], on_conflict="replace")
        session.enqueue(Order(id=1, status="shipped"), on_conflict="rerun")
    assert [seat.priority for seat in rows(db, Seat)] == [9, 9]
    assert (row(db, Order, 1).status, row(db, Order, 1).queue_status) == ("shipped", "available")


# -- while it is running -----------------------------------------------------------------------------------------------


def _running(db: Database, model: Any, key: Any, on_conflict: str, **values: Any) -> Any:
    """Claimed, and then enqueued again."""
    with db.begin() as session:
        session.add(model(id=key))
    with db.begin() as session:
        task = session.claim(model)
    with db.begin() as session:
        session.enqueue(model, [{"id": key, **values}], on_conflict=on_conflict)
    assert row(db, model, key).status == "running"
    return task


def test_replace_leaves_a_run_alone(db: Database) -> None:
    task = _running(db, Document, "a", "replace", version=2)
    with db.begin() as session:
        assert session.claim(Document) is None
        session.complete(task)
    assert (row(db, Document, "a").version, row(db, Document, "a").status) == (2, "completed")


@pytest.mark.parametrize(
    ("settle", "arguments"), [("complete", ()), ("discard", ("no",)), ("release", ()), ("cancel", ())]
)
def test_rerun_while_running(db: Database, settle: str, arguments: tuple[Any, ...]) -> None:
    task = _running(db, Document, "a", "rerun", version=2)
    with db.begin() as session:
        assert session.claim(Document) is None
        getattr(session, settle)(task, *arguments)
    document = row(db, Document, "a")
    assert document.status == ("cancelled" if settle == "cancel" else "available")
    assert (document.finished_at is None) == (document.status == "available")
    if settle in ("complete", "discard"):
        assert document.max_attempts - document.attempt == 5


def test_rerun_runs_once_more_and_no_more(db: Database) -> None:
    task = _running(db, Document, "a", "rerun")
    with db.begin() as session:
        session.complete(task)
    with db.begin() as session:
        again = session.claim(Document)
        assert again.attempt == 2
        session.complete(again)
    assert row(db, Document, "a").status == "completed"


def test_rerun_after_a_failure_with_attempts_left_is_the_retry(db: Database) -> None:
    task = _running(db, Document, "a", "rerun")
    with db.begin() as session:
        session.fail(task, "no")
    document = row(db, Document, "a")
    assert (document.status, document.error) == ("retryable", "no")


def test_rerun_survives_the_last_failure(db: Database) -> None:
    db.insert(Document, [{"id": "a", "max_attempts": 1}])
    with db.begin() as session:
        task = session.claim(Document)
    with db.begin() as session:
        session.enqueue(Document(id="a"), on_conflict="rerun")
    with db.begin() as session:
        session.fail(task, "the last")
    document = row(db, Document, "a")
    assert (document.status, document.finished_at) == ("available", None)
    assert document.max_attempts - document.attempt == 5


def test_rerun_survives_a_crash(db: Database) -> None:
    """The next claim sees what was enqueued, so it is the run that was asked for."""
    _running(db, Document, "a", "rerun")
    with db.engine.begin() as connection:
        connection.execute(Document.__table__.update().values(available_at=PAST))
    with db.begin() as session:
        session.complete(session.claim(Document))
    assert row(db, Document, "a").status == "completed"


def test_rerun_of_a_task_that_is_deleted_on_completion(db: Database) -> None:
    first = _running(db, Spool, 1, "rerun", text="again")
    db.insert(Spool, [{"id": 2}])
    with db.begin() as session:
        session.complete([first, session.claim(Spool)])
    assert [(task.id, task.status, task.text) for task in rows(db, Spool)] == [(1, "available", "again")]
    with db.begin() as session:
        session.complete(session.claim(Spool))
    assert rows(db, Spool) == []
