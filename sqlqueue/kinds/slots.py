"""Slots: rows that running tasks hold with a lease, so that no more tasks of a key run than it has slots."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, and_, case, func, literal_column, null, select
from sqlalchemy.orm import Session

from .._support.claim import Claim
from .._support.engines import separate_session
from ..dialects.base import Adapter
from ..model.columns import LONGEST_NAME
from ..queue.spec import Criterion, Identity, QueueSpec, spec_of
from ..queue.status import Status
from ..sql.changes import Assignment, write
from ..sql.clock import utcnow
from ..sql.states import is_held, state
from .new_slots import slots_of

FOREVER = timedelta(days=20_000)
"""An endless lease: its seconds fit into 31 bits, the most that SQL Server can add to a time."""


def is_usable(slots: QueueSpec, table: FromClause) -> Criterion:
    """Return the criterion of slots that are not retired; retired slots are not taken again."""
    return table.c[slots["max_attempts"].name] > literal_column("0")


def is_busy(slots: QueueSpec, table: FromClause) -> Criterion:
    """Return the criterion of slots held by a task whose lease has not expired."""
    status, until = (table.c[slots[role].name] for role in ("status", "available_at"))
    return and_(status == state(Status.RUNNING), until > utcnow())


def is_draining(slots: QueueSpec, table: FromClause) -> Criterion:
    """Return the criterion of slots whose key runs more tasks than a lowered limit allows, in retired slots."""
    other, key = slots.table.alias("other"), slots["slot_key"].name
    retired = and_(other.c[key] == table.c[key], ~is_usable(slots, other), is_busy(slots, other))
    return select(literal_column("1")).select_from(other).where(retired).correlate(table).exists()


def usage(slots: QueueSpec) -> Select[Any]:
    """Return a SELECT of each known key, how many of its tasks may run at once, and how many run now."""
    one: Any = literal_column("1")
    usable = case((is_usable(slots, slots.table), one))
    busy = case((and_(is_busy(slots, slots.table), slots["slot_number"] > literal_column("0")), one))
    columns: list[ColumnElement[Any]] = [slots["slot_key"], func.count(usable), func.count(busy)]
    return select(*columns).group_by(slots["slot_key"])


class Slots:
    """Frees the slots of running tasks, and extends their leases."""

    def __init__(self, session: Session, adapter: Adapter, spec: QueueSpec) -> None:
        self.session = session
        self.adapter = adapter
        self.spec = spec
        self.slots = slots_of(spec)

    def free(self, claims: Sequence[Claim]) -> None:
        """Free the slots of settled claims."""
        values = [
            (self.slots["status"], state(Status.AVAILABLE)),
            (self.slots["available_at"], utcnow()),
            (self.slots["claimed_by"], null()),
        ]
        self._change(claims, values)

    def extend(self, claims: Sequence[Claim], lease: timedelta, *, waits: bool) -> list[Claim]:
        """Extend the leases of slots to ``lease`` from now; return the claims that have lost their slots.

        Unless it ``waits``, skip slots that others have locked.
        """
        kept = self._change(claims, [(self.slots["available_at"], utcnow(lease))], waits=waits)
        rest = [claim for claim in claims if holder(claim) not in kept]
        limited = self._with_key(rest) if rest else ()
        return [claim for claim in rest if claim.identity in limited]

    def _with_key(self, claims: Sequence[Claim]) -> set[Identity]:
        spec, adapter = self.spec, self.adapter
        mine = adapter.keys.key_in(spec, [claim.identity for claim in claims])
        read = select(*spec.primary_key).where(mine, spec["limit_key"].is_not(None))
        return set(adapter.rows.keys(self.session, spec, adapter.keys.by_key(spec, read)))

    def _change(self, claims: Sequence[Claim], values: Sequence[Assignment], *, waits: bool = True) -> set[str]:
        """Write to the slots that ``claims`` hold, by primary key; return the holders, including those of skipped
        slots."""
        # a statement identifies each slot by a key of two columns and by its holder
        size = max(self.adapter.keys.most(self.slots) // 3, 1)
        changed: set[str] = set()
        for start in range(0, len(claims), size):
            changed |= self._change_of([holder(claim) for claim in claims[start : start + size]], values, waits=waits)
        return changed

    def _change_of(self, holders: Sequence[str], values: Sequence[Assignment], *, waits: bool) -> set[str]:
        slots, adapter = self.slots, self.adapter
        theirs = and_(slots["claimed_by"].in_(holders), is_held(slots))
        held = self._held(theirs, len(holders))
        if not held:
            return set()
        keys = list(held)
        named = and_(adapter.keys.key_in(slots, keys), theirs)
        statement = write(slots, named if waits else adapter.locking.passing_over(slots, named), values)
        changed = adapter.rows.change(self.session, slots, statement, keys, waits=waits)
        return {held[key] for key in changed} if waits else set(held.values())

    def _held(self, theirs: Criterion, count: int) -> dict[Identity, str]:
        """Return the slots with their holders, read without locks: a locking read could lock slots of other holders.

        A snapshot that is older than a claim does not show the claim's slot, although the engine may allow this
        transaction to settle the claim.  In that case, a separate transaction reads too.
        """
        read = select(*self.slots.primary_key, self.slots["claimed_by"]).where(theirs)
        held = self._holders(self.session, read)
        if len(held) < count and self.adapter.transactions.may_change_unseen(
            self.session.connection(self.slots.bind_arguments)
        ):
            with separate_session(self.session, self.slots.bind_arguments) as own:
                held |= self._holders(own, read)
        return held

    def _holders(self, session: Session, read: Select[Any]) -> dict[Identity, str]:
        return {tuple(row[:-1]): row[-1] for row in self.adapter.rows.execute(session, self.slots, read)}


def holder(claim: Claim) -> str:
    """Return the text that identifies a claim in the slot that it holds."""
    key = json.dumps([str(value) for value in claim.identity])
    text = f"{spec_of(claim.entity).table.fullname} {key} {claim.attempt} {claim.token}"
    return text if len(text) <= LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()
