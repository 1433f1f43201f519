"""Retry policies of applications that raise, return no delay, or have just as many delays as are needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sqlqueue.queue.spec import spec_of
from tests.support.harness import Database
from tests.support.models import Task
from tests.support.rows import count
from tests.support.workers import Workers, eventually, raising, statuses


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The attempts for which the policy of Task is asked; it has the two delays that three attempts need."""
    numbers: list[int] = []

    def policy(attempt: int) -> timedelta:
        numbers.append(attempt)
        return [timedelta(0), timedelta(0)][attempt - 1]

    use(monkeypatch, policy)
    return numbers


def use(monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
    spec = spec_of(Task)
    monkeypatch.setitem(spec.__dict__, "options", replace(spec.options, retry=policy))


def test_a_policy_is_asked_only_for_delays_that_are_used(db: Database, asked: list[int]) -> None:
    db.insert(Task, [{"id": 1}])
    for _ in range(3):
        with db.begin() as session:
            session.fail(session.claim(Task), "no luck")
    assert statuses(db) == {1: "discarded"}
    assert asked == [1, 2]


@pytest.mark.parametrize("mode", ["lease", "lock"])
def test_a_worker_asks_only_for_delays_that_are_used(
    db: Database,
    workers: Workers,
    asked: list[int],
    mode: Any,
) -> None:
    db.insert(Task, [{"id": 1}])
    workers.serve(Task, raising(db, ValueError("no luck")), mode=mode)
    eventually(lambda: statuses(db) == {1: "discarded"})
    assert set(asked) == {1, 2}
    assert count(db, Task, Task.error == "ValueError: no luck", Task.attempt == 3) == 1


def raises(_: int) -> Any:
    raise LookupError("no delay")


NO_DELAYS = [raises, lambda _: 15, lambda _: -timedelta(1), lambda _: None, lambda _: timedelta.max]


@pytest.mark.parametrize("policy", NO_DELAYS)
def test_a_policy_without_a_delay_is_logged_and_replaced(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, policy: Any
) -> None:
    use(monkeypatch, policy)
    db.insert(Task, [{"id": 1}])
    with db.begin() as session:
        session.fail(session.claim(Task), ValueError("no luck"))
        session.add(Task(id=2))  # the transaction is usable
    assert statuses(db) == {1: "retryable", 2: "available"}
    assert "the retry policy of Task has no delay after attempt 1, so the default backoff applies" in caplog.text


@pytest.mark.parametrize("mode", ["lease", "lock"])
@pytest.mark.parametrize("error", [ValueError("no luck"), PoolTimeoutError("no connection is free")])
def test_a_worker_whose_policy_has_no_delay_records_the_error(
    db: Database,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
    mode: Any,
    error: Exception,
) -> None:
    use(monkeypatch, raises)
    db.insert(Task, [{"id": 1}])
    workers.serve(Task, raising(db, error), mode=mode)
    eventually(lambda: statuses(db)[1] in ("retryable", "scheduled"))
    # with a note that it does not count, if it does not
    assert count(db, Task, Task.error.contains(f"{type(error).__name__}: {error}")) == 1
