"""JSON values that all engines return unchanged."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .checks import is_storable
from .exc import ArgumentError

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
