"""The database and the application that a command works on: arguments, connections, the queues that are named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from .._support.checks import database_url
from .._support.errors import ArgumentError, SQLQueueError
from .._support.texts import readable
from ..diagnostics.check import specs_of, verify_companions, verify_queues
from ..dialects import adapter_for
from ..lifecycle.kind import holds_tasks
from ..operations.recording import spoken
from ..queue.spec import QueueSpec
from ..worker.database.checkouts import CONNECT, UNREACHABLE, track
from ._output import complain, refusal

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


# -- arguments of all commands: a `module:attribute` of the application and the URL of its database -------------------

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:ATTRIBUTE",
        help="The declarative base, MetaData or model of the queues, such as myapp.models:Base. The current directory"
        " is on the import path. The module must import all models.",
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="SQLQUEUE_DATABASE_URL",
        help=(
            "The database as an SQLAlchemy URL: postgresql+psycopg://user@host/name. Prefer the environment variable if"
            " it contains a password: other users can see command lines."
        ),
    ),
]


def load(target: str) -> Any:
    """Import and return the object at ``module:attribute``; it is a usage error if there is none."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise refusal(f"{target!r} is not of the form module:attribute, as in myapp.models:Base")
    module = _import(module_name)
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise refusal(f"the module {module_name} has no {path}") from error


def _import(name: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise refusal(f"there is no module {error.name}, neither in the current directory nor installed") from error
        raise refusal(f"{name} cannot be imported: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise refusal(f"{name} cannot be imported: it raises {reason}") from error


# -- connections to a command's database, transactions in it, and the messages when it cannot be reached --------------

R = TypeVar("R")


class CannotConnect(Exception):
    """Raised when the driver fails to open a connection."""


def connect(url: str, work: Callable[[Connection], R]) -> R:
    """Run ``work`` with a connection, roll back what it left uncommitted, and return its result."""
    where, is_async = parsed(url)
    if is_async:
        return _connect_async(where, work)
    with prepared(create_engine(where, poolclass=NullPool)).connect() as connection:
        return work(connection)


def transact(url: str, work: Callable[[Session], R], *specs: QueueSpec) -> R:
    """Run ``work`` with a session, commit, and return its result.

    Raises :class:`.SchemaMismatchError` if it fails, and the tables of the queues ``specs`` do not match their models.
    """
    where, is_async = parsed(url)
    if is_async:
        return _transact_async(where, work, specs)
    with Session(prepared(create_engine(where, poolclass=NullPool))) as session:
        return _committed(session, work, specs)


def _connect_async(url: URL, work: Callable[[Connection], R]) -> R:
    async def connected(engine: AsyncEngine) -> R:
        async with engine.connect() as connection:
            return await connection.run_sync(work)

    return _run_async(url, connected)


def _transact_async(url: URL, work: Callable[[Session], R], specs: Sequence[QueueSpec]) -> R:
    from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415

    async def transacted(engine: AsyncEngine) -> R:
        async with AsyncSession(engine) as session:
            return await session.run_sync(_committed, work, specs)

    return _run_async(url, transacted)


def _run_async(url: URL, work: Callable[[AsyncEngine], Coroutine[Any, Any, R]]) -> R:
    import asyncio  # noqa: PLC0415

    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    async def connected() -> R:
        engine = create_async_engine(url, pool_size=1, max_overflow=0)
        prepared(engine.sync_engine)
        try:
            await _open_one(engine)
            return await work(engine)
        finally:
            await engine.dispose()

    return asyncio.run(connected())


async def _open_one(engine: AsyncEngine) -> None:
    """Open a connection for the pool, within a time limit: aiomysql waits indefinitely for a server's greeting."""
    import asyncio  # noqa: PLC0415

    try:
        async with asyncio.timeout(CONNECT.total_seconds()):
            connection = await engine.connect()
    except TimeoutError as error:
        raise CannotConnect(f"no answer for {spoken(CONNECT)}") from error
    await connection.close()


def _committed(session: Session, work: Callable[[Session], R], specs: Sequence[QueueSpec]) -> R:
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
    if (absent := adapter_for(dialect()).server.absent(where)) is not None:
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
    except OSError as error:  # some drivers do not wrap these
        complain(f"sqlqueue {command}: {str(error) or type(error).__name__}")
        raise typer.Exit(2) from error


# -- the option `--queue`: the queues that a command applies to -------------------------------------------------------

Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="NAME",
        help="The name of the queue's model or table, if there are several.",
    ),
]


def queues_of(target: str, name: str | None) -> list[QueueSpec]:
    """Return the queues of ``target`` that hold tasks, or the one called ``name``; it is a usage error if there is
    none."""
    every = specs_of(load(target))
    found = [spec for spec in every if holds_tasks(spec)]
    if not found:
        raise refusal(f"{_names(every)} holds the slots of limits, not tasks: name the model with the limits")
    chosen = [spec for spec in found if name in (None, spec.entity.__name__, spec.table.name, spec.table.fullname)]
    if not chosen:
        raise refusal(f"there is no queue {name} in {target}; its queues are {_names(found)}")
    return chosen


def queue_of(target: str, name: str | None) -> QueueSpec:
    """Return the queue called ``name``, or the only one of ``target``; it is a usage error if there are several."""
    found = queues_of(target, name)
    if len(found) > 1:
        raise refusal(f"{target} has {len(found)} queues: use --queue with one of {_names(found)}")
    return found[0]


def _names(specs: Iterable[QueueSpec]) -> str:
    return ", ".join(spec.entity.__name__ for spec in specs)
