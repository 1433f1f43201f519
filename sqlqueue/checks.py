"""Arguments that make no sense are refused before anything is sent."""

from __future__ import annotations

from datetime import timedelta

from .exc import ArgumentError


def duration(name: str, value: object, *, zero: bool = False) -> timedelta:
    """``value`` if it is a positive ``timedelta``, or none at all with ``zero``."""
    if isinstance(value, timedelta) and (value > timedelta(0) or (zero and not value)):
        return value
    kind = "that is not negative" if zero else "that is positive"
    raise ArgumentError(f"{name}={value!r}: give a timedelta {kind}")


def count(name: str, value: object) -> int:
    """``value`` if it is a positive ``int``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ArgumentError(f"{name}={value!r}: give a positive whole number")
