"""Measures workflows of known shapes, worked off by a worker of ten threads whose handlers do nothing.

    python -m bench.measurements.workflows URL --shapes chain layers fan-in release settle

- ``chain``: tasks that each wait for the one before.
- ``layers``: 100 layers of 100 tasks that each wait for all of the layer before.
- ``fan-in``: a batch of many tasks with a callback.
- ``release``: many tasks that wait for one.
- ``settle``: the speed at which one connection claims and completes members of one batch, as a share of that for
  plain tasks, one by one and in batches of 100: the median of five rounds, with all of them.

Creates the tables of the tests' batches in a database that has none with these names, and drops them.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

from sqlalchemy import Engine, Identity, String, delete, func, select
from sqlalchemy.orm import Mapped, mapped_column, sessionmaker

from sqlqueue import QueueSession, ResultMixin, StepMixin, TaskBatch, Worker
from sqlqueue.evaluation.support import reached
from tests.support.flows import Flow, Latch, Note, Page

Shape = Callable[[TaskBatch, int], object]


def chain(batch: TaskBatch, number: int) -> None:
    last: Any = ()
    for _ in range(number):
        last = batch.add(Page(), after=last)


def layers(batch: TaskBatch, number: int) -> None:
    last: Any = ()
    for _ in range(number // 100):
        last = [batch.add(Page(), after=last) for _ in range(100)]


def fan_in(batch: TaskBatch, number: int) -> None:
    batch.add(Page, [{}] * number)


def release(batch: TaskBatch, number: int) -> None:
    batch.add(Page, [{}] * (number - 1), after=batch.add(Page()))


SHAPES: dict[str, tuple[Shape, int]] = {
    "chain": (chain, 1_000),
    "layers": (layers, 10_000),
    "fan-in": (fan_in, 100_000),
    "release": (release, 100_000),
}


class Plain(ResultMixin, StepMixin, Flow):
    """As `Page`, but no queue whose tasks can belong to batches."""

    __tablename__ = "plain_page"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    name: Mapped[str] = mapped_column(String(50), default="")


class Shapes:
    """Measures shapes on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions = sessionmaker(engine, class_=QueueSession)

    def measure(self, name: str, scale: float) -> str:
        shape, number = SHAPES[name]
        number = int(number * scale)
        begun = time.perf_counter()
        with self._sessions.begin() as session, session.batch(name) as batch:
            shape(batch, number)
            batch.then(Note(name="end"))
        enqueued = time.perf_counter() - begun
        latches = self._asked(select(func.count()).select_from(Latch))
        self._work()
        first, last = (self._asked(select(each(Page.finished_at))) for each in (func.min, func.max))
        lag = (self._asked(select(Note.finished_at)) - last).total_seconds()
        spent = (last - first).total_seconds()
        counts = self._asked(select(Latch.completed).where(Latch.id == name))
        assert counts == number, f"{counts} of {number} members are counted"
        for model in (Latch, Note, Page):
            with self._sessions.begin() as session:
                session.execute(delete(model))
        return (
            f"| {self._engine.dialect.name} | {name} | {number:,} | {latches:,} | {enqueued:.1f} | {spent:.1f} |"
            f" {spent / number * 1000:.2f} | {lag * 1000:.0f} |"
        )

    def settle(self, scale: float) -> str:
        """Compare the members of one batch with plain tasks."""
        shares: list[str] = []
        for at_once, number in ((1, 1_000), (100, 10_000)):
            ratios = sorted(self._share(int(number * scale), at_once) for _ in range(5))
            found = " ".join(f"{ratio:.2f}" for ratio in ratios)
            shares.append(f"{at_once} at a time {median(ratios):.2f} ({found})")
        return f"| {self._engine.dialect.name} | settle | {'; '.join(shares)} |"

    def _share(self, number: int, at_once: int) -> float:
        """Return the speed of members as a share of that of plain tasks: transactions of both take turns, so that
        whatever else the machine does slows both."""
        with self._sessions.begin() as session, session.batch() as batch:
            fan_in(batch, number)
            session.enqueue(Plain, [{}] * number)
        spent: Counter[Any] = Counter()
        for turn in range(0, number, at_once):
            for kind in [Plain, Page][:: 1 if turn // at_once % 2 else -1]:
                begun = time.perf_counter()
                with self._sessions.begin() as session:
                    session.complete(session.claim_many(kind, limit=at_once))
                spent[kind] += time.perf_counter() - begun
        begun = time.perf_counter()
        with self._sessions.begin() as session:
            session.advance(Page)
        spent[Page] += time.perf_counter() - begun
        for model in (Latch, Page, Plain):
            with self._sessions.begin() as session:
                session.execute(delete(model))
        return spent[Plain] / spent[Page]

    def _asked(self, query: Any) -> Any:
        with self._sessions() as session:
            return session.scalar(query)

    def _work(self) -> None:
        worker = Worker(self._sessions)
        worker.handler(Page, concurrency=10)(lambda task: None)
        worker.handler(Note)(lambda task: None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        while self._asked(select(func.count()).select_from(Note).where(Note.finished_at.is_(None))):
            time.sleep(0.1)
        worker.stop()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, "settle"], default=[*SHAPES, "settle"])
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of tasks")
    given = parser.parse_args()
    print("| engine | shape | tasks | latches | enqueued in s | done in s | ms a task | callback after the last, ms |")
    for url in given.urls:
        engine = reached(url)
        Flow.metadata.create_all(engine, checkfirst=False)
        try:
            for name in given.shapes:
                shapes = Shapes(engine)
                found = shapes.settle(given.scale) if name == "settle" else shapes.measure(name, given.scale)
                print(found, flush=True)
        finally:
            Flow.metadata.drop_all(engine)
            engine.dispose()


if __name__ == "__main__":
    main()
