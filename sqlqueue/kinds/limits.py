"""Limits and rates: the slots and places of each key, claims that need them, and the model's mixins."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Float,
    FromClause,
    Integer,
    Select,
    Update,
    and_,
    bindparam,
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
from .._support.texts import ahead_text
from ..dialects import key_type
from ..dialects.base import Adapter
from ..dialects.statements import FURTHER
from ..lifecycle.kind import Cause, Holder, Kind, KindIndex, Partition, Reason, SeenTask, kinds_in, moment_text
from ..model.declaration import LONGEST_KEY, LONGEST_NAME, QueueMixin, optional
from ..queue.options import MILLISECOND, AttemptOutcome, QueueOptions, Rate, Status
from ..queue.spec import Criterion, Identity, QueueSpec, spec_of
from ..sql import (
    COUNTED,
    EDGE,
    LARGEST,
    Assignment,
    Beside,
    Pick,
    before,
    is_held,
    lane_picks,
    running_in_lanes,
    state,
    utcnow,
    write,
)

T = TypeVar("T")

# -- creates the rows of limit keys that are used for the first time --------------------------------------------------
#
# number     row           max_attempts                      period
# 0          the key       -1 if the key has no limit        of its rate, NULL without one
#                          1 if it has retired slots
# 1, 2 ...   a slot        0 if it is retired                NULL
# -1, -2 ... a place       how many starts it is worth       of the rate
#
# A place is a slot that time frees: a round of as many starts as it is worth, in each of which its ``available_at``
# becomes the time of the last one plus the period.  The next round begins after that, so any time of that length has
# starts of one round at most.  ``attempt`` counts the starts of the round.

ENDLESS = 2**31 - 1
"""The ``max_attempts`` of a usable slot."""
UNLIMITED = -1
"""The ``max_attempts`` in row 0 of a key without a limit."""
LOWERED = 1
"""The ``max_attempts`` in row 0 of a key whose limit was lowered while more tasks ran."""
PLACES = 100
"""The maximum number of places of a key: the places of a higher rate are worth several starts each."""
Row: TypeAlias = tuple[str, int, int, int | None]
"""A key, a number, and the values of ``max_attempts`` and ``period``."""
_BATCH = 1_000
"""Slots inserted at a time: many keys with a high limit have more than fit into memory."""


def slots_of(spec: QueueSpec) -> QueueSpec:
    """Return the queue of slots of a limited queue; raise :class:`.ArgumentError` if the queue is not limited."""
    if spec.options.slots is None:
        raise ArgumentError(f"{spec.entity.__name__} has no limits: derive it from LimitMixin")
    return spec_of(spec.options.slots)


def create_slots(session: Session, adapter: Adapter, spec: QueueSpec, keys: Collection[str]) -> None:
    """Create the slots and places of new ``keys``, as many for each as the model's ``limit`` and ``rate`` need.

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
    """Insert the rows of new ``keys``, each time in a transaction or savepoint that ``begin`` opens.

    In one order, so that two transactions that insert the same keys cannot deadlock.  The second one waits at the first
    row 0 that both insert; row 0 is never claimed, so it waits for no claim.
    """
    slots, limit, rate = slots_of(spec), spec.options.first_limit, spec.options.rate
    try:
        with begin():
            for has_period in (True, False):
                rows = (row for key in keys for row in _rows_of(key, limit, rate))
                make(session, adapter, slots, (row for row in rows if (row[-1] is not None) is has_period))
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


def _rows_of(key: str, limit: int | None, rate: Rate | None) -> Iterator[Row]:
    period = None if rate is None else rate.per // MILLISECOND
    yield key, 0, UNLIMITED if limit is None else 0, period
    yield from ((key, -number, worth, period) for number, worth in enumerate(worths(rate) if rate else (), 1))
    yield from ((key, number, ENDLESS, None) for number in range(1, (limit or 0) + 1))


def worths(rate: Rate) -> list[int]:
    """Return how many starts each place of a key with this rate is worth."""
    number = min(rate.starts, PLACES)
    least, rest = divmod(rate.starts, number)
    return [least + (n < rest) for n in range(number)]


