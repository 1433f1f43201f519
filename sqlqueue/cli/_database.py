"""Connections to a command's database, transactions in it, and the messages when it cannot be reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from .._support.checks import database_url
from .._support.errors import ArgumentError, SQLQueueError
from .._support.texts import readable
from ..diagnostics.check import verify_companions, verify_queues
from ..dialects import adapter_for
from ..operations import spoken
from ..queue.spec import QueueSpec
from ..worker import CONNECT, UNREACHABLE, track
from ._output import complain, refusal

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


R = TypeVar("R")


class CannotConnect(Exception):
    """Raised when the driver fails to open a connection."""


def connect(url: str, work: Callable[[Connection], R]) -> R:
    """Run ``work`` with a connection, roll back what it left uncommitted, and return its result."""
    return _in_session(url, lambda session: work(session.connection()))


def transact(url: str, work: Callable[[Session], R], *specs: QueueSpec) -> R:
    """Run ``work`` with a session, commit, and return its result.

    Raises :class:`.SchemaMismatchError` if it fails, and the tables of the queues ``specs`` do not match their models.
    """

    def committed(session: Session) -> R:
        try:
            result = work(session)
        except DBAPIError:
            session.rollback()
            if specs:
                verify_queues(session.connection(), specs)
                verify_companions(session.connection(), specs[0].table.metadata)
            raise
        session.commit()
        return result

    return _in_session(url, committed)


def _in_session(url: str, work: Callable[[Session], R]) -> R:
    where, is_async = parsed(url)
    if is_async:
        import asyncio  # noqa: PLC0415

        return asyncio.run(_in_async_session(where, work))
    with Session(prepared(create_engine(where, poolclass=NullPool))) as session:
        return work(session)


async def _in_async_session(url: URL, work: Callable[[Session], R]) -> R:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine  # noqa: PLC0415

    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    prepared(engine.sync_engine)
    try:
        await _open_one(engine)
        async with AsyncSession(engine) as session:
            return await session.run_sync(work)
    finally:
        await engine.dispose()


async def _open_one(engine: AsyncEngine) -> None:
    """Open a connection for the pool, within a time limit: aiomysql waits indefinitely for a server's greeting."""
    import asyncio  # noqa: PLC0415

    try:
        async with asyncio.timeout(CONNECT.total_seconds()):
            connection = await engine.connect()
    except TimeoutError as error:
        raise CannotConnect(f"no answer for {spoken(CONNECT)}") from error
    await connection.close()


def prepared(engine: Engine) -> Engine:
    """Return ``engine``, set up so that errors on connecting are recognized and a silent host is abandoned."""
    track(engine, UNREACHABLE)
    event.listen(engine, "do_connect", _open)  # connects with the limits that track() sets
    return engine


def _open(dialect: Any, _record: object, arguments: Any, options: Any) -> Any:
    """Open a connection; drivers raise all kinds of errors, including for unknown parameters of the URL."""
    try:
        return dialect.connect(*arguments, **options)
    except Exception as error:
        raise CannotConnect(readable(str(error) or type(error).__name__, lines=True)) from error


def parsed(url: str) -> tuple[URL, bool]:
    """Return the URL, and whether its driver is async; a bad URL or a missing database file is a usage error."""
    try:
        where = database_url(url)
    except ArgumentError as error:
        raise refusal(f"--url: {error}") from error
    dialect = where.get_dialect()
    if (absent := adapter_for(dialect()).inspection.absent(where)) is not None:
        raise refusal(absent)
    return where, dialect.is_async


@contextmanager
def refusals(command: str) -> Iterator[None]:
    """End the command with a message and exit status 2 if sqlqueue or the database raises an error."""
    try:
        yield
    except SQLQueueError as error:
        raise refusal(str(error)) from error
    except CannotConnect as error:
        complain(f"sqlqueue {command}: cannot connect: {error}")
        raise typer.Exit(2) from error
    except DBAPIError as error:
        complain(f"sqlqueue {command}: the database raised an error: {error.orig}")
        raise typer.Exit(2) from error
    except BrokenPipeError:  # of the output
        raise
    except OSError as error:  # some drivers do not wrap these
        complain(f"sqlqueue {command}: {str(error) or type(error).__name__}")
        raise typer.Exit(2) from error
