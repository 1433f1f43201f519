"""Retries with growing pauses while a database cannot be reached."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Iterator
from datetime import timedelta
from typing import TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from ...dialects.base import Adapter
from ...dialects.parts.errors import as_driver_error
from ..reporting.reports import Reports

R = TypeVar("R")
LONGEST = 10.0
LONGEST_AFTER_CONFLICT = 0.25
"""The longest pause after a conflict, in seconds.  A cluster that certifies commits rejects some claims under load;
longer pauses would starve this worker."""


def growing_pauses(first: float = 0.05, longest: float = LONGEST) -> Iterator[timedelta]:
    """Yield growing pauses with jitter, each at least half as long as without it."""
    pause = first
    while True:
        yield timedelta(seconds=random.uniform(pause / 2, pause))
        pause = min(pause * 2, longest)


def passes(error: BaseException, adapter: Adapter) -> bool:
    """Return whether an error is about the server or the connection rather than the statement, and can thus be
    temporary."""
    told = as_driver_error(error)
    if told is not None:
        return told.connection_invalidated or adapter.errors.is_temporary(told)
    return isinstance(error, (PoolTimeoutError, OSError))


def is_conflict(error: BaseException, adapter: Adapter) -> bool:
    """Return whether a transaction failed because of another one, on a server that responds."""
    return isinstance(error, DBAPIError) and not adapter.errors.is_outage(error) and adapter.errors.is_transient(error)


class Backoff:
    """The growing pauses between attempts at an operation that is retried until it succeeds."""

    def __init__(
        self,
        what: str,
        reports: Reports,
        *adapters: Adapter,
        claims: tuple[str, Hashable] | None = None,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        """``claims``: if these are claims, the table of the queue and the handler; ``on_broken``: called after an error
        that is not temporary."""
        self._what = what
        self._claims = claims
        self._reports = reports
        self._adapters = adapters
        self._on_broken = on_broken
        self.reset()

    def reset(self) -> None:
        """Start again with the shortest pauses."""
        self._pauses = growing_pauses()
        self._after_conflicts = growing_pauses(longest=LONGEST_AFTER_CONFLICT)

    def reached(self) -> None:
        """Record that the database answered, and start again with the shortest pauses."""
        self._reports.liveness.reached()
        self.reset()

    async def pause_after(self, error: Exception) -> None:
        """Report ``error`` and pause: briefly after a conflict, and longer each time while the server cannot be
        reached."""
        if self._claims is not None:
            self._reports.liveness.claims_fail(*self._claims)
        if any(is_conflict(error, adapter) for adapter in self._adapters):
            pause = next(self._after_conflicts)
            self._reports.conflict(self._what, error, pause)
        elif any(passes(error, adapter) for adapter in self._adapters):
            pause = next(self._pauses)
            self._reports.database_error(self._what, error, pause)
        else:
            pause = next(self._pauses)
            self._reports.broken(self._what, error)
            self._on_broken()
            self._reports.liveness.missed()
        await asyncio.sleep(pause.total_seconds())


async def until_success(
    attempt: Callable[[], Awaitable[R]], backoff: Backoff, passes: Callable[[BaseException], bool]
) -> R:
    """Call ``attempt`` until it succeeds, and return its result.  Raises errors that are not temporary."""
    while True:
        try:
            result = await attempt()
        except Exception as error:
            if not passes(error):
                raise
            await backoff.pause_after(error)
        else:
            backoff.reached()
            return result


async def keep_running(turn: Callable[[], Awaitable[None]], is_over: Callable[[], bool], backoff: Backoff) -> None:
    """Call ``turn`` until ``is_over``, pausing after each error, whatever it is."""
    while not is_over():
        try:
            await turn()
            backoff.reached()
        except Exception as error:
            await backoff.pause_after(error)
