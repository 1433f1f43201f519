"""The log messages about failed tasks, the worker, and its database."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import sessionmaker

from sqlqueue import Cancel, Discard, Retry, SchemaMismatchError, Snooze, Worker
from sqlqueue.worker import registration as maintenance
from sqlqueue.worker.reports import Reports
from tests.support.harness import Database
from tests.support.models import Document, Report, Seat, Task
from tests.support.rows import PAST
from tests.support.workers import Workers, eventually, raising, statuses, with_session, without_session

MINUTE = timedelta(minutes=1)
HOSTILE = "\x1b[2J\x07\r\x9b31m\u202e\nINFO all is well"
LAST = {"attempt": 4, "max_attempts": 5}
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


@pytest.mark.parametrize(
    ("error", "outcome", "said"),
    [
        (
            ValueError("no"),
            "failed",
            "failed (ValueError: no), not retried: it was completed before its handler was called",
        ),
        (Retry(MINUTE, "busy"), "failed", "failed (busy), not retried: it was completed before its handler was called"),
        (Discard("no use"), "failed", "failed (no use), not retried: it was completed before its handler was called"),
        (Snooze(MINUTE), "completed", None),
        (Cancel(), "completed", None),
    ],
)
def test_at_most_once_no_outcome_is_reported_that_the_row_does_not_have(
    db: Database,
    workers: Workers,
    log: pytest.LogCaptureFixture,
    error: Exception,
    outcome: str,
    said: str | None,
) -> None:
    db.insert(Task, [{"id": 7}])
    worker = workers.serve(Task, raising(db, error, session=False), mode="at-most-once").worker
    eventually(lambda: worker._reports.counts[outcome] == 1 and len(ends(log)) == bool(said))
    assert statuses(db) == {7: "completed"}
    assert not {"snoozed", "cancelled", "discarded"} & set(worker._reports.counts)
    lines = [(record.levelname, record.getMessage()) for record in ends(log)]
    assert lines == ([("ERROR", f"Task 7: attempt 1/3 {said}")] if said else [])


def test_the_root_logger_is_left_alone(sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture) -> None:
    root = (logging.getLogger().level, list(logging.getLogger().handlers))
    sync_db.insert(Task, [{}])
    workers.serve(Task, raising(sync_db, ValueError("no")))
    the_end(log)
    assert (logging.getLogger().level, list(logging.getLogger().handlers)) == root


def test_an_outage_is_not_held_against_the_task(
    sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture
) -> None:
    sync_db.insert(Task, [{"id": 7, "attempt": 2}])
    workers.serve(Task, raising(sync_db, PoolTimeoutError("no connection is free")))
    record = the_end(log)
    assert (record.levelname, record.outcome, record.exc_info) == ("WARNING", "snoozed", None)  # type: ignore[attr-defined]
    assert record.getMessage().startswith("Task 7: attempt 3/3 failed (TimeoutError: no connection is free (returned ")
    assert record.getMessage().endswith(", does not count, retry in 10 s")


def test_a_policy_that_gives_up_and_a_key_of_two_columns(
    sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture
) -> None:
    sync_db.insert(Seat, [{"line": "a,b", "number": 7}])
    workers.serve(Seat, raising(sync_db, ValueError("no"), session=False))
    assert the_end(log).getMessage().startswith('Seat "a,b",7: attempt 1/')


def test_a_run_that_is_given_up_is_an_error_too(
    sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture
) -> None:
    sync_db.insert(
        Report, [{"id": 7, "schedule": "PT1H", "drift": False, "available_at": PAST, "attempts_before": 4, **LAST}]
    )
    workers.serve(Report, raising(sync_db, ValueError("no"), session=False))
    record = the_end(log)
    assert (record.levelname, record.outcome) == ("ERROR", "failed")  # type: ignore[attr-defined]
    assert record.getMessage() == "Report 7: attempt 1/1 failed (ValueError: no), no retry before its next run"


@pytest.mark.parametrize("named", [20, 1])
def test_of_crashed_tasks_with_schedules_only_those_without_a_next_run_are_dead_letters(
    sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    monkeypatch.setattr(maintenance, "RESCUE_EVERY", timedelta(seconds=0.05))
    monkeypatch.setattr(Reports, "named", named)
    sync_db.insert(Report, [{"id": 1, **CRASHED, "schedule": "PT3600S"}, {"id": 2, **CRASHED, "schedule": None}])
    worker = workers.serve(Report, without_session(sync_db)).worker
    eventually(lambda: worker._reports.counts["discarded"] == worker._reports.counts["failed"] == 1)
    lines = [record.getMessage() for record in log.records if "crashed" in record.getMessage()]
    ends = {line.partition(": ")[0]: line.rpartition(", ")[2] for line in lines}
    if named > 1:
        assert ends == {"Report 1": "no retry before its next run", "Report 2": "discarded"}
    else:
        assert [line for line in lines if line.startswith("Report: 1 more tasks failed (crashed")]


@pytest.mark.parametrize("named", [20, 2])
def test_crashed_tasks_that_are_given_up_are_dead_letters(
    sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    monkeypatch.setattr(maintenance, "RESCUE_EVERY", timedelta(seconds=0.05))
    monkeypatch.setattr(Reports, "named", named)
    sync_db.insert(Task, [{"id": n, **CRASHED} for n in (1, 2, 3)])
    worker = workers.serve(Task, without_session(sync_db)).worker
    eventually(lambda: (state := worker.health()) is not None and state.counts.get("discarded") == 3)
    lines = eventually(lambda: [record for record in log.records if "crashed" in record.getMessage()])
    assert {record.levelname for record in lines} == {"ERROR"}
    told = Counter(record.getMessage().partition(" failed (")[0] for record in lines)
    if named >= 3:
        assert told == Counter(f"Task {n}: attempt 3/3" for n in (1, 2, 3))
    else:
        assert (told.total(), told["Task: 1 more tasks"]) == (3, 1)


def test_a_traceback_shows_the_applications_frames(
    db: Database, workers: Workers, log: pytest.LogCaptureFixture
) -> None:
    db.insert(Task, [{}])
    worker = workers.make()

    def fails(session: Any, task: Any) -> None:
        session.execute(Document.__table__.insert().values(id=None, no_such_column=1))

    worker.handler(Task)(with_session(db, fails))
    workers.start(worker)
    the_end(log)
    files = [line for line in log.text.splitlines() if line.startswith('  File "')]
    assert files
    assert all("/tests/" in line for line in files)
    assert "no_such_column" in log.text


def test_all_frames_are_shown_at_debug(sync_db: Database, workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    sync_db.insert(Task, [{}])
    worker = workers.make()
    worker.handler(Task)(raising(sync_db, ValueError("no")))
    with caplog.at_level(logging.DEBUG, "sqlqueue"):
        workers.start(worker)
        eventually(lambda: "ValueError" in caplog.text)
    assert "/worker/executor.py" in caplog.text


@pytest.mark.requires("sends_control_characters")
def test_control_characters_are_escaped_in_the_log(
    db: Database, workers: Workers, log: pytest.LogCaptureFixture
) -> None:
    """They are escaped in the message and in the traceback, including causes and groups."""
    db.insert(Seat, [{"line": HOSTILE[:9], "number": 1}])
    worker = workers.make(name="worker\x1b]0;")

    def fails(task: Any) -> None:
        try:
            raise KeyError(HOSTILE)
        except KeyError as error:
            note = ExceptionGroup(HOSTILE, [ValueError(HOSTILE)])
            note.add_note(HOSTILE)
            raise note from error

    worker.handler(Seat)(without_session(db, fails))
    workers.start(worker)
    the_end(log)
    assert not {each for each in log.text if not each.isprintable()} - {"\n"}
    assert not [line for line in log.text.splitlines() if line.startswith("INFO all")]
    assert "\\x1b[2J\\x07\\r\\x9b31m\\u202e" in log.text


def test_a_worker_logs_its_start_and_stop(sync_db: Database, workers: Workers, log: pytest.LogCaptureFixture) -> None:
    running = workers.serve(Task, without_session(sync_db), name="mailer")
    eventually(lambda: "worker mailer started, for Task" in log.text)
    running.stop()
    assert [record.getMessage() for record in log.records][-1] == "worker mailer stopped"


def test_a_missing_table_is_one_clear_line(tmp_path: Any, log: pytest.LogCaptureFixture) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
    worker = Worker(sessionmaker(engine))
    worker.handler(Task)(lambda task: None)
    with pytest.raises(SchemaMismatchError):
        worker.run()
    engine.dispose()
    (record,) = log.records
    assert (record.levelname, record.exc_info) == ("ERROR", None)
    assert record.getMessage().startswith(
        "worker stopped: the schema does not match the models: there is no table task. "
    )
