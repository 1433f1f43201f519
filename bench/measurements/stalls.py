"""Measures how long readers and writers of a table wait while it becomes a queue: `python -m bench.measurements.stalls
URL ...`.

Creates the tables of `tests.migrations.adopted`, one with a million rows, in databases that have none with these names,
and drops them.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, insert, make_url, select, update

from sqlqueue.alembic import MigrationOptions
from tests.migrations.adopted import CUSTOMERS, Before, NewOrder, OldCustomer, OldOrder, rows
from tests.migrations.project import Project

ROWS = 1_000_000
EVERY = 0.005
"""Seconds between two measurements of a probe."""


class Probe(threading.Thread):
    """Performs an operation on one row repeatedly, and records the longest duration."""

    def __init__(self, engine: Engine, work: Callable[[Connection, int], object]) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self._engine = engine
        self._work = work
        self._over = threading.Event()

    def run(self) -> None:
        number = 0
        with self._engine.connect() as connection:
            while not self._over.wait(EVERY):
                number += 1
                begun = time.perf_counter()
                with connection.begin():
                    self._work(connection, 1 + number * 7_919 % ROWS)
                self.longest = max(self.longest, time.perf_counter() - begun)

    def end(self) -> float:
        self._over.set()
        self.join()
        return self.longest


def read(connection: Connection, key: int) -> object:
    return connection.execute(select(OldOrder.reference).where(OldOrder.id == key)).all()


def write(connection: Connection, key: int) -> object:
    return connection.execute(update(OldOrder).where(OldOrder.id == key).values(amount=OldOrder.amount + 1))


def measured(engine: Engine, work: Callable[[], object]) -> tuple[float, float, float]:
    """Return in seconds how long ``work`` took, and the longest waits of a reader and a writer meanwhile."""
    probes = [Probe(engine, read), Probe(engine, write)]
    for probe in probes:
        probe.start()
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun, *(probe.end() for probe in probes))  # type: ignore[return-value]


def fill(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(insert(OldCustomer), CUSTOMERS)
        for start in range(0, ROWS, 10_000):
            some: list[Any] = [
                {**row, "id": row["id"] + start, "reference": f"r{row['id'] + start}"} for row in rows(10_000)
            ]
            connection.execute(insert(OldOrder), some)


def adopt(url: str, directory: Path) -> list[float]:
    """Return in seconds the longest wait of an idle probe, then the results of `measured` for up- and downgrade."""
    options = {"sqlqueue": MigrationOptions(concurrently=True)}
    common: dict[str, Any] = {"directory": directory, "plugin": True, "version_table": "stalls_version"}
    before = Project(metadata=Before.metadata, url=url, options=options, **common)
    after = before.using(NewOrder.metadata)
    engine = create_engine(url, poolclass=NullPool)
    try:
        before.revise("before")
        before.upgrade()
        fill(engine)
        after.revise("adopt")
        idle = max(measured(engine, lambda: time.sleep(3))[1:])
        return [idle, *measured(engine, after.upgrade), *measured(engine, lambda: after.downgrade("-1"))]
    finally:
        before.drop()


def main(urls: list[str]) -> None:
    lines = ["| engine | idle | upgrade | reader | writer | downgrade | reader | writer |", "|---" * 8 + "|"]
    for url in urls:
        with tempfile.TemporaryDirectory() as name:
            idle, *figures = adopt(url, Path(name))
        cells = [f"{idle * 1000:.0f} ms"]
        for took, reader, writer in (figures[:3], figures[3:]):
            cells += [f"{took:.1f} s", f"{reader * 1000:.0f} ms", f"{writer * 1000:.0f} ms"]
        lines.append(f"| {make_url(url).get_backend_name()} | {' | '.join(cells)} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
