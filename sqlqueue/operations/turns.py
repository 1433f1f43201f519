"""Claims by keys: those that have ready tasks, whose turn it is, how many tasks may start, and how many it takes."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from threading import Lock
from types import MappingProxyType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Pool, select
from sqlalchemy.orm import Session
from sqlalchemy.util import LRUCache

from ..dialects.base import Adapter
from ..dialects.statements import BRANCHES, FURTHER, LANES, MANY_LANES, OTHERS, ClaimRequest
from ..kinds.limits import Gate, slots_of
from ..queue.spec import CACHE_SIZE, Identity, QueueSpec
from ..sql import EDGE, LARGEST, Pick

AGE = 0.1
"""Seconds after which a claim reads again which keys have ready tasks."""
_KNOWN = 16_384
"""The maximum number of keys that are remembered of a queue."""
_READS = 8
"""The maximum number of statements that read keys for one claim at a time."""
_IN_VAIN = 8
"""How often a claim may find nothing of the keys whose turn it is, before it takes what comes first in the queue."""
_SOME = 4 * LANES
"""The number of rows that are read where the next keys are not known."""
_WIDTH = 4
"""How many times as many tasks of several keys are read as the claim wants, since some keys have more than others."""
VISITED = 8_192
"""The number of keys of which no task may start after which a claim ends; the next one goes on there."""
_LARGEST_VISIT = 8
"""How many tasks a key with a weight of 1 takes at a visit at most, however large claims are."""
_SEVERAL = 3
"""The number of turns in a whole ring from which it certainly has more than one key: the edge is one of them."""
_NOBODY: Any = object()
_LITTLE = 1e-9
"""What sums of weights may be off."""
Writing: TypeAlias = Callable[[Session, ClaimRequest, Sequence[Identity]], list[Any]]
"""Writes a claim to rows that are locked, and returns their instances."""


class Keys:
    """The keys that have had ready tasks, each with the one that followed it: guesses, which one statement verifies.

    The server alone orders keys.  They form a ring, in which :data:`.EDGE` follows the last one.
    """

    def __init__(self) -> None:
        self._following: LRUCache[Any, Any] = LRUCache(_KNOWN)

    def some(self) -> Any:
        """Return any of the known keys, or the edge."""
        known = list(self._following)
        return random.choice(known) if known else EDGE

    def after(
        self,
        adapter: Adapter,
        session: Session,
        pick: Pick,
        key: Any,
        wanted: int,
        *,
        at_once: int = LANES,
        claim: LaneClaim | None = None,
    ) -> tuple[list[Any], bool, bool]:
        """Return the next keys that have ready tasks, and the edge among them: ``wanted`` keys or more, if so many are
        found soon; whether these are all; and whether there may be tasks without a key.  One statement searches for
        ``at_once`` keys or more.

        Each was the next one when it was read, except for keys that the criteria exclude.  A ``claim`` knows which keys
        have no slots: where few of the next ones have, these are passed over as well.
        """
        found, guesses, rows, unkeyed = dict[Any, None](), True, adapter.rows, True
        passed, has_slots = (
            set[Any](pick.lanes.excluded if pick.lanes else ()),
            pick.spec.is_limited and not rows.walks_keys,
        )
        in_vain, some = claim is not None or key not in self._following, _SOME
        for _ in range(_READS):
            before, number = len(found.keys() - passed), max(wanted, at_once)
            if in_vain and rows.skips_values and (passed or claim):
                following, guesses = self._others(adapter, session, pick, key, passed=passed, claim=claim), False
                wanted, at_once, claim = (LANES, LANES, None) if claim else (wanted, at_once, None)
            else:
                if found and has_slots and key not in self._following:
                    has_slots = bool(self._guess_by_slots(adapter, session, slots_of(pick.spec), key, MANY_LANES))
                guesses = guesses and key in self._following
                following = self._read(adapter, session, pick, key, number, some=some, guesses=guesses)
                unkeyed = following.pop(None, True)
            while key in following:
                key = following[key]
                if key in found:
                    return list(found), True, unkeyed
                found[key] = None
            gained = len(found.keys() - passed) - before
            some = _SOME * FURTHER if gained > 1 else _SOME  # no page is much larger than the tasks of one key
            guesses, in_vain = not guesses or gained > 1, not gained  # otherwise, many keys have come since
            if before + gained - (EDGE in found) >= wanted or (EDGE in found and wanted > MANY_LANES):
                break
        return list(found), False, unkeyed

    def _read(
        self, adapter: Adapter, session: Session, pick: Pick, key: Any, number: int, *, some: int, guesses: bool
    ) -> dict[Any, Any]:
        """Return some keys with those that follow them, and if it is known, whether there are tasks without a key."""
        if adapter.rows.walks_keys and not pick.is_divided:
            found = adapter.rows.walk_keys(session, pick, key, number)
            keys = [each for each in found if each is not None]
            following = dict(pairwise([key, *keys, *([EDGE] if len(keys) < number else [])]))
            self._following.update(following)
            return {**following, None: None in found}
        if guesses:
            most = LANES if pick.is_divided else min(adapter.rows.probes, adapter.rows.most(pick.spec))
            following = adapter.rows.next_keys(session, pick, self._guesses(key, min(number, max(most, LANES))))
        else:
            some = max(some, 4 * number if pick.lanes is not None and pick.lanes.run is not None else 0)
            following = _consecutive(key, adapter.rows.keys_after(session, pick, key, some), some)
        self._following.update(following)
        return following

    def _others(
        self,
        adapter: Adapter,
        session: Session,
        pick: Pick,
        key: Any,
        *,
        passed: Collection[Any],
        claim: LaneClaim | None,
    ) -> dict[Any, Any]:
        """Return some of the next keys that have ready tasks, without those ``passed`` and most that have no slots."""
        number, some, following = MANY_LANES, _SOME if claim is None else 4 * MANY_LANES, dict[Any, Any]()
        while True:
            number, closed = further(number), set[Any]()
            if claim is not None:
                named, closed = claim.look_after(key, number)
                self._following.update(pairwise([key, *named]))
            rows = adapter.rows.keys_after(session, pick, key, some, [*passed, *closed])
            following |= _consecutive(key, rows, some)
            if len(rows) < some or number >= VISITED or claim is None or claim.full_of(set(rows)) < set(rows):
                return following
            key = rows[-1]

    def _guess_by_slots(
        self, adapter: Adapter, session: Session, slots: QueueSpec, key: Any, number: int
    ) -> Sequence[Any]:
        """Return and remember which keys with slots come after ``key``, at most ``number``: those of which no task may
        start have some."""
        column = slots["slot_key"]
        later = select(column).where(*([] if key is EDGE else [column > key])).distinct()
        named: Any = adapter.rows.execute(session, slots, later.order_by(column).limit(number))
        keys: Sequence[Any] = named.scalars().all()
        self._following.update(pairwise([key, *keys]))
        return keys

    def _guesses(self, key: Any, number: int) -> list[Any]:
        guesses = {key: None}
        while len(guesses) < number and (key := self._following.get(key, _NOBODY)) is not _NOBODY:
            if key in guesses:
                break
            guesses[key] = None
        return list(guesses)


def _consecutive(key: Any, rows: Sequence[Any], number: int) -> dict[Any, Any]:
    """Return each key with the one that follows it: ``key``, and those of the ``number`` rows after it, or of all."""
    return dict(pairwise([*dict.fromkeys([key, *rows]), *([EDGE] if len(rows) < number else [])]))


class Rotation:
    """Whose turn it is: a deficit round robin over the keys of a queue, in the memory of one process.

    A visit adds to the credit of a key, by its weight, and takes as many tasks.  What a claim is too small for is left
    to the next one.  So shares are exact for claims of any size, and for several processes, which add up.
    """

    def __init__(self, spec: QueueSpec, keys: Keys) -> None:
        self.keys = keys
        self._spec = spec
        self._lanes = MANY_LANES if spec.is_limited else LANES
        self._lock = Lock()
        self._ring: deque[Any] = deque()
        self.is_whole = False
        """Whether all keys are in the ring, which then goes round."""
        self._last: Any = _NOBODY
        """The key that was visited last."""
        self._read_at = -math.inf
        self._quantum = 0
        """How many tasks a key with a weight of 1 takes at a visit: the same number during one round of all keys."""
        self._credit: dict[Any, float] = {}
        self._visited: Any = _NOBODY
        """The key whose visit goes on in the next claim."""
        self.is_clogged = False
        """Whether the first tasks of the queue lately had no slots."""
        self.width = LARGEST
        """How many keys the first tasks of the queue lately had: at first, as if each had another one."""
        self.laps = 0
        """How often the edge has been passed since tasks were found."""

    def is_old(self) -> bool:
        """Return whether the next keys have not been read lately."""
        return time.monotonic() - self._read_at > AGE

    def has_turns(self, room: int, dry: Collection[Any]) -> bool:
        """Return whether it is known whose turn it is, for a claim of ``room`` tasks of keys that are not ``dry``."""
        turns = len(self.keys_in_turn(dry))
        return turns > 0 and (self.is_whole or turns >= self._visits(room))

    def _visits(self, room: int) -> int:
        """Return how many keys a claim of ``room`` tasks visits, if they have a weight of 1."""
        return min(self._lanes, math.ceil(room / (self._quantum or self._quantum_for(room))))

    def keys_in_turn(self, dry: Collection[Any] = ()) -> list[Any]:
        """Return the keys of the ring that are not ``dry``."""
        with self._lock:
            return [key for key in self._ring if key is not EDGE and key not in dry]

    def has_all(self, number: int, dry: Collection[Any]) -> bool:
        """Return whether all keys that are not ``dry`` are in the ring, and are at most so many."""
        return self.is_whole and len(self.keys_in_turn(dry)) <= number

    def take_turns(self, number: int, dry: Collection[Any]) -> list[Any]:
        """Return the next keys that are not ``dry``, at most so many, and go on after them."""
        keys = list[Any]()
        with self._lock:
            for key in [*self._ring]:
                if len(keys) == number:
                    break
                if key is not EDGE and key not in dry:
                    keys.append(key)
                self._go_on()
        return keys

    def read(
        self,
        adapter: Adapter,
        session: Session,
        pick: Pick,
        room: int,
        *,
        reach: int = 0,
        claim: LaneClaim | None = None,
    ) -> tuple[set[Any], bool]:
        """Read whose turn it is next, of about ``reach`` keys if few of them have tasks that may start; return the
        keys, and whether these are all.  For ``claim`` see :meth:`Keys.after`.

        Many in a queue with limits, since most of them may have no tasks that may start.
        """
        spec, last, lanes = self._spec, self._last, pick.lanes
        is_new, goes_round = last is _NOBODY, self.is_whole and spec.is_limited
        # NULL follows the edge, from where one walk finds all keys
        start = self.keys.some() if is_new else EDGE if last is None or goes_round else last
        if lanes is not None and lanes.is_of_one:
            keys = adapter.rows.values(session, spec, lanes.ordered.where, [lanes.column]) or []
            is_whole = True
        elif lanes is not None and lanes.listed:
            place = lanes.listed.index(last) + 1 if last in lanes.listed else 0
            keys, is_whole = [*lanes.listed[place:], *lanes.listed[:place]], True
        else:
            wanted = max(self._visits(room), reach, LANES if is_new or spec.is_limited else 0)
            claim = claim if reach or (is_new and start is EDGE) else None
            at_once = MANY_LANES if wanted > LANES else self._lanes
            keys, is_whole, unkeyed = self.keys.after(
                adapter, session, pick, start, wanted, at_once=at_once, claim=claim
            )
            is_next = last is EDGE and (self._visited is None or self._visited is _NOBODY)
            if unkeyed and lanes is not None and lanes.column.nullable and (is_next or EDGE in keys):
                keys.insert(0 if is_next or EDGE not in keys else keys.index(EDGE) + 1, None)
        again = {key: number for number, key in enumerate(keys)} if goes_round else {}
        first = next((again[key] for key in [*self._ring] if key in again), 0)
        if is_new:  # processes that end soon begin with different keys
            first = random.randrange(max(len(keys) - (LANES if spec.is_limited else 0), 1))
        with self._lock:
            if self._last is last or not self._ring:  # otherwise, another thread has read them in the meantime
                self._ring = deque([*keys[first:], *(keys[:first] if is_whole else ())])
                self.is_whole, self._read_at = is_whole, time.monotonic()
                if is_new:
                    self._last = keys[first - 1] if first else start
        return {key for key in keys if key is not EDGE}, is_whole

    def grant(
        self,
        room: int,
        limit: int,
        dry: Collection[Any],
        most: Callable[[Any], int] = lambda _: LARGEST,
        *,
        reach: int = 0,
    ) -> dict[Any, int]:
        """Return how many tasks of which keys a claim may take, in the order of their turns: ``room`` tasks of its
        ``limit`` or fewer, of as many keys as are searched at a time or of ``reach``, of none that are ``dry``, and of
        each at ``most`` so many.
        """
        shares: dict[Any, int] = {}
        skipped = 0
        with self._lock:
            if self.is_whole and len(self._ring) < _SEVERAL:
                keys = [key for key in self._ring if key is not EDGE and key not in dry]
                if len(keys) == 1:
                    return {keys[0]: room}
            self._quantum = self._quantum or self._quantum_for(limit)
            while room and len(self._ring) > skipped:
                key = self._ring[0]
                if key is EDGE or key in dry or (allowed := most(key) - shares.get(key, 0)) <= 0:
                    if key is EDGE:
                        self._quantum = self._quantum_for(limit)
                    skipped += self.is_whole
                    self._go_on()
                    continue
                if key not in shares and len(shares) == max(self._lanes, reach):
                    break
                credit = self._credit.get(key, 0.0)
                if key != self._visited:
                    credit += self._spec.options.weight_of(key) * self._quantum
                due = min(room, int(credit + _LITTLE))
                if number := min(due, allowed):
                    shares[key] = shares.get(key, 0) + number
                    room, skipped = room - number, 0
                credit = credit - number if number == due else 0.0  # a limited key does not save up what it cannot use
                if credit > _LITTLE:
                    self._credit[key] = credit
                else:
                    self._credit.pop(key, None)
                if not room and credit >= 1 - _LITTLE:
                    self._visited = key
                    break
                self._visited = _NOBODY
                self._go_on()
            if len(self._credit) > _KNOWN:
                self._credit.clear()
        return shares

    def _quantum_for(self, limit: int) -> int:
        has_few = self.is_whole and len(self._ring) <= LANES
        return 1 if has_few else min(math.ceil(limit / self._lanes), _LARGEST_VISIT)

    def _go_on(self) -> None:
        self._last = self._ring.popleft()
        self.laps += self._last is EDGE
        if self.is_whole:
            self._ring.append(self._last)

    def goes_on(self, *, found: bool) -> bool:
        """Return whether a claim that has ended early, and ``found`` tasks or none, has left keys that no claim has
        visited since tasks were found."""
        if found or self.laps > 1:
            self.laps = 0
            return found
        return True

    def return_to(self, key: Any) -> None:
        """Go on after ``key``: the later ones have not had their turn."""
        with self._lock:
            self._ring.clear()
            self._last, self._visited = key, _NOBODY

    def run_out(self, keys: Collection[Any]) -> None:
        """Let keys that have no more tasks wait until they are read again."""
        with self._lock:
            self._ring = deque(key for key in self._ring if key not in keys)
            for key in keys:
                self._credit.pop(key, None)
            if self._visited in keys:
                self._visited = _NOBODY


def further(reach: int) -> int:
    """Return how many keys to read after ``reach`` of which no task may start."""
    return min(reach * FURTHER // 2, VISITED)


_rotations: WeakKeyDictionary[Pool, LRUCache[Any, Rotation]] = WeakKeyDictionary()
"""The rotation over all tasks of each queue, by the pools of connections of its database."""


def rotation_of(session: Session, pick: Pick, own: dict[Any, Rotation]) -> Rotation:
    """Return the rotation of claims with ``pick``: that of this process, or one of its ``own`` if its criteria leave
    out rows of a key."""
    spec, lanes = pick.spec, pick.lanes
    assert lanes is not None
    schemas = session.connection(spec.bind_arguments).get_execution_options().get("schema_translate_map") or {}
    place = (spec, lanes.place, frozenset(schemas.items()))
    kept = _rotations.setdefault(session.get_bind(**spec.bind_arguments).engine.pool, LRUCache(CACHE_SIZE))
    rotation = kept.get(place)
    if rotation is None:
        rotation = kept[place] = Rotation(spec, Keys())
    if not lanes.has_all:
        rotation = own.setdefault(place, Rotation(spec, rotation.keys))
    return rotation


class LaneClaim:
    """Claims the tasks of a step of a claim by their keys, each with a slot if the queue has limits."""

    def __init__(
        self, adapter: Adapter, session: Session, request: ClaimRequest, gate: Gate | None, writes: Writing | None
    ) -> None:
        """``writes`` writes to locked rows; by default the adapter does, together with locking them."""
        self.tasks: list[Any] = []
        self._adapter = adapter
        self._session = session
        self._request = request
        self._gate = gate
        self._writes = writes
        self._pick = request.pick
        self._number = 0
        lanes: Any = request.pick.lanes
        self._dry: set[Any] = set(lanes.excluded)
        """The keys of which no more tasks can be claimed."""
        self._full: set[Any] = set()
        """Those that had no slots."""
        self._claims_in_order = (
            adapter.rows.claims_in_order
            and writes is None
            and bool(request.assignments)
            and not request.delete
            and not request.pick.is_divided
        )
        self._width = _WIDTH
        self._front: Mapping[Identity, Any] | None = None
        """The first tasks of the queue that are still to be taken, once they have been looked at."""
        self.is_cut = False
        """Whether the claim has ended early, and the next one may find tasks."""

    def claim(self, own: dict[Any, Rotation]) -> list[Any]:
        """Claim tasks as :meth:`.Rows.lock_and_write` does: in the order of the queue, and if tasks without slots come
        first, or keys share the queue, those of the keys whose turn it is.

        Ends with fewer than the limit only if it has read all keys, and none has more, or :data:`VISITED` have no
        slots.
        """
        pick = self._pick
        if pick.takes_over or pick.index is None:
            self._in_order()
            return self.tasks
        rotation, more = rotation_of(self._session, pick, own), True
        if pick.spec.fair is None and not rotation.is_clogged:
            more = rotation.is_clogged = self._in_order(rotation)
        if more:
            more = self._in_turns(rotation)
            self._take_front()
            lanes: Any = self._pick.lanes
            if self._front is None:
                rotation.is_clogged = bool(self._full or lanes.excluded)
            if more and self._gate is None:  # others have locked the tasks of many keys, or the criteria exclude them
                rest = replace(lanes.ordered, where=(*lanes.ordered.where, *lanes.apart), limit=self._room)
                self.tasks += self._adapter.rows.lock_and_write(self._session, replace(self._request, pick=rest))
        return self.tasks

    @property
    def _room(self) -> int:
        return 0 if self._request.unreadable else self._request.pick.limit - self._number

    def _most(self, key: Any) -> int:
        return LARGEST if self._gate is None else self._gate.room(key)

    def _look(self, keys: Collection[Any]) -> None:
        if self._gate is not None and keys:
            self._gate.look(keys, math.ceil(self._room / len(keys)))
            full = [key for key in keys if not self._gate.room(key)]
            self._full.update(full)
            self._dry.update(full)

    def _gated(self, pick: Pick, width: int) -> Pick:
        """Return ``pick`` so that what is free of its keys, about so many, is read with them, before any task is
        claimed."""
        if self._gate is None or self._number:
            return pick
        return replace(pick, beside=self._gate.beside(math.ceil(self._room / width)))

    def full_of(self, keys: Collection[Any]) -> set[Any]:
        """Return those of ``keys`` that have no slots."""
        self._look(keys)
        return self._full.intersection(keys)

    def look_after(self, key: Any, number: int) -> tuple[Sequence[Any], set[Any]]:
        """Return which keys with slots come after ``key``, at most ``number``, and those that have none free."""
        assert self._gate is not None
        named = self._gate.look_after(key, number)
        return named, self.full_of(named)

    def _in_order(self, rotation: Rotation | None = None) -> bool:
        """Claim the first tasks of the queue whose keys have slots; return whether there may be others.

        With a ``rotation``, search once; if that finds too few, they are left for a claim together with others.
        """
        number, once = self._room + OTHERS, rotation is not None
        while self._room:
            pick = self._pick if rotation is None else self._gated(self._pick, rotation.width)
            heads = self._adapter.rows.lane_heads(self._session, pick, number)
            keys = set(heads.values())
            self._look(keys)
            if rotation is not None:
                rotation.width = max(len(keys), 1)
            self._front = {identity: key for identity, key in heads.items() if key not in self._dry}
            is_last = len(heads) < number
            if once and not is_last and sum(map(len, self._first_of(heads).values())) < self._room:
                return True
            self._take_front()
            if once or is_last:
                return not is_last and self._room > 0
            number *= FURTHER
        return False

    def _take_front(self, heads: Mapping[Identity, Any] = MappingProxyType({})) -> set[Any]:
        """Claim the first tasks at the front of the queue, and among ``heads`` after these, whose keys have slots;
        return the keys of those that are left."""
        heads = {**(self._front or {}), **heads}
        self._front = self._front and {}
        place, before, left = {identity: n for n, identity in enumerate(heads)}, len(self.tasks), dict(heads)
        while self._room and (first := self._first_of(left)):
            self._take({key: len(some) for key, some in first.items()}, first)
            for identity in itertools.chain(*first.values()):
                del left[identity]
        identity_of = self._pick.spec.identity_of
        self.tasks[before:] = sorted(self.tasks[before:], key=lambda task: place.get(identity_of(task), len(place)))
        return set(left.values())

    def _first_of(self, heads: Mapping[Identity, Any]) -> dict[Any, list[Identity]]:
        """Return by their keys the first rows that may have slots, as many as the claim wants."""
        first: dict[Any, list[Identity]] = {}
        room = self._room
        for identity, key in heads.items():
            if room and key not in self._dry and len(first.get(key, ())) < self._most(key):
                first.setdefault(key, []).append(identity)
                room -= 1
        return first

    def _in_turns(self, rotation: Rotation) -> bool:
        """Claim tasks of the keys whose turn it is; return whether there may be others, which it has not found."""
        in_vain, is_old, is_gated, reach = 0, rotation.is_old(), self._gate is not None, 0
        keys, read, are_all = set[Any](), set[Any](), False
        while self._room and in_vain < _IN_VAIN:
            if are_all and read <= self._dry:
                return False
            if len(self._full) >= VISITED and not rotation.is_whole:
                self.is_cut = rotation.goes_on(found=bool(self.tasks))
                return True
            if is_old or not rotation.has_turns(1 if is_gated else self._room, self._dry):
                pick = self._gated(self._request.pick, max(rotation.width, len(rotation.keys_in_turn())))
                claim = self if is_gated else None
                keys, are_all = rotation.read(self._adapter, self._session, pick, self._room, reach=reach, claim=claim)
                if keys <= self._dry and keys <= read:
                    return False
                is_old = False
                read = keys if are_all else read | keys
            self._look(rotation.keys_in_turn())
            reach = further(reach or MANY_LANES) if is_gated and keys and keys <= self._dry else 0
            if self._request.pick.spec.fair is None:
                self._take_next(rotation)
                continue
            shares = rotation.grant(self._room, self._request.pick.limit, self._dry, self._most)
            in_vain = 0 if self._take(shares) or is_gated else in_vain + 1
            rotation.run_out({key for key in shares.keys() & self._dry if self._most(key)})
        return bool(self._room)

    def _take_next(self, rotation: Rotation) -> None:
        """Claim tasks of the next keys in the order of the queue; if there are more keys than are read at a time, those
        at its front first."""
        number = max(self._adapter.rows.searched, min(self._room, BRANCHES))
        if self._front is None and not rotation.has_all(number, self._dry):
            rotation.is_clogged = self._in_order(rotation)
        first = Counter((self._front or {}).values())
        turns = rotation.take_turns(number, self._dry) if self._room else []
        if not (keys := [key for key in turns if first[key] < self._most(key)]):
            self._take_front()
            return
        shares = {key: min(self._room, self._most(key)) for key in [*first, *keys]}
        if len(shares) == 1 or (self._claims_in_order and sum(shares.values()) <= self._room):
            self._front = self._front and {}
            self._take(shares)
            rotation.run_out({key for key in shares if key in self._dry and self._most(key)})
            return
        most = min(self._room, self._width * math.ceil(self._room / len(keys)), max(map(self._most, keys)))
        each = 1 << (most - 1).bit_length()
        heads = self._adapter.rows.lane_heads(self._session, self._pick, each, keys)
        counts, found = Counter(heads.values()), Counter[Any]()
        for number, key in enumerate(heads.values(), 1):
            found[key] += 1
            if found[key] == each < self._most(key):  # its further tasks may come before those of other keys
                heads = dict(itertools.islice(heads.items(), number))
                self._width *= FURTHER
                break
        left = self._take_front(heads)
        ended = {key for key in keys if counts[key] < each and found[key] == counts[key] and key not in left}
        self._dry |= ended
        rotation.run_out(ended)

    def _take(self, shares: Mapping[Any, int], first: Mapping[Any, Sequence[Identity]] | None = None) -> bool:
        """Claim so many tasks of these keys, the ``first`` ones if they are known; return whether there were any."""
        held = shares if self._gate is None or not shares else self._gate.hold(shares)
        request, writes = replace(self._request, pick=self._pick), self._writes
        found, taken = list[Any](), dict[Any, int]()
        if held and writes is None:
            found, taken = self._adapter.rows.claim_lanes(self._session, request, held, first)
        elif held and writes is not None:
            locked = self._adapter.rows.lock_lanes(self._session, request, held, first)
            found = writes(self._session, request, [each for some in locked.values() for each in some])
            taken = {key: len(some) for key, some in locked.items()}
        if self._gate is not None:
            self._gate.use(found)
        self.tasks += found
        self._number += sum(taken.values())
        self._dry.update(key for key, share in shares.items() if taken.get(key, 0) < share or not self._most(key))
        if found and not request.assignments and not request.delete:  # the rows still match
            spec = self._pick.spec
            self._pick = self._request.pick.without(
                self._adapter.rows.key_in(spec, [spec.identity_of(task) for task in self.tasks])
            )
        return bool(found)
