"""How the end of a handler settles its task: by returning, by a signal, by an exception, or too late."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sqlqueue import Cancel, Discard, Retry, Snooze, current_job
from sqlqueue.queue.spec import spec_of
from tests.support.harness import Database
from tests.support.models import Ledger, Mail, Task
from tests.support.rows import count, load, rows
from tests.support.workers import (
    LEASE,
    LONG,
    BlockingHandler,
    Workers,
    all_are,
    eventually,
    nothing,
    raising,
    statuses,
    with_session,
    without_session,
)

MINUTE = timedelta(minutes=1)
NO, BUSY, NO_USE = ValueError("no"), Retry(MINUTE, "busy"), Discard("no use")


@pytest.mark.one_engine
@pytest.mark.parametrize("session", [True, False])
@pytest.mark.parametrize(
    ("error", "attempt", "status", "stored", "delay", "level", "outcome", "said"),
    [
        (NO, 0, "retryable", "ValueError: no", 10, "WARNING", "failed", "failed (ValueError: no), retry in 10 s"),
        (NO, 1, "retryable", "ValueError: no", 30, "WARNING", "failed", "failed (ValueError: no), retry in 30 s"),
        (NO, 2, "discarded", "ValueError: no", None, "ERROR", "discarded", "failed (ValueError: no), discarded"),
        (BUSY, 0, "retryable", "busy", 60, "WARNING", "failed", "failed (busy), retry in 60 s"),
        (BUSY, 2, "discarded", "busy", None, "ERROR", "discarded", "failed (busy), discarded"),
        (NO_USE, 0, "discarded", "no use", None, "ERROR", "discarded", "failed (no use), discarded"),
        (Snooze(MINUTE), 2, "scheduled", None, 60, "DEBUG", "snoozed", ""),
        (Cancel(), 0, "cancelled", None, None, "DEBUG", "cancelled", ""),
    ],
)
def test_each_outcome_is_recorded_and_logged(
    db: Database,
    workers: Workers,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    attempt: int,
    status: str,
    stored: str | None,
    delay: float | None,
    level: str,
    outcome: str,
    said: str,
    session: bool,
) -> None:
    """A retry is a warning, and a dead letter an error."""
    caplog.set_level(logging.DEBUG, "sqlqueue")
    db.insert(Task, [{"id": 7, "attempt": attempt}])
    worker = workers.serve(Task, raising(db, error, session=session)).worker
    (record,) = eventually(lambda: [each for each in caplog.records if hasattr(each, "outcome")])
    assert (record.levelname, record.exc_info is not None) == (level, error is NO)
    assert error is not NO or "/worker/executor.py" in caplog.text, "frames are left out although it logs at DEBUG"
    assert not said or record.getMessage() == f"task 7: attempt {attempt + 1} ({2 - attempt} left) {said}"
    facts = (record.queue, record.key, record.attempt, record.outcome)
    assert facts == ("task", "7", attempt + 1, outcome)
    eventually(all_are(db, status))
    task = load(db, Task, 7)
    assert (task.error, task.attempt) == (stored, attempt + 1)
    assert task.max_attempts == (4 if outcome == "snoozed" else 3)
    if outcome == "failed":
        assert round((task.available_at - task.claimed_at).total_seconds(), -1) == delay
    assert (task.finished_at is None) == (delay is not None)
    assert count(db, Ledger) == 0
    counts = worker.health().counts
    assert (counts.get("failed", 0), counts.get("discarded", 0)) == (outcome == "failed", outcome == "discarded")


@pytest.mark.parametrize("session", [True, False])
def test_outcomes_of_all_kinds_are_written_together(db: Database, workers: Workers, session: bool) -> None:
    """Without sessions, one batch contains outcomes of every kind."""
    kinds = [None, NO, BUSY, Snooze(MINUTE), NO_USE, Cancel()]
    db.insert(Task, [each for number in range(6) for each in rows(5, number=number)])

    def during(task: Any) -> None:
        if error := kinds[task.number]:
            raise error

    workers.serve(Task, with_session(db, during=during) if session else without_session(db, during))
    eventually(lambda: not {"available", "running"} & set(statuses(db).values()))
    ended = Counter(statuses(db).values())
    assert ended == {"completed": 5, "retryable": 10, "scheduled": 5, "discarded": 5, "cancelled": 5}


# -- too late ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_engine
def test_a_coroutine_that_takes_too_long_is_stopped_and_has_failed(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, rows(1))
    stopped = threading.Event()

    async def wait(task: Task) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    workers.serve(Task, wait, timeout=timedelta(seconds=0.1))
    eventually(all_are(sync_db, "retryable"))
    assert stopped.is_set()
    assert count(sync_db, Task, Task.error == "TimeoutError: its handler ran for longer than 0:00:00.100000") == 1


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock", "at-most-once"])
def test_a_thread_that_takes_too_long_is_reported(
    sync_db: Database, workers: Workers, blocking: BlockingHandler, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    sync_db.insert(Task, rows(1))
    handler = with_session(sync_db, during=blocking) if mode == "lock" else without_session(sync_db, blocking)
    worker = workers.serve(Task, handler, timeout=timedelta(seconds=0.1), mode=mode).worker
    blocking.wait_for()
    eventually(lambda: "has been running for more than 0:00:00.100000" in caplog.text)
    assert worker._reports.counts["overdue"] == 1
    blocking.release()
    eventually(all_are(sync_db, "completed"))


def test_the_handler_of_a_cancelled_task_is_notified(
    db: Database, workers: Workers, blocking: BlockingHandler, caplog: pytest.LogCaptureFixture
) -> None:
    db.insert(Task, rows(2))
    worker = workers.serve(Task, with_session(db, during=blocking), poll=LONG, lease=LEASE).worker
    blocking.wait_for(2)
    unwanted, wanted = blocking.started
    with db.begin() as actor:
        assert actor.cancel(Task, Task.id == unwanted) == 1
    eventually(lambda: blocking.lost == [unwanted])
    eventually(lambda: worker._reports.counts["lost"] == 1)
    blocking.release()
    eventually(lambda: statuses(db) == {unwanted: "cancelled", wanted: "completed"})
    assert count(db, Ledger) == 1
    eventually(lambda: "it was cancelled" in caplog.text)


def test_a_task_cancelled_before_it_starts_is_not_run(
    db: Database, workers: Workers, blocking: BlockingHandler
) -> None:
    db.insert(Task, rows(200))
    held: Any = ()
    known = threading.Event()
    begun: list[int] = []

    def during(task: Any) -> None:
        known.wait(60)
        begun.append(task.id)
        if not blocking.started and any(job.claim.identity > (task.id,) for job in held):  # claimed ahead
            blocking(task)

    worker = workers.serve(Task, without_session(db, during), poll=LONG, concurrency=1, lease=LEASE).worker
    held = eventually(lambda: worker._run)._context.in_flight
    known.set()
    blocking.wait_for()
    (first,) = blocking.started
    with db.begin() as actor:
        assert actor.cancel(Task, Task.id > first, Task.status == "running") > 0
        actor.cancel(Task, Task.id > first)  # otherwise the worker would claim and hold other tasks in their place
    unwanted = {key for key, status in statuses(db).items() if status == "cancelled"}
    eventually(lambda: len(held) == 1)
    blocking.release()
    eventually(lambda: not {"available", "running"} & set(statuses(db).values()))
    assert not unwanted & set(begun)


@pytest.mark.one_engine
def test_current_job(db: Database, workers: Workers) -> None:
    db.insert(Task, rows(1))
    jobs: list[Any] = []
    workers.serve(Task, with_session(db, lambda session, task: jobs.append((current_job(), task))))
    eventually(all_are(db, "completed"))
    ((job, task),) = jobs
    assert (job.claim.identity, job.claim.attempt, job.is_lost) == ((task.id,), 1, False)
    with pytest.raises(LookupError):
        current_job()


# -- several at once --------------------------------------------------------------------------------------------------


@pytest.mark.one_engine
def test_each_handler_has_its_own_topic_and_concurrency(db: Database, workers: Workers) -> None:
    db.insert(Mail, rows(6, topic="slow"))
    db.insert(Mail, rows(6, topic="fast"))
    db.insert(Mail, rows(2, topic="nobody's"))
    db.insert(Task, rows(6))
    handlers = {name: BlockingHandler() for name in ("slow", "fast", "task")}
    worker = workers.make()
    worker.handler(Mail, Mail.topic == "slow", concurrency=2)(with_session(db, nothing, during=handlers["slow"]))
    worker.handler(Mail, Mail.topic == "fast", concurrency=3)(without_session(db, handlers["fast"]))
    worker.handler(Task, concurrency=4, batch=2)(without_session(db, handlers["task"]))
    workers.start(worker)
    for name, most in (("slow", 2), ("fast", 3), ("task", 4)):
        handlers[name].wait_for(most)
    for handler in handlers.values():
        handler.release()
    eventually(lambda: worker._reports.counts["completed"] == 18)
    assert [handlers[name].max_running for name in ("slow", "fast", "task")] == [2, 3, 4]
    assert count(db, Mail, Mail.topic == "nobody's", Mail.status == "available") == 2


@pytest.mark.one_engine
def test_a_batch_is_not_larger_than_configured(sync_db: Database, workers: Workers, blocking: BlockingHandler) -> None:
    sync_db.insert(Task, rows(8))
    workers.serve(Task, without_session(sync_db, blocking), concurrency=8, batch=2)
    blocking.wait_for(8)
    with sync_db.begin() as actor:
        moments = Counter(task.claimed_at for task in actor.query(Task))
    assert set(moments.values()) <= {1, 2}


@pytest.mark.one_engine
def test_a_coroutine_without_a_session_runs_in_a_sync_worker_too(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, rows(3))
    threads: set[str] = set()

    async def wait(task: Task) -> None:
        await asyncio.sleep(0.01)
        threads.add(threading.current_thread().name)

    workers.serve(Task, wait)
    eventually(all_are(sync_db, "completed"))
    assert len(threads) == 1, "coroutines run on the loop"


# -- ``CancelledError``, because something that the handler awaited was cancelled: that is a failure ------------------

ROWS = [{"id": n, "name": "bad" if n == 1 else "", "max_attempts": 1} for n in range(1, 6)]
ENDED = {1: "discarded", 2: "completed", 3: "completed", 4: "completed", 5: "completed"}


@pytest.mark.parametrize(("mode", "session"), [("lease", True), ("lease", False), ("lock", True)])
def test_it_counts_as_a_failure(db: Database, workers: Workers, mode: Any, session: bool) -> None:
    db.insert(Task, ROWS)

    def call(task: Any) -> None:
        if task.name == "bad":
            raise asyncio.CancelledError if session else CancelledError

    def write(session: Any, task: Any) -> None:
        call(task)
        session.add(Ledger(task_id=task.id, worker="worker"))

    handler = with_session(db, write) if session else without_session(db, call)
    workers.serve(Task, handler, mode=mode, concurrency=1)
    eventually(lambda: statuses(db) == ENDED)
    assert count(db, Ledger) == 4 * session
    assert count(db, Task, Task.error == "CancelledError") == 1


async def awaits_what_is_cancelled() -> None:
    request = asyncio.create_task(asyncio.sleep(LONG.total_seconds()))
    request.cancel()
    await request


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(LONG.total_seconds())


async def exits() -> None:
    raise SystemExit


@pytest.mark.asyncio_only
@pytest.mark.parametrize("mode", ["lease", "lock"])
@pytest.mark.parametrize("ends", [awaits_what_is_cancelled, cancels_itself, exits])
def test_a_coroutine_that_ends_so_affects_no_other(db: Database, workers: Workers, mode: Any, ends: Any) -> None:
    """The next coroutine uses a task group, which a cancellation that is left over would break."""
    db.insert(Task, ROWS)

    async def handle(session: Any, task: Any) -> None:
        if task.name == "bad":
            await ends()
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        session.add(Ledger(task_id=task.id, worker="worker"))

    workers.serve(Task, handle, mode=mode, concurrency=1)
    eventually(lambda: statuses(db) == ENDED)
    assert count(db, Ledger) == 4


async def fails() -> None:
    raise ValueError("no luck")


@pytest.mark.asyncio_only
def test_a_slot_that_something_cancels_is_started_again(
    db: Database, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    db.insert(Task, [{"id": 1}])
    calls: list[int] = []

    async def handle(session: Any, task: Any) -> None:
        calls.append(task.id)
        if len(calls) == 1:
            for other in asyncio.all_tasks():
                if other.get_coro().__qualname__ == "LockModeFetcher._slot":  # type: ignore[union-attr]
                    other.cancel()
            await asyncio.sleep(LONG.total_seconds())

    with caplog.at_level(logging.ERROR, "sqlqueue"):
        workers.serve(Task, handle, mode="lock", concurrency=2)
        eventually(lambda: statuses(db) == {1: "completed"})
    assert "was cancelled, and is started again" in caplog.text


# -- retry policies of applications that raise, return no delay, or have just as many delays as are needed ------------


def use(monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
    spec = spec_of(Task)
    monkeypatch.setitem(spec.__dict__, "options", replace(spec.options, retry=policy))


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_a_policy_is_asked_only_for_delays_that_are_used(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """This one has the two delays that three attempts need."""
    asked: set[int] = set()

    def policy(attempt: int) -> timedelta:
        asked.add(attempt)
        return [timedelta(0), timedelta(0)][attempt - 1]

    use(monkeypatch, policy)
    db.insert(Task, [{"id": 1}])
    workers.serve(Task, raising(db, ValueError("no luck")), mode=mode)
    eventually(lambda: statuses(db) == {1: "discarded"})
    assert asked == {1, 2}
    assert count(db, Task, Task.error == "ValueError: no luck", Task.attempt == 3) == 1


def raises(_: int) -> Any:
    raise LookupError("no delay")


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "policy", [raises, lambda _: 15, lambda _: -timedelta(1), lambda _: None, lambda _: timedelta.max]
)
def test_a_policy_without_a_delay_is_logged_and_replaced(
    sync_db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, policy: Any
) -> None:
    use(monkeypatch, policy)
    sync_db.insert(Task, [{"id": 1}])
    with sync_db.begin() as session:
        session.fail(session.claim(Task), ValueError("no luck"))
        session.add(Task(id=2))  # the transaction is usable
    assert statuses(sync_db) == {1: "retryable", 2: "available"}
    assert "the retry policy of Task has no delay after attempt 1, so the default backoff applies" in caplog.text


@pytest.mark.one_engine
@pytest.mark.parametrize("mode", ["lease", "lock"])
@pytest.mark.parametrize("error", [ValueError("no luck"), PoolTimeoutError("no connection is free")])
def test_a_worker_whose_policy_has_no_delay_records_the_error(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, mode: Any, error: Exception
) -> None:
    use(monkeypatch, raises)
    db.insert(Task, [{"id": 1}])
    workers.serve(Task, raising(db, error), mode=mode)
    eventually(lambda: statuses(db)[1] in ("retryable", "scheduled"))
    # with a note that it does not count, if it does not
    assert count(db, Task, Task.error.contains(f"{type(error).__name__}: {error}")) == 1
