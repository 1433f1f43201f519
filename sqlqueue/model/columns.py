"""The columns of every queue, by role, and what columns are made of."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Integer, String, Unicode, text
from sqlalchemy.sql.elements import SQLCoreOperations

from .._support import checks
from .._support.exc import ArgumentError
from .._support.jsontext import check_json
from ..dialects import error_type, timestamp_type
from ..lifecycle.kind import Check, ColumnMaker, kinds_of
from ..queue.options import QueueOptions
from ..queue.spec import QueueSpec
from ..queue.status import Status
from ..sql.clock import utcdefault, utcnow

LONGEST_NAME = 200
"""Of a claimer, in characters."""
LONGEST_KEY = 255
"""Of a key that tells tasks apart or holds them back, in characters."""


def counter(default: int) -> dict[str, Any]:
    return {"type_": Integer(), "server_default": text(str(default)), "nullable": False}


def option(kind: Any, value: int | str) -> dict[str, Any]:
    """What the options say of new rows.  The server's default, as of the last migration, is for other programs."""
    default = text(str(value)) if isinstance(value, int) else value
    return {"type_": kind, "insert_default": value, "server_default": default, "nullable": False}


def optional(kind: Any) -> dict[str, Any]:
    return {"type_": kind, "nullable": True}


def _moment(_: QueueOptions) -> dict[str, Any]:
    # the default of the column serves rows that other programs insert; what this library inserts gives the moment
    return {
        "type_": timestamp_type(),
        "insert_default": utcnow(),
        "server_default": utcdefault(),
        "nullable": False,
    }


COLUMNS: dict[str, ColumnMaker] = {
    "status": lambda _: {"type_": String(16), "server_default": Status.AVAILABLE.value, "nullable": False},
    "priority": lambda _: counter(0),
    "available_at": _moment,
    "attempt": lambda _: counter(0),
    "max_attempts": lambda options: option(Integer(), options.max_attempts),
    "claimed_by": lambda _: optional(Unicode(LONGEST_NAME)),
    "claimed_at": lambda _: optional(timestamp_type()),
    "claim_token": lambda _: {"type_": BigInteger(), "server_default": text("0"), "nullable": False},
    "finished_at": lambda _: optional(timestamp_type()),
    "error": lambda _: optional(error_type()),
    "created_at": _moment,
}
"""Of every queue; those that its kinds add are told by them."""


def check_stored_json(name: str, value: object, _: int | None) -> None:
    """A :data:`.Check` of JSON."""
    check_json(name, value)


def check_values(spec: QueueSpec, values: Mapping[str, Any]) -> None:
    """Refuse values, by names of attributes, that engines cannot store, or tell from others, in the same way.

    Raises :class:`.ArgumentError`.  SQL expressions are passed over.
    """
    for name, check, longest in _checks_of(spec):
        value = values.get(name)
        if value is not None and not isinstance(value, SQLCoreOperations):
            check(name, value, longest)
    for name in spec.key_parts:
        if name in values and values[name] is None:
            raise ArgumentError(f"{name}=None: each part of the primary key of {spec.entity.__name__} is needed")


@cache
def _checks_of(spec: QueueSpec) -> tuple[tuple[str, Check, int | None], ...]:
    checked: dict[str, Check] = {"claimed_by": checks.text}
    for kind in kinds_of(spec):
        checked |= kind.checks
    return tuple(
        (spec.attributes[role], check, getattr(spec[role].type, "length", None)) for role, check in checked.items()
    )
