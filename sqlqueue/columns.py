"""The columns that the mixins bring, by role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Boolean, Integer, String, text

from .clock import utcnow
from .dialects import error_type, json_type, key_type, timestamp_type
from .options import QueueOptions
from .states import Status
from .tracing import LONGEST, present_trace

LONGEST_NAME = 200
"""Of a claimer, in characters."""
LONGEST_TASK = 255
"""Of the name of a function, in characters."""
LONGEST_KEY = 255
"""Of a key that tells tasks apart or holds them back, in characters."""
LONGEST_STAGE = 64
LONGEST_SCHEDULE = 128


def _moment(_: QueueOptions) -> dict[str, Any]:
    # The default of the column serves rows that other programs insert. It is the one spelling that every engine takes,
    # so that a migration can move between them; all that this library writes is utcnow(), exact everywhere.
    return {
        "type_": timestamp_type(),
        "insert_default": utcnow(),
        "server_default": text("(CURRENT_TIMESTAMP)"),
        "nullable": False,
    }


def _count(default: int) -> dict[str, Any]:
    return {"type_": Integer(), "server_default": text(str(default)), "nullable": False}


def _optional(kind: Any) -> dict[str, Any]:
    return {"type_": kind, "nullable": True}


COLUMNS: dict[str, Callable[[QueueOptions], dict[str, Any]]] = {
    "status": lambda _: {"type_": String(16), "server_default": Status.AVAILABLE.value, "nullable": False},
    "priority": lambda _: _count(0),
    "available_at": _moment,
    "attempt": lambda _: _count(0),
    "max_attempts": lambda options: _count(options.max_attempts),
    "claimed_by": lambda _: _optional(String(LONGEST_NAME)),
    "claimed_at": lambda _: _optional(timestamp_type()),
    "finished_at": lambda _: _optional(timestamp_type()),
    "error": lambda _: _optional(error_type()),
    "created_at": _moment,
    "trace_context": lambda _: _optional(String(LONGEST)) | {"insert_default": present_trace},
    "topic": lambda _: {"type_": String(128), "server_default": "default", "nullable": False},
    "task": lambda _: {"type_": String(LONGEST_TASK), "nullable": False},
    "arguments": lambda _: _optional(json_type()),
    "message_key": lambda _: _optional(String(LONGEST_KEY)),
    "destination": lambda _: _optional(String(LONGEST_KEY)),
    "payload": lambda _: _optional(json_type()),
    "headers": lambda _: _optional(json_type()),
    "result": lambda _: _optional(json_type()),
    "unique_key": lambda _: _optional(key_type()),
    "former_key": lambda _: _optional(key_type()),
    "stage": lambda options: {
        "type_": String(LONGEST_STAGE),
        "server_default": options.stages[0],
        "nullable": False,
    },
    "attempts_before": lambda _: _count(0),
    "schedule": lambda _: _optional(String(LONGEST_SCHEDULE)),
    "drift": lambda _: _optional(Boolean()),
    "scheduled_for": lambda _: _optional(timestamp_type()),
    "limit_key": lambda _: _optional(key_type()),
    "slot_key": lambda _: {"type_": key_type(), "primary_key": True},
    "slot_number": lambda _: {"type_": Integer(), "primary_key": True, "autoincrement": False},
}
