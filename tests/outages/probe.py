"""A client that sends queries continuously, and collects the errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread

from sqlalchemy import NullPool, delete
from sqlalchemy.exc import DBAPIError

from sqlqueue.dialects import adapter_for
from sqlqueue.worker.database import passes
from tests.outages.models import Receipt
from tests.support.harness import Database


@contextmanager
def only_outages(*databases: Database, renewed: bool = False) -> Iterator[list[tuple[Database, Exception]]]:
    """Yield the errors in this block, and assert that there are some, and that the adapter classifies all as outages.

    `renewed`: use new connections.
    """
    errors: list[tuple[Database, Exception]] = []
    stopped = Event()
    with ExitStack() as stack:
        for database in [each.variant(poolclass=NullPool) for each in databases] if renewed else databases:
            thread = Thread(target=_ask, args=(database, errors, stopped))
            stack.callback(thread.join)
            thread.start()
        try:
            yield errors
        finally:
            stopped.set()
    assert errors
    assert [error for database, error in errors if not _is_outage(database, error)] == []


def _is_outage(database: Database, error: Exception) -> bool:
    adapter = adapter_for(database.engine.dialect)
    return isinstance(error, DBAPIError) and adapter.connections.is_outage(error) and passes(error, adapter)


def _ask(database: Database, errors: list[tuple[Database, Exception]], stopped: Event) -> None:
    while not stopped.is_set():
        try:
            with database.session() as actor:
                while not stopped.is_set():
                    actor.execute(delete(Receipt).where(Receipt.id == -1))
                    actor.commit()
                    time.sleep(0.05)
        except Exception as error:
            errors.append((database, error))
            time.sleep(0.05)
