"""The worker's own transactions, through sync or asyncio sessions, and its retries during outages.

Deadlines, connections of single threads and turns to write are here too; nothing here knows handlers or jobs.
"""

from sqlalchemy.orm import sessionmaker

from ..._support.errors import ArgumentError
from ..reporting.health import Liveness
from .base import Database, Sessions, bound_engines
from .checkouts import observe
from .threaded import SyncDatabase


def database_of(sessions: Sessions, liveness: Liveness) -> Database:
    """Return the database behind a ``sessionmaker`` or ``async_sessionmaker``.  Raises :class:`.ArgumentError` for
    others."""
    database: Database
    if isinstance(sessions, sessionmaker):
        database = SyncDatabase(sessions, liveness)
    elif type(sessions).__name__ == "async_sessionmaker":
        from .coroutines import AsyncDatabase  # noqa: PLC0415  (needs greenlet)

        database = AsyncDatabase(sessions, liveness)
    else:
        raise ArgumentError(f"{sessions!r} is neither a sessionmaker nor an async_sessionmaker, as in Worker(Session)")
    for engine in bound_engines(sessions):
        observe(engine)
    return database
