"""Slots: each is a row that one running task holds with a lease, so that no more tasks of a key run than it has."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from sqlalchemy import Connection, and_, exists, literal_column, null, or_, select
from sqlalchemy.orm import Session

from ..claims import Claim
from ..clock import utcnow
from ..columns import LONGEST_NAME
from ..dialects.base import Adapter
from ..spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..statements import Assignment, is_held, is_hung, is_ready, picks, state, write
from ..states import Status
from ..transitions import taking
from .conflicts import Conflicts

ENDLESS = 2**31 - 1
"""The attempts of a slot.  One that has none left is retired: it is not taken again."""

Take: TypeAlias = Callable[[Sequence[Where], int], list[tuple[Any, Claim]]]
"""Claims tasks by criteria, so many at the most."""


def make(session: Session, adapter: Adapter, slots: QueueSpec, key: str, limit: int) -> None:
    """Let a key have the slots 1 to ``limit``; those that are there stay as they are."""
    rows = [
        {
            slots.attributes["slot_key"]: key,
            slots.attributes["slot_number"]: number,
            slots.attributes["max_attempts"]: ENDLESS,
        }
        for number in range(1, limit + 1)
    ]
    Conflicts(adapter, slots, "ignore", None).enqueue(session, rows, {})


class Slots:
    """Claims tasks of a limited queue: for each, first one of its key's slots, and then the task.

    A slot is locked as a task is: nobody waits for it, and nobody else gets it.  So the limit is exact, in open
    transactions too, where nobody can see yet what is claimed.
    """

    def __init__(self, session: Session, adapter: Adapter, spec: QueueSpec, lease: timedelta | None = None) -> None:
        assert spec.options.slots is not None
        self.lease = lease or spec.options.lease
        self.session = session
        self.adapter = adapter
        self.spec = spec
        self.slots = spec_of(spec.options.slots)

    def claim(self, where: Sequence[Where], order: Sequence[Any], limit: int, take: Take) -> list[Any]:
        """Up to ``limit`` tasks in claim order, each with a slot if it has a key."""
        claimed: dict[Identity, Any] = {}
        place: dict[Identity, int] = {}
        passed: set[str | None] = set()
        while len(claimed) < limit:
            wanted = self._candidates(where, order, limit - len(claimed), passed)
            if not wanted:
                break
            place.update((identity, len(place) + number) for number, (identity, _) in enumerate(wanted))
            for name, count in Counter(name for _, name in wanted).items():
                tasks = self._claim_of_key(name, count, where, take)
                claimed.update((self.spec.identity_of(task), task) for task in tasks)
                if len(tasks) < count:
                    passed.add(name)  # its slots are taken, or its tasks
        return [claimed[identity] for identity in sorted(claimed, key=lambda each: place.get(each, len(place)))]

    def _claim_of_key(self, name: str | None, count: int, where: Sequence[Where], take: Take) -> list[Any]:
        key = self.spec["limit_key"]
        if name is None:
            return [task for task, _ in take([*where, key.is_(None)], count)]
        slots = self._lock(name, count)
        if not slots:
            return []
        held = take([*where, key == name], len(slots))
        for slot, (_, claim) in zip(slots, held, strict=False):
            assignments = taking(self.slots, holder(claim), self.lease)
            self.adapter.change(self.session, self.slots, write(self.slots, self.slots.key(slot), assignments), [slot])
        return [task for task, _ in held]

    def _candidates(
        self, where: Sequence[Where], order: Sequence[Any], limit: int, passed: Iterable[str | None]
    ) -> list[tuple[Identity, str | None]]:
        """The next tasks in claim order whose key has a free slot, as far as can be seen without locks."""
        key = self.spec["limit_key"]
        others: list[Criterion] = [key.is_not(None)] if None in passed else []
        full = [name for name in passed if name is not None]
        if full:
            others.append(or_(key.is_(None), key.not_in(full)))
        found: list[tuple[Identity, str | None]] = []
        for step in picks(self.spec, [*where, self._is_open(), *others], order):
            if len(found) < limit:
                seen = step(limit).select(*self.spec.primary_key, key).limit(limit - len(found))
                rows: Any = self.adapter.execute(self.session, self.spec, seen)
                found += [(tuple(identity), name) for *identity, name in rows]
        return found

    def _is_open(self) -> Criterion:
        """Whether a task has no key, or one with a free slot, or one that nobody has met yet."""
        slots, key = self.slots, self.spec["limit_key"]
        of_key = slots["slot_key"] == key
        one: Any = select(literal_column("1")).select_from(slots.table)
        free = and_(of_key, or_(is_ready(slots), is_hung(slots)), slots["max_attempts"] > literal_column("0"))
        known = exists(one.where(of_key).correlate(self.spec.table))
        return or_(key.is_(None), exists(one.where(free).correlate(self.spec.table)), ~known)

    def _lock(self, name: str, wanted: int) -> list[Identity]:
        """Up to ``wanted`` free slots of a key, locked."""
        locked = self._lock_free(name, wanted)
        if not locked and not self.adapter.exists(self.session, self.slots, self.slots["slot_key"] == name):
            self._make(name)
            locked = self._lock_free(name, wanted)
        return locked

    def _lock_free(self, name: str, wanted: int) -> list[Identity]:
        slots = self.slots
        locked: list[Identity] = []
        for step in picks(slots, [slots["slot_key"] == name, slots["max_attempts"] > literal_column("0")], ()):
            if len(locked) < wanted:
                locked += self.adapter.lock(self.session, step(wanted - len(locked)))
        return locked

    def _make(self, name: str) -> None:
        """The slots of a key that nobody has met yet: in a transaction of their own, so that nobody waits for ours."""
        bind = self.session.get_bind(**self.slots.bind_arguments)
        if self.adapter.one_writer or isinstance(bind, Connection):
            make(self.session, self.adapter, self.slots, name, self.spec.options.limit)
            return
        with Session(bind) as own, own.begin():
            make(own, self.adapter, self.slots, name, self.spec.options.limit)

    # -- settling ------------------------------------------------------------------------------------------------------

    def free(self, claims: Sequence[Claim]) -> None:
        """Of claims that are settled."""
        values = [
            (self.slots["status"], state(Status.AVAILABLE)),
            (self.slots["available_at"], utcnow()),
            (self.slots["claimed_by"], null()),
        ]
        self._change(claims, values)

    def extend(self, claims: Sequence[Claim], lease: timedelta) -> list[Claim]:
        """Let the leases of slots end ``lease`` from now; returned are claims that have lost theirs."""
        kept = self._change(claims, [(self.slots["available_at"], utcnow(lease))])
        rest = [claim for claim in claims if holder(claim) not in kept]
        limited = self._with_key(rest) if rest else ()
        return [claim for claim in rest if claim.identity in limited]

    def _with_key(self, claims: Sequence[Claim]) -> set[Identity]:
        spec, adapter = self.spec, self.adapter
        mine = adapter.key_in(spec, [claim.identity for claim in claims])
        read = select(*spec.primary_key).where(mine, spec["limit_key"].is_not(None))
        return {tuple(row) for row in adapter.execute(self.session, spec, adapter.by_key(spec, read))}

    def _change(self, claims: Sequence[Claim], values: Sequence[Assignment]) -> set[str]:
        """Write to the slots that ``claims`` hold, by primary key; their holders."""
        slots, adapter = self.slots, self.adapter
        theirs = and_(slots["claimed_by"].in_([holder(claim) for claim in claims]), is_held(slots))
        read = select(*slots.primary_key, slots["claimed_by"]).where(theirs)
        held: dict[Identity, str] = {tuple(row[:-1]): row[-1] for row in adapter.execute(self.session, slots, read)}
        if not held:
            return set()
        keys = list(held)
        changed = adapter.change(
            self.session, slots, write(slots, and_(adapter.key_in(slots, keys), theirs), values), keys
        )
        return {held[key] for key in changed}


def holder(claim: Claim) -> str:
    """What a slot says of the claim that holds it."""
    text = f"{spec_of(claim.entity).table.name} {json.dumps([str(value) for value in claim.identity])} {claim.attempt}"
    return text if len(text) <= LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()
