"""Concurrency limits: the slots of each key, claims that need one, and the model's mixins."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

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
from ..queue.spec import Criterion, Identity, QueueSpec, spec_of
from ..sql import Assignment, Pick, counts_before, has_come, is_held, only, picks, state, utcnow, write

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


# -- the slots that a claim of a limited queue holds ------------------------------------------------------------------

Key = str | None
_OTHERS = 4
"""The number of slots that are read beyond those that a claim needs, since other claims may be locking some."""


class Gate:
    """Says how many tasks of which keys a claim may take, and holds their slots.

    Slots are locked like tasks: no claim waits for them, and no other claim gets them.  The limit is therefore exact
    even while other transactions are open, whose claims are not visible yet.
    """

    def __init__(self, session: Session, adapter: Adapter, spec: QueueSpec, lease: timedelta | None) -> None:
        self._session = session
        self._adapter = adapter
        self._spec = spec
        self._slots = slots_of(spec)
        self._lease = lease or FOREVER  # a claim with lease=None holds its slot until it is settled
        self._free: dict[Key, list[int]] = {}
        """The numbers of slots that seem to be free, by key."""
        self._tried: set[Identity] = set()
        self._unread: set[Key] = set()
        """The keys that may have more free slots."""
        self._held: dict[Key, list[Identity]] = defaultdict(list)
        """The locked slots that no task is to hold yet."""
        self._used: dict[Identity, Identity] = {}
        """The locked slots that tasks are to hold, by task."""

    def look(self, keys: Collection[Key], needed: int) -> None:
        """Read the free slots of ``keys`` that have not been read, about ``needed`` of each."""
        new = [key for key in keys if key is not None and key not in self._free]
        if new:
            self._read(new, 1 << (needed + _OTHERS).bit_length())

    def room(self, key: Key) -> int:
        """Return how many tasks of a key may start, as far as is known."""
        if key is None or key in self._unread:
            return ENDLESS
        free = self._free.get(key)
        return len(self._held[key]) + (self._spec.options.limit if free is None else len(free))

    def hold(self, shares: Mapping[Key, int]) -> dict[Key, int]:
        """Lock slots for these numbers of tasks; return for how many of each key there are some, if there are any."""
        if new := [key for key in shares if key is not None and key not in self._free]:
            create_slots(self._session, self._adapter, self._spec, [key for key in new if key is not None])
            self._read(new, 1 << (max(shares.values()) + _OTHERS).bit_length())
            self._free = {**{key: [] for key in new}, **self._free}  # an old snapshot does not show new slots
        while missing := self._lock(shares):  # others have locked some that seemed to be free
            if not any(self._free.get(key) for key in missing):
                if not (more := [key for key in missing if key in self._unread]):
                    break
                self._read(more, ENDLESS)
        found = {key: share if key is None else min(share, len(self._held[key])) for key, share in shares.items()}
        return {key: number for key, number in found.items() if number}

    def use(self, tasks: Iterable[object]) -> None:
        """Let claimed tasks hold slots."""
        for task in tasks:
            if (key := getattr(task, self._spec.attributes["limit_key"])) is not None:
                self._used[self._spec.identity_of(task)] = self._held[key].pop()

    def assign(self, claims: Iterable[Claim]) -> None:
        """Write the claims to the slots of their tasks; the other slots are held for others."""
        pairs = [(self._used.pop(claim.identity), claim) for claim in claims if claim.identity in self._used]
        for slot in self._used.values():
            self._held[slot[0]].append(slot)
        self._used.clear()
        slots, name, token = self._slots, self._slots["claimed_by"], self._slots["claim_token"]
        claimed = slots.made.get(("hold", self._lease), lambda: dict(claim_assignments(slots, "", self._lease)))
        for part in _slot_batches(self._adapter, slots, pairs):
            some = self._adapter.rows.padded(slots, part)
            holders = ((slots.key(slot), literal(holder(claim), name.type)) for slot, claim in some)
            values = claimed | {token: literal(some[0][1].token, token.type), name: case(*holders, else_=name)}
            keys = self._adapter.rows.key_in(slots, [slot for slot, _ in some])
            statement = self._adapter.rows.by_key(slots, write(slots, keys, list(values.items())))
            self._adapter.rows.execute(self._session, slots, statement)

    def _read(self, keys: Collection[Key], most: int) -> None:
        slots, rows, names = self._slots, self._adapter.rows, [key for key in keys if key is not None]
        for some in rows.batches(slots, names):
            named = rows.one_of(slots, slots["slot_key"], some)
            seen: Any = rows.execute(self._session, slots, _first_free(slots, named, most))
            found: dict[str, list[int]] = {}
            for key, number in seen:
                found.setdefault(key, []).extend([number] if number else ())
            for key, numbers in found.items():
                self._free[key] = [number for number in numbers if (key, number) not in self._tried]
                random.shuffle(self._free[key])  # so that claims at the same time do not lock the same ones
                (self._unread.discard if len(numbers) < most - 1 else self._unread.add)(key)

    def _lock(self, shares: Mapping[Key, int]) -> list[Key]:
        """Lock slots that have been read; return the keys of which there are too few."""
        chosen: list[Identity] = []
        for key, share in shares.items():
            free, number = self._free.get(key, []), max(share - len(self._held[key]), 0)
            chosen += [(key, free.pop()) for _ in free[:number]]
        self._tried.update(chosen)
        slots = self._slots
        state = slots.made.get("takeable", lambda: _takeable(slots))
        for some in _slot_batches(self._adapter, slots, sorted(chosen)):
            where = (self._adapter.rows.key_in(slots, some),)
            pick = Pick(spec=slots, state=state, where=where, order=(), limit=len(some), index=None, exact=True)
            for slot in self._adapter.rows.lock(self._session, pick, locks_only=self._lease is FOREVER):
                self._held[slot[0]].append(slot)
        return [key for key, share in shares.items() if key is not None and len(self._held[key]) < share]


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
    free = and_(*_takeable(slots))
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
    locked, the claim takes the next task of the same key, even if a task of another key comes before it.  If the first
    tasks cannot start, because their keys are at their limits, the claim searches for those of other keys, of 32 keys
    or more at a time, and takes them in the queue's order.
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
