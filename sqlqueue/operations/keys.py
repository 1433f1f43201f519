"""What is seen of the keys of a queue: which have waiting tasks, how many, and what keeps these from starting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, case, func, literal_column, select

from .._support import checks
from .._support.texts import key_text
from ..dialects.statements import LANES
from ..kinds.limits import Limit, full_keys, is_place, read_limits, slots_of
from ..lifecycle.kind import moment_text
from ..model.declaration import QueueMixin
from ..queue.options import Rate, Status
from ..queue.spec import Identity, Ordering, spec_of
from ..sql import (
    COUNTED,
    EDGE,
    Pick,
    has_come,
    in_lanes,
    is_available,
    is_held,
    is_ready,
    representable,
    running_in_lanes,
    state,
    terms_of,
    utcnow,
)
from ..transaction import AnySession, open_, scope_of, session_of
from .control import keyed_column, paused_keys
from .turns import Keys, rotation_of


class KeyBlock(NamedTuple):
    """The task for which the others of its key wait, in a queue whose keys keep their order."""

    identity: Identity
    """Its primary key."""
    status: str
    """Its :class:`.Status`: ``discarded`` if it holds its key until it is retried, and completed or cancelled."""
    until: datetime | None
    """When it is due; ``None`` if it is discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    """A key of a queue that has waiting tasks: how many wait and run, and what keeps them from starting."""

    key: Any
    """The key: a value of the column that ``fair`` or ``sequential`` names, a ``limit_key``, or the key of messages;
    ``None`` stands for tasks without a key."""
    ready: int
    """How many of its tasks are available now, counted up to 1,000."""
    running: int
    """How many run now.  Without limits, they are looked for among 1,000 tasks of the key: those that come due next, or
    whose leases end next; if the keys keep their order, the first unfinished ones."""
    weight: float | None
    """The weight of its share, in a fair queue."""
    limit: int | None
    """How many of its tasks may run at once, in a queue with limits; ``None``: any number."""
    rate: Rate | None
    """How many of its tasks may start within a time, in a queue with limits; ``None``: any number."""
    started: int
    """How many have started within this time, see :class:`.Limit`."""
    next_start: datetime | None
    """When the next may start, by the rate; ``None`` if one may now."""
    paused: bool
    """Whether the key is paused; a pause of its whole queue does not count."""
    blocked_by: KeyBlock | None
    """In a queue whose keys keep their order, the task for which the others wait, if it does not run and is not about
    to: it is not due yet, or was discarded."""

    @property
    def is_full(self) -> bool:
        """Whether as many of its tasks run as its limit allows, or more."""
        return self.limit is not None and self.running >= self.limit

    @property
    def obstacle(self) -> str | None:
        """What keeps its tasks from starting, in a few words; ``None`` if nothing does."""
        if self.paused:
            return "paused"
        if self.blocked_by is not None:
            identity, status, until = self.blocked_by
            return f"{status} {key_text(identity)}{f' until {moment_text(until)}' if until else ''}"
        if self.is_full:
            return "full"
        return f"rate used up until {moment_text(self.next_start)}" if self.next_start else None


def keys(session: AnySession, entity: type[QueueMixin], *, first: int = 100, after: Any = None) -> list[KeyState]:
    """Return the keys with waiting tasks: the ``first`` ones that come ``after`` a key, or of all.

    A key has waiting tasks if some are ``available``, or unfinished if keys keep their order: tasks that have come due
    count once workers have made them available.  Sorted as the database sorts the keys; tasks without a key come last.
    To go on, give the last key as ``after``: there are no more if fewer than ``first`` were returned, or the last one
    has no key.

    Locks nothing.  However many tasks a key has, about 2,000 of them are read.  A session with criteria of its own sees
    its keys and counts its tasks, and reads past others where no index has these criteria; the limits, and what runs in
    them, are those of all tasks.

    Raises :class:`.ArgumentError` for a model without keys.
    """
    checks.count("first", first)
    view = View(session, entity)
    found = view.next_keys(EDGE if after is None else after, first)
    if len(found) < first and view.has_unkeyed():
        found.append(None)
    stopped = view.paused()
    parts = (found[start : start + LANES] for start in range(0, len(found), LANES))
    return [each for some in parts for each in view.states(some, stopped)]


def count_keys(session: AnySession, entity: type[QueueMixin]) -> dict[str, int]:
    """Return how many keys have waiting tasks, counted up to 1,000, how many are paused, and, in a queue with limits,
    at how many as many tasks run as the limit allows, and how many have used up their rate."""
    view = View(session, entity)
    found = {"waiting": len(view.next_keys(EDGE, COUNTED)), "paused": len(view.paused())}
    return found | (view.count_full() if spec_of(entity).is_limited else {})


