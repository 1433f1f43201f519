"""Parts of a worker, for tests with a failing server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from sqlqueue import AsyncQueueSession, QueueSession, Worker
from sqlqueue.dialects import adapter_for
from sqlqueue.worker import Job
from sqlqueue.worker.completer import Completer
from sqlqueue.worker.database import SyncDatabase
from sqlqueue.worker.handlers import Handler
from sqlqueue.worker.jobs import COMPLETED, InFlight
from sqlqueue.worker.reports import Liveness, Reports
from tests.support.models import Task

TRIES = 3


@contextmanager
def sessions_at(url: URL) -> Iterator[sessionmaker[QueueSession]]:
    engine = create_engine(url)
    yield sessionmaker(engine, class_=QueueSession)
    engine.dispose()


@contextmanager
def any_sessions_at(url: URL) -> Iterator[sessionmaker[QueueSession] | async_sessionmaker[AsyncQueueSession]]:
    """Return sessions for the URL, asyncio ones for an asyncio driver. The engine is not disposed of, since the loop of
    its connections is closed."""
    if not url.get_dialect().is_async:
        with sessions_at(url) as sessions:
            yield sessions
        return
    yield async_sessionmaker(create_async_engine(url), class_=AsyncQueueSession)


def handler_with(sessions: sessionmaker[QueueSession], function: Callable[..., Any]) -> Handler:
    worker = Worker(sessions)
    worker.handler(Task)(function)
    return worker.handlers[0]


def is_dropped(sessions: sessionmaker[QueueSession], task: Task) -> bool:
    """Return whether the worker has stopped trying to record the completion of the task."""
    job, reports, in_flight = Job(handler_with(sessions, lambda task: None), task), Reports(), InFlight()
    in_flight.add(job)

    async def settle() -> None:
        adapter = adapter_for(sessions.kw["bind"].dialect)
        completer = Completer(SyncDatabase(sessions, Liveness()), adapter, in_flight, reports)
        completer.put(job, COMPLETED)
        settling = asyncio.create_task(completer.run())
        while reports.counts["database_errors"] < TRIES and len(in_flight):
            await asyncio.sleep(0.05)
        settling.cancel()

    asyncio.run(settle())
    return not len(in_flight)
