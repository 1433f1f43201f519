"""Explains why a task waits for a slot: the running tasks of its limit key have reached the limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..dialects.base import Adapter
from ..lifecycle.reasons import Cause, Holder, Reason, SeenTask
from ..queue.status import Status
from ..sql.criteria import only
from ..sql.place import counts_before
from ..sql.selection import picks
from ..sql.states import has_come, is_held
from .new_slots import slots_of
from .slots import usage

_LISTED = 20
"""The maximum number of holders named in a reason."""


def full_key(adapter: Adapter, session: Session, seen: SeenTask) -> Iterator[Reason]:
    """Yield the reason why a task with a ``limit_key`` gets no slot."""
    spec, key, slots = seen.spec, seen.values["limit_key"], slots_of(seen.spec)
    found: Any = adapter.rows.execute(session, slots, usage(slots).where(slots["slot_key"] == key)).one_or_none()
    limit, running = (spec.options.limit, 0) if found is None else found[1:]
    if running >= limit:
        holders = _holders(adapter, session, seen)
        names = f" ({', '.join(map(str, holders))})" if holders else ""
        text = f"{running} of at most {limit} tasks with its key {key!r} are running{names}"
        yield Reason(cause=Cause.LIMIT, text=text, holders=holders)
    elif seen.values["status"] == Status.AVAILABLE:
        ahead = _ahead(adapter, session, seen)
        if ahead >= limit - running:
            text = f"{ahead:,} tasks with its key {key!r} come first, and at most {limit} run at once"
            yield Reason(cause=Cause.KEY_ORDER, text=text, ahead=ahead)


def _holders(adapter: Adapter, session: Session, seen: SeenTask) -> tuple[Holder, ...]:
    spec = seen.spec
    same = spec["limit_key"] == seen.values["limit_key"]
    read = select(*spec.primary_key, spec["claimed_by"], spec["claimed_at"]).where(
        only(spec, same, is_held(spec), ~has_come(spec), *seen.scope)
    )
    rows: Any = adapter.rows.execute(session, spec, read.order_by(spec["claimed_at"], *spec.primary_key).limit(_LISTED))
    return tuple(Holder(tuple(identity), worker, since) for *identity, worker, since in rows)


def _ahead(adapter: Adapter, session: Session, seen: SeenTask) -> int:
    spec = seen.spec
    ready, _ = picks(spec)
    same = spec["limit_key"] == seen.values["limit_key"]
    if any(seen.columns[term.column] is None for term in spec.ready_order):
        return 0
    ahead = counts_before(spec, spec.ready_order, seen.columns, same, *ready(1).state)
    return sum(adapter.rows.execute(session, spec, ahead).one())
