"""Queues whose keys keep their order: a task starts only when all earlier ones of its key are final."""

from __future__ import annotations

import random
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Integer, String, delete, event, update
from sqlalchemy.orm import Mapped, mapped_column

from sqlqueue import ArgumentError, Cause, Claim, QueueMixin, QueueOptions, Reason, Worker, claim_of
from sqlqueue.dialects import adapter_for
from sqlqueue.queue.spec import spec_of
from sqlqueue.sql import sequential_picks
from sqlqueue.worker import fetcher
from tests.suite import children
from tests.suite.test_plans import median_read, reading
from tests.support.harness import Actor, Database
from tests.support.models import Base, Ledger, Transfer
from tests.support.processes import Processes
from tests.support.rows import (
    PAST,
    TOMORROW,
    analyze,
    contenders,
    count,
    end_leases,
    ids,
    insert_many,
    load_all,
    rows,
    without_waiting,
)
from tests.support.workers import Workers, eventually

HOUR = timedelta(hours=1)


class Move(QueueMixin, Base):
    """A key of two columns, the first of which keeps the order; discarded tasks hold nothing."""

    __tablename__ = "move"
    __queue__ = QueueOptions(sequential="game", continue_on_discarded=True, on_complete="delete")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "move"}  # noqa: RUF012

    game: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(20))


class Castling(Move):
    __mapper_args__ = {"polymorphic_identity": "castling"}  # noqa: RUF012


def transfers(db: Database, *accounts: str | None, **columns: Any) -> None:
    """Numbered from 1."""
    first = count(db, Transfer) + 1
    given = {"available_at": PAST, "created_at": PAST, **columns}
    db.insert(Transfer, [{"id": first + n, "account": account, **given} for n, account in enumerate(accounts)])


def claimed(session: Actor, *where: Any, limit: int = 50, **options: Any) -> set[int]:
    return ids(session.claim_many(Transfer, *where, limit=limit, **options))


def reasons(db: Database, number: int) -> tuple[Reason, ...]:
    return db.committed.why(Claim(Transfer, (number,), 0)).reasons


# -- the first task of each key ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 50])
@pytest.mark.parametrize("lease", ["default", None])
def test_the_first_task_of_each_key_is_claimed(db: Database, size: int, lease: Any) -> None:
    """Whatever its priority; tasks without a key wait for none."""
    transfers(db, "a", "a", "b", None, None, "c", "b")
    transfers(db, "a", None, priority=-5)
    transfers(db, "d", available_at=TOMORROW, status="scheduled")
    transfers(db, "d", "e", topic="other")
    with db.begin() as session:
        found = [claimed(session, limit=size, lease=lease) for _ in range(12)]
        assert sorted(each for some in found for each in some) == [1, 3, 4, 5, 6, 9, 12]
        assert len(found[0]) == min(size, 7)
        session.rollback()
    with db.begin() as session:
        assert claimed(session, Transfer.topic == "other") == {12}
        assert claimed(session, Transfer.account.in_(["a", "d"])) == {1}
        assert claimed(session, Transfer.account == "b") == {3}
        for number, first in ((2, False), (6, True), (7, False), (9, True)):
            assert claimed(session, Transfer.id == number) == ({number} if first else set())
        session.rollback()


@pytest.mark.parametrize("lease", ["default", None])
def test_any_number_of_tasks_without_a_key_is_claimed(db: Database, lease: Any) -> None:
    transfers(db, "a", "a", *[None] * 80)
    with db.begin() as session:
        claimed = session.claim_many(Transfer, limit=70, lease=lease)
        assert len(ids(claimed)) == len(claimed) == 70
        rest = session.claim_many(Transfer, limit=70, lease=lease)
        assert len(ids([*claimed, *rest])) == len([*claimed, *rest]) == 81
        session.complete([*claimed, *rest])


