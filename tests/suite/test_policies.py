"""Failures: when they are retried, when they are discarded, and how long they are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from sqlqueue import (
    ArgumentError,
    ConstantBackoff,
    ExponentialBackoff,
    LinearBackoff,
    QueueOptions,
    RetryByError,
    claim_of,
    utcnow,
)
from sqlqueue.worker import registration as maintenance
from tests.support.harness import Database
from tests.support.models import Message, Report, Task
from tests.support.rows import TICK, clock, count, end_leases, row
from tests.support.workers import LONG, Workers, eventually, with_session, without_session
from tests.worker.conftest import workers  # noqa: F401  (a fixture)

pytestmark = pytest.mark.sync_only

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)


class Nearer(KeyError):
    """An error whose base class, but not itself, is in the policy."""


ERRORS: dict[str, tuple[BaseException | str, timedelta | None]] = {
    "of a class": (LookupError("x"), HOUR),
    "of the nearest base": (Nearer("x"), 7 * MINUTE),
    "of another": (OSError("x"), MINUTE),
    "a text": ("ValueError: x", MINUTE),
    "hopeless": (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), None),
}


# -- pure -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (ConstantBackoff(MINUTE, jitter=0), [1, 1, 1, 1, 1]),
        (LinearBackoff(MINUTE, cap=4 * MINUTE, jitter=0), [1, 2, 3, 4, 4]),
        (ExponentialBackoff(MINUTE, factor=2, cap=10 * MINUTE, jitter=0), [1, 2, 4, 8, 10]),
        (RetryByError({}, otherwise=ConstantBackoff(MINUTE, jitter=0)), [1, 1, 1, 1, 1]),
    ],
)
def test_delays(policy: Any, delays: list[int]) -> None:
    assert [policy(attempt) for attempt in range(1, 6)] == [MINUTE * delay for delay in delays]


@pytest.mark.parametrize("policy", [ConstantBackoff(MINUTE), LinearBackoff(MINUTE), ExponentialBackoff(MINUTE)])
def test_jitter_spreads_retries(policy: Any) -> None:
    delays = {policy(1) for _ in range(50)}
    assert len(delays) > 10
    assert all(0.9 * MINUTE <= delay <= 1.1 * MINUTE for delay in delays)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConstantBackoff(-MINUTE), "delay=.* of at least zero"),
        (lambda: ConstantBackoff(jitter=2), "give a jitter from 0 to 1"),
        (lambda: LinearBackoff(60), "step=60: give a timedelta of at least zero"),  # type: ignore[arg-type]
        (lambda: LinearBackoff(cap=None), "cap=None"),  # type: ignore[arg-type]
        (lambda: RetryByError({"ValueError": None}), "'ValueError' is not an exception class"),  # type: ignore[dict-item]
        (lambda: RetryByError({ValueError: 3}), "ValueError: 3 is neither a retry policy nor None"),  # type: ignore[dict-item]
        (lambda: RetryByError([ValueError]), "give a mapping"),  # type: ignore[arg-type]
        (lambda: RetryByError({}, otherwise=None), "otherwise=None: give a retry policy"),  # type: ignore[arg-type]
        (lambda: QueueOptions(retry=MINUTE), "retry=.* a callable"),  # type: ignore[arg-type]
        (lambda: QueueOptions(discarded_retention=-DAY), "discarded_retention"),
    ],
)
def test_invalid_policies(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


# -- failing ----------------------------------------------------------------------------------------------------------


def test_the_delay_depends_on_the_class_of_the_error(db: Database) -> None:
    for raised, delay in ERRORS.values():
        db.insert(Message, [{}])
        with db.begin() as actor:
            task = actor.claim(Message)
            before = clock(db)
            actor.fail(task, raised)
        found = row(db, task)
        if delay is None:
            assert (found["status"], found["attempt"]) == ("discarded", 1)
            assert found["finished_at"] is not None
        else:
            assert found["status"] == "retryable"
            assert before - TICK <= found["available_at"] - delay <= clock(db) + TICK


def test_retry_in_overrides_the_policy(sync_db: Database) -> None:
    sync_db.insert(Message, [{}])
    task = sync_db.committed.claim(Message)
    sync_db.committed.fail(task, ValueError(), retry_in=HOUR)
    assert row(sync_db, task)["status"] == "retryable"


@pytest.mark.one_engine
@pytest.mark.parametrize("session", [True, False])
def test_a_worker_applies_the_policy(sync_db: Database, workers: Workers, session: bool) -> None:  # noqa: F811
    sync_db.insert(Message, [{"id": number, "kind": kind} for number, kind in enumerate(ERRORS, 1)])

    def fail(task: Message) -> None:
        error, _ = ERRORS[task.kind]
        raise error if isinstance(error, BaseException) else OSError()

    workers.serve(Message, (with_session if session else without_session)(sync_db, during=fail), poll=LONG)
    eventually(lambda: not count(sync_db, Message, Message.status.in_(["available", "running"])))
    with sync_db.session() as actor:
        for task in actor.find(Message):
            _, delay = ERRORS[task.kind]
            assert task.status == ("discarded" if delay is None else "retryable")
            if delay is not None:
                assert 0 <= (task.available_at - task.claimed_at - delay).total_seconds() < 30


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_hung_tasks_are_rescued_too(db: Database) -> None:
    db.insert(Task, [{}, {}])
    abandoned, busy = db.committed.claim_many(Task, limit=2)
    assert db.committed.retry(Task) == 0
    end_leases(db)
    with db.begin() as actor:
        actor.heartbeat(busy)
        assert actor.retry(Task) == 1
    assert (row(db, abandoned)["status"], row(db, busy)["status"]) == ("available", "running")


def age(db: Database, **ages: timedelta) -> None:
    db.insert(Message, [{"kind": kind, "status": kind} for kind in ages])
    with db.engine.begin() as connection:
        for kind, old in ages.items():
            of_kind = update(Message.__table__).where(Message.kind == kind)
            connection.execute(of_kind.values(finished_at=utcnow(-old), available_at=utcnow(-old)))


def test_dead_letters_have_their_own_retention(sync_db: Database) -> None:
    for days, older_than, left in (
        (2, None, {"discarded"}),
        (31, None, set()),
        (31, 32 * DAY, {"completed", "cancelled", "discarded"}),
    ):
        age(sync_db, completed=DAY * days, cancelled=DAY * days, discarded=DAY * days)
        sync_db.committed.prune(Message, older_than)
        assert {task.kind for task in sync_db.committed.find(Message)} == left
        sync_db.committed.prune(Message, timedelta(0))


@pytest.mark.one_engine
def test_workers_respect_the_retention_of_dead_letters(
    sync_db: Database,
    workers: Workers,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintenance, "PRUNE_EVERY", timedelta(seconds=0.05))
    age(sync_db, completed=2 * DAY, discarded=2 * DAY)
    workers.serve(Message, without_session(sync_db), poll=LONG)
    eventually(lambda: count(sync_db, Message) == 1)
    assert count(sync_db, Message, Message.status == "discarded") == 1


def test_a_recurring_task_is_never_given_up(sync_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Report.__queue_spec__
    monkeypatch.setitem(spec.__dict__, "options", QueueOptions(retry=RetryByError({ValueError: None})))
    sync_db.committed.enqueue(task := Report(schedule="PT1H", available_at=clock(sync_db)))
    with sync_db.begin() as actor:
        actor.fail(claim_of(actor.claim(Report)), ValueError("no luck"))
    found = row(sync_db, task)
    assert (found["status"], found["error"], found["scheduled_for"]) == ("scheduled", "ValueError: no luck", None)
    assert found["available_at"] > clock(sync_db)
