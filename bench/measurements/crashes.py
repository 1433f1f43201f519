"""Measures which tasks are charged when one crashes its process: `python -m bench.measurements.crashes URL ...`; see
`--help`. Creates its tables in databases that have none with these names, and drops them. Each line is one run of
`sqlqueue work` with one process on a queue of innocent tasks with one poison task among them. Expected: no innocent
dead letter, no innocent task charged more than once, and the poison task discarded within three crashes and 30 seconds.

Two times are shown. The one from the start of the supervisor includes running the half of the innocent tasks that
precede the poison task: among 10,000 it is number 5,001. The 30 seconds count from its first start.

The case `memory` needs cgroups version 1 and administrator rights: the kernel's OOM killer ends the process.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine, NullPool, create_engine, insert, make_url, select

from tests.support.models import Base, Ledger, QueuePause, Task
from tests.worker.crashing import CONCURRENCY_VARIABLE, PLACE_VARIABLE, POISON, stopped, supervised

WORKLOADS: Mapping[str, tuple[int, int]] = {
    "8 x 3 s": (8, 3_000),
    "300 x 200 ms": (300, 200),
    "10,000 x 1 ms": (10_000, 1),
}
"""The number of innocent tasks, and the milliseconds that each takes."""
WAYS = ("exit", "segv", "hang", "memory")
GROUPS = Path("/sys/fs/cgroup/memory")
LITTLE = 100_000_000
"""The memory limit, in bytes, of the control group of a process that is to be killed."""
HANGS = 0.5
"""Seconds for which a task may hang."""
PATIENCE = 240.0


class Figures(NamedTuple):
    dead: int
    """Innocent dead letters."""
    charged: int
    """The maximum number of crashes charged to an innocent task."""
    attempts: int
    """The maximum number of attempts counted for an innocent task, including its completion."""
    undone: int
    """Innocent tasks that were not done exactly once."""
    processes: int
    """Worker processes that died."""
    crashes: int
    """The crashes charged to the poison task."""
    from_supervisor: float
    """Seconds from the start of the supervisor until the poison task was discarded."""
    from_poison: float
    """Seconds from the first start of the poison task, with a resolution of 0.1 seconds, until it was discarded."""
    error: str

    @property
    def holds(self) -> bool:
        is_spared = (self.dead, self.undone) == (0, 0) and self.charged <= 1
        return is_spared and self.crashes <= 3 and self.from_poison <= 30


@contextmanager
def tables(engine: Engine) -> Iterator[None]:
    made = [Base.metadata.tables[each.__tablename__] for each in (Task, Ledger, QueuePause)]
    Base.metadata.create_all(engine, tables=made, checkfirst=False)
    try:
        yield
    finally:
        Base.metadata.drop_all(engine, tables=made)


@contextmanager
def place(way: str) -> Iterator[Path]:
    """Yield the file for the process id of a hanging task, or a control group for one that uses too much memory."""
    if way != "memory":
        with tempfile.TemporaryDirectory() as directory:
            yield Path(directory) / "process"
        return
    group = GROUPS / f"sqlqueue-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(LITTLE))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def kill(named: Path) -> None:
    """Kill the hanging process."""
    with suppress(FileNotFoundError, ValueError, ProcessLookupError):
        if time.time() - named.stat().st_mtime > HANGS:
            pid = int(named.read_text())
            named.unlink()
            os.kill(pid, signal.SIGKILL)


def fill(engine: Engine, way: str, count: int, milliseconds: int) -> None:
    innocents = [{"name": "innocent", "number": milliseconds}] * (count // 2)
    poison = {"name": f"{POISON}:{way}", "number": min(milliseconds, 500)}
    with engine.begin() as connection:
        connection.execute(insert(Task), [*innocents, poison, *innocents])


def wait(engine: Engine, supervisor: subprocess.Popen[str], named: Path | None) -> tuple[float, float]:
    """Wait until all tasks are final, killing hanging processes.

    Returns the seconds until the poison task was final: from now on, and from its first start.
    """
    begun = started = time.monotonic()
    out: float | None = None
    left = select(Task.id).where(Task.finished_at.is_(None)).limit(1)
    with engine.connect() as connection:
        number = connection.scalar(select(Task.id).where(Task.name.startswith(POISON)))
        poison = select(Task.status, Task.crashes, Task.finished_at).where(Task.id == number)
        is_waiting = True
        while time.monotonic() - begun < PATIENCE and supervisor.poll() is None:
            if named is not None:
                kill(named)
            row = connection.execute(poison).one()
            if is_waiting:
                started, is_waiting = time.monotonic(), row.status == "available" and not row.crashes
            if out is None and row.finished_at is not None:
                out = time.monotonic()
            is_over = connection.scalar(left) is None
            connection.rollback()
            if is_over:
                break
            time.sleep(0.1)
    return (PATIENCE, PATIENCE) if out is None else (out - begun, out - started)


def judge(engine: Engine, log: str, from_supervisor: float, from_poison: float) -> Figures:
    suspected = Counter(re.findall(r"(task \S+) is suspected", log))
    with engine.connect() as connection:
        rows = list(connection.execute(select(Task.__table__)))
        done = Counter(connection.scalars(select(Ledger.task_id)))
    (poison,) = (row for row in rows if row.name.startswith(POISON))
    innocents = [row for row in rows if row.id != poison.id]
    charged = [n for name, n in suspected.items() if name.rstrip(":") != f"task {poison.id}"]
    return Figures(
        dead=sum(row.status == "discarded" for row in innocents),
        charged=max(charged, default=0),
        attempts=max(3 - (row.max_attempts - row.attempt) for row in innocents),
        undone=sum(done[row.id] != 1 for row in innocents),
        processes=log.count("has died"),
        crashes=poison.crashes,
        from_supervisor=round(from_supervisor, 1),
        from_poison=round(from_poison, 1),
        error=poison.error or "",
    )


def measured(url: str, way: str, workload: str) -> Figures:
    engine = create_engine(url, poolclass=NullPool)
    with tables(engine), place(way) as named:
        fill(engine, way, *WORKLOADS[workload])
        os.environ |= {PLACE_VARIABLE: str(named), CONCURRENCY_VARIABLE: "10"}
        with supervised(make_url(url), 1) as supervisor:
            seconds = wait(engine, supervisor, named if way == "hang" else None)
            log = stopped(supervisor)
        return judge(engine, log, *seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    wanted = parser.parse_args()
    columns = "engine", "workload", "way", *(name for name in Figures._fields), "holds"
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for url in wanted.urls:
        for workload in wanted.workloads:
            for way in wanted.ways:
                found = measured(url, way, workload)
                cells = make_url(url).get_backend_name(), workload, way, *found, "yes" if found.holds else "NO"
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