class View:
    """Reads what a session sees of the keys of a queue, each from its own range of an index."""

    def __init__(self, session: AnySession, entity: type[QueueMixin]) -> None:
        """Raises :class:`.ArgumentError` for a model without keys."""
        self._spec = spec = spec_of(entity)
        self._column: Any = keyed_column(spec)
        self._session = session_of(session)
        self._adapter = open_(self._session, spec)
        self._scope = tuple(terms_of(spec, scope_of(self._session, spec)))
        self._waiting = self._all_waiting()

    def _all_waiting(self) -> Pick:
        spec, scope = self._spec, self._scope
        if spec.lane is not None:
            return in_lanes(spec, (is_available(spec),), scope, (), spec.index_name("claim", [self._column]))
        unfinished, first = (spec["finished_at"].is_(None),), Ordering(spec["finished_at"])
        return in_lanes(spec, unfinished, scope, spec.sequence_order, spec.index_name("order"), first)

    def next_keys(self, after: Any, number: int) -> list[Any]:
        """Return the keys with waiting tasks that come after one, at most ``number``."""
        pick, found = self._waiting, [after]
        known = Keys() if self._scope else rotation_of(self._session, pick, {}).keys  # what claims remember
        while len(found) <= number:
            following, *_ = known.after(self._adapter, self._session, pick, found[-1], number)
            if EDGE in following:
                found += following[: following.index(EDGE)]
                break
            found += following
        return found[1 : number + 1]

    def count_full(self) -> dict[str, int]:
        """Return at how many keys as many tasks run as the limit allows, and how many have used up their rate."""
        slots = slots_of(self._spec)
        one: ColumnElement[int] = literal_column("1")
        is_rate = case((is_place(slots, slots.table), one), else_=literal_column("0")).label("is_rate")
        full = full_keys(slots).add_columns(is_rate).subquery("full_keys")
        used_up = func.count(case((full.c.is_rate == one, one)))
        row: Any = self._adapter.rows.execute(
            self._session, slots, select(func.count(), used_up).select_from(full)
        ).one()
        return {"full": row[0] - row[1], "used_up": row[1]}

    def paused(self) -> set[Any]:
        """Return the keys that are paused."""
        return paused_keys(self._session, self._spec)

    def has_unkeyed(self) -> bool:
        """Return whether tasks without a key wait."""
        if not self._column.nullable:
            return False
        pick = self._adapter.rows.lane(self._waiting, None, 1)
        reading = self._adapter.rows.select_candidates(pick, *self._spec.primary_key)
        return self._adapter.rows.execute(self._session, self._spec, reading).first() is not None

    def states(self, keys: Sequence[Any], paused: Iterable[Any]) -> list[KeyState]:
        """Return the states of these keys, :data:`LANES` at most."""
        spec, limits = self._spec, self._limits(keys)
        counted = [key for key in keys if limits[key].running is None]
        counts = [*map(self._ready, keys), *map(self._running, counted)]
        numbers: Any = self._adapter.rows.execute(self._session, spec, select(*counts)).one()
        ready = dict(zip(keys, numbers, strict=False))
        running: dict[Any, Any] = {key: limits[key].running for key in keys}
        running |= zip(counted, numbers[len(keys) :], strict=True)
        blocked, stopped = self._blocked(keys), set(paused)
        return [
            KeyState(
                key=key,
                ready=ready[key],
                running=running[key],
                weight=None if spec.fair is None else float(spec.options.weight_of(key)),
                limit=limits[key].limit,
                rate=limits[key].rate,
                started=limits[key].started,
                next_start=limits[key].next_start,
                paused=key in stopped,
                blocked_by=blocked.get(key),
            )
            for key in keys
        ]

    def _ready(self, key: Any) -> ColumnElement[int]:
        if self._spec.lane is None:
            return self._adapter.rows.count_lane(self._waiting, key, among=is_ready(self._spec))
        return self._adapter.rows.count_lane(self._waiting, key, has_come(self._spec))

    def _running(self, key: Any) -> ColumnElement[int]:
        spec = self._spec
        pick = self._waiting if spec.lane is None else running_in_lanes(spec, self._scope)
        return self._adapter.rows.count_lane(pick, key, among=is_held(spec) & ~has_come(spec))

    def _limits(self, keys: Sequence[Any]) -> Mapping[Any, Limit]:
        """Return the limits of keys, and how many of their tasks run and have started."""
        spec, named = self._spec, [key for key in keys if key is not None]
        limits = {key: Limit(key, None, None) for key in keys}
        if not spec.is_limited or not named:
            return limits
        slots, options = slots_of(spec), spec.options
        limit, running = options.first_limit, None if options.first_limit is None else 0
        limits |= {key: Limit(key, limit, running, options.rate) for key in named}
        of_keys = self._adapter.rows.one_of(slots, slots["slot_key"], named)
        return limits | {each.key: each for each in read_limits(self._adapter, self._session, slots, of_keys)}

    def _blocked(self, keys: Sequence[Any]) -> dict[Any, KeyBlock]:
        spec, named = self._spec, [key for key in keys if key is not None]
        if spec.sequence is None or not named:
            return {}
        now, moment = utcnow(), spec["available_at"]
        waits = case((moment > now, literal_column("1")), else_=literal_column("0")).label("waits")
        shown = spec["status"], representable(moment).label("moment"), waits
        first = self._adapter.rows.first_rows
        heads = first(self._session, self._waiting, named, 1, *shown)
        letters = dict[Any, list[Identity]]()
        if spec.discarded_hold:
            discarded = (spec["status"] == state(Status.DISCARDED),)
            order = [Ordering(column) for column in spec.primary_key]
            held = in_lanes(spec, discarded, self._scope, order, spec.index_name("held"))
            letters = first(self._session, held, named, 1)
        found = dict[Any, KeyBlock]()
        number = next(n for n, column in enumerate(spec.primary_key) if column is not spec.sequence)
        for key, rows in heads.items():
            for *identity, status, until, is_later in rows:
                earlier = [letter for letter in letters.get(key, ()) if letter[number] < identity[number]]
                if earlier:
                    found[key] = KeyBlock(earlier[0], Status.DISCARDED.value, None)
                elif is_later and status != Status.RUNNING:
                    found[key] = KeyBlock(tuple(identity), status, until)
        return found
