"""Concurrent claimers: none waits, none gets another's task, and every free task is found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import delete, literal_column, text, update

from sqlqueue.dialects import adapter_for
from tests.suite import children
from tests.suite.settlements import SETTLINGS
from tests.support.harness import Database
from tests.support.models import Ledger, Mail, Task
from tests.support.processes import Processes
from tests.support.rows import DUE, PAST, TOMORROW, contenders, count, ids, insert_many, rows, without_waiting
from tests.support.workers import eventually, seen

pytestmark = pytest.mark.asyncio_everywhere

locks_rows = pytest.mark.requires("locks_rows")
one_writer = pytest.mark.requires("one_writer")


def assert_both_are_served(
    db: Database, *where: Any, model: Any = Task, limit: int = 5, lease: Any = "default"
) -> None:
    """Let A claim and keep its transaction open; assert that B gets as many other rows without waiting."""
    a, b = contenders(db)
    mine = ids(a.claim_many(model, *where, limit=limit, lease=lease))
    theirs = ids(without_waiting(a, lambda: b.claim_many(model, *where, limit=limit, lease=lease)))
    assert len(mine) == len(theirs) == limit
    assert not mine & theirs
    a.rollback()
    b.rollback()


@locks_rows
def test_an_asyncio_claim_locks_no_other_row(db: Database) -> None:
    # asyncio drivers have different cursors, which may prefetch, and thereby lock, rows
    db.insert(Task, rows(500))
    a, b = contenders(db)
    mine = ids(a.claim_many(Task, limit=10))
    theirs = ids(without_waiting(a, lambda: b.claim_many(Task, limit=500)))
    assert (len(mine), len(theirs)) == (10, 490)
    assert not mine & theirs


@locks_rows
@pytest.mark.parametrize("condition", ["ready", *DUE])
@pytest.mark.parametrize("step", [1, -1])
def test_rows_that_others_have_locked_cost_no_statements(sync_db: Database, condition: str, step: int) -> None:
    waiting = enumerate(rows(30, condition))
    sync_db.insert(
        Task, [{**row, "number": n, "available_at": PAST + timedelta(seconds=step * n)} for n, row in waiting]
    )
    a, b = contenders(sync_db)
    claimed, sent = list[int](), list[int]()
    for actor in (a, b):
        with seen(sync_db, "before_cursor_execute") as statements:
            claimed += [task.number for task in actor.claim_many(Task, limit=4)]
        sent.append(len(statements))
    assert claimed == list(range(30))[::step][:8]
    if step == 1 or adapter_for(sync_db.engine.dialect).rows.locks_after_sorting:  # others lock rows in their own order
        assert sent[1] == sent[0]


# for a small table, or a large part of a table, a planner prefers a scan and a sort, which lock everything they read
@locks_rows
@pytest.mark.parametrize(("condition", "lease"), [("ready", "default"), ("retryable", "default"), ("ready", None)])
def test_two_claimers_are_served_with_any_plan(sync_db: Database, condition: str, lease: Any) -> None:
    for size, limit in ((3, 1), (12, 5), (16, 8), (20, 10), (30, 15), (2_000, 500)):
        sync_db.execute(delete(Task))
        sync_db.insert(Task, rows(size, condition))
        assert_both_are_served(sync_db, limit=limit, lease=lease)


@pytest.mark.requires("gate_sql")
def test_a_claim_gets_rows_as_they_are_when_it_locks_them(sync_db: Database) -> None:
    """A row that another transaction changes between the claim's snapshot and its lock is claimed in its new state."""
    sync_db.insert(Task, [{"id": 1, "priority": 1}, {"id": 2, "priority": 2}, {"id": 3, "priority": 3}])
    open_gate, shut_gate, waiting, passed = sync_db.case.gate_sql
    claimer, other = contenders(sync_db)
    other.run(lambda session: session.execute(text(shut_gate)))
    with ThreadPoolExecutor(1) as threads:
        claim = threads.submit(lambda: claimer.claim_many(Task, literal_column(passed), limit=3))
        eventually(lambda: other.run(lambda session: session.scalar(text(waiting))) == 1)
        with sync_db.engine.begin() as connection:
            connection.execute(update(Task).where(Task.id == 2).values(priority=-7))
            connection.execute(update(Task).where(Task.id == 3).values(available_at=TOMORROW))
        other.run(lambda session: session.execute(text(open_gate)))
        tasks = claim.result()
    assert [(task.id, task.priority, task.status) for task in tasks] == [(2, -7, "running"), (1, 1, "running")]


