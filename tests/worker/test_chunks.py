"""Handlers that get several tasks at a time, in one transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sqlqueue import ArgumentError, Cancel, Discard, QueueSession, Rate, Snooze, Worker, current_job, discard
from sqlqueue.testing import drain
from sqlqueue.worker.chunks import _Interrupt
from tests.suite.test_rates import started, worst
from tests.support.harness import Database
from tests.support.models import Crawl, Film, Ledger, Task, Transfer, Visit
from tests.support.rows import rows
from tests.support.workers import LEASE, LONG, POLL, Workers, all_are, by_id, eventually, nothing, with_session


class Calls:
    """The keys of the tasks in each call; `write` is given to `with_session`."""

    def __init__(self, outcome: Callable[[Any, list[Any]], Any] = nothing) -> None:
        self.keys: list[list[int]] = []
        self._outcome = outcome

    def write(self, session: Any, tasks: list[Any]) -> Any:
        self.keys.append([task.number for task in tasks])
        session.add_all(Ledger(task_id=task.number) for task in tasks)
        session.flush()
        return self._outcome(session, tasks)

    @property
    def sizes(self) -> list[int]:
        return [len(keys) for keys in self.keys]


def fill(db: Database, count: int, first: int = 1, **columns: Any) -> None:
    """Insert tasks that are numbered in claim order."""
    db.insert(Task, [{**row, "number": number} for number, row in enumerate(rows(count, **columns), first)])


def by_number(db: Database, column: Any) -> dict[int, Any]:
    with db.engine.connect() as connection:
        return dict(connection.execute(select(Task.number, column)).all())


def rejecting(*refused: int) -> Callable[[Any, list[Any]], None]:
    def check(session: Any, tasks: list[Any]) -> None:
        if any(task.number in refused for task in tasks):
            raise ValueError("bad address")

    return check


def written(db: Database) -> set[int]:
    return set(by_id(db, Ledger.task_id).values())


@pytest.mark.asyncio_everywhere
def test_one_commit_settles_all_tasks_of_a_call(db: Database, workers: Workers) -> None:
    calls = Calls()
    fill(db, 20)
    worker = workers.serve(Task, with_session(db, calls.write), chunk=10, concurrency=1, poll=LONG).worker
    eventually(all_are(db, "completed"))
    assert calls.sizes == [10, 10]
    assert [*chain(*calls.keys)] == list(range(1, 21))
    assert written(db) == set(range(1, 21))
    eventually(lambda: worker._reports.counts["completed"] == 20)


@pytest.mark.asyncio_everywhere
def test_the_failing_tasks_alone_are_charged(db: Database, workers: Workers) -> None:
    calls = Calls(rejecting(3, 14))
    fill(db, 16, max_attempts=1)
    workers.serve(Task, with_session(db, calls.write), chunk=16, concurrency=1, poll=LONG)
    eventually(lambda: set(by_number(db, Task.status).values()) == {"completed", "discarded"})
    assert by_number(db, Task.error) == {
        key: "ValueError: bad address" if key in {3, 14} else None for key in range(1, 17)
    }
    assert set(by_number(db, Task.attempt).values()) == {1}
    assert written(db) == set(range(1, 17)) - {3, 14}
    assert len(calls.keys) <= 1 + 2 * 2 * 4  # two failing ones among sixteen


@pytest.mark.one_engine
def test_a_task_that_the_database_rejects_at_the_commit_is_alone_charged(db: Database, workers: Workers) -> None:
    def duplicate(session: Any, tasks: list[Any]) -> None:
        session.add_all(Ledger(task_id=4) for task in tasks if task.number == 4)

    fill(db, 8, max_attempts=1)
    workers.serve(Task, with_session(db, Calls(duplicate).write), chunk=8, poll=LONG)
    eventually(lambda: set(by_number(db, Task.status).values()) == {"completed", "discarded"})
    assert written(db) == {1, 2, 3, 5, 6, 7, 8}


@pytest.mark.asyncio_everywhere
def test_single_tasks_end_as_the_handler_says(db: Database, workers: Workers) -> None:
    """By the exceptions that it returns for them, or because it settles them itself.  Its writes are kept."""

    def choose(session: Any, tasks: list[Any]) -> Any:
        first, second, third, fourth, fifth, _, seventh = tasks
        discard(session, fifth, "settled by the handler")
        return {
            seventh: asyncio.CancelledError(),  # as gather(..., return_exceptions=True) returns it
            first: Discard("no such mailbox"),
            second: Snooze(timedelta(hours=1)),
            third: Cancel(),
            fourth: ValueError("full"),
        }

    fill(db, 7)
    worker = workers.serve(Task, with_session(db, Calls(choose).write), chunk=7, concurrency=1, poll=LONG).worker
    eventually(lambda: by_number(db, Task.status)[6] == "completed")
    assert by_number(db, Task.status) == {
        1: "discarded",
        2: "scheduled",
        3: "cancelled",
        4: "retryable",
        5: "discarded",
        6: "completed",
        7: "retryable",
    }
    assert by_number(db, Task.error) == {
        1: "no such mailbox",
        2: None,
        3: None,
        4: "ValueError: full",
        5: "settled by the handler",
        6: None,
        7: "CancelledError",
    }
    assert written(db) == {1, 2, 3, 4, 5, 6, 7}
    eventually(lambda: worker._reports.counts["failed"] == 2)


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "returned", [lambda _: ["no"], lambda _: {"no": 1}, lambda _: {Task(id=1): None}, lambda tasks: {tasks[0]: Discard}]
)
def test_what_is_no_outcome_fails_the_tasks(db: Database, workers: Workers, returned: Callable[[Any], object]) -> None:
    fill(db, 2, max_attempts=1)
    workers.serve(Task, with_session(db, Calls(lambda _, tasks: returned(tasks)).write), chunk=2, poll=LONG)
    eventually(all_are(db, "discarded"))
    assert all("ArgumentError" in error for error in by_number(db, Task.error).values())
    assert not written(db)


def cancel(db: Database) -> None:
    db.committed.cancel(Task, Task.number == 2)


def take_over(db: Database) -> None:
    """Claim a task as if its lease had ended."""
    db.execute(update(Task).where(Task.number == 2).values(available_at=Task.claimed_at))
    with db.begin() as other:
        (task,) = other.claim_many(Task, Task.number == 2, limit=1)
        other.complete(task)


@pytest.mark.asyncio_everywhere
@pytest.mark.parametrize("lose", [cancel, take_over])
def test_the_tasks_that_are_left_of_a_lost_one_are_passed_again(
    db: Database, workers: Workers, lose: Callable[[Database], None]
) -> None:
    """Nothing that was written for the lost task is kept, and no attempt of the others counts."""
    calls, blocked, go_on = Calls(), threading.Event(), threading.Event()

    def wait(tasks: list[Any]) -> None:
        blocked.set()
        go_on.wait(60)

    fill(db, 5)
    lease = timedelta(minutes=5)  # no heartbeat notices it before the commit does
    handler = with_session(db, calls.write, during=wait)
    worker = workers.serve(Task, handler, chunk=5, concurrency=1, poll=LONG, lease=lease).worker
    assert blocked.wait(60)
    lose(db)
    go_on.set()
    eventually(lambda: [by_number(db, Task.status)[key] for key in (1, 3, 4, 5)] == ["completed"] * 4)
    assert calls.keys == [[1, 2, 3, 4, 5], [1, 3, 4, 5]]
    assert written(db) == {1, 3, 4, 5}
    assert by_number(db, Task.attempt) == {1: 1, 2: 1 if lose is cancel else 2, 3: 1, 4: 1, 5: 1}
    eventually(lambda: worker._reports.counts["lost"] == 1)


@pytest.mark.asyncio_everywhere
def test_the_leases_of_a_call_are_extended_while_it_waits_for_more_and_runs(db: Database, workers: Workers) -> None:
    calls, blocked, go_on = Calls(), threading.Event(), threading.Event()

    def wait(tasks: list[Any]) -> None:
        blocked.set()
        go_on.wait(60)

    def are_extended() -> None:
        ends = by_number(db, Task.available_at)
        assert len(ends) > 1
        eventually(lambda: all(each > max(ends.values()) for each in by_number(db, Task.available_at).values()))

    fill(db, 2)
    handler = with_session(db, calls.write, during=wait)
    workers.serve(Task, handler, chunk=3, chunk_wait=LONG, concurrency=1, poll=POLL, lease=LEASE)
    eventually(all_are(db, "running"))
    are_extended()
    fill(db, 1, first=3)
    assert blocked.wait(60)
    are_extended()
    go_on.set()
    eventually(all_are(db, "completed"))
    assert calls.keys == [[1, 2, 3]]


@pytest.mark.asyncio_only
@pytest.mark.parametrize("failing", [[], [5]], ids=["at first", "after an error of another task"])
def test_losing_a_task_cancels_the_call_of_a_coroutine(db: Database, workers: Workers, failing: list[int]) -> None:
    called: list[list[int]] = []

    async def send(session: Any, tasks: list[Any]) -> None:
        called.append([task.number for task in tasks])
        if set(called[-1]) & set(failing):
            raise ValueError("bad address")
        if {2, 3} <= set(called[-1]):
            await asyncio.sleep(600)

    fill(db, 3 + 3 * len(failing), max_attempts=1)
    workers.serve(Task, send, chunk=6, concurrency=1, poll=LONG, lease=LEASE)
    eventually(lambda: [1, 2, 3] in called)
    db.committed.cancel(Task, Task.number == 3)
    ends = {1: "completed", 2: "completed", 3: "cancelled"}
    eventually(lambda: by_number(db, Task.status).items() >= ends.items())
    assert called[called.index([1, 2, 3]) + 1] == [1, 2]


@pytest.mark.asyncio_only
def test_a_timeout_is_charged_to_the_task_that_takes_too_long(db: Database, workers: Workers) -> None:
    async def send(session: Any, tasks: list[Any]) -> None:
        await asyncio.sleep(600 if any(task.number == 2 for task in tasks) else 0)

    fill(db, 3, max_attempts=1)
    workers.serve(Task, send, chunk=3, concurrency=1, poll=LONG, timeout=timedelta(seconds=0.5))
    eventually(lambda: set(by_number(db, Task.status).values()) == {"completed", "discarded"})
    assert by_number(db, Task.status) == {1: "completed", 2: "discarded", 3: "completed"}


@pytest.mark.asyncio_only
def test_a_call_that_blocks_the_event_loop_is_reported_with_a_task(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sqlqueue.worker.context.STALLED", 0.5)
    go_on = threading.Event()

    async def send(session: Any, tasks: list[Any]) -> None:
        go_on.wait(60)

    fill(db, 3)
    workers.serve(Task, send, chunk=3, poll=LONG)
    try:
        (blocked,) = eventually(lambda: [each for each in caplog.records if each.levelname == "ERROR"])
    finally:
        go_on.set()
    assert "attempt 1 (2 left) has been blocking the event loop for" in blocked.getMessage()
    eventually(all_are(db, "completed"))


@pytest.mark.one_engine
def test_an_outage_counts_no_attempt_and_each_task_then_runs_alone(db: Database, workers: Workers) -> None:
    """One of them may have caused it, for example by a statement that is too large for the server."""

    def miss(session: Any, tasks: list[Any]) -> None:
        if any(task.number == 2 for task in tasks):
            raise PoolTimeoutError("no connection")

    calls = Calls(miss)
    fill(db, 4)
    workers.serve(Task, with_session(db, calls.write), chunk=4, concurrency=1, poll=LONG)
    eventually(lambda: set(by_number(db, Task.status).values()) == {"scheduled"})
    assert len(calls.keys) == 1
    assert set(by_number(db, Task.max_attempts - Task.attempt).values()) == {3}
    db.committed.run_now(Task, Task.number.in_([1, 2, 3, 4]))
    eventually(lambda: [by_number(db, Task.status)[key] for key in (1, 3, 4)] == ["completed"] * 3)
    assert calls.sizes[1:5] == [1, 1, 1, 1]


@pytest.mark.one_engine
def test_a_call_with_few_tasks_waits_for_more(db: Database, workers: Workers) -> None:
    calls = Calls()
    fill(db, 2)
    workers.serve(Task, with_session(db, calls.write), chunk=3, chunk_wait=LONG, concurrency=1)
    eventually(lambda: set(by_number(db, Task.status).values()) == {"running"})
    fill(db, 2, first=3)
    eventually(lambda: calls.keys == [[1, 2, 3]])
    eventually(lambda: by_number(db, Task.status)[3] == "completed")
    assert by_number(db, Task.status)[4] != "completed"


@pytest.mark.one_engine
def test_a_call_waits_no_longer_than_it_may(db: Database, workers: Workers) -> None:
    calls, begun = Calls(), time.monotonic()
    fill(db, 2)
    workers.serve(Task, with_session(db, calls.write), chunk=3, chunk_wait=timedelta(seconds=1), concurrency=1)
    eventually(all_are(db, "completed"))
    assert calls.keys == [[1, 2]]
    assert time.monotonic() - begun >= 1


@pytest.mark.one_engine
def test_a_stopping_worker_releases_what_waits_for_more(db: Database, workers: Workers) -> None:
    calls = Calls()
    fill(db, 2)
    running = workers.serve(Task, with_session(db, calls.write), chunk=3, chunk_wait=LONG)
    eventually(lambda: set(by_number(db, Task.status).values()) == {"running"})
    running.stop()
    assert set(by_number(db, Task.status).values()) == {"available"}
    assert not calls.keys


@pytest.mark.one_engine
def test_results_by_task(db: Database, workers: Workers) -> None:
    def numbers(session: Any, tasks: list[Any]) -> Any:
        return dict(zip(tasks, ({"number": 1}, {"number": 2}), strict=False))

    db.insert(Film, rows(3, stage="print"))
    workers.serve(Film, with_session(db, numbers), chunk=3, poll=LONG)
    eventually(all_are(db, "completed", Film))
    assert list(by_id(db, Film.result).values()) == [{"number": 1}, {"number": 2}, None]


@pytest.mark.one_engine
def test_what_cannot_be_combined_is_refused(sync_db: Database) -> None:
    worker = Worker(sync_db.sessions())

    def one(session: QueueSession, task: Task) -> None: ...
    def several(session: QueueSession, tasks: list[Task]) -> None: ...
    def alone(tasks: list[Task]) -> None: ...

    for options, function, complaint in [
        ({"chunk": 10}, one, "annotate list"),
        ({"chunk": 10}, alone, "must take"),
        ({"chunk": 0}, several, "chunk=0"),
        ({"chunk_wait": LONG}, one, "give chunk too"),
        ({"chunk": 10, "mode": "lock"}, several, "combined with mode='lock'"),
        ({"chunk": 10, "mode": "at-most-once"}, several, "combined with mode='at-most-once'"),
        ({"chunk": 10, "isolation": "process"}, several, "combined with isolation='process'"),
    ]:
        with pytest.raises(ArgumentError, match=complaint):
            worker.handler(Task, **options)(function)  # type: ignore[arg-type]


@pytest.mark.one_engine
@pytest.mark.parametrize("chunk", [2, 10])
def test_drain_passes_as_many_tasks_as_are_due(db: Database, chunk: int) -> None:
    calls: list[list[int]] = []

    def send(session: Any, tasks: list[Task]) -> dict[Task, Exception]:
        with pytest.raises(LookupError):
            current_job()
        calls.append([task.number for task in tasks])
        for task in tasks:
            session.add(Ledger(task_id=task.number))
            task.priority = 7  # a rollback expires the instance
        if 4 in calls[-1]:
            raise ValueError("bad address")
        return {task: Discard("refused") for task in tasks if task.number == 2}

    async def send_awaited(session: Any, tasks: list[Task]) -> dict[Task, Exception]:
        return send(session, tasks)

    worker = Worker(db.sessions())
    worker.handler(Task, chunk=chunk)(send_awaited if db.is_async else send)
    fill(db, 5, max_attempts=1)
    with db.session() as session:
        counts = session.pass_to(lambda own: drain(worker, own, raise_errors=False))
        assert counts == {"completed": 3, "discarded": 2}
        session.commit()
    assert calls == (
        [[1, 2], [3, 4], [3], [4], [5]] if chunk == 2 else [[1, 2, 3, 4, 5], [1, 2], [3, 4, 5], [3], [4, 5], [4], [5]]
    )
    assert written(db) == {1, 2, 3, 5}
    assert by_number(db, Task.error)[4] == "ValueError: bad address"


@pytest.mark.asyncio_everywhere
def test_limits_hold_within_a_call(db: Database, workers: Workers) -> None:
    calls: list[list[str]] = []

    def visit(session: Any, visits: list[Visit]) -> None:
        calls.append([visit.limit_key or "" for visit in visits])

    db.committed.enqueue(Visit, [{"limit_key": key} for key in "aaaaabbb"])
    workers.serve(Visit, with_session(db, visit), chunk=10, poll=POLL)
    eventually(all_are(db, "completed", Visit))
    assert all(keys.count(key) <= 2 for keys in calls for key in keys), "the limit of a key is 2"
    assert max(map(len, calls)) == 4


@pytest.mark.asyncio_everywhere
def test_the_keys_of_a_fair_queue_take_turns_within_a_call(db: Database, workers: Workers) -> None:
    calls: list[list[str]] = []

    def crawl(session: Any, pages: list[Crawl]) -> None:
        calls.append([page.site or "" for page in pages])

    db.insert(Crawl, [{"site": site} for site in "aaaaaaaabb"])
    workers.serve(Crawl, with_session(db, crawl), chunk=4, batch=4, concurrency=1, poll=POLL)
    eventually(all_are(db, "completed", Crawl))
    assert sorted(calls[0]) == ["a", "a", "b", "b"]


@pytest.mark.asyncio_everywhere
def test_rates_hold_when_calls_fail_and_are_split(db: Database, workers: Workers) -> None:
    """A task that is passed again, because another one of its call has failed, is not started again."""
    calls: list[list[str | None]] = []

    def visit(session: Any, visits: list[Visit]) -> None:
        calls.append([visit.limit_key for visit in visits])
        if len(visits) > 1:
            raise ValueError("each alone")

    rate = Rate(3, per=timedelta(seconds=1))
    db.committed.set_rate(Visit, "a", rate)
    db.committed.set_limit(Visit, "a", None)
    db.committed.enqueue(Visit, [{"limit_key": key} for key in "aaaaaaabb"])
    workers.serve(Visit, with_session(db, visit), chunk=10, poll=POLL)
    eventually(all_are(db, "completed", Visit))
    assert max(keys.count("a") for keys in calls) == rate.starts
    assert worst(started(db, "a"), rate.per) <= rate.starts
    assert set(by_id(db, Visit.attempt).values()) == {1}


@pytest.mark.asyncio_everywhere
def test_the_tasks_of_a_key_keep_their_order_in_calls(db: Database, workers: Workers) -> None:
    """The first task of one key fails twice: in a call with the first ones of other keys, and then alone."""
    calls: list[list[tuple[str, int]]] = []
    done: list[tuple[str, int]] = []

    def transfer(session: Any, transfers: list[Transfer]) -> None:
        keys = [(transfer.account or "", transfer.id) for transfer in transfers]
        calls.append(keys)
        if any(transfer.id == 1 and transfer.attempt == 1 for transfer in transfers):
            raise ValueError("refused")
        done.extend(keys)

    db.insert(Transfer, [{"id": number, "account": account} for number, account in enumerate("aabbccabc" * 2, 1)])
    workers.serve(Transfer, with_session(db, transfer), chunk=10, concurrency=2, poll=POLL)
    eventually(all_are(db, "completed", Transfer))
    assert sorted(done) == sorted(done, key=lambda each: each[0])  # by account, in the order in which they were done
    assert all(len({account for account, _ in keys}) == len(keys) for keys in calls)
    assert max(map(len, calls)) == 3
    assert {number for number, attempt in by_id(db, Transfer.attempt).items() if attempt > 1} == {1}


def test_an_interruption_that_comes_late_does_not_reach_the_next_call() -> None:
    async def call() -> None:
        interrupt = _Interrupt()
        interrupt()
        interrupt.end()
        await asyncio.sleep(0)

    asyncio.run(call())


def test_the_next_call_after_an_interrupted_one_is_not_cancelled() -> None:
    async def call() -> int:
        interrupt, task = _Interrupt(), asyncio.current_task()
        interrupt()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(60)
        interrupt.end()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(call()) == 0
