"""The database that a command is given: connections to it, transactions, and what is said if it cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from .._support.error_text import readable
from .._support.exc import ArgumentError, SQLQueueError
from .._support.urls import database_url
from ..dialects import adapter_for
from ._output import complain, refusal

R = TypeVar("R")


class CannotConnect(Exception):
    """What the driver says, when it is to open a connection."""


def connect(url: str, work: Callable[[Connection], R]) -> R:
    """What ``work`` returns for a connection; whatever it left uncommitted is rolled back."""
    where, is_async = _parsed(url)
    if is_async:
        return _connect_async(where, work)
    with _prepared(create_engine(where, poolclass=NullPool)).connect() as connection:
        return work(connection)


def transact(url: str, work: Callable[[Session], R]) -> R:
    """What ``work`` returns for a session; then it is committed."""
    where, is_async = _parsed(url)
    if is_async:
        return _transact_async(where, work)
    with Session(_prepared(create_engine(where, poolclass=NullPool))) as session:
        return _committed(session, work)


def _connect_async(url: URL, work: Callable[[Connection], R]) -> R:
    import asyncio  # noqa: PLC0415

    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    async def connected() -> R:
        engine = create_async_engine(url, poolclass=NullPool)
        _prepared(engine.sync_engine)
        async with engine.connect() as connection:
            return await connection.run_sync(work)

    return asyncio.run(connected())


def _transact_async(url: URL, work: Callable[[Session], R]) -> R:
    import asyncio  # noqa: PLC0415

    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine  # noqa: PLC0415

    async def transacted() -> R:
        engine = create_async_engine(url, poolclass=NullPool)
        _prepared(engine.sync_engine)
        async with AsyncSession(engine) as session:
            return await session.run_sync(_committed, work)

    return asyncio.run(transacted())


def _committed(session: Session, work: Callable[[Session], R]) -> R:
    result = work(session)
    session.commit()
    return result


def _prepared(engine: Engine) -> Engine:
    event.listen(engine, "do_connect", _open)
    return engine


def _open(dialect: Any, _record: object, arguments: Any, options: Any) -> Any:
    """Drivers raise errors of all kinds, those for a parameter of the URL that they do not know included."""
    try:
        return dialect.connect(*arguments, **options)
    except Exception as error:
        raise CannotConnect(readable(error, lines=True)) from error


def _parsed(url: str) -> tuple[URL, bool]:
    """The URL of a database that may be there, and whether its driver is async."""
    try:
        where = database_url(url)
    except ArgumentError as error:
        raise refusal(f"--url: {error}") from error
    dialect = where.get_dialect()
    if (absent := adapter_for(dialect()).server.absent(where)) is not None:
        raise refusal(absent)
    return where, dialect.is_async


@contextmanager
def refusals(command: str) -> Iterator[None]:
    """What cannot be done ends the command, in words and with the exit status 2."""
    try:
        yield
    except SQLQueueError as error:
        raise refusal(str(error)) from error
    except CannotConnect as error:
        complain(f"sqlqueue {command}: cannot connect: {error}")
        raise typer.Exit(2) from error
    except DBAPIError as error:
        complain(f"sqlqueue {command}: the database refuses: {error.orig}")
        raise typer.Exit(2) from error
    except OSError as error:  # which some drivers let through
        complain(f"sqlqueue {command}: {error}")
        raise typer.Exit(2) from error
