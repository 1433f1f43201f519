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
def test_invalid_usage_is_explained(url: str, arguments: list[str], said: str) -> None:
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


def test_pause_without_a_model_for_pauses_is_explained(tmp_path: Path) -> None:
    told = CliRunner().invoke(application(), ["pause", "--url", "sqlite://", "tests.support.check_models:Base"])
    assert told.exit_code == 2
    assert "class QueuePause(PauseMixin, Base):" in words(told.stderr)


@pytest.mark.parametrize("command", ["stats", "errors", "list", "retry", "cancel", "prune", "pause", "resume"])
def test_a_database_without_tables_is_explained(command: str) -> None:
    more = ["--older-than", "1d"] if command == "prune" else []
    told = CliRunner().invoke(application(), [command, "--url", "sqlite://", "tests.support.models:Task", *more])
    assert told.exit_code == 2
    if command in {"stats", "errors"}:
        assert "alembic upgrade head" in told.stderr
    else:
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
