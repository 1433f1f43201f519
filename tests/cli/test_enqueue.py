"""The command `enqueue`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from sqlqueue.cli import application
from tests.cli.invoking import words

REMIND = "tests.cli.enqueued:remind"


def enqueue(*arguments: str) -> Any:
    return CliRunner().invoke(application(), ["enqueue", *arguments])


def stored(model: str) -> dict[str, Any]:
    told = CliRunner().invoke(application(), ["show", f"tests.support.models:{model}", "1", "--json"])
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def test_a_call_of_a_function_is_enqueued(url: str) -> None:
    told = enqueue(REMIND, '{"number": 7, "day": "2026-12-24"}', "--set", "unique_key=seven", "--priority", "-3")
    assert (told.exit_code, told.stdout) == (0, "chore 1 is available.\n")
    row = stored("Chore")
    assert (row["task"], row["arguments"]) == ("remind", {"number": 7, "day": "2026-12-24"})
    assert (row["unique_key"], row["priority"], row["attempt"]) == ("seven", -3, 0)
    again = enqueue(REMIND, '{"number": 7}', "--set", "unique_key=seven")
    assert (again.exit_code, again.stdout) == (2, "")


def test_a_task_of_a_model_is_enqueued(url: str) -> None:
    given = '{"name": "x", "number": 5}'
    told = enqueue("tests.support.models:Base", "--queue", "task", given, "--json",
                   "--delay", "2h", "--priority", "4")  # fmt: skip
    assert told.exit_code == 0, told.output
    printed = json.loads(told.stdout)
    assert (printed["queue"], printed["key"], printed["status"]) == ("task", "1", "scheduled")
    assert timedelta(hours=1) < datetime.fromisoformat(printed["available_at"]) - datetime.now(UTC) < timedelta(hours=3)
    row = stored("Task")
    assert (row["priority"], row["columns"]["name"], row["columns"]["number"]) == (4, "x", 5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([REMIND], "number is missing"),
        ([REMIND, '{"number": "7"}'], "number: Input should be a valid integer"),
        ([REMIND, '{"number": 7, "hour": 1}'], "hour is not a parameter"),
        ([REMIND, '{"number": 7}', "--set", "nothing=1"], "Chore has no column nothing"),
        ([REMIND, "number=7"], "'number=7' is not JSON"),
        ([REMIND, "[7]"], "'[7]' is not a JSON object"),
        (["tests.support.models:Task", '{"number": "many"}'], "'many' is not a value for task.number"),
        (["tests.support.models:Task", '{"number": true}'], "number: true is not a value of the type INTEGER"),
        (["tests.support.models:Task", '{"name": {"a": 1}}'], 'name: {"a": 1} is not a value of the type VARCHAR'),
        (["tests.support.models:Task", '{"nothing": 1}'], "Task has no column nothing"),
        (["tests.support.models:Seat", '{"line": "a"}'], "Seat needs number"),
        (["tests.support.models:Base"], "use --queue with one of"),
        (["tests.cli.enqueued:worker"], "is not a queue model, a declarative base or a MetaData"),
    ],
)
def test_what_does_not_fit_is_refused(url: str, arguments: list[str], said: str) -> None:
    told = enqueue(*arguments)
    assert (told.exit_code, told.stdout) == (2, ""), told.output
    assert said in words(told.stderr)
