"""Parsing of database URLs."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError as NotAURL
from sqlalchemy.exc import NoSuchModuleError

from .exc import ArgumentError

_LARGEST_PORT = 65_535


def parsed_url(text: str | URL) -> URL:
    """Return ``text`` as a URL of a known dialect.  Raises :class:`.ArgumentError` for other text; its message never
    contains the password."""
    try:
        url = make_url(text)
    except NotAURL as error:
        raise ArgumentError("the URL is not of the form dialect+driver://user:password@host:port/name") from error
    except ValueError as error:
        raise ArgumentError(
            "the port of the URL is not a number, as in dialect://user:password@host:5432/name"
        ) from error
    if url.port is not None and not 0 < url.port <= _LARGEST_PORT:
        raise ArgumentError(f"the port of the URL is {url.port}: give one from 1 to {_LARGEST_PORT}")
    try:
        url.get_dialect()
    except NoSuchModuleError as error:
        raise ArgumentError(f"SQLAlchemy has no dialect {url.drivername!r}, or it is not installed") from error
    return url


def database_url(text: str | URL) -> URL:
    """Return ``text`` as a URL whose driver is installed.  Raises :class:`.ArgumentError`, whose message never contains
    the password."""
    url = parsed_url(text)
    try:
        url.get_dialect().import_dbapi()
    except ImportError as error:
        raise ArgumentError(f"the driver for {url.drivername} is not installed: {error}. {_ADVICE}") from error
    return url


_ADVICE = (
    "Drivers are extras of sqlqueue, whose distribution is called sqlalchemy-queue: for postgresql+psycopg://..."
    " pip install 'sqlalchemy-queue[postgresql]'"
)
