"""Measures the effect of a rolling deployment on calls: `python -m bench.measurements.rolling URL ...`.

Creates its tables in databases that have none with these names, and drops them. A worker of the old release, a process
of `sqlqueue work`, has the functions `both` and `old`, which are called continuously. Then `new` is called as well,
and a worker of the new release is started, which has `both` and `new`. The two run side by side for a minute, until
the old one is stopped. Expected: each call is run once, by a worker that has its function, in its first attempt, and
the first call of `new` is done within a second of the start of the new worker.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Engine, NullPool, create_engine, func, insert, make_url, select
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, Worker, current_job
from tests.support.models import Base, Job, Ledger, QueuePause

URL_VARIABLE = "SQLQUEUE_TEST_ROLLING_URL"
FUNCTIONS_VARIABLE = "SQLQUEUE_TEST_ROLLING_FUNCTIONS"
EVERY = 0.05
"""Seconds between two calls of each function."""
BEFORE = 10.0
"""Seconds for which the old worker runs alone, half of them with calls of `new`; and later the new one."""
PATIENCE = 60.0
PROGRAM = "from sqlqueue.cli import main; main()"
TARGET = "bench.measurements.rolling_worker:worker"
TABLES = [Base.metadata.tables[each.__tablename__] for each in (Job, Ledger, QueuePause)]


class Figures(NamedTuple):
    calls: int
    undone: int
    """Calls that were not done exactly once, by a worker that has their function."""
    discarded: int
    attempts: int
    """The maximum number of attempts counted for a call, including its completion."""
    slowest: float
    """The longest time in seconds that a call of `both` or `old` waited for a worker."""
    waiting: int
    """Calls of `new` that were waiting when the new worker started."""
    first: float
    """Seconds from the logged start of the new worker until one of them was done."""
    all: float
    """The same until all of them were done."""

    @property
    def holds(self) -> bool:
        return (self.undone, self.discarded, self.attempts) == (0, 0, 1) and self.first <= 1


def load() -> Worker:
    """Return the worker of the release that the environment describes."""
    functions = os.environ[FUNCTIONS_VARIABLE].split(",")
    name = functions[-1]
    worker = Worker(sessionmaker(create_engine(os.environ[URL_VARIABLE]), class_=QueueSession), name=name)

    def write_down(session: QueueSession) -> None:
        session.add(Ledger(task_id=current_job().claim.identity[0], worker=name))

    for function in functions:
        worker.task(Job, name=function, concurrency=4)(write_down)
    return worker


class Release:
    """A worker process of one release."""

    def __init__(self, url: str, *functions: str) -> None:
        environment = {
            **os.environ,
            URL_VARIABLE: url,
            FUNCTIONS_VARIABLE: ",".join(functions),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        command = [sys.executable, "-c", PROGRAM, "work", TARGET]
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self._has_started = threading.Event()
        self.started = 0.0
        """The moment of :func:`time.monotonic` at which it logged that it had started."""
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if " started, for " in line:
                self.started = time.monotonic()
                self._has_started.set()
            else:
                print(line, end="", file=sys.stderr)

    def wait_until_started(self) -> None:
        if not self._has_started.wait(PATIENCE):
            raise TimeoutError("the worker has not started")

    def stop(self) -> None:
        """Stop the process; does nothing if it has ended."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE)


class Application(threading.Thread):
    """Calls the functions."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(daemon=True)
        self.functions: Sequence[str] = ("both", "old")
        self._engine = engine
        self._over = threading.Event()

    def run(self) -> None:
        with self._engine.connect() as connection:
            while not self._over.wait(EVERY):
                connection.execute(insert(Job), [{"task": name, "arguments": {}} for name in self.functions])
                connection.commit()

    def end(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def tables(engine: Engine) -> Iterator[None]:
    Base.metadata.create_all(engine, tables=TABLES, checkfirst=False)
    try:
        yield
    finally:
        Base.metadata.drop_all(engine, tables=TABLES)


def left(engine: Engine, *criteria: Any) -> int:
    """Return how many calls are not done."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).where(Job.finished_at.is_(None), *criteria)) or 0


def wait_for(engine: Engine, *criteria: Any) -> None:
    """Wait until all these calls are done."""
    deadline = time.monotonic() + PATIENCE
    while left(engine, *criteria) and time.monotonic() < deadline:
        time.sleep(0.1)


def watched(engine: Engine, new: Release) -> tuple[int, float, float]:
    """Return how many calls of `new` wait for the new worker, and when the first and all of them are done."""
    waiting = select(func.count(), func.max(Job.id)).where(Job.task == "new", Job.status == "available")
    done = select(func.count()).where(Job.task == "new", Job.finished_at.is_not(None))
    first = PATIENCE
    new.wait_until_started()
    with engine.connect() as connection:
        count, last = connection.execute(waiting).one()
        connection.rollback()
        while (passed := time.monotonic() - new.started) < PATIENCE:
            found = connection.scalar(done.where(Job.id <= last)) or 0
            connection.rollback()
            first = min(first, passed) if found else first
            if found and not left(engine, Job.task == "new", Job.id <= last):
                return count, first, time.monotonic() - new.started
            time.sleep(0.01)
    return count, first, PATIENCE


def judge(engine: Engine, waiting: int, first: float, all_: float) -> Figures:
    with engine.connect() as connection:
        rows = connection.execute(select(Job.__table__)).all()
        done = Counter(tuple(row) for row in connection.execute(select(Ledger.task_id, Ledger.worker)))
    runs = Counter(number for number, _ in done.elements())
    knowing = {"both": ("old", "new"), "old": ("old",), "new": ("new",)}
    waits = [row.claimed_at - row.created_at for row in rows if row.task != "new" and row.claimed_at]
    return Figures(
        calls=len(rows),
        undone=sum(runs[row.id] != 1 or not any(done[row.id, who] for who in knowing[row.task]) for row in rows),
        discarded=sum(row.status == "discarded" for row in rows),
        attempts=max(row.attempt - row.max_attempts for row in rows) + Job.__queue__.max_attempts,
        slowest=round(max(waits, default=timedelta()).total_seconds(), 2),
        waiting=waiting,
        first=round(first, 2),
        all=round(all_, 2),
    )


def measured(url: str, seconds: float) -> Figures:
    engine = create_engine(url, poolclass=NullPool)
    with tables(engine), ExitStack() as stack:
        old = Release(url, "both", "old")
        stack.callback(old.stop)
        old.wait_until_started()
        application = Application(engine)
        application.start()
        stack.callback(application.end)
        time.sleep(BEFORE / 2)
        application.functions = ("both", "old", "new")
        time.sleep(BEFORE / 2)
        new = Release(url, "both", "new")
        stack.callback(new.stop)
        figures = watched(engine, new)
        time.sleep(max(0.0, new.started + seconds - time.monotonic()))
        application.functions = ("both", "new")
        wait_for(engine, Job.task == "old")
        old.stop()
        time.sleep(BEFORE)
        application.end()
        wait_for(engine)
        return judge(engine, *figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long both workers run")
    given = parser.parse_args()
    columns = "engine", *Figures._fields, "holds"
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for url in given.urls:
        found = measured(url, given.seconds)
        cells = make_url(url).get_backend_name(), *found, "yes" if found.holds else "NO"
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