def test_a_running_task_keeps_its_key(db: Database) -> None:
    transfers(db, "a", "a", "b")
    (first, *_) = load_all(db, Transfer)
    claim = claim_of(db.committed.claim(Transfer, Transfer.account == "a"))
    db.committed.enqueue(Transfer, [{"id": first.id, "account": "b"}], on_conflict="replace")
    assert [task.account for task in db.committed.claim_many(Transfer, limit=3)] == ["b"]
    db.committed.complete(claim)
    assert [task.account for task in db.committed.claim_many(Transfer, limit=3)] == ["a"]


def test_a_key_waits_for_its_first_task_alone(db: Database) -> None:
    transfers(db, "a", "a", "b", "b", "c", "c", "d", "d")
    with db.begin() as session:
        a, b, c, d = sorted(session.claim_many(Transfer, limit=9), key=lambda task: task.id)
        session.complete(a)
        session.snooze(b, HOUR)
        session.cancel(c)
        session.fail(d, "the first failure")
    with db.begin() as session:
        first = {task.id: task for task in session.claim_many(Transfer, limit=9)}
        assert first.keys() == {2, 6, 7}  # d is retried at once
        session.complete(first[2])
    end_leases(db, Transfer)
    with db.begin() as session:
        assert claimed(session) == {6, 7}  # of claimers that have crashed
        assert session.claim(Transfer) is None


def test_a_discarded_task_holds_its_key_until_it_is_retried(db: Database) -> None:
    transfers(db, "a", "a", "a", "b")
    with db.begin() as session:
        a, b = sorted(session.claim_many(Transfer, Transfer.account.in_(["a", "b"]), limit=9), key=lambda task: task.id)
        session.discard(a, "broken")
        session.complete(b)
    assert db.committed.claim(Transfer) is None
    assert [reason.cause for reason in reasons(db, 2)] == [Cause.KEY_HELD]
    assert reasons(db, 2)[0].text.startswith("task 1 with its key 'a' was discarded at ")
    assert db.committed.retry(Transfer, Transfer.id == 1) == 1
    with db.begin() as session:
        task = session.claim(Transfer)
        assert task.id == 1
        assert session.claim(Transfer) is None
        session.discard(task, "broken again")
    with db.begin() as session:  # to pass over it
        session.retry(Transfer, Transfer.id == 1)
        session.cancel(Transfer, Transfer.id == 1)
    with db.begin() as session:
        task = session.claim(Transfer)
        assert task.id == 2
        session.discard(Transfer, Transfer.id == 3, error="too late")
        session.complete(task)
    transfers(db, "a")
    assert db.committed.claim(Transfer) is None


def test_a_discarded_task_is_not_pruned_while_it_holds_its_key(db: Database) -> None:
    transfers(db, "a", "b", None, status="discarded", finished_at=PAST)
    transfers(db, "a", "b")
    db.committed.retry(Transfer, Transfer.id == 2)
    db.committed.cancel(Transfer, Transfer.id == 2)
    assert db.committed.prune(Transfer, timedelta(0)) == 2
    with db.begin() as session:
        assert claimed(session) == {5}
    assert [task.id for task in load_all(db, Transfer)] == [1, 4, 5]


def test_a_queue_that_continues_after_discarded_tasks(db: Database) -> None:
    """With a key of two columns, subclasses, and deletion on completion."""
    kinds = ["castling", "move"]
    db.insert(Move, [{"game": g, "number": n, "kind": kinds[(g + n) % 2]} for g in (1, 2, 3) for n in (1, 2, 3)])
    with db.begin() as session:
        first = session.claim_many(Move, limit=9)
        assert sorted((move.game, move.number) for move in first) == [(1, 1), (2, 1), (3, 1)]
        session.complete(first[:1])
        session.discard(first[1:], "illegal")
    with db.begin() as session:  # the second moves of two games are of the other class
        assert [move.number for move in session.claim_many(Castling, limit=9)] == [2]
        assert sorted(move.number for move in session.consume_many(Move, limit=9)) == [2, 2]
        assert [move.number for move in session.consume_many(Move, limit=9)] == [3, 3]
    assert db.committed.prune(Move, timedelta(0)) == 2


