"""The configuration of a scheduler of SQL tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqlqueue import ArgumentError
from sqlqueue.sqltasks import SQLTaskDatabase, SQLTaskScheduler, read_config


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", r"give one or more tables \[\[database\]\]"),
        ("url = 1", r"give one or more tables \[\[database\]\]"),
        ("[[database]]\ncreate = true", "database 1: url is missing"),
        ('[[database]]\nurl = "sqlite://"\ncolour = 1', "database 1: unknown key colour"),
        ('[[database]]\nurl = "sqlite://"\npoll = 0', "database 1: poll="),
        ('[[database]]\nurl = "sqlite://"\nconcurrency = 0', "database 1: concurrency="),
        ('[[database]]\nurl = "sqlite://"\nusers = "text"', "database 1: users is of type str: give URLs by the names"),
        ('[[database]]\nurl = "sqlite://"\nusers = { a = 1 }', "users contain a value of type int: give text"),
        ('[[database]]\nurl = "sqlite://"\nschemas = "abc"', "schemas is of type str: give a list of schemas"),
        ('[[database]]\nurl = "sqlite://"\nqueues = ["mail"]', "queues is of type list: give limits by the names"),
        ("[[database]]\nurl = 7", "database 1: url is of type int: give a URL"),
        (
            '[[database]]\nurl = "sqlite://"\nqueues = {mail = 10_001}',
            "database 1: queues: mail=10001: give an integer",
        ),
        ("[[database", "Expected"),
    ],
)
def test_invalid_configurations_are_rejected(tmp_path: Path, content: str, complaint: str) -> None:
    config = tmp_path / "tasks.toml"
    config.write_text(content)
    with pytest.raises(ArgumentError, match=complaint):
        read_config(config)


def test_the_text_of_a_configuration_contains_no_passwords() -> None:
    url = "sqlite://ada:secret@/x"
    assert "secret" not in repr(SQLTaskDatabase(url=url, execute_url=url, users={"owner": url}))


@pytest.mark.parametrize("where", ["url", "execute_url", "users"])
def test_an_unreachable_url_is_rejected(where: str) -> None:
    given = {"url": "sqlite://", where: {"owner": "mysql://h:p/x"} if where == "users" else "mysql://h:p/x"}
    with pytest.raises(ArgumentError, match="the port of the URL is not a number"):
        SQLTaskScheduler([SQLTaskDatabase(**given)])  # type: ignore[arg-type]


def test_an_asyncio_driver_executes_no_requests() -> None:
    with pytest.raises(ArgumentError, match="asyncio driver"):
        SQLTaskScheduler([SQLTaskDatabase(url="sqlite+aiosqlite://")])
