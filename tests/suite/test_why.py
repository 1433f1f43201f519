"""Why a task is not running: an answer for every state."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import NullPool, SingletonThreadPool, StaticPool, create_engine, delete, inspect

from sqlqueue import Cause, Claim, Explanation, QueueSession
from tests.support.engines import PASSWORD
from tests.support.harness import Actor, Database
from tests.support.models import Mail, Order, Outgoing, Seat, Task, Transfer, Visit
from tests.support.rows import PAST, TOMORROW, clock, contenders, end_leases

pytestmark = pytest.mark.sync_only

HOUR = timedelta(hours=1)


def why(db: Database, model: Any = Task, key: Any = 1) -> Explanation:
    return db.committed.why(Claim(model, key if isinstance(key, tuple) else (key,), attempt=0))


def causes(found: Explanation) -> list[Cause]:
    return [reason.cause for reason in found.reasons]


def claimed(db: Database, model: Any, count: int = 1, **options: Any) -> list[Any]:
    return list(db.committed.claim_many(model, limit=count, claimed_by="worker-1", **options))


# -- reasons in the row itself -----------------------------------------------------------------------------------------

THEN = TOMORROW.replace(microsecond=0)
ENDED = {"finished_at": PAST, "available_at": PAST, "error": "boom\nat line 1"}
LAST = {"status": "running", "attempt": 3, "max_attempts": 3, "available_at": PAST}
FAILED = {"available_at": THEN, "attempt": 2, "max_attempts": 3}
ENDED_AT = "it was {} at 2020-01-01 00:00:00 UTC"
ALONE = "a worker runs it in a child process, or alone once all its other tasks have ended"
SITUATIONS: list[tuple[dict[str, Any], list[Cause], str]] = [
    ({}, [Cause.READY], "nothing prevents it from running: the next claim takes it"),
    ({"status": "completed", **ENDED}, [Cause.FINISHED], ENDED_AT.format("completed") + "(?!.*boom)"),
    ({"status": "cancelled", **ENDED}, [Cause.FINISHED], ENDED_AT.format("cancelled") + "(?!.*boom)"),
    ({"status": "discarded", **ENDED}, [Cause.FINISHED], ENDED_AT.format("discarded") + ".*: boom$"),
    (LAST, [Cause.EXHAUSTED], ".*attempt 3 was the last one"),
    ({**LAST, "claim_token": -7}, [Cause.LEASE_EXPIRED, Cause.READY], ""),  # a worker has crashed: it is no attempt
    # workers do not run suspects alongside other tasks, so the next claim need not run them
    ({"crashes": 1}, [Cause.SUSPECT], f"it may have crashed a process: {ALONE}$"),
    ({"crashes": 2}, [Cause.SUSPECT], f"it may have crashed 2 processes: {ALONE}$"),
    ({"crashes": 3}, [Cause.SUSPECT], "it may have crashed 3 processes: a worker that claims it discards it$"),
    (
        {"crashes": 3, "status": "scheduled", "available_at": THEN},
        [Cause.NOT_DUE, Cause.SUSPECT],
        "it may have crashed 3 processes: a worker that claims it discards it$",
    ),
    ({"status": "available", **FAILED}, [Cause.NOT_DUE], "(?!attempt)"),
    ({"status": "scheduled", **FAILED}, [Cause.NOT_DUE], "(?!attempt)"),
    ({"status": "retryable", **FAILED}, [Cause.NOT_DUE], r"attempt 2 \(1 left\) failed"),
]


def test_why_of_a_missing_task(db: Database) -> None:
    found = why(db)
    assert (found.status, causes(found)) == (None, [Cause.MISSING])
    assert abs(found.at - clock(db)) < HOUR


def test_why_of_a_task_that_is_alone(db: Database) -> None:
    for number, (columns, expected, text) in enumerate(SITUATIONS, start=1):
        db.insert(Task, [{"id": number, **columns}])
        found = why(db, key=number)
        assert causes(found) == expected
        first, last = found.reasons[0], found.reasons[-1]
        assert re.match(text, last.text), last.text
        assert first.cause is not Cause.FINISHED or first.since == PAST
        assert first.cause is not Cause.NOT_DUE or first.until == THEN
        assert first.cause is not Cause.EXHAUSTED or db.committed.rescue(Task) == 1
        assert last.cause is not Cause.READY or db.committed.claim(Task).id == number
        db.committed.run(lambda session: session.execute(delete(Task)))


def test_why_of_a_running_task(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    (task,) = claimed(db, Task, lease=HOUR)
    (reason,) = why(db).reasons
    assert (reason.cause, reason.by) == (Cause.RUNNING, "worker-1")
    assert (reason.since, reason.until) == (task.claimed_at, task.available_at)
    end_leases(db)
    found = why(db)
    assert causes(found) == [Cause.LEASE_EXPIRED, Cause.READY]
    assert (found.reasons[0].by, found.reasons[0].since) == ("worker-1", PAST)


def test_why_of_a_running_suspect(db: Database) -> None:
    """Workers count the crash of a suspect before they run it, and revert this if it does not crash."""
    db.insert(Task, [{"id": 1, "crashes": 2}])
    claimed(db, Task)
    found = why(db)
    assert causes(found) == [Cause.RUNNING, Cause.SUSPECT]
    assert found.reasons[1].text.startswith("it may have crashed a process: it runs in a child process")
    end_leases(db)
    found = why(db)
    assert causes(found) == [Cause.LEASE_EXPIRED, Cause.SUSPECT]
    assert found.reasons[1].text.startswith("it may have crashed 2 processes: ")


def test_a_key_of_several_columns(db: Database) -> None:
    db.insert(Seat, [{"line": "a", "number": 7}])
    assert causes(why(db, Seat, ("a", 7))) == [Cause.READY]
    assert causes(why(db, Seat, ("a", 8))) == [Cause.MISSING]


def test_an_explanation_is_about_the_present_row(db: Database) -> None:
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        (task,) = session.find(Task)
        session.commit()
        db.committed.cancel(Task)
        assert causes(session.why(task)) == [Cause.FINISHED]


# -- pauses ------------------------------------------------------------------------------------------------------------


def test_why_of_a_paused_task(db: Database) -> None:
    db.insert(Mail, [{"id": 1, "topic": "news"}, {"id": 2, "topic": "bills"}])
    db.committed.pause(Mail, "news", reason="the provider is down", paused_by="ada")
    (reason,) = why(db, Mail, 1).reasons
    assert (reason.cause, reason.by) == (Cause.PAUSED, "ada")
    assert abs(reason.since - clock(db)) < HOUR
    assert reason.text.endswith(": the provider is down")
    assert Cause.PAUSED not in causes(why(db, Mail, 2))
    db.committed.pause(Mail)
    assert causes(why(db, Mail, 1)).count(Cause.PAUSED) == 2
    assert Cause.PAUSED in causes(why(db, Mail, 2))


def test_why_of_a_paused_task_that_is_not_due(db: Database) -> None:
    db.insert(Mail, [{"id": 1, "status": "scheduled", "available_at": TOMORROW}])
    db.committed.pause(Mail)
    assert causes(why(db, Mail)) == [Cause.NOT_DUE, Cause.PAUSED]


# -- others come first -------------------------------------------------------------------------------------------------


def test_why_of_a_task_behind_others(db: Database) -> None:
    moments = [PAST, PAST, PAST + HOUR, PAST + 2 * HOUR]
    db.insert(Task, [{"id": n, "available_at": moment} for n, moment in enumerate(moments, 1)])
    db.insert(Task, [{"id": 5, "available_at": PAST, "priority": -1}])
    db.insert(Task, [{"id": 6, "available_at": PAST, "status": "completed"}])
    assert [why(db, key=key).reasons[0].ahead for key in (5, 1, 2, 3, 4)] == [None, 1, 2, 3, 4]
    assert causes(why(db, key=5)) == [Cause.READY]
    assert "4 tasks come first" in why(db, key=4).reasons[0].text


def test_ready_tasks_come_before_due_tasks(db: Database) -> None:
    db.insert(Task, [{"id": n} for n in (1, 2, 3)])
    db.insert(Task, [{"id": n, "status": "scheduled", "available_at": PAST + n * HOUR} for n in (4, 5)])
    assert [why(db, key=key).reasons[0].ahead for key in (4, 5)] == [3, 4]


def test_why_uses_the_order_of_the_model(db: Database) -> None:
    db.insert(Order, [{"id": n, "available_at": PAST} for n in (1, 2, 3)])
    with db.begin() as session:
        order = [task.id for task in session.claim_many(Order, limit=3)]
        session.rollback()
    assert [why(db, Order, key).reasons[0].ahead or 0 for key in order] == [0, 1, 2]


def test_counting_ends_at_a_thousand(db: Database) -> None:
    """This is the sum over all ranges of the order."""
    db.insert(Task, [{"available_at": PAST, "priority": -(n % 2), "name": "x"} for n in range(1_200)])
    db.insert(Task, [{"id": 50_000_000}])
    (reason,) = why(db, key=50_000_000).reasons
    assert reason.ahead == 1_000
    assert "1,000 or more tasks come first" in reason.text


def test_the_estimate_uses_the_present_rate(db: Database) -> None:
    done = {"status": "completed", "finished_at": clock(db), "available_at": PAST}
    db.insert(Mail, [{"id": n, **done} for n in range(1, 7)])
    db.insert(Mail, [{"id": n, "available_at": PAST} for n in range(10, 22)])
    (reason,) = why(db, Mail, 21).reasons
    assert (reason.ahead, reason.estimate) == (11, timedelta(seconds=110))


# -- limits and keys ---------------------------------------------------------------------------------------------------


def test_why_of_a_task_whose_limit_is_reached(db: Database) -> None:
    db.insert(Visit, [{"id": n, "limit_key": "a", "available_at": PAST} for n in (1, 2, 3)])
    db.committed.set_limit(Visit, "a", 2)
    first, second = claimed(db, Visit, 2)
    (reason,) = why(db, Visit, 3).reasons
    assert reason.cause is Cause.LIMIT
    assert [holder.identity for holder in reason.holders] == [(first.id,), (second.id,)]
    assert {holder.worker for holder in reason.holders} == {"worker-1"}
    assert reason.holders[0].since == first.claimed_at
    db.committed.set_limit(Visit, "b", 0)
    db.insert(Visit, [{"id": 9, "limit_key": "b"}])
    assert Cause.LIMIT in causes(why(db, Visit, 9))


def test_why_of_a_task_behind_others_of_its_limit_key(db: Database) -> None:
    db.insert(Visit, [{"id": n, "limit_key": "a", "available_at": PAST} for n in (1, 2, 3, 4)])
    db.insert(Visit, [{"id": 9, "limit_key": "b", "available_at": PAST}])
    with db.begin() as session:
        session.set_limit(Visit, "a", 3)
        session.set_limit(Visit, "b", 3)
    found = why(db, Visit, 4)
    assert causes(found) == [Cause.KEY_ORDER, Cause.ORDER]
    assert found.reasons[0].ahead == 3
    assert causes(why(db, Visit, 9)) == [Cause.ORDER]


def test_why_of_a_task_behind_others_of_a_full_key(db: Database) -> None:
    db.insert(Visit, [{"id": n, "limit_key": "a", "available_at": PAST} for n in (1, 2, 3, 4)])
    with db.begin() as session:
        session.set_limit(Visit, "a", 1)
        session.claim(Visit)
    full, ahead, _ = why(db, Visit, 4).reasons
    assert (full.cause, ahead.cause, ahead.ahead) == (Cause.LIMIT, Cause.KEY_ORDER, 2)
    assert ahead.text == "2 tasks with its key 'a' come first, and at most 1 run at once"
    assert why(db, Visit, 3).reasons[1].text == "1 task with its key 'a' comes first, and at most 1 run at once"
    assert Cause.KEY_ORDER not in causes(why(db, Visit, 2))


def test_why_of_a_task_behind_others_of_a_held_key(db: Database) -> None:
    db.insert(Transfer, [{"id": n, "account": "a"} for n in (1, 2, 3)])
    with db.begin() as session:
        session.discard(session.claim(Transfer), "no such account\nwith details")
    held, first = why(db, Transfer, 3).reasons
    assert (held.cause, first.cause) == (Cause.KEY_HELD, Cause.KEY_ORDER)
    assert held.text.startswith("task 1 with its key 'a' was discarded at ")
    assert held.text.endswith(": no such account; it holds the key until it is retried")
    assert held.since is not None
    assert first.text == "task 2 with its key 'a' comes first"


def test_why_of_a_message_behind_others_of_its_key(db: Database) -> None:
    db.insert(Outgoing, [{"id": n, "message_key": key} for n, key in ((1, "a"), (2, "b"), (3, "a"), (4, "a"))])
    found = why(db, Outgoing, 4)
    assert (found.reasons[0].cause, found.reasons[0].ahead) == (Cause.KEY_ORDER, 2)
    assert Cause.KEY_ORDER not in causes(why(db, Outgoing, 2))


# -- locks -------------------------------------------------------------------------------------------------------------


def open_claim(db: Database) -> tuple[Actor, Actor]:
    db.insert(Task, [{"id": 1}, {"id": 2}])
    holder, other = contenders(db)
    assert holder.claim(Task, Task.id == 1, lease=None).id == 1
    return holder, other


@pytest.mark.requires("obeys_hints")
def test_why_of_a_task_locked_by_another_transaction(db: Database) -> None:
    holder, other = open_claim(db)
    (reason,) = other.why(Claim(Task, (1,), 0)).reasons
    assert reason.cause is Cause.LOCKED
    assert (reason.by is not None) == db.case.tells_lock_owners
    other.rollback()
    holder.rollback()
    assert causes(why(db)) == [Cause.READY]


@pytest.mark.requires("locks_rows")
def test_others_are_not_locked_and_nothing_stays_locked(db: Database) -> None:
    holder, other = open_claim(db)
    assert causes(other.why(Claim(Task, (2,), 0))) != [Cause.LOCKED]
    assert db.committed.claim(Task).id == 2
    holder.rollback()


@pytest.mark.requires("read_only_sql")
def test_why_in_a_read_only_transaction(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": 1}])
    with sync_db.variant(on_connect=sync_db.case.read_only_sql).session() as session:
        assert causes(session.why(Claim(Task, (1,), 0))) == [Cause.READY]


@pytest.mark.requires("account_sql")
def test_why_for_an_account_that_can_only_read(sync_db: Database) -> None:
    sync_db.insert(Task, [{"id": 1}])
    administrator = create_engine(sync_db.url.set(username=sync_db.case.administrator), poolclass=NullPool)
    url = sync_db.url.set(username="why_reader", password=PASSWORD)
    tables = list(map(sync_db.engine.dialect.identifier_preparer.quote, inspect(sync_db.engine).get_table_names()))
    with administrator.begin() as connection:
        connection.exec_driver_sql(sync_db.case.account_sql.format(name="why_reader", password=PASSWORD))
        for table in tables:
            connection.exec_driver_sql(f"GRANT SELECT ON {table} TO why_reader")
    try:
        with sync_db.variant(url=url, poolclass=NullPool).session() as session:
            assert causes(session.why(Claim(Task, (1,), 0))) == [Cause.READY]
    finally:
        with administrator.begin() as connection:
            for table in tables:
                connection.exec_driver_sql(f"REVOKE SELECT ON {table} FROM why_reader")
            connection.exec_driver_sql("DROP USER why_reader")


def test_why_of_a_task_locked_by_the_same_transaction(db: Database) -> None:
    holder, _ = open_claim(db)
    (reason,) = holder.why(Claim(Task, (1,), 0)).reasons
    assert (reason.cause, reason.by) == (Cause.LOCKED, "this transaction")
    holder.rollback()


def test_why_of_an_uncommitted_task(db: Database) -> None:
    with db.session() as session:
        session.add(Task(id=1))
        found = session.why(Claim(Task, (1,), 0))
        assert causes(found) == [Cause.UNCOMMITTED]
        session.rollback()
    assert causes(why(db)) == [Cause.MISSING]


def test_why_in_an_in_memory_database() -> None:
    """Another connection would open another database."""
    for options in ({"poolclass": StaticPool}, {"poolclass": SingletonThreadPool}):
        engine = create_engine("sqlite://", **options)
        Task.metadata.create_all(engine)
        with QueueSession(engine) as session:
            session.add(task := Task())
            session.commit()
            assert causes(session.why(task)) == [Cause.READY]
        engine.dispose()