def test_an_earlier_task_that_runs_again_waits_for_the_one_that_is_running(db: Database) -> None:
    transfers(db, "a", "a", "a", "a", "b")
    db.committed.cancel(Transfer, Transfer.id.in_([1, 2]))
    third = db.committed.claim(Transfer, Transfer.account == "a")
    assert db.committed.rerun(Transfer, Transfer.id.in_([1, 2])) == 2
    with db.begin() as session:
        assert claimed(session) == {5}
    with db.begin() as session:
        assert reasons(db, 1)[0].cause is Cause.KEY_ORDER
        assert "task 3 with its key 'a' was started before this one: it is running on " in reasons(db, 1)[0].text
        session.complete(third)
    for number in (1, 2, 4):
        with db.begin() as session:
            (task,) = session.claim_many(Transfer, limit=50)
            assert task.id == number
            session.complete(task)


def test_an_earlier_task_that_runs_again_does_not_wait_for_a_claimer_that_has_crashed(db: Database) -> None:
    transfers(db, "a", "a")
    db.committed.cancel(Transfer, Transfer.id == 1)
    with db.begin() as session:
        assert claimed(session) == {2}
    db.committed.rerun(Transfer, Transfer.id == 1)
    assert db.committed.claim(Transfer) is None
    end_leases(db, Transfer)
    with db.begin() as session:
        assert claimed(session) == {1}


@pytest.mark.requires("locks_rows")
def test_an_earlier_task_that_runs_again_waits_for_one_that_is_only_locked(sync_db: Database) -> None:
    transfers(sync_db, "a", "a", "b", "b")
    sync_db.committed.cancel(Transfer, Transfer.id.in_([1, 3]))
    first, second = contenders(sync_db)
    assert claimed(first, Transfer.account == "a", lease=None) == {2}
    sync_db.committed.rerun(Transfer, Transfer.id.in_([1, 3]))
    assert claimed(first) == {3}
    assert without_waiting(first, lambda: claimed(second)) == set()
    first.rollback()
    assert claimed(second) == {1, 3}
    second.rollback()


@pytest.mark.requires("locks_rows")
def test_a_locked_first_task_is_not_passed(sync_db: Database) -> None:
    transfers(sync_db, "a", "a", "b", "b")
    first, second = contenders(sync_db)
    assert len(claimed(first, limit=1, lease=None)) == 1
    assert len(claimed(second)) == 1
    assert not claimed(second)
    first.rollback()
    second.rollback()


def test_a_claim_finds_the_one_free_key_among_many(db: Database) -> None:
    waiting = [f"key {n:03}" for n in range(200)]
    transfers(db, *waiting, available_at=TOMORROW, status="scheduled")
    transfers(db, *waiting)
    transfers(db, "key 100 b", "zzz", "zzz")
    with db.begin() as session:
        assert [claimed(session, limit=1) for _ in range(3)] in ([{401}, {402}, set()], [{402}, {401}, set()])


@pytest.mark.one_engine
def test_a_claim_finds_a_new_key_beside_any_number_of_waiting_ones(sync_db: Database) -> None:
    for number in range(1, 6):
        transfers(sync_db, f"key {number}", available_at=TOMORROW, status="scheduled")
        assert sync_db.committed.claim(Transfer) is None  # the keys and their turns are known now
        for new in ("aaa", "key 2b", "zzz"):
            transfers(sync_db, new)
            with sync_db.begin() as session:
                task = session.claim(Transfer)
                assert task is not None
                session.complete(task)


# -- crashes, dead letters, and what is read --------------------------------------------------------------------------


