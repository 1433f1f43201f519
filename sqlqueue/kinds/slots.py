"""Slots: each is a row that one running task holds with a lease, so that no more tasks of a key run than it has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import FromClause, Select, and_, literal_column, null, select
from sqlalchemy.orm import Session

from .._support.claim import Claim
from ..dialects.base import Adapter
from ..model.columns import LONGEST_NAME
from ..queue.spec import Criterion, Identity, QueueSpec, spec_of
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.selection import Assignment, is_held, state, write
from .new_slots import apart, slots_of

FOREVER = timedelta(days=20_000)
"""In seconds it fits into 31 bits, which is all that SQL Server can add to a moment."""


def is_usable(slots: QueueSpec, table: FromClause) -> Criterion:
    """The others are retired: they are not taken again."""
    return table.c[slots["max_attempts"].name] > literal_column("0")


def is_busy(slots: QueueSpec, table: FromClause) -> Criterion:
    """A task whose lease has not ended holds it."""
    status, until = (table.c[slots[role].name] for role in ("status", "available_at"))
    return and_(status == state(Status.RUNNING), until > utcnow())


def is_draining(slots: QueueSpec, table: FromClause) -> Criterion:
    """Whether more tasks run than a limit that has been lowered allows, so that some hold slots that are retired."""
    other, key = slots.table.alias("other"), slots["slot_key"].name
    retired = and_(other.c[key] == table.c[key], ~is_usable(slots, other), is_busy(slots, other))
    return select(literal_column("1")).select_from(other).where(retired).correlate(table).exists()


class Slots:
    """The slots of running tasks: gives them up, and extends their leases."""

    def __init__(self, session: Session, adapter: Adapter, spec: QueueSpec) -> None:
        self.session = session
        self.adapter = adapter
        self.spec = spec
        self.slots = slots_of(spec)

    def free(self, claims: Sequence[Claim]) -> None:
        """Give up the slots of claims that are settled."""
        values = [
            (self.slots["status"], state(Status.AVAILABLE)),
            (self.slots["available_at"], utcnow()),
            (self.slots["claimed_by"], null()),
        ]
        self._change(claims, values)

    def end(self, chosen: Criterion, values: Sequence[Assignment]) -> int:
        """Write ``values``, which end them, to tasks that are ``chosen``, and give up their slots; returns how many.

        The attempts, which say what holds a slot, are read once the rows are locked: before that, a task may be
        released and claimed again, with another slot.
        """
        spec, adapter, ended = self.spec, self.adapter, 0
        for some in adapter.keys.batches(
            spec, adapter.rows.keys(self.session, spec, select(*spec.primary_key).where(chosen))
        ):
            mine = and_(adapter.keys.key_in(spec, some), chosen)
            changed = list(adapter.rows.change(self.session, spec, write(spec, mine, values), some))
            self.free(self._last_claims(changed) if changed else ())
            ended += len(changed)
        return ended

    def _last_claims(self, identities: Sequence[Identity]) -> list[Claim]:
        """Of tasks that this transaction has written to."""
        spec, adapter = self.spec, self.adapter
        read = select(*spec.primary_key, spec["attempt"], spec["claim_token"]).where(
            adapter.keys.key_in(spec, identities)
        )
        rows: Any = adapter.rows.execute(self.session, spec, adapter.keys.by_key(spec, read))
        return [Claim(spec.entity, tuple(identity), attempt, token) for *identity, attempt, token in rows]

    def extend(self, claims: Sequence[Claim], lease: timedelta, *, waits: bool) -> list[Claim]:
        """Let the leases of slots end ``lease`` from now; returned are claims that have lost theirs.

        Unless it ``waits``, slots that others have locked are left as they are.
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
        """Write to the slots that ``claims`` hold, by primary key; their holders, the locked ones' too."""
        # a statement names each by a key of two columns and by its holder
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
        """The holders of slots, found without locks: no index serves, and others' slots would be locked on the way.

        A snapshot that is older than a claim does not show its slot, although the engine may let this transaction
        settle that claim: then another transaction looks as well.
        """
        read = select(*self.slots.primary_key, self.slots["claimed_by"]).where(theirs)
        held = self._holders(self.session, read)
        if len(held) < count and self.adapter.transactions.may_change_unseen(
            self.session.connection(self.slots.bind_arguments)
        ):
            with apart(self.session, self.slots) as own:
                held |= self._holders(own, read)
        return held

    def _holders(self, session: Session, read: Select[Any]) -> dict[Identity, str]:
        return {tuple(row[:-1]): row[-1] for row in self.adapter.rows.execute(session, self.slots, read)}


def holder(claim: Claim) -> str:
    """What a slot says of the claim that holds it."""
    key = json.dumps([str(value) for value in claim.identity])
    text = f"{spec_of(claim.entity).table.fullname} {key} {claim.attempt} {claim.token}"
    return text if len(text) <= LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()
