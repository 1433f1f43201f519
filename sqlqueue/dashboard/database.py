"""Calls functions with a session for the dashboard, from a sessionmaker or an async_sessionmaker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy.orm import Session, sessionmaker
from starlette.concurrency import run_in_threadpool

from .._support.exc import ArgumentError
from ..dialects import adapter_for
from ..queue.spec import QueueSpec

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import async_sessionmaker

    from ..worker.database.base import Sessions

R = TypeVar("R")


class SessionRunner(Protocol):
    """Calls functions with a session."""

    async def run(self, work: Callable[[Session], R]) -> R:
        """Call ``work`` with a new session, commit what it left uncommitted, and return its result."""
        ...


def session_runner(sessions: Sessions) -> SessionRunner:
    """Return a runner with sessions of a ``sessionmaker`` or ``async_sessionmaker``.  Raises :class:`.ArgumentError`
    for others."""
    if isinstance(sessions, sessionmaker):
        return _Threaded(sessions)
    if type(sessions).__name__ == "async_sessionmaker":
        return _Async(sessions)
    raise ArgumentError(f"{sessions!r} is neither a sessionmaker nor an async_sessionmaker, as in Dashboard(Session)")


class _Threaded:
    def __init__(self, sessions: sessionmaker[Any]) -> None:
        self._sessions = sessions

    async def run(self, work: Callable[[Session], R]) -> R:
        return await run_in_threadpool(self._run, work)

    def _run(self, work: Callable[[Session], R]) -> R:
        with self._sessions() as session:
            return _committed(work, session)


class _Async:
    def __init__(self, sessions: async_sessionmaker[Any]) -> None:
        self._sessions = sessions

    async def run(self, work: Callable[[Session], R]) -> R:
        async with self._sessions() as session:
            result: R = await session.run_sync(partial(_committed, work))
            return result


def _committed(work: Callable[[Session], R], session: Session) -> R:
    result = work(session)
    session.commit()
    return result


def time_limited(work: Callable[[Session], R], spec: QueueSpec, most: timedelta) -> Callable[[Session], R]:
    """Return ``work`` with a time limit for each statement on the engine of ``spec``, if the engine supports one."""

    def run(session: Session) -> R:
        connection = session.connection(spec.bind_arguments)
        with adapter_for(connection.dialect).requests.time_limit(connection, most):
            return work(session)

    return run
