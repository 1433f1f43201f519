"""The worker's own transactions, through sync or asyncio sessions, and its retries during outages."""

from sqlalchemy.orm import sessionmaker

from ..._support.exc import ArgumentError
from ..reporting.health import Pulse
from .base import Database, Sessions
from .threaded import SyncDatabase


def database_of(sessions: Sessions, pulse: Pulse) -> Database:
    """Return the database behind a ``sessionmaker`` or ``async_sessionmaker``; :class:`.ArgumentError` otherwise."""
    if isinstance(sessions, sessionmaker):
        return SyncDatabase(sessions, pulse)
    if type(sessions).__name__ == "async_sessionmaker":
        from .coroutines import AsyncDatabase  # noqa: PLC0415  (needs greenlet)

        return AsyncDatabase(sessions, pulse)
    raise ArgumentError(f"{sessions!r} is neither a sessionmaker nor an async_sessionmaker, as in Worker(Session)")