def mails(condition: str) -> list[dict[str, Any]]:
    return [*rows(1_000, condition, topic="news"), *rows(1_000, condition, topic="bills")]


def numbered(condition: str) -> list[dict[str, Any]]:
    return [{**row, "number": n % 10} for n, row in enumerate(rows(2_000, condition))]


@locks_rows
@pytest.mark.parametrize(
    ("model", "given", "where"),
    [
        *((Task, rows(2_000, condition), ()) for condition in DUE),
        (Task, [*rows(7), *rows(2_000, *DUE)], ()),
        *((Mail, mails(condition), ()) for condition in ("ready", "retryable")),
        *((Mail, mails(condition), (Mail.topic == "news",)) for condition in ("ready", "retryable")),
        *((Task, numbered(condition), (Task.number == 7,)) for condition in ("ready", "scheduled")),
    ],
)
def test_claimers_share_rows(sync_db: Database, model: Any, given: list[dict[str, Any]], where: Any) -> None:
    sync_db.insert(model, given)
    assert_both_are_served(sync_db, *where, model=model)


@locks_rows
@pytest.mark.parametrize("condition", ["ready", "scheduled", "expired"])
def test_claimers_share_rows_among_many_others(sync_db: Database, condition: str) -> None:
    finished = {"status": "completed", "available_at": PAST, "attempt": 1, "finished_at": PAST}
    later = {"status": "scheduled", "available_at": TOMORROW, "attempt": 0, "finished_at": None}
    insert_many(sync_db, Task, finished, later)
    sync_db.insert(Task, rows(400, condition))
    assert_both_are_served(sync_db)


# -- no lock on any other row --------------------------------------------------------------------------------------


@locks_rows
@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("conditions", [("ready",), DUE, ("ready", *DUE)], ids=["ready", "due", "mixed"])
def test_a_claim_locks_no_other_row(sync_db: Database, lease: Any, conditions: tuple[str, ...]) -> None:
    sync_db.insert(Task, rows(500, *conditions))
    a, b = contenders(sync_db)
    mine = ids(a.claim_many(Task, limit=10, lease=lease))
    theirs = ids(without_waiting(a, lambda: b.claim_many(Task, limit=500, lease=lease)))
    assert (len(mine), len(theirs)) == (10, 490)
    assert not mine & theirs