def test_no_key_is_out_of_order_when_claimers_are_killed(sync_db: Database, processes: Processes) -> None:
    chance = random.Random(3)
    transfers(sync_db, *(chance.choice("aaabcdefgh") for _ in range(60)))
    running = [processes.spawn(children.transfer, sync_db.url) for _ in range(3)]
    for child in running:
        child.wait_until_arrived()
    for child in running:
        child.let_pass()
    for killed in range(3):
        done = count(sync_db, Transfer, Transfer.status == "completed")
        eventually(lambda done=done: count(sync_db, Transfer, Transfer.status == "completed") >= min(done + 12, 60))
        running[killed % 3].kill()
        running[killed % 3] = child = processes.spawn(children.transfer, sync_db.url)
        child.wait_until_arrived()
        child.let_pass()
    eventually(lambda: count(sync_db, Transfer, Transfer.status == "completed") == 60)
    assert count(sync_db, Ledger) == 0


def discard(db: Database) -> None:
    db.committed.discard(Transfer, Transfer.id == 3, error="broken")


def run_an_earlier_one_again(db: Database) -> None:
    db.committed.rerun(Transfer, Transfer.id == 2)
    db.committed.claim(Transfer, Transfer.account == "a")


def discard_an_earlier_one_again(db: Database) -> None:
    db.committed.rerun(Transfer, Transfer.id == 2)
    db.committed.discard(Transfer, Transfer.id == 2, error="broken")


def change_its_key(db: Database) -> None:
    db.execute(update(Transfer.__table__).where(Transfer.id == 3).values(account="b"))


