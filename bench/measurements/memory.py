"""Measures the memory of worker processes: `python -m bench.measurements.memory URL`; see `--help`.

In each round, a worker process of each library starts, runs some jobs, and rests; then it runs many.  Its memory is
read from Linux's /proc: RSS, and PSS, which divides pages among the processes that share them.  Another process tells
what importing SQLAlchemy with psycopg's dialect adds to one that has imported psycopg.

Each library has its own schema in the database, which is dropped afterwards.  Others than this one are installed as for
`python -m bench --peers`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sqlalchemy import Engine, text

from bench.peers.contenders import CONTENDERS, PeerContender, PeerError
from bench.peers.environment import command_of
from bench.peers.measure import own_schema, within
from bench.peers.process import script
from sqlqueue.evaluation.support import reached

NAMES = (
    "sqlqueue, handler(job)",
    "sqlqueue, coroutine handler(job)",
    "sqlqueue, function job",
    "oban",
    "procrastinate",
)
WARM = 20
REST = 5.0
"""Seconds of rest before the memory is read."""
LONGEST = 120.0
IMPORTS = """
from pathlib import Path
import psycopg
before = Path("/proc/self/smaps_rollup").read_text()
import sqlalchemy.orm, sqlalchemy.dialects.postgresql
print(before, Path("/proc/self/smaps_rollup").read_text(), sep="====", end="")
"""


class Memory(NamedTuple):
    """The memory of a process, in MiB."""

    rss: float
    pss: float


def memory_of(process: int) -> Memory:
    """Return the memory of a process."""
    return _memory_in(Path(f"/proc/{process}/smaps_rollup").read_text())


def _memory_in(rollup: str) -> Memory:
    found = {line.split()[0]: int(line.split()[1]) / 1024 for line in rollup.splitlines()[1:]}
    return Memory(found["Rss:"], found["Pss:"])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of an empty PostgreSQL database")
    parser.add_argument("--jobs", type=int, default=20_000, help="number of jobs under load (20,000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=10, help="of each worker (10)")
    parser.add_argument("--environments", type=Path, help="the directory in which virtual environments are kept")
    options = parser.parse_args()
    measured: dict[str, list[tuple[Memory, Memory, Memory]]] = {}
    engine = reached(options.url)
    with TemporaryDirectory() as other:
        contenders = [each for each in CONTENDERS if each.name in NAMES]
        for _ in range(options.rounds):
            for each in contenders:
                try:
                    command = command_of(each, options.environments or Path(other))
                except PeerError as error:
                    print(f"{each.name}: {error}")
                    continue
                taken = _worker(engine, each, command, options.jobs, options.concurrency)
                measured.setdefault(each.name, []).append(taken)
    print(f"{'MiB, RSS / PSS':36}{'at rest':>16}{'under load':>16}{'afterwards':>16}")
    for name, rounds in measured.items():
        print(f"{name:36}" + "".join(f"{_shown(list(phase)):>16}" for phase in zip(*rounds, strict=True)))
    print(f"{'importing SQLAlchemy':36}{_shown([_importing() for _ in range(options.rounds)]):>16}")


def _worker(
    engine: Engine, contender: PeerContender, command: tuple[str, ...], jobs: int, concurrency: int
) -> tuple[Memory, Memory, Memory]:
    """Return the memory of a worker at rest, at most under load, and at rest again."""
    arguments = (contender.schema, str(concurrency), contender.form)
    url = within(engine.url, contender.schema)
    with (
        own_schema(engine, contender.schema),
        script(*command, "client", *arguments, url=url) as client,
        script(*command, "worker", *arguments, url=url) as worker,
    ):
        client.ask("install")
        client.ask("open")
        worker.tell("go")
        read = f"SET LOCAL search_path = {contender.schema}", client.about["is_done"]
        client.ask("fill", WARM)
        list(_until_done(engine, *read))
        time.sleep(REST)
        rest = memory_of(worker.process_id)
        client.ask("fill", jobs)
        load = [memory_of(worker.process_id) for _ in _until_done(engine, *read)]
        time.sleep(REST)
        most = Memory(max(each.rss for each in load), max(each.pss for each in load))
        return rest, most, memory_of(worker.process_id)


def _until_done(engine: Engine, path: str, is_done: str) -> Iterator[None]:
    """Yield every tenth of a second, at least once, until no job is waiting or running."""
    end = time.monotonic() + LONGEST
    done = False
    while not done:
        yield
        if time.monotonic() > end:
            raise TimeoutError(f"jobs are left after {LONGEST:.0f} seconds")
        time.sleep(0.1)
        with engine.begin() as connection:
            connection.execute(text(path))
            done = connection.execute(text(is_done)).scalar_one()


def _importing() -> Memory:
    output = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True).stdout
    before, after = map(_memory_in, output.split("===="))
    return Memory(after.rss - before.rss, after.pss - before.pss)


def _shown(rounds: list[Memory]) -> str:
    return " / ".join(f"{median(each):.0f}" for each in zip(*rounds, strict=True))


if __name__ == "__main__":
    main()
