"""Retries with growing pauses while a database cannot be reached."""

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
    """Yield growing pauses with jitter, each between half and the whole of its length."""
    pause = first
    while True:
        yield timedelta(seconds=random.uniform(pause / 2, pause))
        pause = min(pause * 2, longest)


def passes(error: BaseException, adapter: Adapter) -> bool:
    """Return whether an error is about the server or the connection rather than the statement, so that it may pass."""
    if isinstance(error, DBAPIError):
        # by code first: some drivers have no class for deadlocks, or report them as programming errors
        told = error.connection_invalidated or adapter.errors.is_outage(error) or adapter.errors.is_transient(error)
        return told or isinstance(error, (OperationalError, InterfaceError, InternalError))
    return isinstance(error, (PoolTimeoutError, OSError))


async def insist(
    attempt: Callable[[], Awaitable[R]],
    what: str,
    reports: Reports,
    passes: Callable[[BaseException], bool],
) -> R:
    """Call ``attempt`` until it succeeds, and return its result.  Raises errors that do not pass by themselves."""
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
    """Report ``error`` and pause: a claiming loop survives every error of its database."""
    if passes(error, adapter):
        reports.database_error(what, error, pause)
    else:
        reports.broken(what, error)
        reports.pulse.missed()
    await asyncio.sleep(pause.total_seconds())


async def keep_on(
    turn: Callable[[], Awaitable[None]], what: str, is_over: Callable[[], bool], reports: Reports, adapter: Adapter
) -> None:
    """Call ``turn`` until ``is_over``, pausing after each error."""
    patience = pauses()
    while not is_over():
        try:
            await turn()
            reports.reached()
            patience = pauses()
        except Exception as error:
            await bear(error, what, next(patience), reports, adapter)
