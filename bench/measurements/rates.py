"""Measures how soon an idle worker starts the next task of a key whose rate was used up, and what it sends meanwhile:
`python -m bench.measurements.rates URL ...`.

Creates its tables in databases that have none with these names, and drops them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from sqlalchemy import URL, Engine, Identity, make_url, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from bench.child import serve
from bench.counter import StatementCounter
from bench.pickup import Delays, delays_of
from sqlqueue import LimitMixin, QueueOptions, QueueSession, Rate, SlotMixin, Worker, utcnow
from sqlqueue.evaluation.support import ChildProcess, connect, sessions

WARM = 5
"""The first starts of a key, which open connections and compile statements."""
HOUR = timedelta(hours=1)


class Base(DeclarativeBase):
    pass


class Slot(SlotMixin, Base):
    __tablename__ = "sqlqueue_bench_slot"


class Call(LimitMixin, Base):
    __tablename__ = "sqlqueue_bench_rated"
    __queue__ = QueueOptions(slots=Slot, rate=Rate(1, per=HOUR))

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Start(NamedTuple):
    key: str
    wall: float


class Found(NamedTuple):
    claimed: Delays
    """From the time at which a key may start its next task to the claim, by the database's clock."""
    called: Delays
    """The same to the call of the handler."""
    exhausted: float
    """Statements a second of an idle worker, while tasks wait for a rate that is used up."""
    empty: float
    """The same for a queue without tasks."""


@contextmanager
def worker(url: URL, poll: timedelta) -> Iterator[ChildProcess]:
    with ChildProcess("the worker", work, url, poll) as process:
        process.receive()
        yield process
        process.send("stop")
        process.join()


def work(channel: Connection, url: URL, poll: timedelta) -> None:
    statements = StatementCounter()
    running = Worker(sessions(statements.watch(connect(url))), poll=poll)

    @running.handler(Call, concurrency=4)
    def begin(call: Call) -> None:
        channel.send(Start(call.limit_key or "", time.time()))

    serve(channel, running, statements)


def enqueue(maker: sessionmaker[QueueSession], *keys: str) -> None:
    with maker.begin() as session:
        session.enqueue(Call, [{"limit_key": key} for key in keys])


def late(moments: list[float], rate: Rate) -> list[float]:
    """Return how long after the time that the rate allows each start was."""
    per, number = rate.per.total_seconds(), rate.starts
    return [later - (first + per) for first, later in zip(moments[WARM:], moments[WARM + number :], strict=False)]


def measure_starts(
    url: URL, maker: sessionmaker[QueueSession], keys: int, rate: Rate, number: int
) -> tuple[Delays, Delays]:
    names = [f"key {n}" for n in range(keys)]
    for name in names:
        with maker.begin() as session:
            session.set_rate(Call, name, rate)
    each = WARM + rate.starts + number
    enqueue(maker, *names * each)
    called: dict[str, list[float]] = {name: [] for name in names}
    with worker(url, timedelta(seconds=5)) as process:
        for _ in range(keys * each):
            start: Start = process.receive()
            called[start.key].append(start.wall)
    with maker() as session:
        asked = time.time()
        behind = (asked + time.time()) / 2 - session.scalars(select(utcnow())).one().timestamp()
        rows: Any = session.execute(select(Call.limit_key, Call.claimed_at).order_by(Call.claimed_at)).all()
    claimed: dict[str, list[float]] = {name: [] for name in names}
    for key, moment in rows:
        claimed[key].append(moment.timestamp())
    by_hand = [sorted(each) for each in claimed.values()]
    return (
        delays_of([delay for each in by_hand for delay in late(each, rate)]),
        delays_of([delay for each in called.values() for delay in late([moment - behind for moment in each], rate)]),
    )


def statements_in(process: ChildProcess, seconds: float) -> float:
    def count() -> int:
        process.send("statements")
        number: int = process.receive()
        return number

    time.sleep(3)
    before, begun = count(), time.monotonic()
    time.sleep(seconds)
    return (count() - before) / (time.monotonic() - begun)


def measure_silence(url: URL, maker: sessionmaker[QueueSession], seconds: float) -> tuple[float, float]:
    with worker(url, timedelta(seconds=1)) as process:
        empty = statements_in(process, seconds)
        enqueue(maker, *["used up"] * 20)
        process.receive()
        return statements_in(process, seconds), empty


def measure(engine: Engine, options: argparse.Namespace) -> Found:
    maker, rate = sessions(engine), Rate(options.starts, per=timedelta(seconds=options.per))
    Base.metadata.create_all(engine)
    try:
        exhausted, empty = measure_silence(engine.url, maker, options.idle)
        with maker.begin() as session:
            session.query(Call).delete()
        return Found(*measure_starts(engine.url, maker, options.keys, rate, options.number), exhausted, empty)
    finally:
        Base.metadata.drop_all(engine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", nargs="+", type=make_url)
    parser.add_argument("--keys", type=int, default=1)
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--per", type=float, default=0.3, help="seconds")
    parser.add_argument("--number", type=int, default=100, help="starts of each key")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds for which statements are counted")
    options = parser.parse_args()
    for url in options.urls:
        found = measure(connect(url), options)
        print(url.get_backend_name())
        for name, each in (("claimed", found.claimed), ("called", found.called)):
            print(f"  {name}: p50 {each.p50}, p95 {each.p95}, p99 {each.p99}, most {each.most} ms of {each.count}")
        print(f"  statements a second: {found.exhausted:.2f} while used up, {found.empty:.2f} while empty")


if __name__ == "__main__":
    main()
