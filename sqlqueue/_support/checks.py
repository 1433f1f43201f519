"""Checks of arguments, which raise :class:`.ArgumentError` before any statement is sent."""

from __future__ import annotations

from datetime import timedelta

from .exc import ArgumentError

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