def make(session: Session, adapter: Adapter, slots: QueueSpec, rows: Iterable[Row]) -> None:
    """Insert slots, places or the rows of keys, all or none of which have a ``period``: a driver would ask the server
    for the type of NULL."""
    names = [slots[role].name for role in ("slot_key", "slot_number", "max_attempts", "period")]
    values = ({name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows)
    while some := list(islice(values, _BATCH)):
        adapter.rows.execute(session, slots, insert(slots.table), some)


# -- slots: rows that running tasks hold with a lease, so that no more tasks of a key run than it has slots -----------

FOREVER = timedelta(days=20_000)
"""An endless lease: its seconds fit into 31 bits, the most that SQL Server can add to a time."""


_ZERO: ColumnElement[int] = literal_column("0", Integer)


def is_usable(slots: QueueSpec, table: FromClause) -> Criterion:
    """Return the criterion of slots and places that are not retired; retired ones are not taken again."""
    return table.c[slots["max_attempts"].name] > _ZERO


def is_place(slots: QueueSpec, table: FromClause) -> Criterion:
    """Return the criterion of places; other rows are slots and keys."""
    return table.c[slots["slot_number"].name] < _ZERO


def is_busy(slots: QueueSpec, table: FromClause) -> Criterion:
    """Return the criterion of slots held by a task whose lease has not expired, and of places whose starts are used."""
    number, used, worth = (table.c[slots[role].name] for role in ("slot_number", "attempt", "max_attempts"))
    return and_(is_taken(slots, table), or_(number >= _ZERO, used >= worth))


def is_taken(slots: QueueSpec, table: FromClause) -> Criterion:
    """Return the criterion of slots held by a task whose lease has not expired, and of places whose starts count."""
    status, until = (table.c[slots[role].name] for role in ("status", "available_at"))
    return and_(status == state(Status.RUNNING), until > utcnow())


def is_excess(slots: QueueSpec, table: FromClause) -> Criterion:
    """Return the criterion of retired slots that are held, and of places with more starts than they are worth now."""
    return and_(is_taken(slots, table), table.c[slots["attempt"].name] > table.c[slots["max_attempts"].name])


def is_draining(slots: QueueSpec, table: FromClause) -> Criterion:
    """Return the criterion of rows of keys that run more tasks than a lowered limit allows, or have more starts than a
    lowered rate allows."""
    other, key = slots.table.alias("other"), slots["slot_key"].name
    same = and_(other.c[key] == table.c[key], is_excess(slots, other))
    return select(literal_column("1")).select_from(other).where(same).correlate(table).exists()


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a ``key``: how many of its tasks may run at once and may start within a time, and how many do."""

    key: str
    """The ``limit_key`` of these tasks."""
    limit: int | None
    """How many may run at once; ``None``: any number."""
    running: int | None
    """How many run now; ``None`` without a limit: they are not counted."""
    rate: Rate | None = None
    """How many may start within a time; ``None``: any number."""
    started: int = 0
    """How many have started within this time; up to so many if a place of the rate is worth several starts."""
    next_start: datetime | None = None
    """When the next may start, by the rate; ``None`` if one may now."""


def read_limits(
    adapter: Adapter, session: Session, slots: QueueSpec, *where: Criterion, first: int | None = None
) -> list[Limit]:
    """Return the limits of the known keys that satisfy ``where``, sorted by key: all, or only the ``first`` ones."""
    statement = usage(slots).where(*where).order_by(slots["slot_key"]).limit(first)
    rows: Any = adapter.rows.execute(session, slots, statement)
    return [_limit_of(row) for row in rows]


def _limit_of(row: Sequence[Any]) -> Limit:
    key, most, limit, running, period, starts, used, free, until, excess_until = row
    number, count = (None, None) if most == UNLIMITED else (limit, running)
    if period is None:
        return Limit(key, number, count)
    next_start = excess_until or (None if free else until)
    return Limit(key, number, count, Rate(int(starts), per=period * MILLISECOND), int(used or 0), next_start)


def usage(slots: QueueSpec) -> Select[Any]:
    """Return a SELECT of what :class:`Limit` says of each known key."""
    table, number, one = slots.table, slots["slot_number"], literal_column("1", Integer)
    usable, busy, taken = (each(slots, table) for each in (is_usable, is_busy, is_taken))
    place, slot = is_place(slots, table), number > _ZERO
    columns: list[ColumnElement[Any]] = [
        slots["slot_key"],
        func.min(case((number == _ZERO, slots["max_attempts"]))),
        func.count(case((and_(slot, usable), one))),
        func.count(case((and_(slot, taken), one))),
        func.max(case((number == _ZERO, slots["period"]))),
        func.sum(case((place, slots["max_attempts"]))),
        func.sum(case((and_(place, taken), slots["attempt"]))),
        func.count(case((and_(place, usable, ~busy), one))),
        func.min(case((and_(place, busy), slots["available_at"]))),
        func.max(case((and_(place, is_excess(slots, table)), slots["available_at"]))),
    ]
    return select(*columns).group_by(slots["slot_key"])


def next_start(slots: QueueSpec, named: Criterion) -> Select[tuple[datetime | None]]:
    """Return a SELECT of when the first of the rates of the ``named`` keys allows a start, now if a key has none."""
    table, moment = slots.table, slots["available_at"]
    rateless = and_(slots["slot_number"] == _ZERO, slots["period"].is_(None))
    is_place_of_rate = and_(is_place(slots, table), is_usable(slots, table))
    later = and_(is_place_of_rate, is_busy(slots, table))
    return select(func.min(case((later, moment), (or_(rateless, is_place_of_rate), utcnow())))).where(named)


class Slots:
    """Frees the slots of running tasks, and extends their leases; gives back places."""

    def __init__(self, session: Session, adapter: Adapter, spec: QueueSpec) -> None:
        self.session = session
        self.adapter = adapter
        self.spec = spec
        self.slots = slots_of(spec)

    def free(self, claims: Sequence[Claim], *, unused: bool = False) -> None:
        """Free the slots of settled claims; and if their tasks were handed back ``unused``, the places that are worth
        one start."""
        slots, rows, kinds = self.slots, self.adapter.rows, ("", PLACE) if unused else ("",)
        holders = [holder(claim, kind) for kind in kinds for claim in claims]
        for some in _slot_batches(self.adapter, slots, holders):
            if held := self._held(some):
                freeing, parameters = self._change(None, some, list(held))
                rows.execute(self.session, slots, rows.by_key(slots, freeing), parameters)

    def extend(self, claims: Sequence[Claim], lease: timedelta, *, waits: bool) -> list[Claim]:
        """Extend the leases of slots to ``lease`` from now; return the claims that have lost their slots.

        Unless it ``waits``, skip slots that others have locked.
        """
        slots, rows, kept = self.slots, self.adapter.rows, set[str]()
        for some in _slot_batches(self.adapter, slots, [holder(claim) for claim in claims]):
            if held := self._held(some):
                extending, parameters = self._change(lease, some, list(held), waits=waits)
                changed = rows.change(self.session, slots, extending, list(held), parameters, waits=waits)
                kept.update(held[key] for key in (changed if waits else held))
        rest = [claim for claim in claims if holder(claim) not in kept]
        limited = self._with_key(rest) if rest else ()
        return [claim for claim in rest if claim.identity in limited]

    def _with_key(self, claims: Sequence[Claim]) -> set[Identity]:
        """Return the tasks that have a key with a limit."""
        spec, adapter, slots = self.spec, self.adapter, self.slots
        mine = adapter.rows.key_in(spec, [claim.identity for claim in claims])
        key = and_(
            slots["slot_key"] == spec["limit_key"], slots["slot_number"] == _ZERO, slots["max_attempts"] >= _ZERO
        )
        limited = select(literal_column("1")).select_from(slots.table).where(key).correlate(spec.table).exists()
        read = select(*spec.primary_key).where(mine, limited)
        return set(adapter.rows.keys(self.session, spec, adapter.rows.by_key(spec, read)))

    def _change(
        self, lease: timedelta | None, holders: Sequence[str], keys: Sequence[Identity], *, waits: bool = True
    ) -> tuple[Update, Mapping[str, Any]]:
        """Return the statement, with its parameters, that extends the leases of slots that ``holders`` hold, or frees
        them.  It selects them by primary key."""
        slots, rows = self.slots, self.adapter.rows
        count = rows.statement_size(slots, len(keys))

        def make() -> Update:
            values: list[Assignment] = [(slots["available_at"], utcnow(lease))]
            if lease is None:
                values.append((slots["status"], state(Status.AVAILABLE)))
            named = and_(rows.key_in_parameters(slots, count), _are_of_holders(slots))
            return write(slots, named if waits else rows.skip_locked_rows(slots, named), values)

        changing = slots.made.get(("change slots", rows, lease, count, waits), make)
        return changing, {_GIVEN: rows.padded(slots, holders), **rows.key_parameters(slots, keys)}

    def _held(self, holders: Sequence[str]) -> dict[Identity, str]:
        """Return the slots with their holders, read without locks: a locking read could lock slots of other holders.

        A snapshot that is older than a claim does not show the claim's slot, although the engine may allow this
        transaction to settle the claim.  In that case, a separate transaction reads too.
        """
        held = self._holders(self.session, holders)
        if len(held) < len(holders) and self.adapter.connections.may_change_unseen(
            self.session.connection(self.slots.bind_arguments)
        ):
            with separate_session(self.session, self.slots.bind_arguments) as own:
                held |= self._holders(own, holders)
        return held

    def _holders(self, session: Session, holders: Sequence[str]) -> dict[Identity, str]:
        slots, rows = self.slots, self.adapter.rows
        columns = *slots.primary_key, slots["claimed_by"]
        read = slots.made.get("holders", lambda: select(*columns).where(_are_of_holders(slots)))
        found = rows.execute(session, slots, read, {_GIVEN: rows.padded(slots, holders)})
        return {tuple(row[:-1]): row[-1] for row in found}


_GIVEN = "sqlqueue_given"


def _are_given(column: ColumnElement[Any]) -> Criterion:
    """Return the criterion that the value of a column is among those in the parameter."""
    return column.in_(bindparam(_GIVEN, type_=column.type, expanding=True))


def _are_of_holders(slots: QueueSpec) -> Criterion:
    """Return the criterion of slots that the holders in the parameter hold."""
    return and_(is_held(slots), _are_given(slots["claimed_by"]))


def _slot_batches(adapter: Adapter, slots: QueueSpec, items: Sequence[T]) -> Iterator[Sequence[T]]:
    # a statement identifies each slot by a key of two columns, and by its holder
    size = max(adapter.rows.most(slots) // 3, 1)
    return (items[start : start + size] for start in range(0, len(items), size))


PLACE = "place "
"""What the holders of places begin with, so that settling a claim does not free its place."""


def holder(claim: Claim, kind: str = "") -> str:
    """Return the text that identifies a claim in the slot, or place, that it holds."""
    key = json.dumps([str(value) for value in claim.identity])
    text = f"{kind}{spec_of(claim.entity).table.fullname} {key} {claim.attempt} {claim.token}"
    return text if len(text) <= LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()


# -- explains why a task waits for a slot or a place: its key has reached its limit or its rate -----------------------

_LISTED = 20
"""The maximum number of holders named in a reason."""


def full_key(adapter: Adapter, session: Session, seen: SeenTask) -> Iterator[Reason]:
    """Yield the reasons why a task with a ``limit_key`` gets no slot or no place."""
    spec, key, slots = seen.spec, seen.values["limit_key"], slots_of(seen.spec)
    options, found = spec.options, read_limits(adapter, session, slots, slots["slot_key"] == key)
    limit = found[0] if found else Limit(key, options.first_limit, 0, options.rate)
    rooms = list[tuple[int, str]]()
    if limit.limit is not None and limit.running is not None:
        rooms.append((limit.limit - limit.running, f"at most {limit.limit} run at once"))
        if limit.running >= limit.limit:
            holders = _holders(adapter, session, seen)
            names = f" ({', '.join(map(str, holders))})" if holders else ""
            text = f"{limit.running} of at most {limit.limit} tasks with its key {key!r} are running{names}"
            yield Reason(cause=Cause.LIMIT, text=text, holders=holders)
    if limit.rate is not None:
        starts, period, until = limit.rate.starts, limit.rate.period, limit.next_start
        rooms.append((starts - limit.started, f"at most {starts:,} start within {period}"))
        if until is not None:
            text = f"{limit.started:,} of at most {starts:,} tasks with its key {key!r} have started within {period}"
            yield Reason(cause=Cause.RATE, text=f"{text}; the next may at {moment_text(until)}", until=until)
    room, text = min(rooms, default=(LARGEST, ""))
    if rooms and seen.values["status"] == Status.AVAILABLE:
        ahead = _ahead(adapter, session, seen)
        if ahead >= max(room, 1):
            first = ahead_text(ahead, COUNTED, f" with its key {key!r}")
            yield Reason(cause=Cause.KEY_ORDER, text=f"{first}, and {text}", ahead=ahead)


def _holders(adapter: Adapter, session: Session, seen: SeenTask) -> tuple[Holder, ...]:
    """Return the running tasks of the key, at most :data:`_LISTED`: those whose leases end first, in the order of their
    claims."""
    spec = seen.spec
    running = running_in_lanes(spec, tuple(seen.scope))
    of_key = adapter.rows.lane(running, seen.values["limit_key"], _LISTED)
    read = adapter.rows.select_candidates(of_key, *spec.primary_key, spec["claimed_by"], spec["claimed_at"])
    rows: Any = adapter.rows.execute(session, spec, read)
    found = (Holder(tuple(identity), worker, since) for *identity, worker, since in rows)
    return tuple(sorted(found, key=lambda each: (each.since is None, each.since, each.identity)))


def _ahead(adapter: Adapter, session: Session, seen: SeenTask) -> int:
    spec, key = seen.spec, seen.values["limit_key"]
    ready, _ = lane_picks(spec)
    if any(seen.columns[term.column] is None for term in spec.ready_order):
        return 0
    parts = before(spec.ready_order, seen.columns)
    counts = [adapter.rows.count_lane(ready(1), key, part) for part in parts]
    numbers: Any = adapter.rows.execute(session, spec, select(*counts)).one()
    number: int = sum(numbers)
    return min(number, COUNTED)


# -- the slots that a claim of a limited queue holds ------------------------------------------------------------------

Key = str | None
_OTHERS = 4
"""The number of slots that are read beyond those that a claim needs, since other claims may be locking some."""
_REACH = 2
"""How many times as many slots are looked at, of which some are held."""


class Free(NamedTuple):
    """A slot or place that seems to be free."""

    row: Identity
    starts: int
    """For how many tasks."""
    worth: int
    """For how many tasks it is in a whole round; 1 for a slot."""


class _Stock:
    """What keys have of slots, or of places."""

    def __init__(self) -> None:
        self.free: dict[Key, list[Free]] = {}
        """What seems to be free, by keys that have a limit, or a rate."""
        self.unread: set[Key] = set()
        """The keys that may have more."""
        self.held: dict[Key, list[Identity]] = defaultdict(list)
        """The locked rows that no task is to hold yet, each as often as there may be tasks."""

    def room(self, key: Key) -> int:
        """Return for how many tasks of a key there is something, as far as is known."""
        if key in self.unread or key not in self.free:
            return ENDLESS
        return len(self.held[key]) + sum(each.starts for each in self.free[key])

    def fill(self, key: Key, free: Sequence[Free]) -> None:
        """Store what is free of a key.  Places whose round has begun are used first, the fullest before others."""
        begun = sorted((each for each in free if each.starts < each.worth), key=lambda each: -each.starts)
        others = [each for each in free if each.starts == each.worth]
        random.shuffle(others)  # so that claims at the same time do not lock the same ones
        self.free[key] = [*others, *begun]

    def take(self, key: Key, share: int) -> Iterator[Free]:
        """Yield what else to lock, so that ``share`` tasks of a key may start."""
        free, missing = self.free.get(key, []), share - len(self.held[key])
        while free and missing > 0:
            each = free.pop()
            missing -= each.starts
            yield each


class Gate:
    """Says how many tasks of which keys a claim may take, and holds their slots and places.

    These are locked like tasks: no claim waits for them, and no other claim gets them.  The limit is therefore exact
    even while other transactions are open, whose claims are not visible yet.
    """

    def __init__(self, session: Session, adapter: Adapter, spec: QueueSpec, lease: timedelta | None) -> None:
        self._session = session
        self._adapter = adapter
        self._spec = spec
        self._slots = slots_of(spec)
        self._lease = lease or FOREVER  # a claim with lease=None holds its slot until it is settled
        self._known: set[Key] = set()
        self._absent: set[Key] = set()
        """Keys that have been read and have no rows."""
        self._stocks = _Stock(), _Stock()
        """Slots, and places."""
        self._seen: dict[Key, datetime | None] = {}
        """Since when what was read is free, the latest: slots and places that are free since later have changed."""
        self._tried: set[Identity] = set()
        self._begun: dict[Identity, int] = {}
        """How many starts of their rounds locked places have had, if they are worth several."""
        self._used: dict[Identity, list[Identity]] = {}
        """The locked rows that tasks are to hold, by task."""

    def beside(self, needed: int) -> Beside:
        """Return how to read what is free of keys, about ``needed`` of each, together with the keys themselves."""
        slots, most = self._slots, 1 << (needed + _OTHERS).bit_length()
        return Beside(
            key=("first free", most),
            select=lambda of_found: _first_free(slots, most, of_found(slots["slot_key"])),
            width=4,
            take=lambda seen, keys: self._fill(seen, most, keys),
        )

    def look(self, keys: Collection[Key], needed: int) -> None:
        """Read what is free of ``keys`` that have not been read, about ``needed`` of each."""
        unread: Collection[Key] = {key for key in keys if key is not None} - self._known - self._absent
        most = 1 << (needed + _OTHERS).bit_length()
        while unread:  # until something is found of each, or there is nothing
            self._read(unread, most)
            unread = {key for stock in self._stocks for key in stock.unread.intersection(unread) if not stock.free[key]}
            most *= FURTHER

    def look_after(self, key: Any, number: int) -> list[Key]:
        """Read what is free of the next ``number`` keys with slots, or fewer, after ``key``; return them in order."""
        slots, given, most = self._slots, {} if key is EDGE else {_GIVEN: key}, 1 << _OTHERS.bit_length()

        def make() -> Executable:
            column = slots["slot_key"]
            later = [column > bindparam(_GIVEN, type_=column.type)] if given else []
            some = select(column).where(*later).distinct().order_by(column).limit(number).subquery()
            last = select(func.max(some.c[column.name])).scalar_subquery()
            first = _first_free(slots, most, and_(*later, column <= last))
            return first.order_by(first.selected_columns[column.name])

        statement = slots.made.get(("next free", number, len(given)), make)
        return self._fill(self._adapter.rows.execute(self._session, slots, statement, given), most)

    def room(self, key: Key) -> int:
        """Return how many tasks of a key may start, as far as is known."""
        if key is None or key in self._known:
            return min(stock.room(key) for stock in self._stocks)
        limit, rate = self._spec.options.first_limit, self._spec.options.rate
        return min(ENDLESS if limit is None else limit, ENDLESS if rate is None else rate.starts)

    @property
    def has_rates(self) -> bool:
        """Whether keys that have been read have rates."""
        return bool(self._stocks[1].free)

    def used_up(self) -> list[str]:
        """Return the keys whose rate allows no start now."""
        places = self._stocks[1]
        return [key for key in places.free if key is not None and not places.room(key)]

    def hold(self, shares: Mapping[Key, int]) -> dict[Key, int]:
        """Lock slots and places for these numbers of tasks; return for how many of each key there are some, if there
        are any."""
        if new := [key for key in shares if key is not None and key not in self._known]:
            create_slots(self._session, self._adapter, self._spec, [key for key in new if key is not None])
            self._known.difference_update(shares)  # all are read at the same moment, and locked together
            self._absent.difference_update(shares)
            self.look(shares, max(shares.values()))
            for key in new:
                if key not in self._known:  # an old snapshot does not show new rows
                    self._known.add(key)
                    self._stocks[0].free[key] = []
        most = max(shares.values()) + _OTHERS
        while missing := self._lock(shares):  # others have locked some that seemed to be free
            if not any(stock.free[key] for stock, key in missing):
                if not (more := [key for stock, key in missing if key in stock.unread]):
                    break
                most *= FURTHER
                self._read(more, most)
        limited = {key: [len(stock.held[key]) for stock in self._stocks if key in stock.free] for key in shares}
        return {key: number for key, share in shares.items() if (number := min([share, *limited[key]]))}

    def use(self, tasks: Iterable[object]) -> None:
        """Let claimed tasks hold slots and places."""
        for task in tasks:
            key = getattr(task, self._spec.attributes["limit_key"])
            if held := [stock.held[key].pop() for stock in self._stocks if key in stock.free]:
                self._used[self._spec.identity_of(task)] = held

    def assign(self, claims: Iterable[Claim]) -> None:
        """Write the claims to what their tasks use; the other slots and places are held for others.

        Later than the claims themselves: the time of a place is never before that of the start that it counts.
        """
        taken, starts = list[tuple[Identity, Claim]](), defaultdict[Identity, list[Claim]](list)
        for claim in claims:
            for row in self._used.pop(claim.identity, ()):
                if row[1] < 0:
                    starts[row].append(claim)
                else:
                    taken.append((row, claim))
        for row in chain(*self._used.values()):
            self._stocks[row[1] < 0].held[row[0]].append(row)
        self._used.clear()
        for some in _slot_batches(self._adapter, self._slots, taken):
            self._write_slots(some)
        for places in _slot_batches(self._adapter, self._slots, list(starts.items())):
            self._write_places(places)

    def _write_slots(self, pairs: Sequence[tuple[Identity, Claim]]) -> None:
        slots, lease = self._slots, self._lease

        def others() -> list[Assignment]:
            until, since = (slots["available_at"], utcnow(lease)), (slots["claimed_at"], utcnow())
            first: Assignment = slots["attempt"], literal_column("1")
            return [(slots["status"], state(Status.RUNNING)), until, since, first]

        holders = {row: holder(claim) for row, claim in pairs}
        rows = self._adapter.rows
        rows.write_each(self._session, slots, slots["claimed_by"], holders, others, key=("hold", lease))

    def _write_places(self, starts: Sequence[tuple[Identity, list[Claim]]]) -> None:
        """Count the starts of places, whose next round begins no earlier than a period after the last one."""
        slots, some = self._slots, self._adapter.rows.padded(self._slots, starts)
        counts = ((slots.key(row), literal(self._begun.get(row, 0) + len(claims))) for row, claims in some)
        name, singles = slots["claimed_by"], [(row, each) for row, (each, *_) in some if row not in self._begun]
        holders = ((slots.key(row), literal(holder(claim, PLACE), name.type)) for row, claim in singles)
        seconds: Any = slots["period"] * literal_column("0.001", Float(53))
        values: list[Assignment] = [
            (slots["status"], state(Status.RUNNING)),
            (slots["available_at"], utcnow(seconds)),
            (slots["claimed_at"], utcnow()),
            (slots["attempt"], case(*counts)),
            (name, case(*holders, else_=null()) if singles else null()),
        ]
        rows, keys = self._adapter.rows, [row for row, _ in some]
        rows.execute(self._session, slots, rows.by_key(slots, write(slots, rows.key_in(slots, keys), values)))

    def _read(self, keys: Collection[Key], most: int) -> None:
        slots, rows, names = self._slots, self._adapter.rows, [key for key in keys if key is not None]
        make = partial(_first_free, slots, most, _are_given(slots["slot_key"]))
        statement = slots.made.get(("first free", most), make)
        for some in rows.batches(slots, names):
            seen: Any = rows.execute(self._session, slots, statement, {_GIVEN: rows.padded(slots, some)})
            self._fill(seen, most, some)

    def _fill(self, seen: Iterable[Any], most: int, named: Iterable[Key] = ()) -> list[Key]:
        """Store the result of :func:`_first_free` for the keys ``named``; return those that it has."""
        has = defaultdict[Key, tuple[int, bool, int]](lambda: (0, False, 1))
        free = defaultdict[Key, tuple[list[Free], list[Free]]](lambda: ([], []))
        moments = list[datetime]()
        for key, number, left, worth, period, moment in seen:
            if number == 0:
                has[key] = worth, period is not None, left
            else:
                free[key][number < 0].append(Free((key, number), *((left, worth) if number < 0 else (1, 1))))
                moments += () if moment is None else (moment,)
        since = max(moments, default=None)
        keys = list({**has, **free})
        for key in keys:
            self._known.add(key)
            self._seen[key] = since
            worth, has_rate, last = has[key]
            if not last:
                free[key][0].clear()
            has_some, are_more = (worth != UNLIMITED, has_rate), (last > _REACH * most, False)
            for stock, has_any, found, more in zip(self._stocks, has_some, free[key], are_more, strict=True):
                stock.unread.discard(key)
                if has_any:
                    stock.fill(key, [each for each in found if each.row not in self._tried])
                if has_any and (more or len(found) >= most):
                    stock.unread.add(key)
        self._absent.update(set(named) - self._known)
        return keys

    def _lock(self, shares: Mapping[Key, int]) -> list[tuple[_Stock, Key]]:
        """Lock slots and places that have been read; return of which keys there are too few."""
        chosen = [each for key, share in shares.items() for stock in self._stocks for each in stock.take(key, share)]
        self._tried.update(each.row for each in chosen)
        slots, together, have_begun = self._slots, defaultdict(list), any(each.worth > 1 for each in chosen)
        for row, *_ in chosen:
            together[self._seen[row[0]]].append(row)
        for since, rows in together.items():
            for some in _slot_batches(self._adapter, slots, rows):
                locked = self._lock_some(some, since)
                left = self._left_of(locked) if have_begun and locked else {}
                for row in locked:
                    self._stocks[row[1] < 0].held[row[0]] += [row] * left.get(row, 1)
        return [
            (stock, key)
            for key, share in shares.items()
            for stock in self._stocks
            if key in stock.free and len(stock.held[key]) < share
        ]

    def _lock_some(self, keys: Sequence[Identity], since: datetime | None) -> Sequence[Identity]:
        """Lock those that are free ``since`` then; the limit may have been lowered while others were held."""
        if self._adapter.connections.one_writer:
            return keys
        slots, rows = self._slots, self._adapter.rows
        free, limit = _is_free(slots, literal(since, slots["available_at"].type)), rows.most(slots)
        pick = Pick(spec=slots, state=(free,), where=(), order=(), limit=limit, index=None, exact=True)
        return rows.lock_keys(self._session, pick, keys, len(keys), locks_only=self._lease is FOREVER)

    def _left_of(self, rows: Sequence[Identity]) -> dict[Identity, int]:
        """Return how many starts locked places are for: others may have used some since they were read."""
        slots, left, draining = self._slots, dict[Identity, int](), set[Identity]()
        named = and_(self._adapter.rows.key_in(slots, rows), is_place(slots, slots.table))
        if self._adapter.connections.may_change_unseen(self._session.connection(slots.bind_arguments)):
            lowered = select(*slots.primary_key).where(named, is_draining(slots, slots.table))
            with separate_session(self._session, slots.bind_arguments) as own:  # none is lowered from now on
                draining.update(self._adapter.rows.keys(own, slots, lowered))
        read = select(*slots.primary_key, _starts_left(slots), slots["max_attempts"]).where(named)
        latest = self._adapter.rows.by_key(slots, read.with_for_update(key_share=True))
        found: Any = self._adapter.rows.execute(self._session, slots, latest)
        for key, number, starts, worth in found:
            left[key, number] = 0 if (key, number) in draining else starts
            if worth > 1:
                self._begun[key, number] = worth - starts
        return left


def _is_free(slots: QueueSpec, moment: ColumnElement[Any]) -> Criterion:
    """Return the criterion of slots and places that are free since a moment, and of places whose round goes on."""
    table, place = slots.table, is_place(slots, slots.table)
    goes_on = and_(place, slots["attempt"] < slots["max_attempts"])
    # a subquery for each row: it is only for the places, since the first look at a key sees to its slots
    allowed = or_(~place, ~is_draining(slots, table))
    return and_(is_usable(slots, table), or_(slots["available_at"] <= moment, goes_on), allowed)


def _starts_left(slots: QueueSpec) -> ColumnElement[int]:
    worth = slots["max_attempts"]
    under_way = and_(is_place(slots, slots.table), is_taken(slots, slots.table))
    return case((under_way, worth - slots["attempt"]), else_=worth)


def full_keys(slots: QueueSpec) -> Select[tuple[str]]:
    """Return the keys of which no task may start: all slots are held, more tasks run than a lowered limit allows, or
    the rate is used up."""
    table, other, key = slots.table, slots.table.alias("other"), slots["slot_key"]
    one, two = is_place(slots, table), is_place(slots, other)
    are_alike = or_(and_(one, two), ~or_(one, two))
    free = and_(other.c[key.name] == key, are_alike, is_usable(slots, other), ~is_busy(slots, other))
    none = ~select(literal_column("1")).select_from(other).where(free).correlate(table).exists()
    return select(key).where(is_busy(slots, table), or_(is_excess(slots, table), none)).distinct()


def _first_free(slots: QueueSpec, most: int, named: Criterion) -> Select[Any]:
    """Return row 0 of each of the ``named`` keys that has rows, and ``most`` slots and places that seem to be free.

    Row 0 has the highest number of a slot, or 0 if more tasks run than a lowered limit allows.
    """
    key, number, worth = slots["slot_key"], slots["slot_number"], slots["max_attempts"]
    is_row_0, other = number == _ZERO, slots.table.alias("other")
    of_key, other_number = other.c[key.name] == key, other.c[number.name]
    last = select(func.max(other_number)).where(of_key).correlate(slots.table).scalar_subquery()
    drains = and_(worth == literal_column(str(LOWERED)), is_draining(slots, slots.table))
    ends = case((drains, _ZERO), else_=last)
    left = case((is_row_0, ends), else_=_starts_left(slots))
    kind = case((is_place(slots, slots.table), literal_column("-1")), (is_row_0, _ZERO), else_=literal_column("1"))
    place = func.row_number().over(partition_by=[key, kind], order_by=[_starts_left(slots), number]).label("place")
    moment = case((~is_taken(slots, slots.table), slots["available_at"]))  # none while a round goes on
    columns = key, number, left.label("starts_left"), worth, slots["period"], moment.label("moment")
    read = and_(named, number <= literal_column(str(_REACH * most)))
    known = select(*columns, place).where(read, or_(is_row_0, _is_free(slots, utcnow()))).subquery("known")
    first = known.c.place <= literal_column(str(most))
    names = (key.name, number.name, "starts_left", worth.name, slots["period"].name, "moment")
    return select(*(known.c[name] for name in names)).where(first)


# -- queues that limit how many tasks with the same key run at once, and the slots that running tasks hold ------------


class Limits(Kind):
    """Limits running tasks: claims each with a slot, frees slots when claims are settled, extends their leases.  Limits
    their starts: claims each with a place, which time frees."""

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        if options.slots is None:
            needed = "slots= is missing: name the model that derives from SlotMixin: QueueOptions(slots=Slot)"
            if "limit_key" in roles:
                return needed
            given = [name for name in ("limit", "rate") if getattr(options, name) is not None]
            return f"{given[0]}= is for models that derive from LimitMixin" if given else None
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
        yield KindIndex("holder", [spec["status"], spec["claimed_by"]], is_held(spec))


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
        "period": lambda _: optional(BigInteger()),
    },
    checks={"slot_key": checks.key},
)


class LimitMixin(QueueMixin):
    """A queue that limits how many tasks with the same ``limit_key`` run at once, and how many start within a time,
    across all workers.

    The limit is the number of the key's slots in the model that ``QueueOptions(slots=...)`` names, which also has what
    a :class:`.Rate` needs.  A key at its limit, or whose rate is used up, does not delay tasks of other keys.  A claim
    can hold slots that it does not use until its transaction ends: commit claims soon.

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
    """The slots of a :class:`.LimitMixin`: each is held by one running task, with the same lease.  And the places of
    rates, which count starts.

    The mixin declares the primary key.  Rows are created when they are needed, see :func:`.set_limit`.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions(max_attempts=2**31 - 1, notify=False)
    __queue_kind__: ClassVar[Kind | None] = SLOTS

    if TYPE_CHECKING:
        slot_key: Mapped[str]
        """The ``limit_key`` of the tasks that may take the slot."""
        slot_number: Mapped[int]
        """The number of the slot; number 0 represents the key itself, and is never held; places have negative ones."""
        period: Mapped[int | None]
        """The time of the key's rate in milliseconds, in its row 0 and its places."""
