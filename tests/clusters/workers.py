"""Workers on the nodes of a cluster, and the results of their work."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import URL, Engine, func, select
from sqlalchemy.orm import Session

from sqlqueue import Worker
from tests.outages.models import Base, Errand, Receipt
from tests.support import tables
from tests.support.engines import EngineCase
from tests.support.harness import Database, LoopThread
from tests.support.workers import Running, eventually

PATIENCE = 120.0
"""Seconds, on a busy machine: a node that comes back gets its data first."""
LEASE = timedelta(seconds=8)


class ClusterWorkers:
    def __init__(self, case: EngineCase, engine: Engine) -> None:
        """``engine``: for the test itself; its pool must not contain dead connections."""
        self.case = case
        self.engine = engine
        self.calls: Counter[int] = Counter()
        """The number of handler calls, by errand."""
        self.called_at: list[float] = []
        """Times of `time.monotonic`."""
        self._loop = LoopThread()
        self._databases: list[Database] = []
        self.running: list[Running] = []
        tables.make(engine, Base.metadata)

    def database(self, url: URL, *, is_async: bool = False) -> Database:
        database = Database(self.case, url, self._loop, engine=self.engine, is_async=is_async, pool_size=10)
        self._databases.append(database)
        return database

    def start(
        self,
        url: URL,
        name: str,
        topic: str = "steady",
        *,
        is_async: bool = False,
        poll: timedelta = timedelta(seconds=0.3),
        work: float = 0.01,
    ) -> Running:
        """Start a worker that writes a receipt in the transaction of each errand, which takes ``work`` seconds."""
        sessions = self.database(url, is_async=is_async).sessions()
        worker = Worker(sessions, name=name, poll=poll, grace=timedelta(seconds=1))
        make = self._coroutine if is_async else self._function
        worker.handler(Errand, Errand.topic == topic, concurrency=4, lease=LEASE)(make(name, work))
        running = Running(worker)
        self.running.append(running)
        return running

    def _function(self, name: str, work: float) -> Callable[..., Any]:
        def function(session: Any, errand: Any) -> None:
            self._note(errand)
            session.add(Receipt(errand_id=errand.id, worker=name))
            time.sleep(work)

        return function

    def _coroutine(self, name: str, work: float) -> Callable[..., Any]:
        async def coroutine(session: Any, errand: Any) -> None:
            self._note(errand)
            session.add(Receipt(errand_id=errand.id, worker=name))
            await asyncio.sleep(work)

        return coroutine

    def _note(self, errand: Any) -> None:
        self.calls[errand.id] += 1
        self.called_at.append(time.monotonic())

    def enqueue(self, count: int, topic: str = "steady") -> None:
        with Session(self.engine) as session:
            session.add_all(Errand(topic=topic) for _ in range(count))
            session.commit()

    def receipts(self) -> Counter[str]:
        """Return the number of receipts written by each worker."""
        with self.engine.connect() as connection:
            rows = connection.execute(select(Receipt.worker, func.count()).group_by(Receipt.worker))
            return Counter(dict(map(tuple, rows)))

    def undone(self) -> int:
        with self.engine.connect() as connection:
            return connection.scalar(select(func.count()).where(Errand.status != "completed")) or 0

    def wait_until_done(self) -> None:
        eventually(lambda: not self.undone(), within=PATIENCE)

    def assert_exact(self) -> None:
        """Assert that every errand had its effect once, and that no attempt was counted because of the servers'
        failures: an error only tells that the errand was returned."""
        with self.engine.connect() as connection:
            errands = connection.execute(select(Errand.id, Errand.status, Errand.error)).all()
            receipts = Counter(connection.scalars(select(Receipt.errand_id)))
        assert receipts == {errand.id: 1 for errand in errands}
        assert {errand.status for errand in errands} == {"completed"}
        assert [errand.error for errand in errands if errand.error and "(returned after" not in errand.error] == []
        assert sum(running.worker._reports.counts["failed"] for running in self.running) == 0
        assert not any(running.ended for running in self.running)

    def close(self) -> None:
        for running in self.running:
            running.worker.stop(at_once=True)
        for running in self.running:
            running.wait()
        for database in self._databases:
            database.dispose()
        self._loop.stop()
