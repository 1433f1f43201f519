"""The worker's own transactions, through sync or asyncio sessions, and its retries during outages.

Deadlines, connections of single threads and turns to write are here too; nothing here knows handlers or jobs.
"""

from sqlalchemy.orm import sessionmaker

from ..._support.exc import ArgumentError
from ..reporting.health import Liveness
from .base import Database, Sessions
from .threaded import SyncDatabase


def database_of(sessions: Sessions, liveness: Liveness) -> Database:
    """Return the database behind a ``sessionmaker`` or ``async_sessionmaker``.  Raises :class:`.ArgumentError` for
    others."""
    if isinstance(sessions, sessionmaker):
        return SyncDatabase(sessions, liveness)
    if type(sessions).__name__ == "async_sessionmaker":
        from .coroutines import AsyncDatabase  # noqa: PLC0415  (needs greenlet)

        return AsyncDatabase(sessions, liveness)
    raise ArgumentError(f"{sessions!r} is neither a sessionmaker nor an async_sessionmaker, as in Worker(Session)")
