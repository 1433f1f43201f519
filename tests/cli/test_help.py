"""The help of the commands."""

from __future__ import annotations

import re
import tomllib

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from sqlqueue.cli import application
from sqlqueue.cli._options import age
from tests.cli.invoking import words


def test_durations() -> None:
    assert [age(text).total_seconds() for text in ("90s", "15m", "2h", "7d", "1w", "1h30m")] == [
        90,
        900,
        7_200,
        604_800,
        604_800,
        5_400,
    ]


COMMANDS = sorted(get_command(application()).commands)  # type: ignore[attr-defined]
ON_CALL = [
    "stats",
    "errors",
    "list",
    "show",
    "retry",
    "rerun",
    "cancel",
    "discard",
    "prune",
    "pause",
    "resume",
    "limits",
]


@pytest.mark.parametrize("command", [*ON_CALL, "set-limit"])
def test_help_has_an_example_and_the_exit_status(command: str) -> None:
    told = CliRunner().invoke(application(), [command, "--help"], env={"COLUMNS": "120"})
    assert f"sqlqueue {command} --url postgresql+psycopg://" in told.stdout
    assert "Exit status: 0" in told.stdout
    assert "With --json" in told.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_the_whole_docstring(command: str) -> None:
    """Brackets are printed, in the text and in the help of each option, instead of being interpreted as markup."""
    asked = get_command(application()).commands[command]  # type: ignore[attr-defined]
    told = words(CliRunner().invoke(application(), [command, "--help"], env={"COLUMNS": "200"}).stdout)
    for text in (asked.callback.__doc__, *(getattr(each, "help", None) for each in asked.params)):
        assert words(text or "") in told
    assert set(re.findall(r"\[[^\]]*\]", words(asked.callback.__doc__))) <= set(re.findall(r"\[[^\]]*\]", told))


def test_the_configuration_of_sql_tasks_can_be_copied_from_its_help() -> None:
    told = CliRunner().invoke(application(), ["sql-tasks", "--help"], env={"COLUMNS": "80"}).stdout
    lines = [line.strip() for line in told.partition("Then, in any program")[0].splitlines()]
    (database,) = tomllib.loads("\n".join(lines[lines.index("[[database]]") :]))["database"]
    assert {"url", "schemas", "execute_url", "users", "create", "queues"} <= set(database)
