"""How long each page of the dashboard takes with many tasks: `python -m tests.measurements.dashboard URL...`

The tables are made in a database for tests, filled, and dropped again.  Each page is asked for several times, without
what viewers share, and the median is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import create_engine, insert
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from sqlqueue import QueueSession
from tests.dashboard.models import Base, Email
from tests.dashboard.scenes import dashboard

ROUNDS = 7
CHUNK = 10_000
PAGES = {
    "overview": "/",
    "queue": "/queue/email",
    "available": "/queue/email?status=available",
    "running": "/queue/email?status=running",
    "discarded": "/queue/email?status=discarded",
    "completed": "/queue/email?status=completed",
    "topic": "/queue/email?topic=news",
    "task": "/queue/email/task?key=1",
    "errors": "/errors",
    "schedules": "/schedules",
    "limits": "/limits",
}
_SHARES = {"available": 0.06, "scheduled": 0.02, "retryable": 0.01, "discarded": 0.01}


def rows(number: int) -> Iterator[dict[str, Any]]:
    now = datetime.now(UTC)
    waiting = {state: int(number * share) for state, share in _SHARES.items()}
    states = [state for state, count in waiting.items() for _ in range(count)]
    for n in range(number):
        status = states[n] if n < len(states) else "completed"
        ended = now - timedelta(days=1) * (n / number)
        failed = status in ("retryable", "discarded")
        yield {
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


def fill(engine: Any, number: int) -> None:
    chunk: list[dict[str, Any]] = []
    for row in rows(number):
        chunk.append(row)
        if len(chunk) == CHUNK:
            _insert(engine, chunk)
            chunk = []
    if chunk:
        _insert(engine, chunk)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        command = {"postgresql": "VACUUM ANALYZE email", "sqlite": "ANALYZE"}.get(engine.dialect.name)
        connection.exec_driver_sql(command or "ANALYZE TABLE email")


def _insert(engine: Any, chunk: list[dict[str, Any]]) -> None:
    with engine.begin() as connection:
        connection.execute(insert(Email.__table__), chunk)


def measure(sessions: Any) -> dict[str, float]:
    app = dashboard(sessions)
    site: Any = app._app.state.site
    found: dict[str, float] = {}
    with TestClient(app) as client:
        for name, path in PAGES.items():
            times = []
            for _ in range(ROUNDS):
                site.snapshots.forget()
                began = time.perf_counter()
                answer = client.get(path)
                times.append(time.perf_counter() - began)
                assert answer.status_code == 200, (path, answer.status_code)
            found[name] = statistics.median(times) * 1000
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("urls", nargs="+")
    given = parser.parse_args()
    for url in given.urls:
        engine = create_engine(url)
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        try:
            fill(engine, given.tasks)
            found = measure(sessionmaker(engine, class_=QueueSession))
        finally:
            Base.metadata.drop_all(engine)
            engine.dispose()
        print(
            f"{engine.dialect.name}, {given.tasks:,} tasks, ms: {', '.join(f'{n} {t:.0f}' for n, t in found.items())}",
            flush=True,
        )


if __name__ == "__main__":
    main()
