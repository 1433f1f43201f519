"""How long each page of the dashboard takes with many tasks: `python -m tests.measurements.dashboard URL...`

The tables are made in a database for tests, filled, and dropped again.  Each page is asked for several times, without
what viewers share.  Printed are the median of the time, the processor time of this process, which contains that of
SQLite, and the rows and index entries that the server read, where it tells.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, insert
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
    "topic, none": "/queue/email?topic=nothing",
    "error, none": "/queue/email?error=nothing",
    "time, none": "/queue/email?newer=1s",
    "column, none": "/queue/email?column.recipient=nobody",
    "hung": "/queue/email?status=hung",
    "retry all": "/queue/email/confirm/retry?scope=filter",
    "retry by error": "/queue/email/confirm/retry?scope=filter&error=nothing",
    "metrics": "/metrics",
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


READS = {
    "postgresql": "SELECT sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid))"
    " FROM pg_class WHERE relnamespace = 'public'::regnamespace",
    "mysql": "SELECT sum(variable_value) FROM performance_schema.session_status"
    " WHERE variable_name LIKE 'Handler_read%%'",
    "mariadb": "SELECT sum(variable_value) FROM information_schema.session_status"
    " WHERE variable_name LIKE 'Handler_read%%'",
}


class Reads:
    """Counts the rows and index entries that transactions on an engine read."""

    def __init__(self, engine: Engine) -> None:
        self.number = 0
        self._query = READS.get(engine.dialect.name)
        if self._query is not None:
            event.listen(engine, "begin", self._begin)
            event.listen(engine, "commit", self._end)

    def _begin(self, connection: Connection) -> None:
        connection.info["read"] = self._told(connection)

    def _end(self, connection: Connection) -> None:
        self.number += self._told(connection) - connection.info["read"]

    def _told(self, connection: Connection) -> int:
        return int(connection.exec_driver_sql(str(self._query)).scalar() or 0)


@dataclass(frozen=True)
class Cost:
    milliseconds: float
    processor: float
    read: int

    def __str__(self) -> str:
        read = f"   {self.read:>8,} read" if self.read else ""
        return f"{self.milliseconds:>6.0f} ms   {self.processor:>6.0f} ms of processor time{read}"


def measure(sessions: Any) -> dict[str, Cost]:
    app, reads = dashboard(sessions), Reads(sessions.kw["bind"])
    site: Any = app._app.state.site
    found: dict[str, Cost] = {}
    with TestClient(app) as client:
        for name, path in PAGES.items():
            times, spent = [], []
            for _ in range(ROUNDS):
                site.snapshots.forget()
                reads.number, began, used = 0, time.perf_counter(), time.process_time()
                answer = client.get(path)
                times.append(time.perf_counter() - began)
                spent.append(time.process_time() - used)
                assert answer.status_code == 200, (path, answer.status_code)
            found[name] = Cost(statistics.median(times) * 1000, statistics.median(spent) * 1000, reads.number)
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
        print(f"{engine.dialect.name}, {given.tasks:,} tasks")
        print("\n".join(f"  {name:16}{cost}" for name, cost in found.items()), flush=True)


if __name__ == "__main__":
    main()
