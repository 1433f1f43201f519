"""Measures what due tasks and a postponed VACUUM cost a queue on PostgreSQL.

    python -m bench.measurements.upkeep postgresql+psycopg://me@host/test

Creates the table sqlqueue_upkeep, and drops it.  Loops of `claim_many(100)` and `complete` in one transaction do all
the work.  Prints the server's time per task:

- due: while 100 tasks a second become due, and while none does, in turns of several seconds;
- unvacuumed: for each tenth of the tasks, without autovacuum for this table.  360,000 tasks are an hour's work at 100
  tasks a second.
"""

from __future__ import annotations

import argparse
import time
from datetime import timedelta
from statistics import median

from sqlalchemy import Engine, Identity, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from bench.servertime import read_server_time
from sqlqueue import QueueMixin, QueueSession

BATCH, SUPPLY = 100, 2_000
PER_SECOND = 100


class Base(DeclarativeBase):
    pass


class Task(QueueMixin, Base):
    __tablename__ = "sqlqueue_upkeep"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


Sessions = sessionmaker[QueueSession]


def enqueue(sessions: Sessions, tasks: int) -> None:
    with sessions.begin() as session:
        session.enqueue(Task, [{}] * tasks)


def schedule(sessions: Sessions, seconds: float) -> None:
    """Enqueue tasks that become due one after the other."""
    with sessions.begin() as session:
        for n in range(int(seconds * PER_SECOND)):
            session.enqueue(Task(), delay=timedelta(seconds=1 + n / PER_SECOND))


def drain(sessions: Sessions, tasks: int) -> None:
    while tasks:
        with sessions.begin() as session:
            claimed = session.claim_many(Task, limit=min(BATCH, tasks))
            session.complete(claimed)
        if not claimed:
            raise SystemExit(f"{tasks} tasks are missing")
        tasks -= len(claimed)


def spent(engine: Engine) -> float:
    reading = read_server_time(engine)
    if reading is None:
        raise SystemExit("this server does not report its time")
    return reading


def supply_and_drain(engine: Engine, sessions: Sessions, tasks: int) -> float:
    """Return the microseconds that the server spends on claiming and completing the tasks."""
    enqueue(sessions, tasks)
    before = spent(engine)
    drain(sessions, tasks)
    return spent(engine) - before


def turn(engine: Engine, sessions: Sessions, seconds: float) -> float:
    """Supply and drain tasks for some time; return the server's microseconds per task."""
    done, server, end = 0, 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        server += supply_and_drain(engine, sessions, SUPPLY)
        done += SUPPLY
    return server / done


def due(engine: Engine, sessions: Sessions, seconds: float, rounds: int) -> None:
    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        without = turn(engine, sessions, seconds)
        schedule(sessions, seconds)
        with_due = turn(engine, sessions, seconds)
        with sessions.begin() as session:
            left = session.stats(Task, cap=None).unfinished
        time.sleep(2)
        drain(sessions, left)
        found.append((without, with_due))
    ratios = sorted(after / before for before, after in found)
    plain, coming = (median(column) for column in zip(*found, strict=True))
    print(
        f"due: {plain:.1f} us per task, {coming:.1f} while {PER_SECOND} tasks a second become due; ratio"
        f" {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


def unvacuumed(engine: Engine, sessions: Sessions, tasks: int) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {Task.__tablename__} SET (autovacuum_enabled = false)"))
    tenths: list[float] = []
    for _ in range(10):
        server, rest = 0.0, tasks // 10
        while rest:
            some = min(SUPPLY, rest)
            server += supply_and_drain(engine, sessions, some)
            rest -= some
        tenths.append(server / (tasks // 10))
    told = ", ".join(f"{each:.1f}" for each in tenths)
    print(f"unvacuumed: us per task in each tenth of {tasks:,}: {told}; ratio {tenths[-1] / tenths[0]:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=10, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=360_000, help="unvacuumed: number of tasks")
    given = parser.parse_args()
    engine = create_engine(given.url)
    sessions = sessionmaker(engine, class_=QueueSession)
    for measure in (
        lambda: due(engine, sessions, given.seconds, given.rounds),
        lambda: unvacuumed(engine, sessions, given.tasks),
    ):
        Base.metadata.create_all(engine, checkfirst=False)
        try:
            measure()
        finally:
            Base.metadata.drop_all(engine)


if __name__ == "__main__":
    main()
