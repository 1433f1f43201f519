"""What pages show: read from the database, once for several viewers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy.orm import Session, sessionmaker
from starlette.concurrency import run_in_threadpool

from .._support.errors import ArgumentError

if TYPE_CHECKING:
    from ..worker import Sessions


# -- calls functions with a session for the dashboard, from a sessionmaker or an async_sessionmaker -------------------

R = TypeVar("R")


class SessionRunner:
    """Calls functions with sessions of a ``sessionmaker`` or ``async_sessionmaker``.

    Raises :class:`.ArgumentError` for others.
    """

    def __init__(self, sessions: Sessions) -> None:
        if not isinstance(sessions, sessionmaker) and type(sessions).__name__ != "async_sessionmaker":
            kinds = "neither a sessionmaker nor an async_sessionmaker"
            raise ArgumentError(f"{sessions!r} is {kinds}, as in Dashboard(Session)")
        self._sessions: Any = sessions

    async def run(self, work: Callable[[Session], R]) -> R:
        """Call ``work`` with a new session, commit what it left uncommitted, and return its result."""
        if isinstance(self._sessions, sessionmaker):
            return await run_in_threadpool(self._run, work)
        async with self._sessions() as session:
            result: R = await session.run_sync(_committed, work)
            return result

    def _run(self, work: Callable[[Session], R]) -> R:
        with self._sessions() as session:
            return _committed(session, work)


def _committed(session: Session, work: Callable[[Session], R]) -> R:
    result = work(session)
    session.commit()
    return result


# -- the results that pages show, read once for all viewers of this process, and only on request ----------------------

MAX_SNAPSHOTS = 200
"""The maximum number of snapshots; each is a page with some filter."""
MAX_CHARACTERS = 20_000_000
"""The maximum length of the text of all snapshots together."""
TIMES = 200
"""A snapshot is kept for this many times as long as it took to read, so that reading it takes at most 0.5 % of the
time."""
LONGEST = 15.0
"""The longest time, in seconds, for which a snapshot is kept because it took long to read."""
RECENT = 15.0
"""The time after a change, in seconds, in which its effects are watched: snapshots are kept more briefly."""
_BRIEFLY = 6
"""How many times as briefly."""


@dataclass(slots=True)
class _Snapshot:
    value: Any
    until: float
    size: int


class Snapshots:
    """Keeps results for some seconds; viewers who request them in the meantime, or while they are being read, share
    them.

    Results that took long to read are kept longer, so that viewers do not slow the queue down.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Snapshot] = {}
        self._underway: dict[Hashable, asyncio.Task[Any]] = {}
        self._changes = 0
        self._changed_at = -RECENT

    async def get(self, key: Hashable, read: Callable[[], Awaitable[R]], lifetime: float) -> R:
        """Return what ``read`` returned at most ``lifetime`` seconds ago, or call it.  Failures are not kept.

        A result that took long to read is used for up to :data:`LONGEST` seconds, except soon after a change.
        """
        snapshot = self._kept.get(key)
        if snapshot is not None and snapshot.until > time.monotonic():
            return cast(R, snapshot.value)
        task = self._underway.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = self._underway[key] = asyncio.create_task(self._read(key, read, lifetime))
        return cast(R, await asyncio.shield(task))  # so that a viewer who leaves does not cancel the read for others

    def forget(self) -> None:
        """Drop all snapshots, because something has changed."""
        self._changes += 1
        self._changed_at = time.monotonic()
        self._kept.clear()
        self._underway.clear()

    async def _read(self, key: Hashable, read: Callable[[], Awaitable[R]], lifetime: float) -> R:
        before, began = self._changes, time.monotonic()
        try:
            value = await read()
        finally:
            if self._changes == before:
                self._underway.pop(key, None)
        if self._changes != before:
            return value
        now = time.monotonic()
        until = now + max(lifetime, min((now - began) * TIMES, LONGEST))
        if now - self._changed_at < RECENT:
            until = now + max(lifetime / _BRIEFLY, now - began)
        self._keep(key, _Snapshot(value, until, len(repr(value))))
        return value

    def _keep(self, key: Hashable, snapshot: _Snapshot) -> None:
        """Add a snapshot, and drop those that have expired; then the oldest ones, until the rest is small enough."""
        kept, now = self._kept, time.monotonic()
        self._kept = {each: old for each, old in kept.items() if old.until > now and each != key} | {key: snapshot}
        while len(self._kept) > MAX_SNAPSHOTS or sum(each.size for each in self._kept.values()) > MAX_CHARACTERS:
            del self._kept[next(iter(self._kept))]
