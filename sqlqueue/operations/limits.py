"""Sets and reads limits: how many tasks with the same ``limit_key`` may run at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, case, literal_column, select
from sqlalchemy.orm import Session

from .._support import checks
from ..dialects.base import Adapter
from ..kinds.limits import ENDLESS, FOREVER, create_slots, is_busy, make, slots_of, usage
from ..model.declaration import LONGEST_KEY, QueueMixin
from ..queue.options import Status
from ..queue.spec import Criterion, QueueSpec, spec_of
from ..sql import Assignment, remove, state, utcnow, write
from ..transaction import Access, AnySession, open_, refuse_if_restricted, session_of


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a ``key``: how many of its tasks may run at once, and how many run now."""

    key: str
    """The ``limit_key`` of these tasks."""
    limit: int
    """How many may run at once."""
    running: int
    """How many run now."""


def set_limit(session: AnySession, entity: type[QueueMixin], key: str, limit: int) -> None:
    """Set how many tasks of ``entity`` with this ``limit_key`` may run at once, at most 10,000, from the commit on; 0
    stops the key.

    Running tasks continue.  If more than ``limit`` are running, no task of the key is claimed until the excess ones,
    which are those claimed first, have ended.  Runs in the session's transaction, and waits for claims of this key in
    open transactions.  Raises :class:`.ArgumentError` in a session that sees only some of the tasks, because of its
    criteria or row-level security.
    """
    spec = spec_of(entity)
    slots = slots_of(spec)
    checks.at_once("limit", limit, least=0)
    checks.key("key", key, LONGEST_KEY)
    session = session_of(session)
    adapter = open_(session, slots, Access.SKIP)
    refuse_if_restricted(session, adapter, spec, "set_limit()")
    of_key = slots["slot_key"] == key
    if not adapter.rows.exists(session, slots, of_key):
        create_slots(session, adapter, spec, [key])
    used, idle = _lock_all(session, adapter, slots, of_key, closed=not limit)
    kept = (used + idle)[:limit]
    gone = idle[max(limit - len(used), 0) :]
    for numbers, attempts in ((kept, ENDLESS), (used[limit:], 0)):
        values: list[Assignment] = [(slots["max_attempts"], literal_column(str(attempts)))]
        if numbers:
            keys = [(key, number) for number in numbers]
            adapter.rows.change(session, slots, write(slots, adapter.rows.key_in(slots, keys), values), keys)
    if gone:
        keys = [(key, number) for number in gone]
        adapter.rows.change(session, slots, remove(slots, adapter.rows.key_in(slots, keys)), keys)
    first = max(used + idle, default=0) + 1
    make(session, adapter, slots, ((key, number) for number in range(first, first + limit - len(kept))))


def _lock_all(
    session: Session, adapter: Adapter, slots: QueueSpec, of_key: Criterion, *, closed: bool
) -> tuple[list[int], list[int]]:
    """Lock a key's slots.  Return the numbers of those that tasks hold, last claimed first, and of the others."""
    unchanged: list[Assignment] = [(slots["claimed_by"], slots["claimed_by"])]
    adapter.rows.sweep(session, slots, write(slots, of_key, unchanged))
    first = and_(of_key, slots["slot_number"] == literal_column("0"))
    status = Status.RUNNING if closed else Status.AVAILABLE
    told: list[Assignment] = [(slots["status"], state(status)), (slots["available_at"], utcnow(FOREVER))]
    adapter.rows.sweep(session, slots, write(slots, first, told))
    number, busy = slots["slot_number"], case((is_busy(slots, slots.table), literal_column("1")))
    asked = select(number, busy).where(of_key, number > literal_column("0")).order_by(slots["claimed_at"].desc())
    latest = asked.with_for_update(key_share=True)  # reads the latest rows even at REPEATABLE READ
    rows: list[tuple[int, int | None]] = [tuple(row) for row in adapter.rows.execute(session, slots, latest)]
    return [number for number, held in rows if held], [number for number, held in rows if not held]


def limits(session: AnySession, entity: type[QueueMixin], *, first: int | None = None) -> list[Limit]:
    """Return the keys that have been used or given a limit, sorted by key: all, or only the ``first`` ones."""
    slots = slots_of(spec_of(entity))
    session = session_of(session)
    if first is not None:
        checks.count("first", first)
    adapter = open_(session, slots)
    rows: Any = adapter.rows.execute(session, slots, usage(slots).order_by(slots["slot_key"]).limit(first))
    return [Limit(*row) for row in rows]
