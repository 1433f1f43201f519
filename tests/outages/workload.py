"""Two workers of one server, with sync and with async sessions, which keep running whatever happens to it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event
from typing import Any

from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.orm import Session

from sqlqueue import Worker, current_job
from tests.outages.models import Base, Errand, Receipt
from tests.outages.servers import FrailServer
from tests.support import tables
from tests.support.harness import Database, LoopThread
from tests.support.workers import Running, eventually

SLOTS = 2
"""The slots of each handler in each worker."""
WORK = 0.02
"""Seconds that an errand takes which does not wait for the gate."""
PATIENCE = 40.0
"""Seconds within which everything has recovered, unless the test fails."""
HOLDING = timedelta(seconds=9)
LONG, BRIEF = timedelta(minutes=5), timedelta(seconds=1.5)
LANES: dict[str, dict[str, Any]] = {
    "steady": {"lease": LONG},
    "plain": {"lease": LONG},
    "locked": {"mode": "lock"},
    "brief": {"lease": BRIEF},
    "brief-plain": {"lease": BRIEF},
    "held": {"lease": HOLDING},
    "left": {"lease": BRIEF},
    "late": {"lease": LONG},
    "refused": {"lease": LONG},
}
"""Options of the handlers, by topic."""
WITHOUT_SESSION = ("plain", "brief-plain", "held", "refused")
ELSEWHERE = ("late",)
"""Topics of workers that are started later."""
BRIEF_TOPICS = ("brief", "brief-plain")


class Workload:
    def __init__(self, server: FrailServer) -> None:
        self.server = server
        self.engine: Engine = create_engine(server.server.url, pool_pre_ping=True)
        tables.make(self.engine, Base.metadata)
        self.calls: Counter[int] = Counter()
        """How often a handler was called, by errand."""
        self.present: set[int] = set()
        """The errands whose handlers are running."""
        self.gate, self.release = Event(), Event()
        self._loop = LoopThread()
        self.databases = [self._database(is_async=False), self._database(is_async=True)]
        self._running: list[Running] = []
        self.workers = [
            self.start(number, *(topic for topic in LANES if topic not in ELSEWHERE)) for number in range(2)
        ]

    def _database(self, *, is_async: bool) -> Database:
        server = self.server.server
        return Database(
            self.server.case,
            server.url,
            self._loop,
            engine=self.engine,
            is_async=is_async,
            pool_size=20,
            max_overflow=20,
        )

    def start(self, number: int, *topics: str) -> Running:
        """Start a worker with sync (0) or async (1) sessions for these topics."""
        database = self.databases[number].variant(pool_size=20, max_overflow=20)
        name = ("sync", "async")[number]
        worker = Worker(database.sessions(), name=name, grace=timedelta(seconds=1))
        for topic in topics:
            options = {"concurrency": SLOTS, "batch": SLOTS, **LANES[topic]}
            make = self._without_session if topic in WITHOUT_SESSION else self._with_session
            worker.handler(Errand, Errand.topic == topic, **options)(make(name, is_async=database.is_async))
        running = Running(worker)
        self._running.append(running)
        return running

    def _with_session(self, name: str, *, is_async: bool) -> Callable[..., Any]:
        """Its receipt is sent to the database before it waits, so it waits in the middle of a transaction."""

        def function(session: Any, errand: Any) -> None:
            session.add(Receipt(errand_id=errand.id, worker=name))
            session.flush()
            for pause in self._wait(errand):
                time.sleep(pause)

        async def coroutine(session: Any, errand: Any) -> None:
            session.add(Receipt(errand_id=errand.id, worker=name))
            await session.flush()
            for pause in self._wait(errand):
                await asyncio.sleep(pause)

        return coroutine if is_async else function

    def _without_session(self, name: str, *, is_async: bool) -> Callable[..., Any]:
        def function(errand: Any) -> None:
            for pause in self._wait(errand):
                time.sleep(pause)

        async def coroutine(errand: Any) -> None:
            for pause in self._wait(errand):
                await asyncio.sleep(pause)

        return coroutine if is_async else function

    def _wait(self, errand: Any) -> Any:
        self.calls[errand.id] += 1
        self.present.add(errand.id)
        try:
            if errand.topic in (*BRIEF_TOPICS, *ELSEWHERE):
                yield WORK
                return
            until = self.release if errand.topic == "held" else self.gate
            while not until.is_set() and not current_job().is_lost:
                yield 0.1
        finally:
            self.present.discard(errand.id)

    def enqueue(self, *topics: str, count: int) -> None:
        with Session(self.engine) as session:
            session.add_all(Errand(topic=topic) for topic in topics for _ in range(count))
            session.commit()

    def wait_until_busy(self, *topics: str) -> None:
        """Wait until every slot of these topics is busy, so that none of their tasks is being claimed."""
        ids = self.ids(*topics)
        eventually(lambda: len(ids & self.present) == 2 * SLOTS * len(topics), within=PATIENCE)

    def ids(self, *topics: str) -> set[int]:
        with self.engine.connect() as connection:
            return set(connection.scalars(select(Errand.id).where(Errand.topic.in_(topics))))

    def rows(self, *topics: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(select(Errand.__table__).where(Errand.topic.in_(topics or tuple(LANES)))))

    def receipts(self) -> Counter[int]:
        with self.engine.connect() as connection:
            rows = connection.execute(select(Receipt.errand_id, func.count()).group_by(Receipt.errand_id))
            return Counter(dict(map(tuple, rows)))

    def lease(self, topic: str) -> datetime:
        with self.engine.connect() as connection:
            return connection.execute(select(func.max(Errand.available_at)).where(Errand.topic == topic)).scalar_one()

    def wait_until_done(self, *topics: str) -> None:
        undone = select(func.count()).where(Errand.topic.in_(topics or LANES), Errand.status != "completed")
        with self.engine.connect() as connection:
            eventually(lambda: [connection.rollback(), not connection.scalar(undone)][1], within=PATIENCE)

    def counts(self, kind: str) -> int:
        return sum(running.worker._reports.counts[kind] for running in self._running)

    def begin_test(self) -> None:
        self.gate.clear()
        self.release.clear()
        self.calls.clear()
        for running in self._running:
            running.worker._reports.counts.clear()

    def end_test(self) -> None:
        self.gate.set()
        self.release.set()
        for running in self._running[2:]:
            running.stop(at_once=True)
        del self._running[2:]
        eventually(lambda: not self.present, within=PATIENCE)
        tables.empty(self.engine, self.server.case, Base.metadata)

    def close(self) -> None:
        self.gate.set()
        self.release.set()
        for running in self._running:
            running.stop(at_once=True)
        for database in self.databases:
            database.dispose()
        self.engine.dispose()
        self._loop.stop()
