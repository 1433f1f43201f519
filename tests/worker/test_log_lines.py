"""The log messages about failed tasks, the worker, and its database."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sqlqueue import Cancel, Discard, Retry, Snooze
from sqlqueue.worker import registration
from sqlqueue.worker.reports import Reports
from tests.support.harness import Database
from tests.support.models import Document, Job, Report, Seat, Task
from tests.support.rows import PAST
from tests.support.workers import (
    BlockingHandler,
    Workers,
    by_id,
    eventually,
    raising,
    statuses,
    with_session,
    without_session,
)

MINUTE = timedelta(minutes=1)
HOSTILE = "\x1b[2J\x07\r\x9b31m\u202e\nINFO all is well"
pytestmark = pytest.mark.one_engine
CRASHED = {"status": "running", "available_at": PAST, "claimed_at": PAST, "attempt": 3, "max_attempts": 3}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "sqlqueue"):
        yield caplog


def ends(log: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the messages about attempts that have ended."""
    return [record for record in log.records if hasattr(record, "outcome")]


def the_end(log: pytest.LogCaptureFixture) -> logging.LogRecord:
    (record,) = eventually(lambda: ends(log))
    return record


NOT_RETRIED = "not retried: it was completed before its handler was called"


@pytest.mark.parametrize(
    ("error", "outcome", "said"),
    [
        (ValueError("no"), "failed", f"failed (ValueError: no), {NOT_RETRIED}"),
        (Retry(MINUTE, "busy"), "failed", f"failed (busy), {NOT_RETRIED}"),
        (Discard("no use"), "failed", f"failed (no use), {NOT_RETRIED}"),
        (Snooze(MINUTE), "completed", None),
        (Cancel(), "completed", None),
    ],
)
def test_at_most_once_no_outcome_is_reported_that_the_row_does_not_have(
    sync_db: Database,
    workers: Workers,
    log: pytest.LogCaptureFixture,
    error: Exception,
    outcome: str,
    said: str | None,
) -> None:
    sync_db.insert(Task, [{"id": 7}])
    worker = workers.serve(Task, raising(sync_db, error, session=False), mode="at-most-once").worker
    eventually(lambda: worker._reports.counts[outcome] == 1 and len(ends(log)) == bool(said))
    assert statuses(sync_db) == {7: "completed"}
    assert not {"snoozed", "cancelled", "discarded"} & set(worker._reports.counts)
    lines = [(record.levelname, record.getMessage()) for record in ends(log)]
    assert lines == ([("ERROR", f"task 7: attempt 1 (2 left) {said}")] if said else [])


REPORT = {"id": 7, "schedule": "PT1H", "drift": False, "available_at": PAST, "attempts_before": 4}


@pytest.mark.parametrize(
    ("model", "row", "error", "level", "outcome", "said"),
    [
        (
            Task,
            {"id": 7, "attempt": 2},
            PoolTimeoutError("no connection is free"),
            "WARNING",
            "snoozed",
            r"task 7: attempt 3 \(0 left\) failed \(TimeoutError: no connection is free \(returned .*, does not count, "
            "retry in 10 s",
        ),
        (Seat, {"line": "a,b", "number": 7}, ValueError("no"), "WARNING", "failed", 'seat "a,b",7: attempt 1 .*'),
        (
            Report,
            {**REPORT, "attempt": 4, "max_attempts": 5},
            ValueError("no"),
            "ERROR",
            "failed",
            r"report 7: attempt 5 \(0 left\) failed \(ValueError: no\), no retry before its next run",
        ),
    ],
    ids=["an outage is not held against the task", "a key of two columns", "a run that is given up is an error too"],
)
def test_how_an_attempt_is_described(
    sync_db: Database,
    workers: Workers,
    log: pytest.LogCaptureFixture,
    model: Any,
    row: dict[str, Any],
    error: Exception,
    level: str,
    outcome: str,
    said: str,
) -> None:
    sync_db.insert(model, [row])
    workers.serve(model, raising(sync_db, error, session=False))
    record = the_end(log)
    assert (record.levelname, record.outcome) == (level, outcome)  # type: ignore[attr-defined]
    assert re.fullmatch(said, record.getMessage())
    assert outcome == "failed" or record.exc_info is None


SCHEDULED = [{"id": 1, **CRASHED, "schedule": "PT3600S"}, {"id": 2, **CRASHED, "schedule": None}]


