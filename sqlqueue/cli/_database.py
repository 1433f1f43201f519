"""A transaction of the database that a command is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import typer
from rich.console import Console
from rich.text import Text
from sqlalchemy import URL, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from ..exc import SQLQueueError
from ._target import parsed

R = TypeVar("R")


def transact(url: str, work: Callable[[Session], R]) -> R:
    """What ``work`` returns for a session, whose driver may be an async one; then it is committed."""
    where, is_async = parsed(url)
    if is_async:
        return _transact_async(where, work)
    with Session(create_engine(where, poolclass=NullPool)) as session:
        return _committed(session, work)


def _transact_async(url: URL, work: Callable[[Session], R]) -> R:
    import asyncio  # noqa: PLC0415

    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine  # noqa: PLC0415

    async def transacted() -> R:
        async with AsyncSession(create_async_engine(url, poolclass=NullPool)) as session:
            return await session.run_sync(_committed, work)

    return asyncio.run(transacted())


def _committed(session: Session, work: Callable[[Session], R]) -> R:
    result = work(session)
    session.commit()
    return result


@contextmanager
def refusals(command: str) -> Iterator[None]:
    """What cannot be done ends the command, in words and with the exit status 2."""
    try:
        yield
    except SQLQueueError as error:
        raise typer.BadParameter(str(error)) from error
    except DBAPIError as error:
        Console(stderr=True, highlight=False).print(Text(f"sqlqueue {command}: the database refuses: {error.orig}"))
        raise typer.Exit(2) from error
