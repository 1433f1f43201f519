"""The commands for the people on call: what people see, what they are asked, and what is refused."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, func, insert
from typer.main import get_command
from typer.testing import CliRunner

from sqlqueue import QueueSession
from sqlqueue.cli import application
from sqlqueue.cli._output import print_json
from sqlqueue.cli._values import age
from tests.cli.test_check_command import PROGRAM
from tests.support.models import Base, Mail, Seat, Task

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
    return CliRunner().invoke(application(), [command, f"tests.support.models:{model}", *rest])


def out(*arguments: str, model: str = "Task") -> str:
    told = run(*arguments, model=model)
    assert told.exit_code == 0, told.output
    return "\n".join(line.rstrip() for line in told.stdout.splitlines())


# -- what people see ---------------------------------------------------------------------------------------------------


def test_finding_nothing_is_not_an_error(url: str) -> None:
    assert out("errors") == "Task has no such errors."
    assert out("list") == "Task has no such tasks."
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


def test_lower_bounds_have_a_plus(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.cli.stats.CAP", 2)
    monkeypatch.setattr("sqlqueue.cli.stats.LAST", 2)
    put(url, Task, *[{**FAILED, "error": "no"}] * 3, {})
    heading, figures, note = out("stats").splitlines()
    assert heading.split()[1:6] == ["available", "running", "completed", "cancelled", "discarded"]
    assert figures.split()[1:6] == ["1", "0", "0+", "0+", "2+"]  # what was not counted may be in any final state
    assert note.startswith("+ at least:")
    heading, figures = out("stats", "--exact").splitlines()
    assert heading.split()[1:4] == ["available", "running", "discarded"]
    assert figures.split()[1:4] == ["1", "0", "3"]
    assert json.loads(out("stats", "--json"))[0]["capped"][-1] == "total"
    _, figures, note = out("errors").splitlines()
    assert figures.split()[1] == "2+"
    assert note.startswith("+ at least:")
    assert json.loads(out("errors", "--json"))[0]["capped"] is True
    assert out("errors", "--exact").splitlines()[1].split()[1] == "3"


def test_changeable_tasks_are_found_among_any_number_of_others(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.cli._change.CAP", 2)
    put(url, Task, *[{"status": "completed", "finished_at": PAST}] * 3, FAILED)
    assert out("retry") == "1 task of Task is available again."
    put(url, Task, *[FAILED] * 3)
    asked = run("retry")
    assert (asked.exit_code, "would retry at least 2 tasks of Task (2+ discarded)" in asked.stderr) == (2, True)
    assert out("retry", "--yes") == "3 tasks of Task are available again."


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
    assert heading.split() == [
        "From",
        "completed",
        "failed",
        "cancelled",
        *["run", "p50", "run", "p95", "wait", "p50", "wait", "p95"],
    ]
    assert [f"{ended:%Y-%m-%d %H}:00:00Z 2 0 0 0ms 1.5s 0ms 1:00:00"] == [
        " ".join(line.split()) for line in lines if "ms" in line
    ]
    assert [line.split()[2:] for line in lines if "ms" not in line] == [["0", "0", "0"]] * 3


def test_the_tables_of_tasks_and_errors(url: str) -> None:
    put(url, Mail, {**FAILED, "error": "Timeout: [red]x[/]\x1b[31m\n  in line 2"}, {"topic": "news"})
    assert out("list", model="Mail").splitlines() == [
        "Key  status     topic    attempt  available at          error",
        f"2    available  news     0/5      {_moment(url)}",
        "1    discarded  default  3/5      2020-01-01 00:00:00Z  Timeout: [red]x[/]\\x1b[31m",
    ]
    assert out("errors", model="Mail").splitlines() == [
        "Example  tasks  last seen             error",
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
    assert shown["lease"].startswith("expires in 0:05:")
    assert "expired" in out("show", "2")
    assert "the next claim takes it over" in out("show", "2")
    assert "lease         none" in out("show", "3")


def test_pauses_are_shown_and_resumed(url: str) -> None:
    said = out("pause", "--reason", "the server\x1b[2J", "--by", "ada", model="Mail")
    assert said.startswith("Mail has been paused since 20")
    assert said.endswith(" by ada: the server\\x1b[2J.")
    assert out("pause", model="Mail").splitlines()[1] == "It was already paused."
    out("pause", "--topic", "news", model="Mail")
    assert out("resume", model="Mail").startswith("Mail, topic news, has been paused since")
    assert out("resume", "--topic", "news", model="Mail") == "Mail is not paused."
    assert out("resume", model="Mail") == "Mail is not paused.\nIt was not paused."


def test_prune_continues_until_nothing_is_left(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cli.pruning", "operations.mass_changes"):
        monkeypatch.setattr(f"sqlqueue.{module}.BATCH", 2)
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
def test_many_tasks_need_yes_without_a_terminal(url: str, arguments: list[str], said: str) -> None:
    put(url, Task, FAILED, FAILED, {}, {}, {"status": "running"})
    before = out("list")
    told = run(*arguments)
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == f"sqlqueue: this would {said}, and there is no terminal to confirm it: use --yes\n"
    assert out("list") == before
    assert run(*arguments, "--yes").exit_code == 0
    assert out("list") != before


def retried(*arguments: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, "retry", "tests.support.models:Task", *arguments]
    return subprocess.run(command, text=True, check=False, timeout=60, cwd=Path(__file__).parents[2], **streams)


@pytest.mark.parametrize(("answer", "status", "left"), [("y", 0, 0), ("n", 1, 2)])
def test_a_terminal_is_asked_for_confirmation(url: str, answer: str, status: int, left: int) -> None:
    put(url, Task, FAILED, FAILED)
    terminal, end = pty.openpty()
    os.write(terminal, f"{answer}\n".encode())
    told = retried(stdin=end, capture_output=True)
    os.close(terminal)
    os.close(end)
    assert told.returncode == status, told.stderr
    assert "Retry 2 tasks of Task (2 discarded)? [y/N]" in told.stderr
    assert told.stdout.strip() == ("2 tasks of Task are available again." if not status else "")
    assert ("discarded  hung" in out("stats")) is bool(left)


def test_progress_is_shown_at_a_terminal_alone(url: str) -> None:
    put(url, Task, *[FAILED] * 3)
    terminal, end = pty.openpty()
    told = retried("--yes", stdout=subprocess.PIPE, stderr=end)
    seen = os.read(terminal, 100_000).decode()
    os.close(terminal)
    os.close(end)
    assert told.stdout == "3 tasks of Task are available again.\n"
    assert "3/3" in seen
    put(url, Task, *[FAILED] * 3)
    assert run("retry", "--yes").stderr == ""


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--status", "lost"], "'lost' is not one of 'available'"),
        (["list", "--topic", "x"], "Task has no topics"),
        (["list", "--order-by", "nothing"], "Task has no column nothing; its columns are id, name"),
        (["list", "--where", "nothing=7"], "Task has no column nothing"),
        (["list", "--where", "number"], "COLUMN=VALUE"),
        (["list", "--where", "number=x"], "'x' is not a value for task.number, which has the type INTEGER"),
        (["list", "--where", "created_at=2026-01-01"], "is naive: give it a time zone"),
        (["list", "--older-than", "1y"], "'1y' is not a duration: write 90s"),
        (["list", "--older-than", "999999999w"], "'999999999w' is not a duration"),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--queue", "other"], "no queue other in tests.support.models:Task; its queues are Task"),
        (["show", "x"], "'x' is not a value for task.id"),
        (["show", "9" * 30], "is not a value for task.id"),
        (["stats", "--by", "nothing"], "Task has no column nothing"),
        (["stats", "--bucket", "1h"], "--bucket and --since need --timeline"),
        (["stats", "--timeline", "--by", "number"], "--timeline, which cannot be combined with --by"),
        (["stats", "--timeline", "--bucket", "7h"], "give a duration that divides a day"),
        (["discard", "--id", "7"], "--reason"),
        (["prune"], "Task has no retention: use --older-than"),
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
        ("Seat", "7", "'7' is not a key of Seat: give line,number"),
        ("Seat", "a,x", "'x' is not a value for seat.number"),
        ("Parcel", "7", "'7' is not a value for parcel.id"),
        ("Account", "7", "Account is not a queue model"),
        ("Base", "7", "use --queue with one of"),
    ],
)
def test_invalid_keys_are_rejected(url: str, model: str, key: str, said: str) -> None:
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
    told = CliRunner().invoke(application(), ["pause", "--url", "sqlite://", "tests.support.check_models:Base"])
    assert told.exit_code == 2
    assert "class QueuePause(PauseMixin, Base):" in words(told.stderr)


@pytest.mark.parametrize("command", ["stats", "errors", "list", "retry", "cancel", "prune", "pause", "resume"])
def test_a_database_that_has_no_tables(command: str) -> None:
    more = ["--older-than", "1d"] if command == "prune" else []
    told = CliRunner().invoke(application(), [command, "--url", "sqlite://", "tests.support.models:Task", *more])
    assert told.exit_code == 2
    assert told.stderr.startswith(f"sqlqueue {command}: the database raised an error: no such table")


@pytest.mark.parametrize("command", ["stats", "check"])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("shop.db", "--url: the URL is not of the form dialect+driver://"),
        ("postgresql+psycopg://me:secret@host:port/shop", "--url: the port of the URL is not a number"),
        (
            "postgresql+psycopg://me:secret@host:99999/shop",
            "--url: the port of the URL is 99999: give one from 1 to 65535",
        ),
        ("nosuch://me:secret@host/shop", "--url: SQLAlchemy has no dialect 'nosuch', or it is not installed"),
        ("mysql+mysqldb://me:secret@host/shop", "--url: the driver for mysql+mysqldb is not installed"),
        ("sqlite:////no/such/folder/shop.db", "the file /no/such/folder/shop.db does not exist"),
        ("mysql+pymysql://me:secret@127.0.0.1:1/shop", "cannot connect: (2003, "),
        ("mysql+pymysql://me:secret@127.0.0.1:1/shop?colour=red", "cannot connect: "),
    ],
)
def test_unreachable_urls_are_rejected(command: str, url: str, said: str) -> None:
    told = CliRunner().invoke(application(), [command, "--url", url, "tests.support.models:Task"])
    assert (told.exit_code, told.stdout) == (2, "")
    assert isinstance(told.exception, SystemExit), "a traceback"
    assert said in words(told.stderr)
    assert "secret" not in told.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("tests.support.models", "is not of the form module:attribute"),
        ("tests.no_such_module:Base", "there is no module tests.no_such_module"),
        ("tests.support.models:Bose", "the module tests.support.models has no Bose"),
        ("tests.support.models:Slot", "Slot holds the slots of limits, not tasks"),
    ],
)
def test_invalid_targets_are_rejected(url: str, target: str, said: str) -> None:
    told = CliRunner().invoke(application(), ["stats", target])
    assert (told.exit_code, told.stdout) == (2, "")
    assert said in words(told.stderr)


# -- at 80 columns, and with what comes from elsewhere -----------------------------------------------------------------

HOSTILE = "\x1b[2J\x07\r\x9b31m\u202e"
ESCAPED = "\\x1b[2J\\x07\\r\\x9b31m\\u202e"


@pytest.fixture
def narrow(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    return url


def test_no_table_is_wider_than_the_terminal_or_loses_its_first_column(narrow: str) -> None:
    put(narrow, Task, {"status": "running", "available_at": PAST}, {}, FAILED, {**FAILED, "status": "cancelled"})
    put(narrow, Task, {"status": "scheduled"}, {"status": "retryable"}, {**FAILED, "status": "completed"})
    put(narrow, Mail, {**FAILED, "error": "Timeout: " + 30 * "x y " + "\nsecond line"})
    out("pause", "--topic", "news", model="Mail")
    tables = [out("stats", model="Base"), out("stats", "--by", "number"), out("stats", "--timeline", "--since", "3h")]
    tables += [out("list"), out("list", "--columns", "name,number,created_at,claimed_at,available_at,error")]
    tables += [out("errors", model="Mail"), out("list", model="Mail"), out("show", "1", model="Mail")]
    assert max(len(line) for table in tables for line in table.splitlines()) <= 80
    parts = [part.splitlines() for part in tables[0].split("\n\n")]
    first = parts[0][1].split()[0]  # whichever it is: other modules have models of this base, too
    assert [[line.split()[0] for line in part][:2] for part in parts] == [["Queue", first]] * len(parts)
    assert [line.split()[-1] for line in parts[-1] if line.startswith("Mail ")] == ["news"]
    assert [name for part in parts for name in part[0].split()[1:]] == [
        *("available", "scheduled", "retryable", "running", "completed", "cancelled", "discarded", *HEADINGS)
    ]


def test_models_of_slots_are_not_listed(url: str) -> None:
    listed = [line.split()[0] for line in out("stats", model="Base").splitlines()]
    assert "Visit" in listed
    assert not {"Slot", "SQLSlot"} & set(listed)
    assert "Visit" in words(run("errors", model="Base").stderr)
    assert "Slot" not in words(run("errors", model="Base").stderr)
    assert "there is no queue Slot" in words(run("errors", "--queue", "Slot", model="Base").stderr)


def test_a_list_shows_columns_of_the_application(narrow: str) -> None:
    put(narrow, Task, {"name": "a name", "number": 7}, {"name": "x" * 99, "number": 8, "error": "KeyError: 1\n2"})
    heading, first, second = out("list").splitlines()
    assert heading.split() == ["Key", "status", "attempt", "available", "at", "number", "error"]
    assert (first.split()[-3:], second.split()[-1]) == (["8", "KeyError:", "1"], "7")
    heading, first, second = out("list", "--columns", "name,available_at").splitlines()
    assert heading.split() == ["Key", "name", "available", "at"]
    assert (first.split()[1], second.split()[1:3]) == ("x" * 23 + "…", ["a", "name"])
    assert "Task has no column nothing" in words(run("list", "--columns", "name,nothing").stderr)


def test_nothing_that_a_terminal_obeys_is_printed(url: str) -> None:
    row = dict.fromkeys(("subject", "claimed_by", "topic"), HOSTILE)
    put(url, Mail, {**FAILED, **row, "error": f"E{HOSTILE}\nnext"})
    put(url, Seat, {"line": HOSTILE, "number": 1})
    out("pause", "--topic", HOSTILE, "--reason", HOSTILE, "--by", HOSTILE, model="Mail")
    told = [run(*arguments, model="Mail") for arguments in (
        ["stats"], ["stats", "--by", "topic"], ["errors"], ["list"], ["list", "--columns", "subject,claimed_by,error"],
        ["show", "1"], ["pause"], ["resume"], ["stats", "--queue", HOSTILE], ["list", "--where", HOSTILE],
        ["list", "--where", f"id={HOSTILE}"], ["list", "--older-than", HOSTILE], ["show", HOSTILE],
        ["list", "--topic", HOSTILE, "--columns", HOSTILE],
    )]  # fmt: skip
    told += [run("list", model="Seat"), run("show", HOSTILE, model="Seat")]
    told += [CliRunner().invoke(application(), ["stats", f"tests.support.models:{HOSTILE}"])]
    told += [CliRunner().invoke(application(), ["work", f"tests.support.models:{HOSTILE}"])]
    told += [CliRunner().invoke(application(), ["demo", "--url", f"sqlite:////no/{HOSTILE}/x", "."])]
    told += [CliRunner().invoke(application(), ["bench", "--url", f"sqlite:////no/{HOSTILE}/x"])]
    for each in told:
        assert not {one for one in each.stdout + each.stderr if not one.isprintable()} - {"\n"}, each.output
        assert isinstance(each.exception, SystemExit | None)
    assert ESCAPED in told[2].stdout


@pytest.mark.parametrize("command", [["list"], ["show", "1"], ["errors"], ["stats", "--by", "topic"]])
def test_json_stays_json(url: str, command: list[str]) -> None:
    put(url, Mail, {**FAILED, "error": HOSTILE, "subject": HOSTILE, "topic": HOSTILE})
    printed = out(*command, "--json", model="Mail")
    assert HOSTILE in list(strings(json.loads(printed)))
    assert printed.isascii()


def strings(value: Any) -> Iterator[str]:
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
        if isinstance(each, str):
            yield each
        elif isinstance(each, (dict, list)):
            yield from strings(each)


def test_non_finite_numbers_are_printed_as_text(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), {"b": float("-inf")}], 7: 1.5})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"a": ["nan", {"b": "-inf"}], "7": 1.5}


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


COMMANDS = sorted(get_command(application()).commands)  # type: ignore[attr-defined]
ON_CALL = ["stats", "errors", "list", "show", "retry", "cancel", "discard", "prune", "pause", "resume", "limits"]


@pytest.mark.parametrize("command", [*ON_CALL, "set-limit"])
def test_help_has_an_example_and_the_exit_status(command: str) -> None:
    told = CliRunner().invoke(application(), [command, "--help"], env={"COLUMNS": "120"})
    assert f"sqlqueue {command} --url postgresql+psycopg://" in told.stdout
    assert "Exit status: 0" in told.stdout
    assert "With --json" in told.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_the_whole_docstring(command: str) -> None:
    """Brackets are no markup, in the text and in what is said of each option."""
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


# -- limits ------------------------------------------------------------------------------------------------------------


def test_limits_are_listed_and_set(url: str) -> None:
    assert out("limits", model="Visit") == "No key of Visit has been used."
    asked = run("set-limit", "a.org", "3", model="Visit")
    assert (asked.exit_code, asked.stdout) == (2, "")
    assert "a key that no task of Visit has used, and there is no terminal to confirm it: use --yes" in asked.stderr
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
        (["set-limit", "x" * 1000, "1", "--yes"], "Visit", "it has 1000 characters, give at most"),
    ],
)
def test_limits_that_cannot_be_set(url: str, arguments: list[str], model: str, said: str) -> None:
    told = run(*arguments, model=model)
    assert told.exit_code == 2
    assert said in words(told.stderr)


# -- why nothing was changed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "columns", "said"),
    [
        ("retry", {"status": "scheduled"}, "Found: 1 scheduled. sqlqueue retry changes retryable, discarded, hung. A"),
        ("retry", {"status": "scheduled"}, "once it is due. To run it now: UPDATE task SET status = 'available'"),
        (
            "retry",
            {"status": "completed", "finished_at": PAST},
            "A completed task is final: to run it again, enqueue it again",
        ),
        ("retry", {"status": "running", "available_at": TOMORROW}, "belongs to its worker until its lease expires"),
        ("cancel", FAILED, "Found: 1 discarded. sqlqueue cancel changes available, scheduled, retryable, running."),
    ],
)
def test_a_task_that_is_named_and_not_changed(url: str, command: str, columns: dict[str, Any], said: str) -> None:
    put(url, Task, columns)
    assert said in words(out(command, "--id", "1"))
    assert words(out(command, "--id", "2")).endswith("There is no such task.")
    nothing = {"queue": "task", "action": command, "tasks": 0, "taken": 0, "stopped": False}
    assert json.loads(out(command, "--id", "1", "--json")) == nothing


def test_a_scheduled_task_runs_by_the_statement_that_is_shown(url: str) -> None:
    put(url, Task, {"status": "scheduled", "available_at": TOMORROW})
    (statement,) = re.findall("UPDATE .* WHERE", words(out("retry", "--id", "1")))
    engine = create_engine(url)
    with QueueSession(engine) as session, session.begin():
        assert session.claim(Task) is None
        session.connection().exec_driver_sql(f"{statement} id = 1")
        assert session.claim(Task) is not None
    engine.dispose()


# -- the worker --------------------------------------------------------------------------------------------------------

JOBS = """
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlqueue import Worker
from tests.support.models import Task
worker = Worker(sessionmaker(create_engine("sqlite:///work.db")))
worker.handler(Task)(lambda task: None)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    (tmp_path / "jobs_of_test.py").write_text(JOBS)
    return tmp_path


def work(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", PROGRAM, "work", "jobs_of_test:worker", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_worker_without_its_table_logs_this_once(jobs: Path) -> None:
    told = work(jobs)
    assert (told.returncode, told.stdout) == (3, "")
    (line,) = told.stderr.splitlines()
    assert "ERROR" in line
    assert "the schema does not match the models: there is no table task. To fix it, migrate: alembic" in line


@pytest.mark.parametrize(
    ("status", "arguments", "said"),
    [
        (2, ["--health", "host"], "'host' is not an address: give PORT, HOST:PORT or [IPV6]:PORT, as in 0.0.0.0:8080"),
        (2, ["--health", "65535", "--processes", "2"], "--health: there are not 2 ports from 65535 on"),
        (2, ["--max-tasks", "0"], "greater than or equal to 1"),
        (2, ["--max-memory", "-1"], "greater than or equal to 1"),
        (3, ["--health", "192.0.2.1:8080"], "cannot serve health checks on 192.0.2.1 port 8080: "),
    ],
)
def test_options_with_which_a_worker_cannot_start(jobs: Path, status: int, arguments: list[str], said: str) -> None:
    told = work(jobs, *arguments)
    assert (told.returncode, told.stdout) == (status, "")
    assert said in words(told.stderr)
