"""The commands for the people on call: what people see, what they are asked, and what is refused."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, func, insert
from typer.testing import CliRunner

from sqlqueue.cli import application
from sqlqueue.cli._values import age
from tests.models import Base, Mail, Seat, Task
from tests.test_check import PROGRAM

PAST = datetime(2020, 1, 1, tzinfo=UTC)
TOMORROW = datetime.now(UTC) + timedelta(days=1)
HEADINGS = ("hung", "oldest", "last", "hour", "paused")
FAILED = {"status": "discarded", "attempt": 3, "available_at": PAST, "claimed_at": PAST, "finished_at": PAST}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "empty.db"
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()
    return path


@pytest.fixture
def url(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{shutil.copy(empty, tmp_path / 'on_call.db')}"
    monkeypatch.setenv("SQLQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("COLUMNS", "120")
    return url


def put(url: str, model: Any, *rows: dict[str, Any]) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for row in rows:
            connection.execute(insert(model).values(row))
    engine.dispose()


def run(*arguments: str, model: str = "Task") -> Any:
    command, *rest = arguments
    return CliRunner().invoke(application(), [command, f"tests.models:{model}", *rest])


def out(*arguments: str, model: str = "Task") -> str:
    told = run(*arguments, model=model)
    assert told.exit_code == 0, told.output
    return "\n".join(line.rstrip() for line in told.stdout.splitlines())


# -- what people see ---------------------------------------------------------------------------------------------------


def test_nothing_found_is_no_error(url: str) -> None:
    assert out("errors") == "No errors of Task."
    assert out("list") == "No such task of Task."
    assert out("show", "7") == "There is no Task 7."
    assert out("show", "7", "--json") == "null"
    assert out("retry") == "0 tasks of Task are available again."
    assert out("prune", "--older-than", "1d") == "0 tasks of Task are deleted."


def test_the_table_of_queues(url: str) -> None:
    put(url, Task, {"status": "running", "available_at": PAST}, {}, FAILED, {**FAILED, "finished_at": func.now()})
    put(url, Mail, {"status": "scheduled"}, {"status": "scheduled", "available_at": TOMORROW})
    out("pause", "--topic", "news", model="Mail")
    out("pause", model="Mail")
    lines = out("stats", model="Base").splitlines()
    assert lines[0].split() == ["Queue", "available", "scheduled", "running", "discarded", *HEADINGS]
    told = {line.split()[0]: " ".join(line.split()[1:]) for line in lines}
    assert re.fullmatch(r"1 0 1 2 1 \d{4} days, \d+:\d\d:\d\d 1", told["Task"])
    assert re.fullmatch(r"0 2 0 0 0 0:0\d:\d\d 0 all, news", told["Mail"])
    assert told["Letter"] == "0 0 0 0 0 0"


def test_the_table_by_a_column(url: str) -> None:
    put(url, Mail, {"account_id": 7}, {"account_id": 7, "topic": "news"}, {"status": "running", "available_at": PAST})
    assert out("stats", "--by", "account_id", model="Mail").splitlines() == [
        "account_id  available  running  hung",
        "(none)              0        1     1",
        "7                   2        0     0",
    ]
    assert out("stats", "--by", "account_id", "--topic", "news", model="Mail").splitlines()[1:] == [
        "7                   1        0     0"
    ]


def test_the_table_over_time(url: str) -> None:
    ended = datetime.now(UTC) - timedelta(hours=2)
    took = {"finished_at": ended, "claimed_at": ended - timedelta(milliseconds=1_500)}
    put(url, Task, {"status": "completed", **took, "created_at": ended - timedelta(hours=1, seconds=1.5)})
    put(url, Task, {"status": "completed", **took, "claimed_at": ended, "created_at": ended}, FAILED)
    heading, *lines = out("stats", "--timeline", "--since", "3h").splitlines()
    assert heading.split() == ["From", "completed", "failed", "cancelled", *["run", "p50", "p95", "wait", "p50", "p95"]]
    assert [f"{ended:%Y-%m-%d %H}:00:00Z 2 0 0 0ms 1.5s 0ms 1:00:00"] == [
        " ".join(line.split()) for line in lines if "ms" in line
    ]
    assert [line.split()[2:] for line in lines if "ms" not in line] == [["0", "0", "0"]] * 3


def test_the_tables_of_tasks_and_errors(url: str) -> None:
    put(url, Mail, {**FAILED, "error": "Timeout: [red]x[/]\x1b[31m\n  in line 2"}, {"topic": "news"})
    assert out("list", model="Mail").splitlines() == [
        "Key  status     topic    attempt  available at          error",
        f"2    available  news     0        {_moment(url)}",
        "1    discarded  default  3        2020-01-01 00:00:00Z  Timeout: [red]x[/]\\x1b[31m",
    ]
    assert out("errors", model="Mail").splitlines() == [
        "Example  count  last seen             error",
        "1            1  2020-01-01 00:00:00Z  Timeout: [red]x[/]\\x1b[31m",
        "                                        in line 2",
    ]


def _moment(url: str) -> str:
    (task,) = [line for line in out("list", "--topic", "news", model="Mail").splitlines() if "news" in line]
    return task[-20:]


def test_a_task_whole(url: str) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=5, seconds=30)
    put(url, Task, {"name": "x", "status": "running", "available_at": soon, "error": "first\nsecond"})
    put(url, Task, {"status": "running", "available_at": PAST}, {})
    shown = dict(line.split(maxsplit=1) for line in out("show", "1").splitlines() if len(line.split()) > 1)
    assert (shown["queue"], shown["status"], shown["name"], shown["error"]) == ("task", "running", "x", "first")
    assert shown["lease"].startswith("ends in 0:05:")
    assert "ended" in out("show", "2")
    assert "the next claim takes it over" in out("show", "2")
    assert "lease         none" in out("show", "3")


def test_what_is_paused(url: str) -> None:
    said = out("pause", "--reason", "the server\x1b[2J", "--by", "ada", model="Mail")
    assert said.startswith("Mail is paused since 20")
    assert said.endswith(", by ada: the server\\x1b[2J.")
    assert out("pause", model="Mail").splitlines()[1] == "It was paused already."
    out("pause", "--topic", "news", model="Mail")
    assert out("resume", model="Mail").startswith("Mail, topic news, is paused since")
    assert out("resume", "--topic", "news", model="Mail") == "Mail is not paused."
    assert out("resume", model="Mail") == "Mail is not paused.\nIt was not paused."


def test_prune_goes_on_until_nothing_is_left(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.cli.changes.BATCH", 2)
    put(url, Task, *[FAILED] * 7)
    assert out("prune", "--older-than", "1d", "--yes", "--limit", "3") == "3 tasks of Task are deleted."
    assert out("prune", "--older-than", "1d", "--yes") == "4 tasks of Task are deleted."


# -- the question ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["retry"], "retry 3 tasks of Task (2 discarded, 1 hung)"),
        (["cancel"], "cancel 3 tasks of Task (2 available, 1 running)"),
        (["discard", "--reason", "x"], "discard 3 tasks of Task (2 available, 1 running)"),
        (["prune", "--older-than", "1d"], "prune 2 tasks of Task (2 discarded)"),
    ],
)
def test_without_a_terminal_many_are_refused(url: str, arguments: list[str], said: str) -> None:
    put(url, Task, FAILED, FAILED, {}, {}, {"status": "running"})
    before = out("list")
    told = run(*arguments)
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == f"sqlqueue: this would {said}, and there is no terminal to ask: say --yes\n"
    assert out("list") == before
    assert run(*arguments, "--yes").exit_code == 0
    assert out("list") != before


@pytest.mark.parametrize(("answer", "status", "left"), [("y", 0, 0), ("n", 1, 2)])
def test_at_a_terminal_people_are_asked(url: str, answer: str, status: int, left: int) -> None:
    put(url, Task, FAILED, FAILED)
    terminal, end = pty.openpty()
    os.write(terminal, f"{answer}\n".encode())
    command = [sys.executable, "-c", PROGRAM, "retry", "tests.models:Task"]
    told = subprocess.run(
        command, stdin=end, capture_output=True, text=True, check=False, timeout=60, cwd=Path(__file__).parents[1]
    )
    os.close(terminal)
    os.close(end)
    assert told.returncode == status, told.stderr
    assert "Retry 2 tasks of Task (2 discarded)? [y/N]" in told.stderr
    assert told.stdout.strip() == ("2 tasks of Task are available again." if not status else "")
    assert ("discarded  hung" in out("stats")) is bool(left)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--status", "lost"], "'lost' is not one of 'available'"),
        (["list", "--topic", "x"], "Task has no topics"),
        (["list", "--order-by", "nothing"], "Task has no column nothing: it has id, name"),
        (["list", "--where", "nothing=7"], "Task has no column nothing"),
        (["list", "--where", "number"], "COLUMN=VALUE"),
        (["list", "--where", "number=x"], "'x' is no value for task.number, which is of type INTEGER"),
        (["list", "--where", "created_at=2026-01-01"], "is naive: give it a time zone"),
        (["list", "--older-than", "1y"], "'1y' is no duration: write 90s"),
        (["list", "--older-than", "999999999w"], "'999999999w' is no duration"),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--queue", "other"], "no queue other in tests.models:Task: there are Task"),
        (["show", "x"], "'x' is no value for task.id"),
        (["show", "9" * 30], "is no value for task.id"),
        (["stats", "--by", "nothing"], "Task has no column nothing"),
        (["stats", "--bucket", "1h"], "--bucket and --since go with --timeline"),
        (["stats", "--timeline", "--by", "number"], "--timeline does not go with --by"),
        (["stats", "--timeline", "--bucket", "7h"], "give what divides a day"),
        (["discard", "--id", "7"], "--reason"),
        (["prune"], "Task has no retention: say --older-than"),
        (["pause", "--topic", "x"], "Task has no topics"),
        (["pause", "--by", ""], "1 to 200 characters"),
    ],
)
def test_bad_usage_in_words(url: str, arguments: list[str], said: str) -> None:
    told = run(*arguments)
    assert told.exit_code == 2
    assert said in words(told.stderr)


@pytest.mark.parametrize(
    ("model", "key", "said"),
    [
        ("Seat", "7", "'7' is no key of Seat: give line,number"),
        ("Seat", "a,x", "'x' is no value for seat.number"),
        ("Parcel", "7", "'7' is no value for parcel.id"),
        ("Account", "7", "Account is no queue model"),
        ("Base", "7", "say --queue and one of"),
    ],
)
def test_keys_that_are_none(url: str, model: str, key: str, said: str) -> None:
    told = run("show", key, model=model)
    assert told.exit_code == 2
    assert said in words(told.stderr)


@pytest.mark.parametrize("key", ["a,7", '"a",7', "a, 7"])
def test_keys_of_two_columns(url: str, key: str) -> None:
    put(url, Seat, {"line": "a", "number": 7})
    assert '"key": "a,7"' in out("show", key, "--json", model="Seat")


def test_a_key_with_a_comma(url: str) -> None:
    put(url, Seat, {"line": "a,b", "number": 7})
    assert "\n".join(out("list", model="Seat").splitlines()[1:]).startswith('"a,b",7  available')
    assert out("cancel", "--id", '"a,b",7', model="Seat") == "1 task of Seat is cancelled."


def test_without_a_model_for_pauses(tmp_path: Path) -> None:
    told = CliRunner().invoke(application(), ["pause", "--url", "sqlite://", "tests.checked:Base"])
    assert told.exit_code == 2
    assert "class QueuePause(PauseMixin, Base):" in words(told.stderr)


@pytest.mark.parametrize("command", ["stats", "errors", "list", "retry", "cancel", "prune", "pause", "resume"])
def test_a_database_that_has_no_tables(command: str) -> None:
    more = ["--older-than", "1d"] if command == "prune" else []
    told = CliRunner().invoke(application(), [command, "--url", "sqlite://", "tests.models:Task", *more])
    assert told.exit_code == 2
    assert told.stderr.startswith(f"sqlqueue {command}: the database refuses: no such table")


def words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


# -- durations and help ------------------------------------------------------------------------------------------------


def test_durations() -> None:
    assert [age(text).total_seconds() for text in ("90s", "15m", "2h", "7d", "1w", "1h30m")] == [
        90,
        900,
        7_200,
        604_800,
        604_800,
        5_400,
    ]


@pytest.mark.parametrize(
    "command", ["stats", "errors", "list", "show", "retry", "cancel", "discard", "prune", "pause", "resume"]
)
def test_help_has_an_example_and_the_exit_status(command: str) -> None:
    told = CliRunner().invoke(application(), [command, "--help"], env={"COLUMNS": "120"})
    assert f"sqlqueue {command} --url postgresql+psycopg://" in told.stdout
    assert "Exit status: 0" in told.stdout
    assert "With --json" in told.stdout
