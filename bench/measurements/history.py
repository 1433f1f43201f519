"""Measures the cost of a history: the throughput of a queue that keeps one, and of one that does not.

    python -m bench.measurements.history postgresql+psycopg://me@host/test --tasks 5000 --rounds 5

Creates tables whose names begin with sqlqueue_history, and drops them.  Both queues take turns in every round, and the
ratio within a round is what counts.  Prints tasks per second, as medians of all rounds, and the ratio, as median,
minimum and maximum. A worker is measured from the first call of its handler to the last.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, Identity, create_engine, delete, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqlqueue import HistoryMixin, QueueMixin, QueueOptions, QueueSession, Worker

BATCH = 100


class PlainBase(DeclarativeBase):
    pass


class KeptBase(DeclarativeBase):
    pass


class Plain(QueueMixin, PlainBase):
    __tablename__ = "sqlqueue_history_plain"
    __queue__ = QueueOptions(max_attempts=1)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Kept(QueueMixin, KeptBase):
    __tablename__ = "sqlqueue_history_kept"
    __queue__ = QueueOptions(max_attempts=1)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class History(HistoryMixin, KeptBase):
    __tablename__ = "sqlqueue_history"


def loop(sessions: sessionmaker[QueueSession], model: Any, settle: Callable[[QueueSession, Any], object]) -> float:
    begun = time.perf_counter()
    while True:
        with sessions.begin() as session:
            tasks = session.claim_many(model, limit=BATCH)
            if not tasks:
                return time.perf_counter() - begun
            settle(session, tasks)


def complete(sessions: sessionmaker[QueueSession], model: Any) -> float:
    return loop(sessions, model, lambda session, tasks: session.complete(tasks))


def fail(sessions: sessionmaker[QueueSession], model: Any) -> float:
    return loop(sessions, model, lambda session, tasks: session.fail(tasks, "no"))


def work(sessions: sessionmaker[QueueSession], model: Any, handler: Callable[[Callable[[], None]], Any]) -> float:
    """Run a worker until its handler has been called with every task."""
    with sessions() as session:
        left = session.stats(model, cap=None)["available"]
    lock, moments = threading.Lock(), list[float]()
    worker = Worker(sessions, notify=False)

    def called() -> None:
        with lock:
            moments.append(time.perf_counter())
            if len(moments) == left:
                worker.stop()

    worker.handler(model)(handler(called))
    worker.run()
    return moments[-1] - moments[0]


def without_session(called: Callable[[], None]) -> Any:
    return lambda task: called()


def with_session(called: Callable[[], None]) -> Any:
    return lambda session, task: called()


MEASURED: dict[str, Callable[[sessionmaker[QueueSession], Any], float]] = {
    f"claim_many({BATCH}), complete": complete,
    f"claim_many({BATCH}), fail": fail,
    "worker, handler without a session": lambda sessions, model: work(sessions, model, without_session),
    "worker, handler with a session": lambda sessions, model: work(sessions, model, with_session),
}


def rate(sessions: sessionmaker[QueueSession], model: Any, name: str, tasks: int) -> float:
    """Fill the queue, drain it, and verify that nothing is left and that each attempt is in the history."""
    with sessions.begin() as session:
        session.enqueue(model, [{} for _ in range(tasks)])
    took = MEASURED[name](sessions, model)
    with sessions.begin() as session:
        assert session.stats(model, cap=None).unfinished == 0
        if model is Kept:
            assert session.scalar(select(func.count()).select_from(History)) == tasks
            session.execute(delete(History))
        session.execute(delete(model))
    return tasks / took


def measure(engine: Engine, tasks: int, rounds: int) -> None:
    sessions = sessionmaker(engine, class_=QueueSession)
    print("| | plain | with a history | ratio |\n|---|---|---|---|")
    for name in MEASURED:
        found = [tuple(rate(sessions, model, name, tasks) for model in (Plain, Kept)) for _ in range(rounds)]
        plain, kept = (statistics.median(column) for column in zip(*found, strict=True))
        ratios = [with_history / without for without, with_history in found]
        told = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {name} | {plain:,.0f} | {kept:,.0f} | {told} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--tasks", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    engine = create_engine(given.url, pool_size=20)
    metadatas = (PlainBase.metadata, KeptBase.metadata)
    for metadata in metadatas:
        metadata.create_all(engine, checkfirst=False)
    try:
        measure(engine, given.tasks, given.rounds)
    finally:
        for metadata in metadatas:
            metadata.drop_all(engine)


if __name__ == "__main__":
    main()
