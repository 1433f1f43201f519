"""A run of the demo: enqueue the files, start the workers, kill one, count the results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from sqlqueue import QueueSession, QueueStats, Status

from ..database import sessions
from .display import Display
from .folder import Found
from .models import File
from .processes import DemoWorkers
from .tally import Tally, count

_TICK = 0.1
_LEASE = File.__queue__.lease.total_seconds()


def run(engine: Engine, folder: Path, found: Sequence[Found], workers: int, display: Display) -> Tally:
    """Index the files ``found`` with several worker processes, print the results, and return them."""
    Session = sessions(engine)
    with Session.begin() as session:
        session.enqueue(File, [{"path": file.path, "size": file.size} for file in found])
    with DemoWorkers(workers, engine.url, folder) as processes, display.progress(len(found)) as show:
        victim = processes.start()
        started = time.monotonic()
        for stats in _watched(processes, Session):
            show(stats)
            if victim and _is_time(stats, time.monotonic() - started):
                display.say(_killed(processes, victim, Session))
                victim = None
        seconds = time.monotonic() - started
        processes.stop()
        for name in processes.crashed:
            display.complain(f"{name} exited with an error")
    with Session() as session:
        tally = count(session, len(found))
    display.report(tally, seconds)
    return tally


def _watched(processes: DemoWorkers, Session: sessionmaker[QueueSession]) -> Iterator[QueueStats]:
    """Yield the statistics repeatedly, until all files are finished or all workers have ended."""
    last, moved = None, time.monotonic()
    while processes.is_alive:
        time.sleep(_TICK)
        with Session.begin() as session:
            stats = session.stats(File)
            if stats != last:
                last, moved = stats, time.monotonic()
            elif time.monotonic() > moved + _LEASE:
                session.rescue(File)  # discards hung files that have used up their attempts
        yield stats
        if not stats.unfinished:
            return


def _is_time(stats: QueueStats, seconds: float) -> bool:
    """Return whether to kill the victim: other workers have progressed, but its lease has not expired."""
    return stats[Status.COMPLETED] > 0 or stats[Status.AVAILABLE] == 0 or seconds > _LEASE / 2


def _killed(processes: DemoWorkers, name: str, Session: sessionmaker[QueueSession]) -> str:
    pid = processes.kill(name)
    with Session() as session:
        held = session.stats(File, File.claimed_by == name)[Status.RUNNING]
    return f"Killed {name} (process {pid}) while it held {held} files."
