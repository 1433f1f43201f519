"""The demo's database: a temporary SQLite file, or the database of a URL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, inspect, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker

from sqlqueue import ArgumentError, QueueSession
from sqlqueue._support.urls import database_url

from ..worker.database.checkouts import UNREACHABLE, track
from .errors import DemoError
from .models import Base


def connect(url: str | URL, **options: Any) -> Engine:
    """Return an engine with settings suited to a queue.

    SQLite gets a write-ahead log, unless the URL says otherwise: ``sqlite:///file:x.db?uri=true&journal_mode=delete``.
    """
    url = make_url(url)
    if url.get_backend_name() == "sqlite":
        # how long a claim waits for another writer
        engine = create_engine(url, connect_args={"timeout": 30}, **options)
        if url.query.get("journal_mode", "wal") == "wal":
            event.listen(engine, "connect", _prepare_sqlite)
        return engine
    # the level at which claims do not block each other; on MySQL and MariaDB it is not the default
    return create_engine(url, isolation_level="READ COMMITTED", **options)


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not block each other
    connection.execute("PRAGMA synchronous = NORMAL")  # in WAL mode, only a power failure can lose commits


def sessions(engine: Engine) -> sessionmaker[QueueSession]:
    """Return the sessions of the demo and its workers."""
    # workers read claimed rows after the commit
    return sessionmaker(engine, class_=QueueSession, expire_on_commit=False)


@contextmanager
def tables(url: str | None, *, keep: bool, drop: bool) -> Iterator[Engine]:
    """Yield an engine with the demo's tables, and drop them afterwards unless ``keep``.

    Raises :class:`.DemoError` if the database cannot be used, or the tables exist and ``drop`` is not given.
    """
    with ExitStack() as stack:
        engine = reached(url or _temporary(stack, keep=keep))
        stack.callback(engine.dispose)
        _create(engine, drop=drop)
        if url and not keep:
            stack.callback(Base.metadata.drop_all, engine)
        yield engine


def _temporary(stack: ExitStack, *, keep: bool) -> str:
    directory = tempfile.mkdtemp(prefix="sqlqueue-demo-")
    if not keep:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return f"sqlite:///{directory}/demo.db"


def reached(url: str) -> Engine:
    """Connect to ``url`` and return its engine; :class:`.DemoError` if it cannot be reached or shared by processes."""
    try:
        engine = connect(database_url(url))
        if engine.dialect.is_async:
            raise DemoError(f"{engine.driver} is an asyncio driver: use a sync one")
        if engine.url.get_backend_name() == "sqlite" and engine.url.database in (None, "", ":memory:"):
            raise DemoError("processes cannot share an in-memory database: give a file, as in sqlite:///demo.db")
        track(engine, UNREACHABLE)
        engine.connect().close()
    except ArgumentError as error:
        raise DemoError(str(error)) from error
    except DBAPIError as error:
        raise DemoError(f"cannot connect: {error.orig}") from error
    return engine


def _create(engine: Engine, *, drop: bool) -> None:
    present = [name for name in Base.metadata.tables if inspect(engine).has_table(name)]
    if present and not drop:
        raise DemoError(f"{' and '.join(present)} already exist: another demo runs, or was kept. --drop replaces it.")
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
