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
    durations = {"90s": 90, "15m": 900, "2h": 7_200, "7d": 604_800, "1w": 604_800, "1h30m": 5_400}
    assert {text: age(text).total_seconds() for text in durations} == durations


COMMANDS = sorted(get_command(application()).commands)  # type: ignore[attr-defined]
WITHOUT_EXAMPLE = {"demo", "work", "dashboard", "prove", "sql-tasks"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_the_whole_docstring_with_an_example_and_the_exit_status(command: str) -> None:
    """Brackets are printed, in the text and in the help of each option, instead of being interpreted as markup."""
    asked = get_command(application()).commands[command]  # type: ignore[attr-defined]
    told = words(CliRunner().invoke(application(), [command, "--help"], env={"COLUMNS": "200"}).stdout)
    for text in (asked.callback.__doc__, *(getattr(each, "help", None) for each in asked.params)):
        assert words(text or "") in told
    for part in (f"sqlqueue {command} --url postgresql+psycopg://", "Exit status: 0", "With --json"):
        assert part in told or command in WITHOUT_EXAMPLE
    assert set(re.findall(r"\[[^\]]*\]", words(asked.callback.__doc__))) <= set(re.findall(r"\[[^\]]*\]", told))


def test_the_configuration_of_sql_tasks_can_be_copied_from_its_help() -> None:
    told = CliRunner().invoke(application(), ["sql-tasks", "--help"], env={"COLUMNS": "80"}).stdout
    lines = [line.strip() for line in told.partition("Then, in any program")[0].splitlines()]
    (database,) = tomllib.loads("\n".join(lines[lines.index("[[database]]") :]))["database"]
    assert {"url", "schemas", "execute_url", "users", "create", "queues"} <= set(database)
