"""Calls of the commands in this process, and rows for them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import create_engine, insert
from typer.testing import CliRunner

from sqlqueue.cli import application
from tests.support.harness import Database

PROGRAM = "import sys; sys.argv[0] = 'sqlqueue'; from sqlqueue.cli import main; main()"
"""The command line, for `python -c`."""
PAST = datetime(2020, 1, 1, tzinfo=UTC)
TOMORROW = datetime.now(UTC) + timedelta(days=1)
FAILED = {"status": "discarded", "attempt": 3, "available_at": PAST, "claimed_at": PAST, "finished_at": PAST}


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


def words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def told(db: Database, command: str, *arguments: str, target: str = "Task", driver: str = "sync_driver") -> Any:
    result = called(db, command, *arguments, target=target, driver=driver)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


def called(db: Database, command: str, *arguments: str, target: str = "Task", driver: str = "sync_driver") -> Any:
    url = db.url.set(drivername=getattr(db.case, driver)).render_as_string(hide_password=False)
    path = target if ":" in target else f"tests.support.models:{target}"
    return CliRunner().invoke(application(), [command, "--url", url, path, *arguments])