@locks_rows
@pytest.mark.parametrize("lease", ["default", None])
@pytest.mark.parametrize("condition", ["ready", "retryable"])
def test_rows_that_a_criterion_has_passed_over_are_not_locked(sync_db: Database, condition: str, lease: Any) -> None:
    sync_db.insert(Task, [{**row, "number": n // 2 % 2} for n, row in enumerate(rows(500, condition))])
    a, b = contenders(sync_db)
    mine = ids(a.claim_many(Task, Task.number == 1, limit=10, lease=lease))
    theirs = ids(without_waiting(a, lambda: b.claim_many(Task, limit=500)))
    assert (len(mine), len(theirs)) == (10, 490)


@locks_rows
@pytest.mark.parametrize("condition", ["ready", "retryable"])
@pytest.mark.parametrize("where", [(), (Task.number == 0,)], ids=["any", "where"])
def test_free_rows_behind_many_locks_are_found(sync_db: Database, condition: str, where: Any) -> None:
    sync_db.insert(Task, rows(500, condition))
    a, b = contenders(sync_db)
    mine = ids(a.claim_many(Task, *where, limit=490))
    theirs = ids(without_waiting(a, lambda: b.claim_many(Task, *where, limit=20)))
    assert (len(mine), len(theirs)) == (490, 10)
    assert not mine & theirs


WAYS = {"all": (), "topic": (Mail.topic == "news",), "key": (Mail.id < 5,), "criterion": (Mail.account_id.is_(None),)}


@locks_rows
@pytest.mark.parametrize("first", WAYS)
def test_claims_in_two_ways_do_not_disturb_each_other(sync_db: Database, first: str) -> None:
    sync_db.insert(Mail, [{**row, "id": n, "topic": "news"} for n, row in enumerate(rows(4), start=1)])
    a, b = contenders(sync_db)
    claim = partial(a.claim, Mail, *WAYS[first], lease=None)
    for second in WAYS.keys() - {first}:
        mine = [claim()]
        theirs = [without_waiting(a, partial(b.claim, Mail, *WAYS[second], lease=None))]
        mine += [without_waiting(b, claim)]
        assert ids(mine) | ids(theirs) == {1, 2, 3}
        # the holder of skipped rows writes to them while the other transaction is open
        without_waiting(b, partial(a.complete, mine))
        without_waiting(a, partial(b.complete, theirs))
        a.rollback()
        b.rollback()


@locks_rows
@pytest.mark.parametrize("how", ["complete", "release"])
def test_settling_many_does_not_wait_for_other_claims(sync_db: Database, how: str) -> None:
    # for many keys of a small table a planner chooses a scan, which reads, and waits for, every row
    sync_db.insert(Task, rows(2_000))
    a, b = contenders(sync_db)
    a.claim_many(Task, limit=500)
    theirs = b.claim_many(Task, limit=500)
    without_waiting(a, lambda: SETTLINGS[how](b, theirs))


@locks_rows
def test_settling_waits_for_no_claim_that_found_nothing(sync_db: Database) -> None:
    # it has read due rows by an index whose entries for these rows were not locked
    sync_db.insert(Task, rows(3))
    a, b = contenders(sync_db)
    mine = a.claim_many(Task, limit=3, lease=None)
    assert b.claim(Task) is None
    without_waiting(b, lambda: a.complete(mine))


@locks_rows
def test_a_cached_statement_claims_what_is_requested(db: Database) -> None:
    db.insert(Mail, [*rows(100, topic="news"), *rows(100, "retryable", topic="bills")])
    a, b = contenders(db)
    asked = [(10, "news"), (3, "bills"), (7, "news"), (1, "news"), (12, "bills")]
    for limit, topic in asked:
        mine = a.claim_many(Mail, Mail.topic == topic, limit=limit)
        assert [mail.topic for mail in mine] == [topic] * limit
        rest = 100 - sum(n for n, other in asked[: asked.index((limit, topic)) + 1] if other == topic)
        assert len(without_waiting(a, lambda: b.claim_many(Mail, Mail.topic == topic, limit=200))) == rest  # noqa: B023
        b.rollback()


@one_writer
def test_the_second_claimer_waits_for_the_first_to_commit(db: Database) -> None:
    db.insert(Task, rows(10))
    a, b = contenders(db)
    mine, theirs = ids(a.claim_many(Task, limit=4)), []
    thread = Thread(target=lambda: theirs.extend(b.claim_many(Task, limit=10)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    a.commit()
    thread.join(5)
    assert len(theirs) == 6
    assert not mine & ids(theirs)


# -- many -----------------------------------------------------------------------------------------------------------


@pytest.mark.requires("obeys_hints")
def test_four_processes_do_each_row_once(sync_db: Database, processes: Processes) -> None:
    sync_db.insert(Task, rows(1_500))
    drainers = [processes.spawn(children.drain, sync_db.url, 2_000, f"worker {n}") for n in range(4)]
    enqueuer = processes.spawn(children.enqueue, sync_db.url, 500)
    for child in [*drainers, enqueuer]:
        child.wait_until_arrived()
    for child in [*drainers, enqueuer]:
        child.let_pass()
    done = [child.result() for child in drainers]
    # the ledger's unique key would have rejected a row done twice
    assert sum(done) == count(sync_db, Ledger) == count(sync_db, Task, Task.status == "completed") == 2_000
    assert count(sync_db, Task, Task.attempt != 1) == 0
    if sync_db.case.locks_rows:  # where there is one writer, the same one may find the lock free each time
        assert sum(n > 0 for n in done) > 1


@pytest.mark.requires("obeys_hints")
def test_claimers_with_a_criterion_do_not_disturb_each_other(sync_db: Database) -> None:
    sync_db.insert(Task, [{"number": n % 2} for n in range(400)])

    def drain(_: int) -> list[int]:
        done: list[int] = []
        while True:
            with sync_db.sessions()() as session:
                tasks = session.claim_many(Task, Task.number == 1, limit=5)
                done += [task.id for task in tasks]
                session.complete(tasks)
                session.commit()
            if not tasks:
                return done

    with ThreadPoolExecutor(4) as threads:
        done = [key for keys in threads.map(drain, range(4)) for key in keys]
    assert (len(done), len(set(done))) == (200, 200)