@pytest.mark.parametrize(
    ("model", "rows", "named", "said"),
    [
        (Task, [{"id": n, **CRASHED} for n in (1, 2, 3)], 20, [rf"task {n}: attempt 3 \(0 left\)" for n in (1, 2, 3)]),
        (
            Task,
            [{"id": n, **CRASHED} for n in (1, 2, 3)],
            2,
            [r"task .: attempt 3 \(0 left\)", "task: 1 more tasks fail"],
        ),
        (Report, SCHEDULED, 20, ["report 1: .*, no retry before its next run", "report 2: .*, discarded"]),
        (Report, SCHEDULED, 1, [r"report: 1 more tasks failed \(crashed"]),
        (
            Job,
            [{"id": 1, "task": "shop.mail", "arguments": {}, **CRASHED}],
            20,
            [r"job 1 \(shop.mail\): attempt 3 \(0 left\)"],
        ),
    ],
)
def test_crashed_tasks_without_a_next_run_are_dead_letters(
    sync_db: Database,
    workers: Workers,
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    model: Any,
    rows: list[dict[str, Any]],
    named: int,
    said: list[str],
) -> None:
    monkeypatch.setattr(registration, "RESCUE_EVERY", timedelta(seconds=0.05))
    monkeypatch.setattr(Reports, "named", named)
    sync_db.insert(model, rows)
    counts = workers.serve(model, without_session(sync_db)).worker._reports.counts
    recurring = sum(row.get("schedule") is not None for row in rows)
    eventually(lambda: (counts["discarded"], counts["failed"]) == (len(rows) - recurring, recurring))
    crashed = eventually(lambda: [record for record in log.records if "crashed" in record.getMessage()])
    lines = [record.getMessage() for record in crashed]
    assert len(lines) == len(rows)
    assert all(any(re.match(each, line) for line in lines) for each in said)
    assert model is Report or {record.levelname for record in crashed} == {"ERROR"}


def test_a_traceback_shows_the_applications_frames(
    db: Database, workers: Workers, log: pytest.LogCaptureFixture
) -> None:
    db.insert(Task, [{}])

    def fails(session: Any, task: Any) -> None:
        session.execute(Document.__table__.insert().values(id=None, no_such_column=1))

    workers.serve(Task, with_session(db, fails))
    the_end(log)
    files = [line for line in log.text.splitlines() if line.startswith('  File "')]
    assert files
    assert all("/tests/" in line for line in files)
    assert "no_such_column" in log.text


def test_control_characters_are_escaped_in_the_log(
    sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture
) -> None:
    """They are escaped in the message and in the traceback, including causes and groups."""
    sync_db.insert(Seat, [{"line": HOSTILE[:9], "number": 1}])

    def fails(task: Any) -> None:
        try:
            raise KeyError(HOSTILE)
        except KeyError as error:
            note = ExceptionGroup(HOSTILE, [ValueError(HOSTILE)])
            note.add_note(HOSTILE)
            raise note from error

    workers.serve(Seat, without_session(sync_db, fails), name="worker\x1b]0;")
    the_end(log)
    assert not {each for each in log.text if not each.isprintable()} - {"\n"}
    assert not [line for line in log.text.splitlines() if line.startswith("INFO all")]
    assert "\\x1b[2J\\x07\\r\\x9b31m\\u202e" in log.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TimeoutError(), "TimeoutError"),
        (ValueError(" \n"), "ValueError"),
        (Discard(""), "Discard"),
        (" ", "(no message)"),
    ],
)
def test_no_message_is_blank(
    sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture, error: Exception | str, told: str
) -> None:
    sync_db.insert(Task, [{"id": 7}])
    if isinstance(error, str):
        with sync_db.begin() as actor:
            actor.session.fail(actor.session.claim(Task), error)
    else:
        workers.serve(Task, raising(sync_db, error, session=False))
        assert f" failed ({told}), " in the_end(log).getMessage()
    assert eventually(lambda: by_id(sync_db, Task.error)[7]) == told


def test_a_worker_that_stops_says_for_what_it_waits(
    sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture, blocking: BlockingHandler
) -> None:
    sync_db.insert(Task, [{"id": 7}])
    running = workers.serve(Task, without_session(sync_db, blocking), name="mailer", grace=timedelta(minutes=2))
    blocking.wait_for(1)
    running.worker.stop()
    eventually(lambda: "worker mailer is stopping: waiting up to 2 min for 1 task: task 7\n" in log.text)
    blocking.release()
    running.stop()
    second = workers.serve(Task, without_session(sync_db), name="second")
    eventually(lambda: "worker second started" in log.text)
    second.stop()
    assert "worker second is stopping: no task is running" in log.text


def test_a_worker_logs_its_start_and_stop(sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture) -> None:
    """It leaves the root logger alone."""
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    running = workers.serve(Task, without_session(sync_db), name="mailer")
    eventually(lambda: "worker mailer started, for task" in log.text)
    running.stop()
    assert [record.getMessage() for record in log.records][-1] == "worker mailer stopped"
    assert (root.level, list(root.handlers)) == before