@pytest.mark.requires("locks_rows")
@pytest.mark.parametrize("change", [discard, run_an_earlier_one_again, discard_an_earlier_one_again, change_its_key])
def test_a_task_that_is_no_longer_the_first_when_a_claim_locks_it(sync_db: Database, change: Any) -> None:
    transfers(sync_db, "b", "a", "a", "a")
    sync_db.committed.cancel(Transfer, Transfer.id == 2)
    with sync_db.begin() as session:
        assert claimed(session, Transfer.account == "b", lease=HOUR) == {1}

    def interfere(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if " free" in statement:
            seen.append(statement)
        if "UPDATE" in statement and seen and not found:
            found.append(statement)
            change(sync_db)

    seen: list[str] = []
    found: list[str] = []
    with sync_db.session() as session:
        event.listen(session.get_bind(), "before_cursor_execute", interfere)
        try:
            assert 3 not in claimed(session, limit=1)
            assert found
        finally:
            event.remove(session.get_bind(), "before_cursor_execute", interfere)
        session.rollback()
        assert claimed(session) == ({4} if change is change_its_key else set())


@pytest.mark.requires("statistics")
def test_a_claim_does_not_read_the_discarded_tasks_of_other_keys(sync_db: Database) -> None:
    other = sync_db.read_committed
    ready = [row for n in range(40) for row in rows(20, account=f"key {n}")]
    sync_db.insert(Transfer, ready)
    small = median_read(other, Transfer, 20, times=5)
    sync_db.execute(delete(Transfer))
    done = {"status": "discarded", "available_at": PAST, "finished_at": PAST, "created_at": PAST}
    with sync_db.engine.begin() as connection:  # a planner that knows nothing may take another index
        connection.exec_driver_sql(str(sync_db.case.statistics).format(table="transfer"))
    sync_db.insert(Transfer, [{**done, "account": f"done {n % 5_000}"} for n in range(10_000)])
    sync_db.insert(Transfer, ready)
    assert median_read(other, Transfer, 20, times=5) <= 2 * small + 200


def test_a_claim_reads_as_little_beside_a_long_blocked_backlog_as_beside_a_short_one(sync_db: Database) -> None:
    def without_key() -> int:
        (ready,) = sequential_picks(spec_of(Transfer))
        with other.session() as session, reading(session, sync_db.case) as read:
            adapter_for(session.get_bind().dialect).rows.lock(session, ready(1).lanes.unkeyed)
        return read.amount

    other = sync_db.read_committed
    ready = {"available_at": PAST, "created_at": PAST, "status": "available", "finished_at": None}
    blocked = [{**ready, "account": key} for key in ("held", "late", "busy")]
    states = [
        {"status": "discarded", "finished_at": PAST},
        {"status": "scheduled", "available_at": TOMORROW},
        {"status": "running", "available_at": TOMORROW},
    ]
    sync_db.insert(Transfer, [first | state for first, state in zip(blocked, states, strict=True)])
    sync_db.insert(
        Transfer, [*blocked * 100, *({**ready, "account": f"key {n}"} for n in range(20) for _ in range(20))]
    )
    analyze(sync_db, Transfer)
    small = {size: median_read(other, Transfer, size) for size in (1, 20)}
    few = without_key()
    done = {**ready, "account": "key 1", "status": "completed", "finished_at": PAST}
    unkeyed = {**ready, "account": None, "status": "scheduled", "available_at": TOMORROW}
    insert_many(sync_db, Transfer, *blocked, done, *[unkeyed] * 6)
    analyze(sync_db, Transfer)
    for size, amount in small.items():
        assert median_read(other, Transfer, size) <= 3 * amount + 100
    assert without_key() <= few + 100


# -- workers, reasons, and refusals -----------------------------------------------------------------------------------


@pytest.mark.one_engine
def test_workers_keep_the_order(sync_db: Database) -> None:
    """And start the next task of a key as soon as the last one has ended."""
    transfers(sync_db, *"abcabcabc" * 5)
    running: set[str] = set()
    started: list[int] = []
    wrong: list[int] = []

    def run(transfer: Transfer) -> None:
        if transfer.account in running:
            wrong.append(transfer.id)
        running.add(transfer.account)
        started.append(transfer.id)
        time.sleep(0.002)
        running.remove(transfer.account)
        if transfer.attempt == 1 and transfer.id in (4, 10):
            raise ValueError("the first attempt")

    workers = Workers(sync_db)
    try:
        for _ in range(2):
            workers.serve(Transfer, run, concurrency=3, poll=timedelta(minutes=5))
        eventually(lambda: count(sync_db, Transfer, Transfer.status == "completed") == 45)
    finally:
        workers.end_test()
    assert not wrong
    for key in range(3):
        order = [number for number in started if number % 3 == key]
        assert order == sorted(order)


@pytest.mark.one_engine
def test_a_worker_is_woken_for_the_next_task_whoever_ends_the_first(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "FIRST_LOOK", HOUR.total_seconds())
    transfers(sync_db, "a", "a", "b", "b")
    started: list[int] = []
    a, _ = sorted(sync_db.committed.claim_many(Transfer, limit=2, lease=HOUR), key=lambda task: task.id)
    workers = Workers(sync_db)
    try:
        workers.serve(Transfer, lambda transfer: started.append(transfer.id), poll=HOUR)
        time.sleep(0.5)  # it has looked, and waits
        sync_db.committed.complete(a)
        eventually(lambda: started == [2])
        time.sleep(0.5)
        sync_db.committed.cancel(Transfer, Transfer.id == 3)
        eventually(lambda: started == [2, 4])
    finally:
        workers.end_test()


@pytest.mark.sync_only
def test_why_tells_which_task_comes_first(db: Database) -> None:
    transfers(db, "a", "a", "a", "b", "b")
    with db.begin() as session:
        b = session.claim(Transfer, Transfer.account == "b")
        session.snooze(b, HOUR)
    (reason,) = reasons(db, 3)
    assert (reason.cause, reason.ahead) == (Cause.KEY_ORDER, 2)
    assert reason.text == "task 1 with its key 'a' comes first: it is waiting to start, and 1 more before this one"
    (reason,) = reasons(db, 5)
    assert reason.text.startswith("task 4 with its key 'b' comes first: it is due at ")
    assert [reason.cause for reason in reasons(db, 1)] == [Cause.READY]


@pytest.mark.one_engine
def test_refusals(sync_db: Database) -> None:
    with pytest.raises(ArgumentError, match=r"order of transfer\.account"):
        sync_db.committed.claim_many(Transfer, limit=2, order_by=Transfer.priority)
    with pytest.raises(ArgumentError, match="would not keep its order"):
        Worker(sync_db.sessions()).handler(Transfer, mode="at-most-once")(lambda transfer: None)
