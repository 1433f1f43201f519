"""Claims tasks of limited queues, each with one of its key's slots."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Executable, Select, and_, case, func, literal, literal_column, or_, select
from sqlalchemy.orm import Session

from .._support.claim import Claim
from ..dialects.base import Adapter
from ..lifecycle.kind import Take
from ..lifecycle.transitions import taking
from ..queue.spec import Criterion, Identity, QueueSpec, Where
from ..sql.changes import write
from ..sql.selection import Pick, Step, picks
from .new_slots import create_slots, slots_of
from .slots import FOREVER, holder, is_busy, is_draining, is_usable

Key = str | None


class Free(NamedTuple):
    """The numbers of a key's slots that seem to be free, up to the number needed, and whether there are more."""

    numbers: list[int]
    more: bool


class LimitedClaim:
    """Claims tasks of a limited queue: first free slots of their keys, then the tasks.

    Slots are locked like tasks: no claim waits for them, and no other claim gets them.  The limit is therefore exact
    even while other transactions are open, whose claims are not visible yet.

    The number of statements does not depend on the number of keys, except that a key with slots or tasks that other
    transactions have locked takes additional statements.
    """

    def __init__(
        self, session: Session, adapter: Adapter, spec: QueueSpec, take: Take, lease: timedelta | None = None
    ) -> None:
        self.session = session
        self.adapter = adapter
        self.spec = spec
        self.slots = slots_of(spec)
        self.take = take
        self.lease = lease or FOREVER  # a claim with lease=None holds its slot until it is settled

    def claim(self, where: Sequence[Where], order: Sequence[Any], limit: int) -> list[Any]:
        """Claim up to ``limit`` tasks, each with a slot if it has a key; return them in claim order."""
        claimed: dict[Identity, Any] = {}
        place: dict[Identity, int] = {}
        # read the full keys once, instead of checking each task: a full key may have very many tasks
        passed: set[Key] = set(self.adapter.rows.execute(self.session, self.slots, _full(self.slots)).scalars())
        more = True
        while more and len(claimed) < limit and not self.take.is_over:
            wanted, more = self._candidates(where, order, limit - len(claimed), passed)
            place.update((identity, len(place) + number) for number, identity in enumerate(wanted))
            taken = self._claim(wanted, where)
            claimed.update((self.spec.identity_of(task), task) for tasks in taken.values() for task in tasks)
            needed = Counter(wanted.values())
            # others have locked slots or tasks of these keys
            passed.update(key for key, count in needed.items() if len(taken[key]) < count)
        return [claimed[identity] for identity in sorted(claimed, key=lambda each: place.get(each, len(place)))]

    def _candidates(
        self, where: Sequence[Where], order: Sequence[Any], limit: int, passed: Collection[Key]
    ) -> tuple[dict[Identity, Key], bool]:
        """Return the next tasks in claim order with their keys, except keys ``passed``, and whether there may be more.

        Reads without locks.
        """
        key = self.spec["limit_key"]
        keys = [name for name in passed if name is not None][: self.adapter.keys.most(self.spec)]
        others = [or_(key.is_(None), key.not_in(keys))] if keys else []
        if None in passed:
            others.append(key.is_not(None))
        steps, number = picks(self.spec, [*where, *others], order), limit
        while True:
            seen = self._first(steps, number)
            found = [each for each in seen if each[1] not in passed]
            if found or len(seen) < number:
                return dict(found[:limit]), len(seen) == number or len(found) > limit
            number *= 2  # all tasks found belong to passed keys that did not fit into the statement

    def _first(self, steps: Iterable[Step], number: int) -> list[tuple[Identity, Key]]:
        found: list[tuple[Identity, Key]] = []
        for step in steps:
            if len(found) < number:
                pick = step(number - len(found))
                seen = self.adapter.locking.looking(pick, *self.spec.primary_key, self.spec["limit_key"])
                rows: Any = self.adapter.rows.execute(self.session, self.spec, seen)
                found += [(tuple(identity), name) for *identity, name in rows]
        return found

    def _claim(self, wanted: Mapping[Identity, Key], where: Sequence[Where]) -> dict[Key, list[Any]]:
        """Claim the ``wanted`` tasks that get slots; instead of a locked task, claim the next task of its key."""
        needed = Counter(wanted.values())
        slots = self._lock({key: count for key, count in needed.items() if key is not None})
        room = {key: needed[key] if key is None else len(slots[key]) for key in needed}
        chosen: dict[Key, list[Identity]] = defaultdict(list)
        for identity, key in wanted.items():
            if len(chosen[key]) < room[key]:
                chosen[key].append(identity)
        taken: dict[Key, list[tuple[Any, Claim]]] = defaultdict(list)
        for each in self._take_named(chosen, where):
            taken[wanted[each[1].identity]].append(each)
        for key, count in room.items():
            if len(taken[key]) < count and not self.take.is_over:
                taken[key] += self.take([*where, self._has(key)], count - len(taken[key]))
        self._assign([pair for key, locked in slots.items() for pair in zip(locked, taken[key], strict=False)])
        return {key: [task for task, _ in taken[key]] for key in needed}

    def _take_named(
        self, chosen: Mapping[Key, Sequence[Identity]], where: Sequence[Where]
    ) -> Iterable[tuple[Any, Claim]]:
        """Claim the chosen tasks, each only if it still has the key whose slot it is to hold."""
        keys = [(identity, key) for key, identities in chosen.items() for identity in identities]
        for some in self.adapter.keys.batches(self.spec, keys):
            together: dict[Key, list[Identity]] = defaultdict(list)
            for identity, key in some:
                together[key].append(identity)
            of_key = (and_(self._has(key), self._named(mine)) for key, mine in together.items())
            named = and_(self._named([identity for identity, _ in some]), or_(*of_key))
            yield from self.take([*where, named], len(some), named=True)

    def _named(self, identities: Sequence[Identity]) -> Criterion:
        return self.adapter.keys.key_in(self.spec, identities)

    def _has(self, key: Key) -> Criterion:
        column = self.spec["limit_key"]
        return column.is_(None) if key is None else column == key

    def _lock(self, needed: Mapping[str, int]) -> dict[str, list[Identity]]:
        """Lock the needed number of free slots of each key, or as many as are free."""
        free = self._free(needed)
        unknown = {key: count for key, count in needed.items() if key not in free}
        if unknown:
            create_slots(self.session, self.adapter, self.spec, unknown)
            free.update(self._free(unknown))
        locked: dict[str, list[Identity]] = {key: [] for key in needed}
        for slot in self._lock_seen([(key, number) for key, each in free.items() for number in each.numbers]):
            locked[slot[0]].append(slot)
        for key, each in free.items():
            if each.more and len(locked[key]) < needed[key]:
                locked[key] += self._lock_others(key, needed[key] - len(locked[key]), locked[key])
        return locked

    def _free(self, needed: Mapping[str, int]) -> dict[str, Free]:
        """Return the slots that seem to be free, for those keys that have slots."""
        found: dict[str, list[int]] = {}
        for some in self.adapter.keys.batches(self.slots, list(needed)):
            most = max(needed[key] for key in some) + 2  # slot 0, and one more to detect that there are more
            rows: Any = self.adapter.rows.execute(self.session, self.slots, _first_free(self.slots, some, most))
            for key, number in rows:
                found.setdefault(key, []).extend([number] if number else ())
        return {key: Free(numbers[: needed[key]], len(numbers) > needed[key]) for key, numbers in found.items()}

    def _lock_seen(self, seen: Sequence[Identity]) -> Iterable[Identity]:
        slots = self.slots
        state = (is_usable(slots, slots.table), ~is_busy(slots, slots.table), ~is_draining(slots, slots.table))
        for some in self._parts(seen):
            where = (self.adapter.keys.key_in(slots, some),)
            pick = Pick(spec=slots, state=state, where=where, order=(), limit=len(some), index=None, exact=True)
            yield from self.adapter.claims.lock(self.session, pick, holds=self.lease is FOREVER)

    def _lock_others(self, key: str, count: int, own: Sequence[Identity]) -> list[Identity]:
        """Lock other slots of a key, because other transactions have locked some."""
        slots = self.slots
        where = [slots["slot_key"] == key, is_usable(slots, slots.table), ~is_draining(slots, slots.table)]
        if own:
            where.append(~self.adapter.keys.key_in(slots, own))
        locked: list[Identity] = []
        for step in picks(slots, where, ()):
            if len(locked) < count:
                locked += self.adapter.claims.lock(self.session, step(count - len(locked)), holds=self.lease is FOREVER)
        return locked

    def _assign(self, pairs: Sequence[tuple[Identity, tuple[Any, Claim]]]) -> None:
        """Write the holding claim to each locked slot."""
        slots, name = self.slots, self.slots["claimed_by"]
        for some in self._parts(pairs):
            holders = ((slots.key(slot), literal(holder(claim), name.type)) for slot, (_, claim) in some)
            (_, (_, first)), *_ = some
            values = dict(taking(slots, "", self.lease, first.token)) | {name: case(*holders, else_=name)}
            keys = self.adapter.keys.key_in(slots, [slot for slot, _ in some])
            statement = self.adapter.keys.by_key(slots, write(slots, keys, list(values.items())))
            self.adapter.rows.execute(self.session, slots, statement)

    def _parts(self, items: Sequence[Any]) -> Iterable[Sequence[Any]]:
        # a statement identifies each slot by two columns, more than once
        size = max(self.adapter.keys.most(self.slots) // 3, 1)
        return (items[start : start + size] for start in range(0, len(items), size))


def _full(slots: QueueSpec) -> Select[tuple[str]]:
    """Return the keys without slots to take: all are held, or more tasks run than a lowered limit allows."""
    other, key = slots.table.alias("other"), slots["slot_key"]
    free = and_(other.c[key.name] == key, is_usable(slots, other), ~is_busy(slots, other))
    none = ~select(literal_column("1")).select_from(other).where(free).correlate(slots.table).exists()
    retired = ~is_usable(slots, slots.table)
    return select(key).where(is_busy(slots, slots.table), or_(retired, none)).distinct()


def _first_free(slots: QueueSpec, keys: Sequence[str], most: int) -> Executable:
    """Return slot 0 of each key that has slots, and slots that seem to be free."""
    key, number = slots["slot_key"], slots["slot_number"]
    free = and_(is_usable(slots, slots.table), ~is_busy(slots, slots.table))
    place = func.row_number().over(partition_by=key, order_by=number).label("place")
    known = select(key, number, place).where(key.in_(keys), or_(number == literal_column("0"), free)).subquery("known")
    return select(known.c[key.name], known.c[number.name]).where(known.c.place <= literal_column(str(most)))
