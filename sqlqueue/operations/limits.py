"""How many tasks with the same key may run at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, case, func, literal_column, or_, select

from ..clock import utcnow
from ..columns import LONGEST_KEY
from ..exc import ArgumentError
from ..mixins import QueueMixin
from ..spec import QueueSpec, spec_of
from ..statements import Assignment, is_held, is_hung, remove, write
from ._connection import AnySession, open_, session_of
from .slots import ENDLESS, make


@dataclass(frozen=True, slots=True)
class Limit:
    """How many tasks with ``key`` may run at once, and how many do now."""

    key: str
    limit: int
    running: int


def set_limit(session: AnySession, entity: type[QueueMixin], key: str, limit: int) -> None:
    """From the commit on, at most ``limit`` tasks of ``entity`` with this ``limit_key`` run at once; 0: none.

    Those that run go on, also if they are more.  In the session's transaction; waits for claims of this key in open
    transactions.
    """
    slots = _slots_of(entity)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise ArgumentError(f"limit={limit!r}: give a whole number, not negative")
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise ArgumentError(f"key={key!r}: give a key of 1 to {LONGEST_KEY} characters")
    session = session_of(session)
    adapter = open_(session, slots, claims=True)
    make(session, adapter, slots, key, max(limit, 1))  # a key without any would be given the model's limit
    of_key, number = slots["slot_key"] == key, slots["slot_number"]
    endless: list[Assignment] = [(slots["max_attempts"], literal_column(str(ENDLESS)))]
    retired: list[Assignment] = [(slots["max_attempts"], literal_column("0"))]
    adapter.sweep(session, slots, write(slots, and_(of_key, number <= limit), endless))
    adapter.sweep(session, slots, write(slots, and_(of_key, number > limit), retired))
    idle = or_(~is_held(slots), is_hung(slots))
    adapter.sweep(session, slots, remove(slots, and_(of_key, number > max(limit, 1), idle)))


def limits(session: AnySession, entity: type[QueueMixin]) -> list[Limit]:
    """The keys that have been in use or have been given a limit, in their order."""
    slots = _slots_of(entity)
    session = session_of(session)
    adapter = open_(session, slots)
    held = and_(is_held(slots), slots["available_at"] > utcnow())
    one: Any = literal_column("1")
    usable = case((slots["max_attempts"] > literal_column("0"), one))
    counted = select(slots["slot_key"], func.count(usable), func.count(case((held, one))))
    rows: Any = adapter.execute(session, slots, counted.group_by(slots["slot_key"]).order_by(slots["slot_key"]))
    return [Limit(*row) for row in rows]


def _slots_of(entity: type[QueueMixin]) -> QueueSpec:
    spec = spec_of(entity)
    if spec.options.slots is None:
        raise ArgumentError(f"{entity.__name__} has no limits: derive it from LimitMixin")
    return spec_of(spec.options.slots)
