"""The columns that the mixins bring, by role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Boolean, Integer, String, Unicode, text
from sqlalchemy.sql.elements import SQLCoreOperations

from .._support import checks
from .._support.exc import ArgumentError
from .._support.jsontext import check_json
from .._support.tracing import LONGEST, present_trace
from ..dialects import error_type, json_type, key_type, timestamp_type
from ..queue.options import QueueOptions
from ..queue.spec import QueueSpec
from ..queue.status import Status
from ..sql.clock import utcdefault, utcnow

LONGEST_NAME = 200
"""Of a claimer, in characters."""
LONGEST_TASK = 255
"""Of the name of a function, in characters."""
LONGEST_KEY = 255
"""Of a key that tells tasks apart or holds them back, in characters."""
LONGEST_STAGE = 64
LONGEST_TOPIC = 128
LONGEST_SCHEDULE = 128


def _moment(_: QueueOptions) -> dict[str, Any]:
    # the default of the column serves rows that other programs insert; what this library inserts gives the moment
    return {
        "type_": timestamp_type(),
        "insert_default": utcnow(),
        "server_default": utcdefault(),
        "nullable": False,
    }


def _count(default: int) -> dict[str, Any]:
    return {"type_": Integer(), "server_default": text(str(default)), "nullable": False}


def _option(kind: Any, value: int | str) -> dict[str, Any]:
    """What the options say of new rows.  The server's default, as of the last migration, is for other programs."""
    default = text(str(value)) if isinstance(value, int) else value
    return {"type_": kind, "insert_default": value, "server_default": default, "nullable": False}


def _optional(kind: Any) -> dict[str, Any]:
    return {"type_": kind, "nullable": True}


COLUMNS: dict[str, Callable[[QueueOptions], dict[str, Any]]] = {
    "status": lambda _: {"type_": String(16), "server_default": Status.AVAILABLE.value, "nullable": False},
    "priority": lambda _: _count(0),
    "available_at": _moment,
    "attempt": lambda _: _count(0),
    "max_attempts": lambda options: _option(Integer(), options.max_attempts),
    "claimed_by": lambda _: _optional(Unicode(LONGEST_NAME)),
    "claimed_at": lambda _: _optional(timestamp_type()),
    "claim_token": lambda _: {"type_": BigInteger(), "server_default": text("0"), "nullable": False},
    "finished_at": lambda _: _optional(timestamp_type()),
    "error": lambda _: _optional(error_type()),
    "created_at": _moment,
    "trace_context": lambda _: _optional(String(LONGEST)) | {"insert_default": present_trace},
    "topic": lambda _: {"type_": key_type(LONGEST_TOPIC), "server_default": "default", "nullable": False},
    "task": lambda _: {"type_": key_type(LONGEST_TASK), "nullable": False},
    "arguments": lambda _: _optional(json_type()),
    "message_key": lambda _: _optional(key_type(LONGEST_KEY)),
    "destination": lambda _: _optional(Unicode(LONGEST_KEY)),
    "payload": lambda _: _optional(json_type()),
    "headers": lambda _: _optional(json_type()),
    "result": lambda _: _optional(json_type()),
    "unique_key": lambda _: _optional(key_type(LONGEST_KEY)),
    "former_key": lambda _: _optional(key_type(LONGEST_KEY)),
    "stage": lambda options: _option(key_type(LONGEST_STAGE), options.stages[0]),
    "attempts_before": lambda _: _count(0),
    "schedule": lambda _: _optional(Unicode(LONGEST_SCHEDULE)),
    "drift": lambda _: _optional(Boolean()),
    "scheduled_for": lambda _: _optional(timestamp_type()),
    "limit_key": lambda _: _optional(key_type(LONGEST_KEY)),
    "slot_key": lambda _: {"type_": key_type(LONGEST_KEY), "primary_key": True},
    "slot_number": lambda _: {"type_": Integer(), "primary_key": True, "autoincrement": False},
}

_CHECKS: dict[str, Callable[[str, object, int | None], object]] = {
    **dict.fromkeys(("topic", "task", "stage", "unique_key", "limit_key", "slot_key", "message_key"), checks.key),
    **dict.fromkeys(("claimed_by", "destination", "trace_context"), checks.text),
    **dict.fromkeys(("arguments", "result", "payload", "headers"), lambda name, value, _: check_json(name, value)),
}
"""Of what is to be stored, by role."""


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
def _checks_of(spec: QueueSpec) -> tuple[tuple[str, Callable[[str, object, int | None], object], int | None], ...]:
    roles = ((role, check) for role, check in _CHECKS.items() if role in spec.attributes)
    return tuple((spec.attributes[role], check, getattr(spec[role].type, "length", None)) for role, check in roles)
