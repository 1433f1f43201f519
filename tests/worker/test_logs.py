"""The task in the application's own log lines, and the formats of log lines."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue import JSONLogFormatter, TaskLogFilter, current_job, log_fields
from sqlqueue.worker.logs import TextLogFormatter, handle_rest
from tests.support.harness import Database
from tests.support.models import Job, Task
from tests.support.workers import Workers, eventually, with_session, without_session

pytestmark = pytest.mark.one_engine
SHOP = logging.getLogger("tests.shop")


@pytest.fixture
def own(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Records with the task of a handler."""
    added = TaskLogFilter()
    caplog.handler.addFilter(added)
    yield caplog
    caplog.handler.removeFilter(added)


def says(_: Any = None) -> None:
    SHOP.warning("sent", extra={"worker": "a value of the application"})


async def says_on_the_loop(task: Any) -> None:
    says()


@pytest.mark.parametrize("how", ["session", "lock", "at-most-once", "plain", "coroutine"])
def test_own_lines_carry_the_task(db: Database, workers: Workers, own: pytest.LogCaptureFixture, how: str) -> None:
    db.insert(Task, [{"id": 7, "attempt": 1, "max_attempts": 3}])
    handlers: dict[str, Any] = {
        "session": with_session(db, lambda session, task: says()),
        "lock": with_session(db, lambda session, task: says()),
        "coroutine": says_on_the_loop,
    }
    modes: dict[str, Any] = {"lock": "lock", "at-most-once": "at-most-once"}
    workers.serve(Task, handlers.get(how, without_session(db, says)), mode=modes.get(how, "lease"))
    (record,) = eventually(lambda: [each for each in own.records if each.name == SHOP.name])
    told = [vars(record)[name] for name in ("queue", "key", "function", "attempt", "worker", "task")]
    assert told == ["task", "7", None, 2, "a value of the application", "task 7: attempt 2 (1 left)"]
    says()
    assert [vars(own.records[-1]).get(name, "none") for name in ("queue", "task")] == ["none", ""]


def test_the_current_job_tells_its_attempt_and_its_function(sync_db: Database, workers: Workers) -> None:
    seen: list[tuple[Any, ...]] = []
    worker = workers.make(name="mailer")

    @worker.task(Job, name="shop.mail")
    def mail() -> None:
        job = current_job()
        seen.append((job.attempt, job.function, str(job), log_fields()))

    sync_db.insert(Job, [{"id": 7, "task": "shop.mail", "arguments": {}, "max_attempts": 5}])
    workers.start(worker)
    ((attempt, function, text, fields),) = eventually(lambda: seen)
    assert (attempt, function, text) == (1, "shop.mail", "job 7 (shop.mail): attempt 1 (4 left)")
    assert fields == {"queue": "job", "key": "7", "function": "shop.mail", "attempt": 1, "worker": "mailer"}
    assert log_fields() == {}


# -- formats ----------------------------------------------------------------------------------------------------------


def logged(**facts: Any) -> logging.LogRecord:
    try:
        raise ValueError("no\nsuch address")
    except ValueError:
        info = sys.exc_info()
    return SHOP.makeRecord(SHOP.name, logging.INFO, "f", 1, "sent to %s", ("Zoë\x1b",), info, extra=facts)


def test_a_record_is_one_line_of_json() -> None:
    endless: list[Any] = []
    endless.append(endless)
    facts = {"level": 3, "retry_in": timedelta(minutes=1), "function": None, "data": {1: object}, "endless": endless}
    line = JSONLogFormatter().format(logged(**facts, rate=float("nan"), lines=["a", None]))
    assert line.isascii()
    assert "\n" not in line
    told = json.loads(line)
    assert told["time"].endswith("+00:00")
    assert "Traceback (most recent call last)" in told.pop("exception")
    assert {name: told[name] for name in told.keys() - {"time", "process"}} == {
        "level": "INFO",
        "logger": "tests.shop",
        "message": "sent to Zoë\x1b",
        "level_": 3,
        "retry_in": 60.0,
        "data": "{1: <class 'object'>}",
        "endless": "[[...]]",
        "rate": "nan",
        "lines": ["a", None],
    }


def test_a_line_of_text_names_the_task_of_a_handler() -> None:
    lines = [TextLogFormatter().format(logged(**facts)).splitlines()[0] for facts in ({}, {"task": "email 7"})]
    assert [line.partition(" INFO ")[2].partition(" ")[2] for line in lines] == [
        "tests.shop sent to Zoë\x1b",
        "tests.shop [email 7] sent to Zoë\x1b",
    ]


def test_what_the_application_handles_itself_is_not_logged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.INFO)
    monkeypatch.setattr(SHOP, "handlers", [logging.NullHandler()])
    rest, errors = logging.StreamHandler(io.StringIO()), logging.StreamHandler(io.StringIO())
    errors.setLevel(logging.ERROR)
    assert handle_rest(rest)
    assert not handle_rest(logging.StreamHandler(io.StringIO())), "somebody has configured logging"
    logging.getLogger("tests.shop.mail").info("sent")
    SHOP.addHandler(errors)
    for level in (logging.INFO, logging.ERROR):
        logging.getLogger("tests.shop.mail").log(level, logging.getLevelName(level))
    assert (rest.stream.getvalue(), errors.stream.getvalue()) == ("sent\nINFO\n", "ERROR\n")
