"""What the commands are given: a `module:attribute` of the application, and the URL of its database."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from sqlalchemy import URL, Connection, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from ..dialects import adapter_for

R = TypeVar("R")

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:ATTRIBUTE",
        help="Where the queues are: a declarative base, a MetaData or a model, such as myapp.models:Base. The module"
        " is looked for in the current directory, too, and is to import all models that count.",
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="SQLQUEUE_DATABASE_URL",
        help="The database, as SQLAlchemy writes it: postgresql+psycopg://user:password@host/name.",
    ),
]


def load(target: str) -> Any:
    """The object that ``module:attribute`` names; bad usage if there is none."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise typer.BadParameter(f"{target!r} is not of the form module:attribute, as in myapp.models:Base")
    module = _import(module_name)
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise typer.BadParameter(f"the module {module_name} has no {path}") from error


def _import(name: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise typer.BadParameter(f"there is no module {error.name}, here or installed") from error
        raise typer.BadParameter(f"{name} cannot be imported: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise typer.BadParameter(f"{name} cannot be imported, it raises {reason}") from error


def run(url: str, function: Callable[[Connection], R]) -> R:
    """What ``function`` returns for a connection to the database at ``url``, whose driver may be an async one.

    The connection is closed, and what it left uncommitted rolled back.
    """
    where, is_async = parsed(url)
    if is_async:
        return _run_async(where, function)
    engine = create_engine(where, poolclass=NullPool)
    with engine.connect() as connection:
        return function(connection)


def _run_async(url: URL, function: Callable[[Connection], R]) -> R:
    import asyncio  # noqa: PLC0415

    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    async def connected() -> R:
        async with create_async_engine(url, poolclass=NullPool).connect() as connection:
            return await connection.run_sync(function)

    return asyncio.run(connected())


def parsed(url: str) -> tuple[URL, bool]:
    """The URL of a database that may be there, and whether its driver is async."""
    try:
        where = make_url(url)
    except ArgumentError as error:
        raise typer.BadParameter("--url is not of the form dialect+driver://user:password@host/name") from error
    try:
        dialect = where.get_dialect()
        dialect.import_dbapi()
    except (NoSuchModuleError, ImportError) as error:
        raise typer.BadParameter(f"the driver for {where.drivername} is not installed: {error}") from error
    if (absent := adapter_for(dialect()).absent(where)) is not None:
        raise typer.BadParameter(absent)
    return where, dialect.is_async
