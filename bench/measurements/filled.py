"""Queues with many tasks, like those of a long-running application, for measurements of the dashboard."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, create_engine, insert, inspect

from tests.dashboard.models import Base, Email

CHUNK = 10_000
_SHARES = {"available": 0.06, "scheduled": 0.02, "retryable": 0.01, "discarded": 0.01}


def at_each_url(doc: str | None, measure: Callable[[Engine], str]) -> None:
    """Fill a queue at each URL of the command line, print what ``measure`` returns, and drop the tables again."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--keep", action="store_true", help="leave the tables, and use those that such a run has left")
    parser.add_argument("urls", nargs="+")
    given = parser.parse_args()
    for url in given.urls:
        engine = create_engine(url)
        try:
            if not given.keep or not inspect(engine).has_table(Email.__tablename__):
                fill(engine, given.tasks)
            print(f"{engine.dialect.name}, {given.tasks:,} tasks: {measure(engine)}", flush=True)
        finally:
            if not given.keep:
                Base.metadata.drop_all(engine)
            engine.dispose()


def fill(engine: Engine, number: int) -> None:
    """Recreate the tables, and store the given number of tasks in one queue."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    now = datetime.now(UTC)
    waiting = [state for state, share in _SHARES.items() for _ in range(int(number * share))]
    states = waiting + ["completed"] * (number - len(waiting))
    for first in range(0, number, CHUNK):
        rows = [
            _row(n, status, now, ended=now - timedelta(days=1) * (n / number))
            for n, status in enumerate(states[first : first + CHUNK], start=first)
        ]
        with engine.begin() as connection:
            connection.execute(insert(Email), rows)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        command = {"postgresql": "VACUUM ANALYZE email", "sqlite": "ANALYZE"}.get(engine.dialect.name)
        connection.exec_driver_sql(command or "ANALYZE TABLE email")


def _row(n: int, status: str, now: datetime, ended: datetime) -> dict[str, Any]:
    failed = status in ("retryable", "discarded")
    return {
        "topic": "news" if n % 3 else "billing",
        "status": status,
        "available_at": now + timedelta(days=1) if status in ("scheduled", "retryable") else ended,
        "finished_at": ended if status in ("completed", "discarded") else None,
        "claimed_at": ended - timedelta(seconds=n % 10) if status != "available" else None,
        "created_at": ended - timedelta(seconds=20),
        "attempt": 1 if failed or status == "completed" else 0,
        "error": f"TimeoutError: no answer from host {n % 40}" if failed else None,
        "recipient": f"user{n}@example.org",
        "secret": "",
    }
