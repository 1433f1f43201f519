"""Measures how soon work resumes after connections fall silent: `python -m bench.measurements.silence URL ...`.

A worker with a lease of 60 seconds and an engine without any options works on a steady stream of tasks, through a
proxy. Then every open connection falls silent in both directions without being closed, while new ones work:

- `proxy`: the proxy keeps accepting data, like a load balancer that has lost its server;
- `packets`: the kernel drops the packets of these connections, like a firewall that has lost their state. This
  needs the right to change iptables, in the network namespace of this process.

Creates its tables in databases that have none with these names, and drops them.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import threading
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import URL, Engine, NullPool, create_engine, func, insert, literal, make_url, select

from bench.measurements.crashes import tables
from sqlqueue import Worker
from tests.outages.blackhole import BlackHole, through
from tests.support.engines import ENGINES, EngineCase
from tests.support.harness import Database, LoopThread
from tests.support.models import Ledger, Task
from tests.support.workers import Running

LEASE = timedelta(seconds=60)
EVERY = 0.05
"""Seconds between two tasks."""
BEFORE = 8.0
"""Seconds of work before the silence."""
DURING = 45.0
"""Seconds after which the server's ends of the silent connections are closed."""
SOON = 2.0
"""Seconds within which a task is completed under normal conditions."""
PATIENCE = 120.0
WAYS = ("proxy", "packets")


class Figures(NamedTuple):
    silent: int
    """Connections that fell silent."""
    resumed: float
    """Seconds until the first completion of a task that was enqueued after the silence had begun."""
    caught_up: float
    """Seconds after which every task was again completed within two seconds."""
    left: int
    """Tasks that were running when the silence began, and whose rows the server kept locked until it closed the
    connections."""
    undone: int
    """Tasks that were not done exactly once in the end."""
    attempts: int
    """The maximum number of attempts counted for a task."""

    @property
    def holds(self) -> bool:
        return self.undone == 0 and self.caught_up <= 30


class Feeder(threading.Thread):
    """Enqueues tasks on a connection that does not fall silent."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(daemon=True)
        self._enqueued: list[float] = []
        self._engine = engine
        self._over = threading.Event()

    def run(self) -> None:
        with self._engine.connect() as connection:
            while not self._over.wait(EVERY):
                number = len(self._enqueued) + 1
                connection.execute(insert(Task).values(name="any", number=number, max_attempts=9))
                connection.commit()
                self._enqueued.append(time.monotonic())

    def before(self, moment: float) -> int:
        """Return the number of the last task that was enqueued before this moment of :func:`time.monotonic`."""
        return bisect(self._enqueued, moment)

    def end(self) -> None:
        self._over.set()
        self.join()


def handler(database: Database) -> Callable[..., Any]:
    """Return a handler with statements of its own before and after a pause."""

    def before(session: Any, task: Any) -> None:
        session.add(Ledger(task_id=task.id))
        session.flush()

    def after(session: Any, task: Any) -> None:
        session.scalar(select(literal(task.id)))

    def function(session: Any, task: Any) -> None:
        before(session, task)
        time.sleep(0.05)
        after(session, task)

    async def coroutine(session: Any, task: Any) -> None:
        await session.run_sync(before, task)
        await asyncio.sleep(0.05)
        await session.run_sync(after, task)

    return coroutine if database.is_async else function


@contextmanager
def dropped(ports: list[tuple[int, int]]) -> Iterator[None]:
    """Drop all packets between these pairs of ports of this machine."""
    rules = [
        ("INPUT", "-p", "tcp", "--sport", str(one), "--dport", str(other), "-j", "DROP")
        for pair in ports
        for one, other in (pair, pair[::-1])
    ]
    with ExitStack() as stack:
        for rule in rules:
            subprocess.run(["iptables", "-w", "-I", *rule], check=True)
            stack.callback(subprocess.run, ["iptables", "-w", "-D", *rule], check=True)
        yield


def undone(engine: Engine, *criteria: Any) -> int:
    with engine.connect() as connection:
        left = select(func.count()).where(Task.status != "completed", *criteria)
        return connection.scalar(left) or 0


def watched(engine: Engine, feeder: Feeder) -> tuple[float, float]:
    """Return the seconds until a task enqueued from now on is completed, and until all of them are completed soon."""
    begun = time.monotonic()
    first = feeder.before(begun)
    resumed = caught_up = PATIENCE
    while (passed := time.monotonic() - begun) < DURING:
        enqueued = feeder.before(time.monotonic())
        if resumed == PATIENCE and undone(engine, Task.number > first, Task.number <= enqueued) < enqueued - first:
            resumed = passed
        if undone(engine, Task.number > first, Task.number <= feeder.before(begun + passed - SOON)):
            caught_up = PATIENCE
        elif resumed != PATIENCE:
            caught_up = min(caught_up, passed)
        time.sleep(0.1)
    return resumed, caught_up


def judge(engine: Engine, silent: int, resumed: float, caught_up: float, left: int) -> Figures:
    with engine.connect() as connection:
        rows = connection.execute(select(Task.id, Task.status, Task.attempt, Task.max_attempts)).all()
        done = Counter(connection.scalars(select(Ledger.task_id)))
    return Figures(
        silent=silent,
        resumed=round(resumed, 1),
        caught_up=round(caught_up, 1),
        left=left,
        undone=sum(row.status != "completed" or done[row.id] != 1 for row in rows),
        attempts=max(9 - (row.max_attempts - row.attempt) for row in rows),
    )


@contextmanager
def at_work(database: Database) -> Iterator[None]:
    worker = Worker(database.sessions(), poll=timedelta(seconds=1))
    worker.handler(Task, lease=LEASE)(handler(database))
    running = Running(worker)
    try:
        yield
    finally:
        running.stop(at_once=True)
        database.dispose()


def measured(case: EngineCase, url: URL, way: str, *, is_async: bool) -> Figures:
    engine = create_engine(url, poolclass=NullPool)
    loop = LoopThread()
    with tables(engine), ExitStack() as stack:
        stack.callback(loop.stop)
        hole = BlackHole(url)
        stack.callback(hole.close)
        database = Database(case, through(hole, url), loop, engine=engine, is_async=is_async)
        stack.enter_context(at_work(database))
        feeder = Feeder(engine)
        feeder.start()
        stack.callback(feeder.end)
        time.sleep(BEFORE)
        first, ports = feeder.before(time.monotonic()), hole.ports
        if way == "packets":
            stack.enter_context(dropped(ports))
        hole.swallow()
        resumed, caught_up = watched(engine, feeder)
        left = undone(engine, Task.number <= first)
        hole.bury()
        feeder.end()
        deadline = time.monotonic() + PATIENCE
        while undone(engine) and time.monotonic() < deadline:
            time.sleep(0.2)
        return judge(engine, len(ports), resumed, caught_up, left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    given = parser.parse_args()
    columns = "engine", "sessions", "way", *Figures._fields, "holds"
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    cases = {case.name: case for case in ENGINES}
    for url in map(make_url, given.urls):
        name = url.get_backend_name()
        container = cases[name].container
        assert container is not None
        for is_async in (False, True):
            for way in given.ways:
                found = measured(cases[name], url.set(port=url.port or container.port), way, is_async=is_async)
                cells = name, "async" if is_async else "sync", way, *found, "yes" if found.holds else "NO"
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
