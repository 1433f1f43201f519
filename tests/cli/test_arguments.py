"""Arguments, URLs and targets that the commands reject."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sqlqueue.cli import application
from tests.cli.invoking import out, put, run, words
from tests.support.models import Seat


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--status", "lost"], "'lost' is not one of 'available'"),
        (["list", "--topic", "x"], "Task has no topics"),
        (["list", "--function", "x"], "Task has no functions"),
        (["list", "--order-by", "nothing"], "Task has no column nothing; its columns are id, name"),
        (["list", "--where", "nothing=7"], "Task has no column nothing"),
        (["list", "--where", "number"], "COLUMN=VALUE"),
        (["list", "--where", "number=x"], "'x' is not a value for task.number, which has the type INTEGER"),
        (["list", "--where", "created_at=2026-01-01"], "is naive: give it a time zone"),
        (["list", "--older-than", "1y"], "'1y' is not a duration: write 90s"),
        (["list", "--older-than", "999999999w"], "'999999999w' is not a duration"),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--queue", "other"], "no queue other in tests.support.models:Task; its queues are task"),
        (["show", "x"], "'x' is not a value for task.id"),
        (["show", "9" * 30], "is not a value for task.id"),
        (["stats", "--by", "nothing"], "Task has no column nothing"),
        (["stats", "--bucket", "1h"], "--bucket and --since need --timeline"),
        (["stats", "--timeline", "--by", "number"], "--timeline, which cannot be combined with --by"),
        (["stats", "--timeline", "--bucket", "7h"], "give a duration that divides a day"),
        (["discard", "--id", "7"], "--reason"),
        (["prune"], "task has no retention: use --older-than"),
        (["pause", "--topic", "x"], "Task has no topics"),
        (["pause", "--by", ""], "1 to 200 characters"),
    ],
)
def test_invalid_usage_is_explained(url: str, arguments: list[str], said: str) -> None:
    told = run(*arguments)
    assert told.exit_code == 2
    assert said in words(told.stderr)


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        ("Seat", ["show", "7"], "'7' is not a key of Seat: give line,number"),
        ("Seat", ["show", "a,x"], "'x' is not a value for seat.number"),
        ("Parcel", ["show", "7"], "'7' is not a value for parcel.id"),
        ("Account", ["show", "7"], "Account is not a queue model"),
        ("Base", ["show", "7"], "use --queue with one of"),
        ("Slot", ["stats"], "slot holds the slots of limits, not tasks"),
        ("Task", ["limits"], "the queues have no limits: derive Task from LimitMixin"),
        ("Task", ["set-limit", "x", "1"], "the queues have no limits"),
        ("Task", ["keys"], "the queues have no keys"),
        ("Task", ["pause", "--key", "x"], "Task has no keys"),
        ("Base", ["keys", "--after", "x"], "--after is for one queue"),
        ("Base", ["set-limit", "x", "1"], "queues with limits: use --queue with one of"),
        ("Visit", ["set-limit", "x", "many"], "Invalid value for 'N'"),
        ("Visit", ["set-limit", "x", "10001"], "10000"),
        ("Visit", ["set-limit", "x" * 1000, "1", "--yes"], "it has 1000 characters; give at most"),
    ],
)
def test_invalid_keys_queues_and_limits_are_rejected(url: str, model: str, arguments: list[str], said: str) -> None:
    told = run(*arguments, model=model)
    assert (told.exit_code, told.stdout) == (2, "")
    assert said in words(told.stderr)


@pytest.mark.parametrize("key", ["a,7", '"a",7', "a, 7"])
def test_keys_of_two_columns(url: str, key: str) -> None:
    put(url, Seat, {"line": "a", "number": 7})
    assert '"key": "a,7"' in out("show", key, "--json", model="Seat")


def test_a_key_with_a_comma(url: str) -> None:
    put(url, Seat, {"line": "a,b", "number": 7})
    assert "\n".join(out("list", model="Seat").splitlines()[1:]).startswith('"a,b",7  available')
    assert out("cancel", "--id", '"a,b",7', model="Seat") == "1 task of seat is cancelled."


def test_pause_without_a_model_for_pauses_is_explained() -> None:
    told = CliRunner().invoke(application(), ["pause", "--url", "sqlite://", "tests.support.check_models:Base"])
    assert told.exit_code == 2
    assert "class QueuePause(PauseMixin, Base):" in words(told.stderr)


@pytest.mark.parametrize("command", ["list", "retry", "prune --older-than 1d", "pause"])
def test_a_database_without_tables_is_explained(command: str) -> None:
    name, *options = command.split()
    told = run(name, "--url", "sqlite://", *options)
    assert told.exit_code == 2
    assert told.stderr.startswith(f"sqlqueue {name}: the database raised an error: no such table")


@pytest.mark.parametrize(
    ("driver", "command"),
    [
        ("sqlite", "stats"),
        ("sqlite", "stats --by priority"),
        ("sqlite", "stats --timeline"),
        ("sqlite", "errors"),
        ("sqlite+aiosqlite", "stats"),
    ],
)
def test_a_database_without_tables_is_to_be_migrated(tmp_path: Path, driver: str, command: str) -> None:
    (tmp_path / "empty.db").touch()
    told = run(*command.split(), "--url", f"{driver}:///{tmp_path / 'empty.db'}")
    assert told.exit_code == 2
    assert "there is no table task" in words(told.output)
    assert "migrate: alembic revision --autogenerate, alembic upgrade head" in words(told.output)


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
        ("mysql+mysqldb://me:secret@host/shop", "mysql+pymysql://... pip install 'sqlalchemy-queue[mysql]'"),
        ("sqlite:///missing.db", "the file missing.db does not exist"),
        ("mysql+pymysql://me:secret@127.0.0.1:1/shop", "cannot connect: (2003, "),
        ("mysql+pymysql://me:secret@127.0.0.1:1/shop?colour=red", "cannot connect: "),
        ("mysql+aiomysql://me:secret@127.0.0.1:1/shop", "cannot connect: "),
        ("postgresql+asyncpg://me:secret@127.0.0.1:1/shop", "cannot connect: "),
    ],
)
def test_unreachable_urls_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    told = run("check", "--url", url)
    assert (told.exit_code, told.stdout) == (2, "")
    assert isinstance(told.exception, SystemExit), "a traceback"
    assert said in words(told.stderr)
    assert "secret" not in told.stderr
    assert list(tmp_path.iterdir()) == [], "a database was made"
