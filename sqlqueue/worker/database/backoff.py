"""A database that is away is waited for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from ...dialects.base import Adapter
from ..reporting.reports import Reports

R = TypeVar("R")
LONGEST = 10.0


def pauses(first: float = 0.05, longest: float = LONGEST) -> Iterator[timedelta]:
    """Growing ones, each somewhere between its half and its whole, so that many do not come back at once."""
    pause = first
    while True:
        yield timedelta(seconds=random.uniform(pause / 2, pause))
        pause = min(pause * 2, longest)


def passes(error: BaseException, adapter: Adapter) -> bool:
    """Whether it is about the server or the connection, and not about what was sent."""
    if isinstance(error, DBAPIError):
        # by code first: some drivers have no class of its own for a deadlock, or call it a fault of the program
        told = error.connection_invalidated or adapter.errors.is_outage(error) or adapter.errors.is_transient(error)
        return told or isinstance(error, (OperationalError, InterfaceError, InternalError))
    return isinstance(error, (PoolTimeoutError, OSError))


async def insist(
    attempt: Callable[[], Awaitable[R]],
    what: str,
    reports: Reports,
    passes: Callable[[BaseException], bool],
) -> R:
    """Call ``attempt`` until the database lets it succeed; errors that do not pass by themselves are raised."""
    for pause in pauses():
        try:
            result = await attempt()
        except Exception as error:
            if not passes(error):
                raise
            reports.database_error(what, error, pause)
            await asyncio.sleep(pause.total_seconds())
        else:
            reports.reached()
            return result
    raise AssertionError


async def bear(error: Exception, what: str, pause: timedelta, reports: Reports, adapter: Adapter) -> None:
    """A loop that claims outlives whatever is wrong with its database."""
    if passes(error, adapter):
        reports.database_error(what, error, pause)
    else:
        reports.broken(what, error)
        reports.pulse.missed()
    await asyncio.sleep(pause.total_seconds())


async def keep_on(
    turn: Callable[[], Awaitable[None]], what: str, is_over: Callable[[], bool], reports: Reports, adapter: Adapter
) -> None:
    """Take one ``turn`` after the other until it ``is_over``, whatever is wrong with the database."""
    patience = pauses()
    while not is_over():
        try:
            await turn()
            reports.reached()
            patience = pauses()
        except Exception as error:
            await bear(error, what, next(patience), reports, adapter)
