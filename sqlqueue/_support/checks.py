"""Checks of arguments: numbers, durations, times, JSON values, URLs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError as NotAURL
from sqlalchemy.exc import NoSuchModuleError

from .errors import ArgumentError

# -- checks of arguments, which raise :class:`.ArgumentError` before any statement is sent ----------------------------

LONGEST_DURATION = timedelta(days=36_525)
"""The longest duration accepted: a hundred years, which every engine can add to its clock or subtract from it."""
MOST_AT_ONCE = 10_000
"""The highest limit, each of whose places is a row, and the most calls that a command can let each handler run."""


def duration(name: str, value: object, *, zero: bool = False) -> timedelta:
    """Return ``value`` if it is a positive ``timedelta`` (or zero, if ``zero`` is true) of at most a hundred years."""
    if not isinstance(value, timedelta) or value < timedelta(0) or not (value or zero):
        kind = "a timedelta of at least zero" if zero else "a positive timedelta"
        raise ArgumentError(f"{name}={value!r}: give {kind}")
    if value > LONGEST_DURATION:
        raise ArgumentError(f"{name}={value!r}: give a timedelta of at most 100 years")
    return value


def count(name: str, value: object) -> int:
    """Return ``value`` if it is a positive ``int``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ArgumentError(f"{name}={value!r}: give a positive integer")


def at_once(name: str, value: object, *, least: int = 1) -> int:
    """Return ``value`` if it is an ``int`` from ``least`` to :data:`MOST_AT_ONCE`."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_AT_ONCE:
        return value
    raise ArgumentError(f"{name}={value!r}: give an integer from {least} to {MOST_AT_ONCE:,}")


def text(name: str, value: object, longest: int | None = None) -> str:
    """Return ``value`` if it is a ``str`` of at most ``longest`` UTF-16 code units that every engine can store."""
    if not isinstance(value, str):
        raise ArgumentError(f"{name}={value!r}: expected str, got {type(value).__name__}")
    if not is_storable(value):
        raise ArgumentError(
            f"{name}={value!r}: remove NUL characters and lone surrogates, which databases cannot store"
        )
    if longest is not None and _units(value) > longest:
        raise ArgumentError(f"{name}={value[:40]!r}...: it has {_units(value)} characters; give at most {longest}")
    return value


def key(name: str, value: object, longest: int | None = None) -> str:
    """Return ``value`` if it is a valid :func:`text` that no engine confuses with another one.

    Oracle stores the empty string as NULL, and SQL Server ignores trailing blanks.
    """
    checked = text(name, value, longest)
    if not checked or checked.endswith(" "):
        raise ArgumentError(f"{name}={value!r}: give a non-empty string that does not end in a space")
    return checked


def name(argument: str, value: object, longest: int) -> str:
    """Return ``value`` if it is a valid :func:`text` and not empty."""
    if text(argument, value, longest) == "":
        raise ArgumentError(f"{argument}='': give a name of 1 to {longest} characters")
    return str(value)


def is_storable(value: str) -> bool:
    """Return whether ``value`` contains neither NUL characters nor lone surrogates."""
    if "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _units(value: str) -> int:
    """Return the length in UTF-16 code units, the unit of the strictest engine."""
    return len(value) if value.isascii() else len(value.encode("utf-16-le")) // 2


# -- JSON values that all engines return unchanged --------------------------------------------------------------------

_LONGEST_INTEGER = 2**63
"""MySQL turns larger integers into floats."""


def check_json(name: str, value: object) -> None:
    """Raise :class:`.ArgumentError` unless ``value`` is JSON that every engine returns unchanged.

    Tuples are allowed, and come back as lists.
    """
    problem = not_json(value, name, tuples=True)
    if problem is not None:
        raise ArgumentError(f"{problem}, which cannot be stored as JSON")


def not_json(value: object, name: str, *, tuples: bool = False) -> str | None:
    """Describe the first part of ``value`` that some engine would not return unchanged; ``None`` if there is none."""
    try:
        return _not_json(value, name, tuples)
    except RecursionError:
        return f"{name} contains itself, or is nested too deeply"


def _not_json(value: object, name: str, tuples: bool) -> str | None:
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str) or not is_storable(key)]
        if wrong:
            return f"{name} has the key {wrong[0]!r}"
        return _first(_not_json(each, f"{name}.{key}", tuples) for key, each in value.items())
    if isinstance(value, (list, tuple) if tuples else list):
        return _first(_not_json(each, f"{name}.{n}", tuples) for n, each in enumerate(value))
    return _not_json_alone(value, name)


def _not_json_alone(value: object, name: str) -> str | None:
    match value:
        case None | bool():
            return None
        case str():
            return None if is_storable(value) else f"{name} contains a NUL character or a lone surrogate"
        case int():
            return None if -_LONGEST_INTEGER <= value < _LONGEST_INTEGER else f"{name} needs more than 64 bits"
        case float():
            return None if math.isfinite(value) else f"{name} is {value}"
    return f"{name} is a {type(value).__name__}"


def _first(problems: Iterator[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


# -- parsing of database URLs -----------------------------------------------------------------------------------------

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
        raise ArgumentError(f"the driver for {url.drivername} is not installed: {error}. {_advice(url)}") from error
    return url


def _advice(url: URL) -> str:
    """Return how to install a driver for a URL; the database alone may mean one that has no extra."""
    name = url.get_backend_name()
    text = "Drivers are extras of sqlqueue, whose distribution is called sqlalchemy-queue"
    if name not in _EXTRAS:
        return text
    drivername, extra = _EXTRAS[name]
    return f"{text}: for {drivername}://... pip install 'sqlalchemy-queue[{extra}]'"


_EXTRAS = {
    "postgresql": ("postgresql+psycopg", "postgresql"),
    "mysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mariadb+pymysql", "mariadb"),
    "mssql": ("mssql+pyodbc", "mssql"),
    "oracle": ("oracle+oracledb", "oracle"),
    "cockroachdb": ("cockroachdb+psycopg", "cockroachdb"),
}
"""The driver that an extra installs for each engine, and the extra."""
