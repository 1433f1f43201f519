"""What the steps of a job cost a worker: `python -m bench.measurements.steps URL`.

Runs the steps one after the other on one thread, each for all jobs of a batch, and prints microseconds of client CPU
per job: the lowest of all rounds, which other work on the machine affects least. What threads and the event loop spend
on passing jobs to each other is not part of it, nor is the server's time.

Creates the tables of `python -m bench` in a database that has none with these names, and drops them.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, bindparam, insert, select, update
from sqlalchemy.orm import sessionmaker

from bench.measurements.layers import planned
from bench.models import Base, Note
from bench.workloads import writing
from sqlqueue import Status
from sqlqueue.evaluation.support import reached
from sqlqueue.operations.claiming import ClaimQuery, claim_matching
from sqlqueue.queue.spec import spec_of
from sqlqueue.worker import Job
from sqlqueue.worker.database import SyncDatabase
from sqlqueue.worker.executor import CoroutinePool, Executor
from sqlqueue.worker.handlers import handler_of
from sqlqueue.worker.jobs import COMPLETED, write_what_is_free
from sqlqueue.worker.reports import make_reports

LEASE = timedelta(minutes=5)


def call(job: Any) -> None:
    """Do nothing, as the handler of a job."""


async def call_async(job: Any) -> None:
    """Do nothing, as a coroutine handler."""


class Steps:
    """Measures the steps of the jobs of one table."""

    def __init__(self, engine: Engine, url: str, jobs: int) -> None:
        self._engine = engine
        self._entity: Any = planned(url).model
        self._jobs = jobs
        self._sessions = sessionmaker(engine, expire_on_commit=False)
        self._reports = make_reports()
        self.found: dict[str, float] = {}

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun = time.thread_time()
        yield
        took = (time.thread_time() - begun) / self._jobs * 1e6
        self.found[name] = min(took, self.found.get(name, took))

    async def round(self) -> None:
        """Measure each step once."""
        table = self._entity.__table__
        self._fill()
        with self._sessions() as session, self._timed("read the rows, with Core"):
            session.execute(select(table)).all()
        with self._sessions() as session, self._timed("read the rows, with the ORM"):
            session.scalars(select(self._entity)).all()
        with self._timed("claim"):
            tasks = self._claim()
        with self._timed("make jobs"):
            jobs = self._made(tasks, call)
        with self._timed("call the handler"):
            self._call_all(jobs)
        coroutines = self._made(tasks, call_async)
        with self._timed("call a coroutine handler"):
            await self._await_all(coroutines)
        with self._timed("settle"):
            self._settle(jobs)
        keys = [task.id for task in tasks]
        with self._timed("insert a row and update one, with a session alone"):
            self._insert_and_update(keys)
        self._fill()
        jobs = self._made(self._claim(), writing)
        with self._timed("call a handler that inserts a row"):
            self._call_all(jobs)

    def _fill(self) -> None:
        table = self._entity.__table__
        with self._sessions.begin() as session:
            session.execute(table.delete())
            session.execute(insert(table), [{"payload": "x" * 100}] * self._jobs)

    def _insert_and_update(self, keys: Iterable[int]) -> None:
        table = self._entity.__table__
        ending = update(table).where(table.c.id == bindparam("key")).values(status=Status.COMPLETED.value)
        for key in keys:
            with self._sessions.begin() as session:
                session.add(Note(text="x"))
                session.flush()
                session.execute(ending, {"key": key})

    def _claim(self) -> Iterable[Any]:
        with self._sessions.begin() as session:
            return claim_matching(
                session, ClaimQuery(spec_of(self._entity)), self._jobs, lease=LEASE, claimed_by="steps"
            )

    def _made(self, tasks: Iterable[Any], function: Callable[..., Any]) -> list[Job]:
        handler = handler_of(function, self._entity, ())
        return [Job(handler, task) for task in tasks]

    def _executor(self, job: Job) -> Executor:
        database = SyncDatabase(self._sessions, self._reports.liveness)
        return Executor(job.handler, database, self._reports)

    def _call_all(self, jobs: list[Job]) -> None:
        executor = self._executor(jobs[0])
        for job in jobs:
            executor.perform(job)

    async def _await_all(self, jobs: list[Job]) -> None:
        pool = CoroutinePool(self._executor(jobs[0]), lambda job, outcome: None)
        pool.put(jobs)
        await pool.ended()

    def _settle(self, jobs: Iterable[Job]) -> None:
        with self._sessions.begin() as session:
            write_what_is_free(session, [(job.claim, COMPLETED) for job in jobs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=500, help="of a batch")
    parser.add_argument("--rounds", type=int, default=30)
    asked = parser.parse_args()
    engine = reached(asked.url)
    Base.metadata.create_all(engine, checkfirst=False)
    try:
        steps = Steps(engine, asked.url, asked.jobs)
        for _ in range(asked.rounds):
            asyncio.run(steps.round())
        for name, took in steps.found.items():
            print(f"{name:50} {took:6.1f} us")
    finally:
        Base.metadata.drop_all(engine)


if __name__ == "__main__":
    main()
