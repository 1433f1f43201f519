"""The commands explain why a task was not changed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from sqlalchemy import create_engine

from sqlqueue import QueueSession
from tests.cli.invoking import FAILED, PAST, TOMORROW, out, put, words
from tests.support.models import Task


@pytest.mark.parametrize(
    ("command", "columns", "said"),
    [
        (
            "retry",
            {"status": "scheduled"},
            "Found: 1 scheduled. sqlqueue retry changes retryable, discarded, abandoned.",
        ),
        ("retry", {"status": "scheduled"}, "once it is due; sqlqueue run-now makes it due now."),
        (
            "retry",
            {"status": "completed", "finished_at": PAST},
            "A completed task is final; sqlqueue rerun makes it run again.",
        ),
        (
            "rerun",
            {"status": "scheduled"},
            "Found: 1 scheduled. sqlqueue rerun changes completed, cancelled, discarded.",
        ),
        ("retry", {"status": "running", "available_at": TOMORROW}, "belongs to its worker until its lease expires"),
        (
            "cancel",
            FAILED,
            "Found: 1 discarded. sqlqueue cancel changes available, scheduled, retryable, waiting, running.",
        ),
    ],
)
def test_the_command_explains_why_a_named_task_was_not_changed(
    url: str, command: str, columns: dict[str, Any], said: str
) -> None:
    put(url, Task, columns)
    before = out("show", "1", "--json")
    assert said in words(out(command, "--id", "1"))
    assert out("show", "1", "--json") == before
    assert words(out(command, "--id", "2")).endswith("There is no such task.")
    nothing = {"queue": "task", "action": command, "tasks": 0, "taken": 0, "stopped": False}
    assert json.loads(out(command, "--id", "1", "--json")) == nothing


def test_a_scheduled_task_runs_by_the_command_that_is_shown(url: str) -> None:
    put(url, Task, {"status": "scheduled", "available_at": TOMORROW})
    (command,) = re.findall("sqlqueue (run-now) makes it due now", words(out("retry", "--id", "1")))
    engine = create_engine(url)
    with QueueSession(engine) as session:
        assert session.claim(Task) is None
        session.rollback()
        out(command, "--id", "1")
        assert session.claim(Task) is not None
    engine.dispose()
