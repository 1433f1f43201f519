"""Connections to the database that the user gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Engine, MetaData, create_engine, event, inspect, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from sqlqueue import ArgumentError, QueueSession

from .._support.urls import database_url
from ..worker.database.checkouts import UNREACHABLE, track
from .errors import EvaluationError


def connect(url: str | URL, **options: Any) -> Engine:
    """Return an engine with settings suited to a queue.

    SQLite gets a write-ahead log, unless the URL says otherwise: ``sqlite:///file:x.db?uri=true&journal_mode=delete``.
    With ``&synchronous=full``, each commit to the log waits for the disk.
    """
    url = make_url(url)
    if url.get_backend_name() == "sqlite":
        # how long a claim waits for another writer
        engine = create_engine(url, connect_args={"timeout": 30}, **options)
        event.listen(engine, "connect", lambda connection, _: prepare(url, connection))
        return engine
    # the level at which claims do not block each other; on MySQL and MariaDB it is not the default
    return create_engine(url, isolation_level="READ COMMITTED", **options)


def prepare(url: URL, connection: Any) -> None:
    """Give a driver's connection to SQLite the journal of :func:`connect`.  Others stay as they are."""
    if url.get_backend_name() == "sqlite" and url.query.get("journal_mode", "wal") == "wal":
        level = "FULL" if url.query.get("synchronous") == "full" else "NORMAL"
        connection.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not block each other
        connection.execute(f"PRAGMA synchronous = {level}")  # with NORMAL, a power failure can lose commits


def sessions(engine: Engine) -> sessionmaker[QueueSession]:
    """Return a maker of sessions for tasks that are read after the commit."""
    return sessionmaker(engine, class_=QueueSession, expire_on_commit=False)


def reached(url: str) -> Engine:
    """Connect to ``url`` and return its engine.

    Raises :class:`.EvaluationError` if it cannot be reached, or processes cannot share it.
    """
    try:
        engine = connect(database_url(url))
        if engine.dialect.is_async:
            raise EvaluationError(f"{engine.driver} is an asyncio driver: use a sync one")
        if engine.url.get_backend_name() == "sqlite" and engine.url.database in (None, "", ":memory:"):
            raise EvaluationError("processes cannot share an in-memory database: give a file, as in sqlite:///demo.db")
        track(engine, UNREACHABLE)
        engine.connect().close()
    except ArgumentError as error:
        raise EvaluationError(str(error)) from error
    except DBAPIError as error:
        raise EvaluationError(f"cannot connect: {error.orig}") from error
    return engine


@contextmanager
def created_tables(
    engine: Engine, metadata: MetaData, *, drop: bool, advice: str, keep: bool = False
) -> Iterator[None]:
    """Create all tables of ``metadata``, and drop them afterwards unless ``keep``.

    Raises :class:`.EvaluationError` with ``advice`` if some exist already; with ``drop`` they are replaced.
    """
    present = [name for name in metadata.tables if inspect(engine).has_table(name)]
    if present and not drop:
        exist = "exists" if len(present) == 1 else "exist"
        raise EvaluationError(f"{' and '.join(present)} already {exist}: {advice}")
    metadata.drop_all(engine)
    try:
        metadata.create_all(engine)
        yield
    finally:
        if not keep:
            metadata.drop_all(engine)
