"""How the end of a handler settles its task: by returning, by a signal, by an exception, or too late."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import RowMapping

from sqlqueue import Cancel, Discard, Retry, Snooze, current_job
from tests.support.harness import Database
from tests.support.models import Ledger, Mail, Task
from tests.support.rows import count, row, rows
from tests.support.workers import (
    LEASE,
    LONG,
    BlockingHandler,
    Workers,
    all_are,
    eventually,
    raising,
    statuses,
    with_session,
    without_session,
)

HOUR = timedelta(hours=1)


def ends(db: Database, workers: Workers, error: Exception, status: str, *, session: bool, **columns: Any) -> RowMapping:
    """Return the row after a handler has raised `error`."""
    db.insert(Task, rows(1, **columns))
    workers.serve(Task, raising(db, error, session=session))
    eventually(all_are(db, status))
    assert count(db, Ledger) == 0
    with db.begin() as actor:
        return row(db, actor.get(Task, next(iter(statuses(db)))))


def delay(found: RowMapping) -> timedelta:
    return round_(found["available_at"] - found["claimed_at"])


def round_(some: timedelta) -> timedelta:
    return timedelta(seconds=round(some.total_seconds(), -1))


@pytest.mark.parametrize("session", [True, False])
def test_an_exception_is_recorded_and_tried_again_after_the_backoff(
    sync_db: Database, workers: Workers, session: bool
) -> None:
    found = ends(sync_db, workers, ValueError("no luck"), "retryable", session=session, attempt=1)
    assert (found["error"], found["attempt"], delay(found)) == ("ValueError: no luck", 2, timedelta(seconds=30))


def test_after_the_last_attempt_it_is_discarded(db: Database, workers: Workers) -> None:
    found = ends(db, workers, ValueError("no luck"), "discarded", session=True, attempt=2)
    assert (found["error"], found["attempt"]) == ("ValueError: no luck", 3)
    assert found["finished_at"] is not None


def test_retry(sync_db: Database, workers: Workers) -> None:
    found = ends(sync_db, workers, Retry(HOUR, "later"), "retryable", session=True)
    assert (found["error"], found["max_attempts"], delay(found)) == ("later", 3, HOUR)


def test_snooze(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, [])
    found = ends(sync_db, workers, Snooze(HOUR), "scheduled", session=True, attempt=2)
    assert (found["error"], found["attempt"], found["max_attempts"]) == (None, 3, 4)


def test_discard(sync_db: Database, workers: Workers) -> None:
    assert ends(sync_db, workers, Discard("no use"), "discarded", session=True)["error"] == "no use"


def test_cancel(sync_db: Database, workers: Workers) -> None:
    assert ends(sync_db, workers, Cancel(), "cancelled", session=True)["error"] is None


def test_outcomes_of_all_kinds_are_written_together(db: Database, workers: Workers) -> None:
    """One batch contains outcomes of every kind."""
    kinds = [None, ValueError("no luck"), Retry(HOUR), Snooze(HOUR), Discard("no use"), Cancel()]
    db.insert(Task, [each for number in range(6) for each in rows(5, number=number)])

    def during(task: Any) -> None:
        if error := kinds[task.number]:
            raise error

    workers.serve(Task, without_session(db, during))
    eventually(lambda: not {"available", "running"} & set(statuses(db).values()))
    ended = Counter(statuses(db).values())
    assert ended == {"completed": 5, "retryable": 10, "scheduled": 5, "discarded": 5, "cancelled": 5}


# -- too late ---------------------------------------------------------------------------------------------------------


def test_a_coroutine_that_takes_too_long_is_stopped_and_has_failed(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, rows(1))
    stopped = threading.Event()
    worker = workers.make()

    @worker.handler(Task, timeout=timedelta(seconds=0.1))
    async def wait(task: Task) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    workers.start(worker)
    eventually(all_are(sync_db, "retryable"))
    assert stopped.is_set()
    assert count(sync_db, Task, Task.error == "TimeoutError: its handler ran for longer than 0:00:00.100000") == 1


@pytest.mark.parametrize("mode", ["lease", "lock", "at-most-once"])
def test_a_thread_that_takes_too_long_is_reported(
    sync_db: Database, workers: Workers, blocking: BlockingHandler, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    sync_db.insert(Task, rows(1))
    worker = workers.make()
    handler = with_session(sync_db, during=blocking) if mode == "lock" else without_session(sync_db, blocking)
    worker.handler(Task, timeout=timedelta(seconds=0.1), mode=mode)(handler)
    workers.start(worker)
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
    worker = workers.make(poll=LONG)
    held: Any = ()
    begun: list[int] = []

    def during(task: Any) -> None:
        begun.append(task.id)
        if not blocking.started and any(job.claim.identity > (task.id,) for job in held):  # claimed ahead
            blocking(task)

    worker.handler(Task, concurrency=1, lease=LEASE)(without_session(db, during))
    workers.start(worker)
    held = eventually(lambda: worker._run)._context.in_flight
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


def test_each_handler_has_its_own_topic_and_concurrency(db: Database, workers: Workers) -> None:
    db.insert(Mail, rows(6, topic="slow"))
    db.insert(Mail, rows(6, topic="fast"))
    db.insert(Mail, rows(2, topic="nobody's"))
    db.insert(Task, rows(6))
    handlers = {name: BlockingHandler() for name in ("slow", "fast", "task")}
    worker = workers.make()
    worker.handler(Mail, Mail.topic == "slow", concurrency=2)(
        with_session(db, lambda *_: None, during=handlers["slow"])
    )
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


def test_prefetched_tasks_wait_for_their_turn(db: Database, workers: Workers, blocking: BlockingHandler) -> None:
    db.insert(Task, rows(40))
    first = min(statuses(db))
    workers.serve(Task, without_session(db, lambda task: task.id >= first + 20 and blocking(task)), concurrency=2)
    blocking.wait_for(2)
    eventually(lambda: count(db, Task, Task.status == "running") > 2)
    time.sleep(0.1)
    assert blocking.max_running == 2


def test_a_batch_is_not_larger_than_configured(sync_db: Database, workers: Workers, blocking: BlockingHandler) -> None:
    sync_db.insert(Task, rows(8))
    engine = sync_db.variant(pool_size=20)
    workers.serve(Task, without_session(sync_db, blocking), engine=engine, concurrency=8, batch=2)
    blocking.wait_for(8)
    with sync_db.begin() as actor:
        moments = Counter(task.claimed_at for task in actor.query(Task))
    assert set(moments.values()) <= {1, 2}


def test_a_coroutine_without_a_session_runs_in_a_sync_worker_too(sync_db: Database, workers: Workers) -> None:
    sync_db.insert(Task, rows(3))
    worker = workers.make()
    threads: set[str] = set()

    @worker.handler(Task)
    async def wait(task: Task) -> None:
        await asyncio.sleep(0.01)
        threads.add(threading.current_thread().name)

    workers.start(worker)
    eventually(all_are(sync_db, "completed"))
    assert len(threads) == 1, "coroutines run on the loop"
