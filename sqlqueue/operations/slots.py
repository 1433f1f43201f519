"""Slots: each is a row that one running task holds with a lease, so that no more tasks of a key run than it has."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine, FromClause, Select, and_, exists, insert, literal_column, null, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ..claims import Claim
from ..clock import utcnow
from ..columns import LONGEST_NAME
from ..dialects.base import Adapter
from ..exc import ArgumentError
from ..spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..statements import Assignment, Pick, is_held, picks, state, write
from ..states import Status
from ..transitions import Held, taking
from .applying import updating

ENDLESS = 2**31 - 1
"""The attempts of a slot.  One that has none left is retired: it is not taken again."""
FOREVER = timedelta(days=20_000)
"""In seconds it fits into 31 bits, which is all that SQL Server can add to a moment."""

Take: TypeAlias = Callable[[Sequence[Where], int], list[tuple[Any, Claim]]]
"""Claims tasks by criteria, so many at the most."""


def introduce(session: Session, adapter: Adapter, spec: QueueSpec, key: str) -> None:
    """Let a key that nobody has met yet have as many slots as the model says.

    In a transaction of its own, so that nobody waits for ours, and by a connection of its own, for which a pool may
    have no room.  Of two who meet a key at once the second waits at slot 0, which is never claimed, and finds it done.
    """
    slots, numbers = slots_of(spec), range(spec.options.limit + 1)
    bind = session.get_bind(**slots.bind_arguments)
    if adapter.one_writer or isinstance(bind, Connection):
        with _unless_there(adapter), session.begin_nested():
            make(session, adapter, slots, key, numbers)
        return
    engine = Engine(
        bind.pool.recreate(),
        bind.dialect,
        bind.url,
        execution_options=bind.get_execution_options(),
        hide_parameters=bind.hide_parameters,
    )
    try:
        with _unless_there(adapter), Session(engine) as own, own.begin():
            make(own, adapter, slots, key, numbers)
    finally:
        engine.dispose()


def make(session: Session, adapter: Adapter, slots: QueueSpec, key: str, numbers: Sequence[int]) -> None:
    """Slots that are not there yet.  Number 0 says that the key is known, and is held while nothing may run."""
    names = [slots[role].name for role in ("slot_key", "slot_number", "max_attempts")]
    rows = [dict(zip(names, (key, number, ENDLESS if number else 0), strict=True)) for number in numbers]
    if rows:
        adapter.execute(session, slots, insert(slots.table), rows)


@contextmanager
def _unless_there(adapter: Adapter) -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        if not adapter.is_duplicate(error):
            raise


def slots_of(spec: QueueSpec) -> QueueSpec:
    """The slots of a limited queue; :class:`.ArgumentError` if it is none."""
    if spec.options.slots is None:
        raise ArgumentError(f"{spec.entity.__name__} has no limits: derive it from LimitMixin")
    return spec_of(spec.options.slots)


def is_usable(slots: QueueSpec, table: FromClause) -> Criterion:
    """The others are retired: they are not taken again."""
    return table.c[slots["max_attempts"].name] > literal_column("0")


def is_busy(slots: QueueSpec, table: FromClause) -> Criterion:
    """A task whose lease has not ended holds it."""
    status, until = (table.c[slots[role].name] for role in ("status", "available_at"))
    return and_(status == state(Status.RUNNING), until > utcnow())


def _is_draining(slots: QueueSpec, key: str) -> Criterion:
    """Whether more tasks run than a limit that has been lowered allows, so that some hold slots that are retired."""
    other = slots.table.alias("other")
    of_key, retired = other.c[slots["slot_key"].name] == key, ~is_usable(slots, other)
    return exists(select(literal_column("1")).select_from(other).where(of_key, retired, is_busy(slots, other)))


def _full(slots: QueueSpec) -> Select[tuple[str]]:
    """The keys of which all slots are held."""
    other, key = slots.table.alias("other"), slots["slot_key"]
    free = and_(other.c[key.name] == key, is_usable(slots, other), ~is_busy(slots, other))
    none = ~exists(select(literal_column("1")).select_from(other).where(free).correlate(slots.table))
    return select(key).where(is_busy(slots, slots.table), none).distinct()


class Slots:
    """Claims tasks of a limited queue: for each, first one of its key's slots, and then the task.

    A slot is locked as a task is: nobody waits for it, and nobody else gets it.  So the limit is exact, in open
    transactions too, where nobody can see yet what is claimed.
    """

    def __init__(self, session: Session, adapter: Adapter, spec: QueueSpec, lease: timedelta | None = None) -> None:
        self.lease = lease or FOREVER  # as long as the lock of the row that nothing else holds
        self.session = session
        self.adapter = adapter
        self.spec = spec
        self.slots = slots_of(spec)

    def claim(self, where: Sequence[Where], order: Sequence[Any], limit: int, take: Take) -> list[Any]:
        """Up to ``limit`` tasks in claim order, each with a slot if it has a key."""
        claimed: dict[Identity, Any] = {}
        place: dict[Identity, int] = {}
        # asked for once, not of each task: of a full key there may be very many
        passed: set[str | None] = set(self.adapter.execute(self.session, self.slots, _full(self.slots)).scalars())
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
        self, where: Sequence[Where], order: Sequence[Any], limit: int, passed: Collection[str | None]
    ) -> list[tuple[Identity, str | None]]:
        """The next tasks in claim order but for those of the keys ``passed``, as far as can be seen without locks."""
        key = self.spec["limit_key"]
        keys = [name for name in passed if name is not None][: self.adapter.batch]
        others = [or_(key.is_(None), key.not_in(keys))] if keys else []
        if None in passed:
            others.append(key.is_not(None))
        steps, number = picks(self.spec, [*where, *others], order), limit
        while True:
            seen = self._first(steps, number)
            found = [each for each in seen if each[1] not in passed]
            if found or len(seen) < number:
                return found[:limit]
            number *= 2  # all of these are of keys for which there was no room in the statement

    def _first(self, steps: Iterable[Callable[[int], Pick]], number: int) -> list[tuple[Identity, str | None]]:
        found: list[tuple[Identity, str | None]] = []
        for step in steps:
            if len(found) < number:
                pick = step(number - len(found))
                seen = pick.select(*self.spec.primary_key, self.spec["limit_key"]).limit(pick.limit)
                rows: Any = self.adapter.execute(self.session, self.spec, seen)
                found += [(tuple(identity), name) for *identity, name in rows]
        return found

    def _lock(self, name: str, wanted: int) -> list[Identity]:
        """Up to ``wanted`` free slots of a key, locked."""
        locked = self._lock_free(name, wanted)
        if not locked and not self.adapter.exists(self.session, self.slots, self.slots["slot_key"] == name):
            introduce(self.session, self.adapter, self.spec, name)
            locked = self._lock_free(name, wanted)
        return locked

    def _lock_free(self, name: str, wanted: int) -> list[Identity]:
        slots = self.slots
        locked: list[Identity] = []
        for step in picks(
            slots, [slots["slot_key"] == name, is_usable(slots, slots.table), ~_is_draining(slots, name)], ()
        ):
            if len(locked) < wanted:
                locked += self.adapter.lock(self.session, step(wanted - len(locked)))
        return locked

    # -- settling ------------------------------------------------------------------------------------------------------

    def free(self, claims: Sequence[Claim]) -> None:
        """Of claims that are settled."""
        values = [
            (self.slots["status"], state(Status.AVAILABLE)),
            (self.slots["available_at"], utcnow()),
            (self.slots["claimed_by"], null()),
        ]
        self._change(claims, values)

    def end(self, chosen: Criterion, values: Sequence[Assignment]) -> int:
        """Write ``values``, which end them, to running tasks that are ``chosen``, and free their slots; how many."""
        spec, adapter = self.spec, self.adapter
        running = select(*spec.primary_key, spec["attempt"]).where(chosen, is_held(spec))
        rows: Any = adapter.execute(self.session, spec, running).all()
        claims = [Claim(spec.entity, tuple(identity), attempt) for *identity, attempt in rows]
        ended: list[Claim] = []
        for some in adapter.batches(claims):
            mine = updating(lambda *_: values)(adapter, self.session, Held(spec=spec), some)
            ended += [claim for claim in some if claim.identity in mine]
        self.free(ended)
        return len(ended)

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
        mine = adapter.key_in(spec, [claim.identity for claim in claims])
        read = select(*spec.primary_key).where(mine, spec["limit_key"].is_not(None))
        return set(adapter.keys(self.session, spec, adapter.by_key(spec, read)))

    def _change(self, claims: Sequence[Claim], values: Sequence[Assignment], *, waits: bool = True) -> set[str]:
        """Write to the slots that ``claims`` hold, by primary key; their holders, the locked ones' too."""
        size = self.adapter.batch // 3  # a statement names each by a key of two columns and by its holder
        changed: set[str] = set()
        for start in range(0, len(claims), size):
            changed |= self._change_of([holder(claim) for claim in claims[start : start + size]], values, waits=waits)
        return changed

    def _change_of(self, holders: Sequence[str], values: Sequence[Assignment], *, waits: bool) -> set[str]:
        slots, adapter = self.slots, self.adapter
        theirs = and_(slots["claimed_by"].in_(holders), is_held(slots))
        read = select(*slots.primary_key, slots["claimed_by"]).where(theirs)
        held: dict[Identity, str] = {tuple(row[:-1]): row[-1] for row in adapter.execute(self.session, slots, read)}
        if not held:
            return set()
        keys = list(held)
        named = and_(adapter.key_in(slots, keys), theirs)
        statement = write(slots, named if waits else adapter.passing_over(slots, named), values)
        changed = adapter.change(self.session, slots, statement, keys, waits=waits)
        return {held[key] for key in changed} if waits else set(held.values())


def holder(claim: Claim) -> str:
    """What a slot says of the claim that holds it."""
    key = json.dumps([str(value) for value in claim.identity])
    text = f"{spec_of(claim.entity).table.fullname} {key} {claim.attempt}"
    return text if len(text) <= LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()
