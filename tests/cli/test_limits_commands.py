"""Limits are listed and set by command."""

from __future__ import annotations

import json

import pytest

from tests.cli.invoking import out, run, words


def test_limits_are_listed_and_set(url: str) -> None:
    assert out("limits", model="Visit") == "No limit_key of Visit has been used yet."
    asked = run("set-limit", "a.org", "3", model="Visit")
    assert (asked.exit_code, asked.stdout) == (2, "")
    assert "a key that no task of Visit has used yet, and there is no terminal to confirm it: use --yes" in asked.stderr
    set_it = ["set-limit", "a.org", "3", "--json", "--yes"]
    assert json.loads(out(*set_it, model="Visit")) == {
        "queue": "visit",
        "key": "a.org",
        "limit": 3,
        "running": 0,
        "before": None,
    }
    assert out("set-limit", "a.org", "2", model="Visit") == "Visit, key a.org: the limit is 2 (it was 3), 0 running."
    assert out("limits", model="Visit").splitlines() == ["Queue  limit  running  key", "Visit      2        0  a.org"]
    assert [each["key"] for each in json.loads(out("limits", "--queue", "visit", "--json", model="Base"))] == ["a.org"]
    asked = run("set-limit", "a.org", "0", model="Visit")
    assert (asked.exit_code, "this would stop all tasks of Visit with the key 'a.org'" in asked.stderr) == (2, True)
    assert run("set-limit", "a.org", "0", "--yes", model="Visit").exit_code == 0
    assert out("set-limit", "a.org", "0", model="Visit").startswith("Visit, key a.org: the limit is 0 (it was 0)")


@pytest.mark.parametrize(
    ("arguments", "model", "said"),
    [
        (["limits"], "Task", "the queues have no limits: derive Task from LimitMixin"),
        (["set-limit", "x", "1"], "Task", "the queues have no limits"),
        (["set-limit", "x", "1"], "Base", "queues with limits: use --queue with one of"),
        (["set-limit", "x", "many"], "Visit", "Invalid value for 'N'"),
        (["set-limit", "x", "10001"], "Visit", "10000"),
        (["set-limit", "x" * 1000, "1", "--yes"], "Visit", "it has 1000 characters; give at most"),
    ],
)
def test_limits_that_cannot_be_set(url: str, arguments: list[str], model: str, said: str) -> None:
    told = run(*arguments, model=model)
    assert told.exit_code == 2
    assert said in words(told.stderr)
