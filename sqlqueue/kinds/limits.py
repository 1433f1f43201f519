"""Concurrency limits: the slots of each key, claims that need one, and the model's mixins."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    FromClause,
    Integer,
    Select,
    and_,
    case,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapped, Session

from .._support import checks
from .._support.engines import separate_session
from .._support.errors import ArgumentError, Claim
from ..dialects import key_type
from ..dialects.base import Adapter
from ..lifecycle.kind import Cause, Holder, Kind, KindIndex, Partition, Reason, SeenTask, kinds_in
from ..lifecycle.transitions import claim_assignments
from ..model.declaration import LONGEST_KEY, LONGEST_NAME, QueueMixin, optional
from ..queue.options import AttemptOutcome, QueueOptions, Status
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..sql import Assignment, Pick, Step, counts_before, has_come, is_held, only, picks, state, utcnow, write

T = TypeVar("T")

# -- creates the slots of limit keys that are used for the first time -------------------------------------------------

ENDLESS = 2**31 - 1
"""The ``max_attempts`` of a usable slot.  A slot with 0 is retired: it is not taken again."""
_BATCH = 1_000
"""Slots inserted at a time: many keys with a high limit have more than fit into memory."""


def slots_of(spec: QueueSpec) -> QueueSpec:
    """Return the queue of slots of a limited queue; raise :class:`.ArgumentError` if the queue is not limited."""
    if spec.options.slots is None:
        raise ArgumentError(f"{spec.entity.__name__} has no limits: derive it from LimitMixin")
    return spec_of(spec.options.slots)


def create_slots(session: Session, adapter: Adapter, spec: QueueSpec, keys: Collection[str]) -> None:
    """Create the slots of new ``keys``, as many for each as the model's ``limit``.

    Uses its own transaction and connection, so that no other claim waits for the session's transaction.  If another
    transaction creates a key at the same time, its slots are kept.
    """
    slots, names = slots_of(spec), sorted(keys)
    if adapter.connections.one_writer:  # another connection could not write while this session does
        _insert_keys(session, nullcontext, adapter, spec, names)
    elif isinstance(session.get_bind(**slots.bind_arguments), Connection):
        _insert_keys(session, partial(adapter.connections.tentative, session), adapter, spec, names)
    else:
        with separate_session(session, slots.bind_arguments) as own:
            _insert_keys(own, own.begin, adapter, spec, names)


def _insert_keys(
    session: Session,
    begin: Callable[[], AbstractContextManager[object]],
    adapter: Adapter,
    spec: QueueSpec,
    keys: Sequence[str],
) -> None:
    """Insert the slots of new ``keys``, each time in a transaction or savepoint that ``begin`` opens.

    In primary key order, so that two transactions that insert the same keys cannot deadlock.  The second one waits at
    the first slot 0 that both insert; slot 0 is never claimed, so it waits for no claim.
    """
    slots = slots_of(spec)
    try:
        with begin():
            make(session, adapter, slots, ((key, n) for key in keys for n in range(spec.options.limit + 1)))
        return
    except DBAPIError as error:
        if not adapter.connections.is_duplicate(error):
            raise
    if len(keys) == 1:
        return
    there: set[str] = set()
    with begin():
        for some in adapter.rows.batches(slots, keys):
            read = select(slots["slot_key"]).where(adapter.rows.one_of(slots, slots["slot_key"], some)).distinct()
            there.update(adapter.rows.execute(session, slots, read).scalars())
    missing = [key for key in keys if key not in there]
    # the missing keys together if the read has shown the duplicate, otherwise each key alone: the snapshot hides it
    for rest in [missing] if there and missing else [[key] for key in missing]:
        _insert_keys(session, begin, adapter, spec, rest)


def make(session: Session, adapter: Adapter, slots: QueueSpec, keys: Iterable[tuple[str, int]]) -> None:
    """Insert slots.  Number 0 marks the key as known, and is held while the limit is 0."""
    names = [slots[role].name for role in ("slot_key", "slot_number", "max_attempts")]
    rows = (dict(zip(names, (key, number, ENDLESS if number else 0), strict=True)) for key, number in keys)
    while some := list(islice(rows, _BATCH)):
        adapter.rows.execute(session, slots, insert(slots.table), some)


# -- slots: rows that running tasks hold with a lease, so that no more tasks of a key run than it has slots -----------

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
        mine = adapter.rows.key_in(spec, [claim.identity for claim in claims])
        read = select(*spec.primary_key).where(mine, spec["limit_key"].is_not(None))
        return set(adapter.rows.keys(self.session, spec, adapter.rows.by_key(spec, read)))

    def _change(self, claims: Sequence[Claim], values: Sequence[Assignment], *, waits: bool = True) -> set[str]:
        """Write to the slots that ``claims`` hold, by primary key; return the holders, including those of skipped
        slots."""
        changed: set[str] = set()
        for some in _slot_batches(self.adapter, self.slots, claims):
            changed |= self._change_of([holder(claim) for claim in some], values, waits=waits)
        return changed

    def _change_of(self, holders: Sequence[str], values: Sequence[Assignment], *, waits: bool) -> set[str]:
        slots, adapter = self.slots, self.adapter
        theirs = and_(adapter.rows.one_of(slots, slots["claimed_by"], holders), is_held(slots))
        held = self._held(theirs, len(holders))
        if not held:
            return set()
        keys = list(held)
        named = and_(adapter.rows.key_in(slots, keys), theirs)
        statement = write(slots, named if waits else adapter.rows.skip_locked_rows(slots, named), values)
        changed = adapter.rows.change(self.session, slots, statement, keys, waits=waits)
        return {held[key] for key in changed} if waits else set(held.values())

    def _held(self, theirs: Criterion, count: int) -> dict[Identity, str]:
        """Return the slots with their holders, read without locks: a locking read could lock slots of other holders.

        A snapshot that is older than a claim does not show the claim's slot, although the engine may allow this
        transaction to settle the claim.  In that case, a separate transaction reads too.
        """
        read = select(*self.slots.primary_key, self.slots["claimed_by"]).where(theirs)
        held = self._holders(self.session, read)
        if len(held) < count and self.adapter.connections.may_change_unseen(
            self.session.connection(self.slots.bind_arguments)
        ):
            with separate_session(self.session, self.slots.bind_arguments) as own:
                held |= self._holders(own, read)
        return held

    def _holders(self, session: Session, read: Select[Any]) -> dict[Identity, str]:
        return {tuple(row[:-1]): row[-1] for row in self.adapter.rows.execute(session, self.slots, read)}


def _slot_batches(adapter: Adapter, slots: QueueSpec, items: Sequence[T]) -> Iterator[Sequence[T]]:
    # a statement identifies each slot by a key of two columns, and by its holder
    size = max(adapter.rows.most(slots) // 3, 1)
    return (items[start : start + size] for start in range(0, len(items), size))


def holder(claim: Claim) -> str:
    """Return the text that identifies a claim in the slot that it holds."""
    key = json.dumps([str(value) for value in claim.identity])
    text = f"{spec_of(claim.entity).table.fullname} {key} {claim.attempt} {claim.token}"
    return text if len(text) <= LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()


# -- explains why a task waits for a slot: the running tasks of its limit key have reached the limit ------------------

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


# -- claims tasks of limited queues, each with one of its key's slots -------------------------------------------------

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
        self,
        session: Session,
        adapter: Adapter,
        spec: QueueSpec,
        claim_some: Callable[..., list[tuple[Any, Claim]]],
        *,
        is_over: Callable[[], bool],
        lease: timedelta | None,
    ) -> None:
        """``claim_some(where, limit, named=...)`` claims tasks of the query that also satisfy ``where``, which selects
        by primary key if ``named``; ``is_over()`` says whether to claim no more, because the claim has met rows that
        cannot be read for long enough.
        """
        self.session = session
        self.adapter = adapter
        self.spec = spec
        self.slots = slots_of(spec)
        self.claim_some = claim_some
        self.is_over = is_over
        self.lease = lease or FOREVER  # a claim with lease=None holds its slot until it is settled

    def claim(self, where: Sequence[Where], order: Sequence[Any], limit: int) -> list[Any]:
        """Claim up to ``limit`` tasks, each with a slot if it has a key; return them in claim order."""
        claimed: dict[Identity, Any] = {}
        place: dict[Identity, int] = {}
        # read the full keys once, instead of checking each task: a full key may have very many tasks
        full = self.slots.made.get("full", lambda: full_keys(self.slots))
        passed: set[Key] = set(self.adapter.rows.execute(self.session, self.slots, full).scalars())
        more = True
        while more and len(claimed) < limit and not self.is_over():
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
        keys = [name for name in passed if name is not None][: self.adapter.rows.most(self.spec)]
        others = [or_(key.is_(None), ~self.adapter.rows.one_of(self.spec, key, keys))] if keys else []
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
                seen = self.adapter.rows.select_candidates(pick, *self.spec.primary_key, self.spec["limit_key"])
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
            if len(taken[key]) < count and not self.is_over():
                taken[key] += self.claim_some([*where, self._has(key)], count - len(taken[key]))
        self._assign([pair for key, locked in slots.items() for pair in zip(locked, taken[key], strict=False)])
        return {key: [task for task, _ in taken[key]] for key in needed}

    def _take_named(
        self, chosen: Mapping[Key, Sequence[Identity]], where: Sequence[Where]
    ) -> Iterable[tuple[Any, Claim]]:
        """Claim the chosen tasks, each only if it still has the key whose slot it is to hold."""
        keys = [(identity, key) for key, identities in chosen.items() for identity in identities]
        for some in self.adapter.rows.batches(self.spec, keys):
            together: dict[Key, list[Identity]] = defaultdict(list)
            for identity, key in some:
                together[key].append(identity)
            named_in = partial(self.adapter.rows.key_in, self.spec)
            of_key = (and_(self._has(key), named_in(mine)) for key, mine in together.items())
            named = and_(named_in([identity for identity, _ in some]), or_(*of_key))
            yield from self.claim_some([*where, named], len(some), named=True)

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
        for some in self.adapter.rows.batches(self.slots, list(needed)):
            most = max(needed[key] for key in some) + 2  # slot 0, and one more to detect that there are more
            named = self.adapter.rows.one_of(self.slots, self.slots["slot_key"], some)
            rows: Any = self.adapter.rows.execute(self.session, self.slots, _first_free(self.slots, named, most))
            for key, number in rows:
                found.setdefault(key, []).extend([number] if number else ())
        return {key: Free(numbers[: needed[key]], len(numbers) > needed[key]) for key, numbers in found.items()}

    def _lock_seen(self, seen: Sequence[Identity]) -> Iterable[Identity]:
        slots = self.slots
        state = slots.made.get("takeable", lambda: _takeable(slots))
        for some in _slot_batches(self.adapter, self.slots, seen):
            where = (self.adapter.rows.key_in(slots, some),)
            pick = Pick(spec=slots, state=state, where=where, order=(), limit=len(some), index=None, exact=True)
            yield from self.adapter.rows.lock(self.session, pick, locks_only=self.lease is FOREVER)

    def _lock_others(self, key: str, count: int, own: Sequence[Identity]) -> list[Identity]:
        """Lock other slots of a key, because other transactions have locked some."""
        slots = self.slots
        where = [slots["slot_key"] == key, is_usable(slots, slots.table), ~is_draining(slots, slots.table)]
        if own:
            where.append(~self.adapter.rows.key_in(slots, own))
        locked: list[Identity] = []
        for step in picks(slots, where, ()):
            if len(locked) < count:
                pick = step(count - len(locked))
                locked += self.adapter.rows.lock(self.session, pick, locks_only=self.lease is FOREVER)
        return locked

    def _assign(self, pairs: Sequence[tuple[Identity, tuple[Any, Claim]]]) -> None:
        """Write the holding claim to each locked slot."""
        slots, name, token = self.slots, self.slots["claimed_by"], self.slots["claim_token"]
        claimed = slots.made.get(("hold", self.lease), lambda: dict(claim_assignments(slots, "", self.lease)))
        for part in _slot_batches(self.adapter, self.slots, pairs):
            some = self.adapter.rows.padded(slots, part)
            holders = ((slots.key(slot), literal(holder(claim), name.type)) for slot, (_, claim) in some)
            (_, (_, first)), *_ = some
            values = claimed | {token: literal(first.token, token.type), name: case(*holders, else_=name)}
            keys = self.adapter.rows.key_in(slots, [slot for slot, _ in some])
            statement = self.adapter.rows.by_key(slots, write(slots, keys, list(values.items())))
            self.adapter.rows.execute(self.session, slots, statement)


def _takeable(slots: QueueSpec) -> tuple[Criterion, ...]:
    return (is_usable(slots, slots.table), ~is_busy(slots, slots.table), ~is_draining(slots, slots.table))


def full_keys(slots: QueueSpec) -> Select[tuple[str]]:
    """Return the keys without slots to take: all are held, or more tasks run than a lowered limit allows."""
    other, key = slots.table.alias("other"), slots["slot_key"]
    free = and_(other.c[key.name] == key, is_usable(slots, other), ~is_busy(slots, other))
    none = ~select(literal_column("1")).select_from(other).where(free).correlate(slots.table).exists()
    retired = ~is_usable(slots, slots.table)
    return select(key).where(is_busy(slots, slots.table), or_(retired, none)).distinct()


def _first_free(slots: QueueSpec, named: Criterion, most: int) -> Executable:
    """Return slot 0 of each ``named`` key that has slots, and slots that seem to be free."""
    key, number = slots["slot_key"], slots["slot_number"]
    free = and_(is_usable(slots, slots.table), ~is_busy(slots, slots.table))
    place = func.row_number().over(partition_by=key, order_by=number).label("place")
    known = select(key, number, place).where(named, or_(number == literal_column("0"), free)).subquery("known")
    return select(known.c[key.name], known.c[number.name]).where(known.c.place <= literal_column(str(most)))


# -- queues that limit how many tasks with the same key run at once, and the slots that running tasks hold ------------


class Limits(Kind):
    """Limits running tasks: claims each with a slot, frees slots when claims are settled, extends their leases."""

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if options.slots is None:
            needed = "slots= is missing: name the model that derives from SlotMixin: QueueOptions(slots=Slot)"
            return needed if "limit_key" in roles else None
        if "limit_key" not in roles:
            return "slots= is for models that derive from LimitMixin"
        if SLOTS not in kinds_in(options.slots):
            return f"slots= must name a model of slots: {options.slots.__name__} does not derive from SlotMixin"
        return None

    def hindrances(self, adapter: Adapter, session: Session, seen: SeenTask) -> Iterable[Reason]:
        return () if seen.values["limit_key"] is None else full_key(adapter, session, seen)

    def announces(self, spec: QueueSpec, outcome: AttemptOutcome) -> bool:
        return True

    def continues(self, spec: QueueSpec) -> bool:
        return True


class SlotRows(Kind):
    """The rows that represent slots.  They are not tasks, and are found by the claim that holds them."""

    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        yield KindIndex("holder", [spec["claimed_by"]], is_held(spec))


LIMITS = Limits(
    columns={"limit_key": lambda _: optional(key_type(LONGEST_KEY))},
    checks={"limit_key": checks.key},
    untouched=("limit_key",),
    partition=Partition("limit_key", width=2),
)


SLOTS = SlotRows(
    columns={
        "slot_key": lambda _: {"type_": key_type(LONGEST_KEY), "primary_key": True},
        "slot_number": lambda _: {"type_": Integer(), "primary_key": True, "autoincrement": False},
    },
    checks={"slot_key": checks.key},
    partition=Partition("slot_key", width=1),
)


class LimitMixin(QueueMixin):
    """A queue that limits how many tasks with the same ``limit_key`` run at once, across all workers.

    The limit is the number of the key's slots in the model that ``QueueOptions(slots=...)`` names.  A key at its limit
    does not delay tasks of other keys.  A claim can hold slots that it does not use until its transaction ends: commit
    claims soon.

    Tasks are claimed in the queue's order, except during concurrent claims: instead of a task that another claim has
    locked, the claim takes the next task of the same key, even if a task of another key comes before it.
    """

    __queue_kind__: ClassVar[Kind | None] = LIMITS

    if TYPE_CHECKING:
        limit_key: Mapped[str | None]
        """The key; a task without a key is not limited."""


class SlotMixin(QueueMixin):
    """The slots of a :class:`.LimitMixin`: each is held by one running task, with the same lease.

    The mixin declares the primary key.  Rows are created when they are needed, see :func:`.set_limit`.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions(max_attempts=2**31 - 1, notify=False)
    __queue_kind__: ClassVar[Kind | None] = SLOTS

    if TYPE_CHECKING:
        slot_key: Mapped[str]
        """The ``limit_key`` of the tasks that may take the slot."""
        slot_number: Mapped[int]
        """The number of the slot; number 0 represents the key itself, and is never held."""
