"""The columns of every queue, by role, and the checks of their values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Integer, String, text
from sqlalchemy.sql.elements import SQLCoreOperations

from .._support import checks
from .._support.exc import ArgumentError
from .._support.json_values import check_json
from ..dialects import error_type, text_type, timestamp_type
from ..lifecycle.kind import Check, ColumnMaker, kinds_of
from ..queue.options import QueueOptions
from ..queue.spec import QueueSpec
from ..queue.status import Status
from ..sql.clock import utcdefault, utcinsertion

LONGEST_NAME = 200
"""The maximum length of a claimer's name, in characters."""
LONGEST_KEY = 255
"""The maximum length of a unique key or a limit key, in characters."""


def counter() -> dict[str, Any]:
    """Return the arguments of a required integer column that starts at 0."""
    return {"type_": Integer(), "server_default": text("0"), "nullable": False}


def option(kind: Any, value: int | str) -> dict[str, Any]:
    """Return the arguments of a required column whose default is an option of the queue.

    Other programs that insert get the server default, as of the last migration.
    """
    default = text(str(value)) if isinstance(value, int) else value
    return {"type_": kind, "insert_default": value, "server_default": default, "nullable": False}


def optional(kind: Any) -> dict[str, Any]:
    """Return the arguments of a nullable column."""
    return {"type_": kind, "nullable": True}


def _moment(_: QueueOptions) -> dict[str, Any]:
    # the server default is for rows that other programs insert; this library always sets the time
    return {
        "type_": timestamp_type(),
        "insert_default": utcinsertion(),
        "server_default": utcdefault(),
        "nullable": False,
    }


COLUMNS: dict[str, ColumnMaker] = {
    "status": lambda _: {"type_": String(16), "server_default": Status.AVAILABLE.value, "nullable": False},
    "priority": lambda _: counter(),
    "available_at": _moment,
    "attempt": lambda _: counter(),
    "max_attempts": lambda options: option(Integer(), options.max_attempts),
    "claimed_by": lambda _: optional(text_type(LONGEST_NAME)),
    "claimed_at": lambda _: optional(timestamp_type()),
    "claim_token": lambda _: {"type_": BigInteger(), "server_default": text("0"), "nullable": False},
    "crashes": lambda _: counter(),
    "finished_at": lambda _: optional(timestamp_type()),
    "error": lambda _: optional(error_type()),
    "created_at": _moment,
}
"""The columns of every queue; kinds declare theirs in :attr:`.Kind.columns`."""


_STATUSES = tuple(status.value for status in Status)


def check_stored_json(name: str, value: object, _: int | None) -> None:
    """Raise :class:`.ArgumentError` for a value that cannot be stored as JSON; a :data:`.Check`."""
    check_json(name, value)


def check_values(spec: QueueSpec, values: Mapping[str, Any]) -> None:
    """Raise :class:`.ArgumentError` for values, by attribute, that some engine cannot store or distinguish from others.

    SQL expressions are not checked.
    """
    for name, check, longest in _checks_of(spec):
        value = values.get(name)
        if value is not None and not isinstance(value, SQLCoreOperations):
            check(name, value, longest)
    for name in spec.key_parts:
        if name in values and values[name] is None:
            raise ArgumentError(f"{name}=None: each part of the primary key of {spec.entity.__name__} is required")


def check_status(spec: QueueSpec, values: Mapping[str, Any]) -> None:
    """Raise :class:`.ArgumentError` for a status, by attribute, that is none: no operation would ever find the task."""
    name = spec.attributes["status"]
    value = values.get(name)
    if value is not None and not isinstance(value, SQLCoreOperations) and value not in _STATUSES:
        raise ArgumentError(
            f"{name}={value!r} is not a status: leave it out for a new task, or give one of {', '.join(_STATUSES)}"
        )


def is_given(moment: object) -> bool:
    """Return whether ``moment`` is a time that somebody chose for ``available_at``, instead of the column's default."""
    return moment is not None and not isinstance(moment, utcinsertion)


@cache
def _checks_of(spec: QueueSpec) -> tuple[tuple[str, Check, int | None], ...]:
    checked: dict[str, Check] = {"claimed_by": checks.text}
    for kind in kinds_of(spec):
        checked |= kind.checks
    return tuple(
        (spec.attributes[role], check, getattr(spec[role].type, "length", None)) for role, check in checked.items()
    )
