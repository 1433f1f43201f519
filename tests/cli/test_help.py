"""The help of the commands."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from sqlqueue.cli import application
from sqlqueue.cli._options import age
from sqlqueue.dashboard import Action
from tests.cli.invoking import FAILED, out, put, run, words
from tests.support.models import Task


def test_durations() -> None:
    durations = {"90s": 90, "15m": 900, "2h": 7_200, "7d": 604_800, "1w": 604_800, "1h30m": 5_400}
    assert {text: age(text).total_seconds() for text in durations} == durations


COMMANDS = sorted(get_command(application()).commands)  # type: ignore[attr-defined]
WITHOUT_EXAMPLE = {"demo", "work", "dashboard", "prove", "sql-tasks"}


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_the_whole_docstring_with_an_example_and_the_exit_status(command: str, width: int) -> None:
    """Nothing is cut or broken, paragraphs are wrapped once, and long examples continue as in a shell."""
    asked = get_command(application()).commands[command]  # type: ignore[attr-defined]
    lines = CliRunner().invoke(application(), [command, "--help"], env={"COLUMNS": str(width)}).stdout.splitlines()
    assert not {"{", "}"} & set(lines[0])
    told = words("\n".join(lines).replace(" \\\n", "\n"))
    for text in (asked.callback.__doc__, *(getattr(each, "help", None) for each in asked.params)):
        assert words(text or "") in told
    for part in (f"sqlqueue {command} --url postgresql+psycopg://", "Exit status: 0", "With --json"):
        assert part in told or command in WITHOUT_EXAMPLE
    first = textwrap.wrap(words(asked.callback.__doc__.partition("\n\n")[0]), width - 2, break_on_hyphens=False)
    assert [f"  {line}" for line in first] == lines[lines.index("") + 1 :][: len(first)]
    if command != "sql-tasks":  # its configuration is copied as it is
        assert not [line for line in lines if len(line) > width and len(line.rstrip("\\").split()) > 1]


def test_states_are_separated_by_commas_or_repeated(url: str) -> None:
    put(url, Task, {"status": "running"}, {"status": "retryable"}, FAILED, {})
    for given in (["--status", "running, retryable"], ["--status", "running", "-s", "retryable"]):
        assert [each["key"] for each in json.loads(out("list", "--json", *given))] == ["2", "1"]
    told = run("list", "--status", "running,lost")
    assert (told.exit_code, "Error: Invalid value: 'lost' is not one of 'available'" in told.stderr) == (2, True)


def test_the_configuration_of_sql_tasks_can_be_copied_from_its_help() -> None:
    told = CliRunner().invoke(application(), ["sql-tasks", "--help"], env={"COLUMNS": "80"}).stdout
    lines = [line.strip() for line in told.partition("Then, in any program")[0].splitlines()]
    (database,) = tomllib.loads("\n".join(lines[lines.index("[[database]]") :]))["database"]
    assert {"url", "schemas", "execute_url", "users", "create", "queues"} <= set(database)


def test_the_help_of_the_dashboard_names_the_actions() -> None:
    """All but the one that needs an application which names what may be edited."""
    told = words(CliRunner().invoke(application(), ["dashboard", "--help"], env={"COLUMNS": "200"}).stdout)
    (named,) = re.findall(r"Allow an action: (.*?), or all\.", told)
    assert named.split(", ") == [action for action in Action if action is not Action.EDIT]
