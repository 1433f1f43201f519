"""How long each page of the dashboard takes with many tasks: `python -m bench.measurements.dashboard URL...`

The tables are created in a test database, filled, and dropped. Each page is requested several times, without shared
results. Prints the median time, the processor time of this process, which includes SQLite's, and the rows and index
entries that the server read, if it reports them.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import sessionmaker
from starlette.testclient import TestClient

from bench.measurements.filled import at_each_url
from sqlqueue import QueueSession
from tests.dashboard.serving import dashboard

ROUNDS = 7
PAGES = {
    "overview": "/",
    "overview, day": "/?period=day",
    "overview, week": "/?period=week",
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
    "abandoned": "/queue/email?status=abandoned",
    "priority": "/queue/email?sort=priority",
    "time": "/queue/email?sort=-time",
    "search, none": "/search?search=nothing",
    "retry all": "/queue/email/confirm/retry?scope=filter",
    "retry by error": "/queue/email/confirm/retry?scope=filter&error=nothing",
    "metrics": "/metrics",
    "task": "/queue/email/task?key=1",
    "errors": "/errors",
    "schedules": "/schedules",
    "limits": "/limits",
    "workers": "/workers",
    "outbox": "/outbox",
    "pipelines": "/pipelines",
}
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


def measure(engine: Engine) -> str:
    app, reads = dashboard(sessionmaker(engine, class_=QueueSession)), Reads(engine)
    site: Any = app._app.state.site
    lines: list[str] = []
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
            cost = Cost(statistics.median(times) * 1000, statistics.median(spent) * 1000, reads.number)
            lines.append(f"\n  {name:16}{cost}")
    return "".join(lines)


if __name__ == "__main__":
    at_each_url(__doc__, measure)
