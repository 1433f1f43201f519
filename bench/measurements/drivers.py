"""Compares drivers: `python -m bench.measurements.drivers mysql+pymysql://me@host/test mysqldb asyncmy`.

For each driver, a worker in a process of its own drains tasks whose handler does nothing, and tasks whose handler
inserts a row; with an asyncio driver, the latter is a coroutine.  The drivers take turns.  Prints the median of all
rounds, with the minimum and the maximum, and the worker's CPU time per 1,000 tasks.

Creates the tables of `python -m bench` in a database that has none with these names, and drops them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from threading import Thread
from typing import Any

from sqlalchemy import URL, Engine, create_engine, delete, func, make_url, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from bench.models import Base, Job, Note
from sqlqueue import AsyncQueueSession, QueueSession, Worker
from sqlqueue.evaluation.support import connect, reached, sessions

THREADS = 10
OPTIONS = {"isolation_level": "READ COMMITTED", "pool_size": THREADS + 5}


def nothing(job: Any) -> None:
    """Do nothing."""


def inserting(session: Any, job: Any) -> None:
    """Insert a row."""
    session.add(Note(text="x"))


async def inserting_async(session: Any, job: Any) -> None:
    """Insert a row, as a coroutine."""
    session.add(Note(text="x"))


def worker_of(url: URL, inserts: bool) -> Worker:
    handler: Callable[..., Any] = nothing
    if url.get_dialect().is_async:
        made: Any = async_sessionmaker(create_async_engine(url, **OPTIONS), class_=AsyncQueueSession)
        handler = inserting_async if inserts else handler
    else:
        made = sessions(create_engine(url, **OPTIONS))
        handler = inserting if inserts else handler
    worker = Worker(made)
    worker.handler(Job, concurrency=THREADS)(handler)
    return worker


def drain(url: URL, prepared: URL, inserts: bool, jobs: int) -> tuple[float, float]:
    """Drain the tasks in this process.  Returns tasks per second, and CPU milliseconds per 1,000 tasks."""
    worker = worker_of(url, inserts)
    engine = connect(prepared)
    fill(engine, jobs // 10)  # a few first, which open connections and compile statements
    thread = Thread(target=worker.run)
    thread.start()
    until_drained(engine)
    fill(engine, jobs)
    begun = time.process_time()
    until_drained(engine)
    spent = time.process_time() - begun
    worker.stop()
    thread.join()
    with Session(engine) as session:
        first, last = session.execute(select(func.min(Job.claimed_at), func.max(Job.finished_at))).one()
    engine.dispose()
    return jobs / (last - first).total_seconds(), spent / jobs * 1e6


def fill(engine: Engine, jobs: int) -> None:
    with QueueSession(engine) as session:
        session.execute(delete(Job))
        session.enqueue(Job, [{"payload": "x" * 100}] * jobs)
        session.commit()


def until_drained(engine: Engine) -> None:
    with Session(engine) as session:
        while session.scalar(select(Job.id).where(Job.status != "completed").limit(1)) is not None:
            session.rollback()
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="with a sync driver, which is measured too")
    parser.add_argument("drivers", nargs="+", help="the names of other drivers for the same database")
    parser.add_argument("--jobs", type=int, default=5_000, help="a fifth as many for the handler that inserts a row")
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    first = make_url(wanted.url)
    urls = [first, *(first.set(drivername=f"{first.get_backend_name()}+{name}") for name in wanted.drivers)]
    kinds = {"does nothing": (False, wanted.jobs), "inserts a row": (True, wanted.jobs // 5)}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    engine = reached(wanted.url)
    Base.metadata.create_all(engine, checkfirst=False)
    try:
        for number in range(wanted.rounds):
            for kind, (inserts, jobs) in kinds.items():
                for url in urls:
                    with ProcessPoolExecutor(1, get_context("spawn")) as process:
                        result = process.submit(drain, url, first, inserts, jobs).result()
                    found.setdefault((kind, url.get_driver_name()), []).append(result)
            print(f"round {number + 1} of {wanted.rounds} is done", flush=True)
    finally:
        Base.metadata.drop_all(engine)
    for (kind, driver), results in found.items():
        rates, spent = zip(*results, strict=True)
        span = f"({min(rates):,.0f}-{max(rates):,.0f})"
        print(f"{kind:14} {driver:16} {median(rates):7,.0f}/s {span:16} {median(spent):6,.0f} ms CPU per 1,000")


if __name__ == "__main__":
    main()
