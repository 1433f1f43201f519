"""Measures where the time of a job is spent: `python -m bench.measurements.layers URL`; see `--help`.

Samples the thread that holds the interpreter's lock, in one process that drains jobs which do nothing, with py-spy
(`pip install py-spy`), and sums the samples by layer: the innermost frame that belongs to one. Calls from a layer into
the standard library, or into C, count for that layer. The rest of the process's CPU time is spent without the lock: in
system calls, and in C code that releases it. The server's time is not part of it.

Creates the tables of `python -m bench` in a database that has none with these names, and drops them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import which

from sqlalchemy import make_url

from bench.contest import Contender, Contest
from bench.counter import StatementCounter
from bench.forms import drains
from bench.models import Base, KeyKind
from bench.plan import Plan
from bench.processes import ProcessPool
from sqlqueue.evaluation.support import reached

RATE = 500
"""Samples per second."""
CPU = "CPU seconds: "
HERE = "measurements/layers.py"
DRIVERS = (
    "psycopg",
    "pymysql",
    "MySQLdb",
    "mysql",
    "asyncpg",
    "aiomysql",
    "asyncmy",
    "aiosqlite",
    "oracledb",
    "pyodbc",
)
IN_DRIVER = ("do_", "_fetch", "fetchone", "fetchall", "fetchmany", "_cursor_execute")
"""Functions of SQLAlchemy that call drivers written in C, which have no Python frames."""
BENCH = f"{Path(__file__).parents[1].as_posix()}/"
OTHER = "Python: threads, event loop, pipes"
UNLOCKED = "without the interpreter's lock"


def layer_of(frame: str) -> str | None:
    """Return the layer of a frame, ``function (path:line)``; ``None`` for the standard library."""
    function, _, place = frame.partition(" (")
    path = place.replace("\\", "/")
    if path.startswith(BENCH):
        return "handler"
    if "/site-packages/" in path:
        path = path.rpartition("/site-packages/")[2]
    elif "/sqlqueue/" in path:  # a checkout
        path = "sqlqueue/" + path.rpartition("/sqlqueue/")[2]
    package, _, rest = path.partition("/")
    if package == "sqlqueue":
        return f"sqlqueue: {rest.partition('/')[0].partition('.')[0]}"
    if package == "sqlalchemy":
        if rest.startswith("engine/") and function.rpartition(".")[2].startswith(IN_DRIVER):
            return "driver"
        return "SQLAlchemy ORM" if rest.startswith("orm/") else "SQLAlchemy Core"
    return "driver" if package.startswith(DRIVERS) else None


def summed(lines: Iterable[str]) -> Counter[str]:
    """Return the samples by layer, of lines ``frame;frame;frame count`` without those of this program itself."""
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if not stack or HERE in stack or "<frozen importlib" in stack:  # starting, ending, importing
            continue
        found[next(filter(None, map(layer_of, reversed(frames))), OTHER)] += int(count)
    return found


# -- the process that is sampled --------------------------------------------------------------------------------------


def contenders(plan: Plan, driver: str) -> Iterator[tuple[str, Contender]]:
    """Yield what can be sampled, by name: the forms and contenders of ``python -m bench --only drain``."""
    for form in drains(plan, driver):
        for each in form.contenders:
            yield f"{form.name}: {each.name}", each


def planned(url: str) -> Plan:
    return Plan(
        url=make_url(url), key=KeyKind.INT, payload=100, jobs=0, rounds=1, processes=(1,), threads=10, batch=100
    )


def drain(url: str, name: str, jobs: int) -> None:
    """Drain jobs in this process, and print the CPU seconds."""
    plan = planned(url)
    engine = reached(url)
    contender = dict(contenders(plan, engine.driver))[name]
    contest = Contest(plan, engine, ProcessPool([]), lambda _: None)
    Base.metadata.create_all(engine, checkfirst=False)
    try:
        contest.renew(contender.model)
        contest.fill(jobs)
        begun = time.process_time()
        workload = contender.make(plan, StatementCounter())
        workload.begin(jobs)
        while not contest.is_drained():
            workload.check()
            time.sleep(0.2)
        workload.end()
        print(f"{CPU}{time.process_time() - begun}", flush=True)
        contest.took(jobs)
        workload.close()
    finally:
        Base.metadata.drop_all(engine)


# -- the report -------------------------------------------------------------------------------------------------------


def sampled(url: str, name: str, jobs: int) -> tuple[float, dict[str, float]]:
    """Return the CPU seconds of a drain, and those by layer."""
    spy = which("py-spy", path=str(Path(sys.executable).parent)) or which("py-spy")
    if spy is None:
        raise SystemExit("py-spy is not installed: pip install py-spy")
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "stacks"
        record = [
            spy,
            "record",
            "--gil",
            "--rate",
            str(RATE),
            "--format",
            "raw",
            "--full-filenames",
            "--output",
            str(output),
        ]
        module = "bench.measurements.layers"
        program = [sys.executable, "-m", module, url, f"--name={name}", f"--jobs={jobs}", "--here"]
        done = subprocess.run([*record, "--", *program], capture_output=True, text=True, check=False)
        found = re.search(rf"^{CPU}(\S+)$", done.stdout, re.MULTILINE)
        if found is None or not output.exists():
            raise SystemExit(f"py-spy or the drain failed:\n{done.stdout}{done.stderr}")
        seconds, samples = float(found[1]), summed(output.read_text().splitlines())
        layers = {layer: count / RATE for layer, count in samples.most_common()}
        return seconds, layers | {UNLOCKED: max(seconds - sum(layers.values()), 0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--name", action="append", metavar="NAME", help="part of the name of what is sampled")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.here:
        drain(wanted.url, wanted.name[0], wanted.jobs)
        return
    names = [name for name, _ in contenders(planned(wanted.url), reached(wanted.url).driver)]
    parts = wanted.name or ["worker, handler(job)"]
    chosen = [name for name in names if any(part in name for part in parts)]
    if not chosen:
        raise SystemExit("--name takes part of one of these names:\n" + "\n".join(names))
    for name in chosen:
        seconds, layers = sampled(wanted.url, name, wanted.jobs)
        print(f"\n{name}: {seconds * 1_000_000 / wanted.jobs:,.1f} microseconds of CPU per job\n")
        print("| layer | microseconds | % |\n|---|---:|---:|")
        for layer, spent in layers.items():
            print(f"| {layer} | {spent * 1_000_000 / wanted.jobs:,.1f} | {100 * spent / seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
