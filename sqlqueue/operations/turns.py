"""Claims of fair queues: the keys that have ready tasks, whose turn it is, and how many tasks it takes."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Pool
from sqlalchemy.orm import Session
from sqlalchemy.util import LRUCache

from ..dialects.base import Adapter
from ..dialects.statements import LANES, ClaimRequest
from ..queue.spec import CACHE_SIZE, QueueSpec
from ..sql import EDGE, Pick

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
_LARGEST_VISIT = 8
"""How many tasks a key with a weight of 1 takes at a visit at most, however large claims are."""
_NOBODY: Any = object()
_LITTLE = 1e-9
"""What sums of weights may be off."""


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

    def after(self, adapter: Adapter, session: Session, pick: Pick, key: Any, wanted: int) -> tuple[list[Any], bool]:
        """Return the next keys that have ready tasks, and the edge among them: ``wanted`` keys or more, if so many are
        found soon; and whether these are all.

        Each was the next one when it was read.
        """
        found: dict[Any, None] = {}
        for _ in range(_READS):
            following = self._read(adapter, session, pick, key)
            while key in following:
                key = following[key]
                if key in found:
                    return list(found), True
                found[key] = None
            if len(found) - (EDGE in found) >= wanted:
                break
        return list(found), False

    def _read(self, adapter: Adapter, session: Session, pick: Pick, key: Any) -> dict[Any, Any]:
        if adapter.rows.walks_keys and pick.divided is None:
            keys = adapter.rows.walk_keys(session, pick, key)
            following = dict(pairwise([key, *keys, *([EDGE] if len(keys) < LANES else [])]))
        elif key in self._following:
            following = adapter.rows.next_keys(session, pick, self._guesses(key))
        else:
            rows = adapter.rows.keys_after(session, pick, key, _SOME)
            following = dict(pairwise(dict.fromkeys([key, *rows, *([EDGE] if len(rows) < _SOME else [])])))
        self._following.update(following)
        return following

    def _guesses(self, key: Any) -> list[Any]:
        guesses = {key: None}
        while len(guesses) < LANES and (key := self._following.get(key, _NOBODY)) is not _NOBODY:
            if key in guesses:
                break
            guesses[key] = None
        return list(guesses)


class Turn(NamedTuple):
    """A key in the order of the turns."""

    key: Any
    weight: float


class Rotation:
    """Whose turn it is: a deficit round robin over the keys of a queue, in the memory of one process.

    A visit adds to the credit of a key, by its weight, and takes as many tasks.  What a claim is too small for is left
    to the next one.  So shares are exact for claims of any size, and for several processes, which add up.
    """

    def __init__(self, spec: QueueSpec, keys: Keys) -> None:
        self.keys = keys
        self._spec = spec
        self._lock = Lock()
        self._ring: deque[Turn] = deque()
        self._is_whole = False
        """Whether all keys are in the ring, which then goes round."""
        self._last: Any = _NOBODY
        """The key that was visited last."""
        self._read_at = -math.inf
        self._quantum = 0
        """How many tasks a key with a weight of 1 takes at a visit: the same number during one round of all keys."""
        self._credit: dict[Any, float] = {}
        self._visited: Any = _NOBODY
        """The key whose visit goes on in the next claim."""

    def is_old(self) -> bool:
        """Return whether the next keys have not been read lately."""
        return time.monotonic() - self._read_at > AGE

    def has_turns(self, room: int, dry: Collection[Any]) -> bool:
        """Return whether it is known whose turn it is, for a claim of ``room`` tasks of keys that are not ``dry``."""
        with self._lock:
            turns = sum(turn.key is not EDGE and turn.key not in dry for turn in self._ring)
            return turns > 0 and (self._is_whole or turns >= self._visits(room))

    def _visits(self, room: int) -> int:
        """Return how many keys a claim of ``room`` tasks visits, if they have a weight of 1."""
        return min(LANES, math.ceil(room / (self._quantum or _quantum_for(room))))

    def read(self, adapter: Adapter, session: Session, pick: Pick, room: int) -> tuple[set[Any], bool]:
        """Read whose turn it is next; return the keys, and whether these are all."""
        spec, last, lanes = self._spec, self._last, pick.lanes
        is_new = last is _NOBODY
        start = self.keys.some() if is_new else EDGE if last is None else last  # NULL follows the edge
        if lanes is not None and lanes.is_of_one:
            keys = adapter.rows.values(session, spec, lanes.ordered.where, [lanes.column]) or []
            is_whole = True
        elif lanes is not None and lanes.listed:
            place = lanes.listed.index(last) + 1 if last in lanes.listed else 0
            keys, is_whole = [*lanes.listed[place:], *lanes.listed[:place]], True
        else:
            keys, is_whole = self.keys.after(adapter, session, pick, start, LANES if is_new else self._visits(room))
            if EDGE in keys and lanes is not None and lanes.column.nullable:
                keys.insert(keys.index(EDGE) + 1, None)
        turns = [Turn(key, 0 if key is EDGE else spec.options.weight_of(key)) for key in keys]
        first = random.randrange(len(turns) or 1) if is_new else 0  # processes that end soon begin with different keys
        with self._lock:
            if self._last is last or not self._ring:  # otherwise, another thread has read them in the meantime
                self._ring = deque([*turns[first:], *(turns[:first] if is_whole else ())])
                self._is_whole, self._read_at = is_whole, time.monotonic()
                if is_new:
                    self._last = start
        return {key for key in keys if key is not EDGE}, is_whole

    def grant(self, room: int, limit: int, dry: Collection[Any]) -> dict[Any, int]:
        """Return how many tasks of which keys a claim may take, in the order of their turns: ``room`` tasks of its
        ``limit`` or fewer, of :data:`.LANES` keys at most, and of none that are ``dry``."""
        shares: dict[Any, int] = {}
        skipped = 0
        with self._lock:
            self._quantum = self._quantum or _quantum_for(limit)
            while room and len(self._ring) > skipped:
                key, weight = self._ring[0]
                if key is EDGE or key in dry:
                    if key is EDGE:
                        self._quantum = _quantum_for(limit)
                    skipped += self._is_whole
                    self._go_on()
                    continue
                if key not in shares and len(shares) == LANES:
                    break
                credit = self._credit.get(key, 0.0)
                if key != self._visited:
                    credit += weight * (1 if self._is_whole and len(self._ring) <= LANES else self._quantum)
                if number := min(room, int(credit + _LITTLE)):
                    shares[key] = shares.get(key, 0) + number
                    room, skipped = room - number, 0
                credit -= number
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

    def _go_on(self) -> None:
        turn = self._ring.popleft()
        self._last = turn.key
        if self._is_whole:
            self._ring.append(turn)

    def return_to(self, key: Any) -> None:
        """Go on after ``key``: the later ones have not had their turn."""
        with self._lock:
            self._ring.clear()
            self._last, self._visited = key, _NOBODY

    def run_out(self, key: Any) -> None:
        """Let a key that has no more tasks wait until it is read again."""
        with self._lock:
            self._credit.pop(key, None)
            self._ring = deque(turn for turn in self._ring if turn.key is EDGE or turn.key != key)
            if self._visited == key:
                self._visited = _NOBODY


def _quantum_for(limit: int) -> int:
    return min(math.ceil(limit / LANES), _LARGEST_VISIT)


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


def claim_in_turns(adapter: Adapter, rotation: Rotation, session: Session, request: ClaimRequest) -> list[Any]:
    """Claim tasks as :meth:`.Rows.lock_and_write` does, of the keys whose turn it is.

    Ends with fewer than the limit only if it has read all keys, and none has more.
    """
    pick, tasks, number, in_vain, is_old = request.pick, list[Any](), 0, 0, rotation.is_old()
    dry: set[Any] = set()
    rest = pick
    while (room := pick.limit - number) and in_vain < _IN_VAIN:
        if is_old or not rotation.has_turns(room, dry):
            keys, are_all = rotation.read(adapter, session, pick, room)
            is_old = False
            if are_all and keys <= dry:
                return tasks
        shares = rotation.grant(room, pick.limit, dry)
        found, taken = adapter.rows.claim_lanes(session, replace(request, pick=rest), shares) if shares else ([], {})
        tasks += found
        if request.unreadable:
            return tasks
        if found and not request.assignments and not request.delete:  # the rows still match
            locked = [pick.spec.identity_of(task) for task in tasks]
            rest = pick.without(adapter.rows.key_in(pick.spec, locked))
        for key, share in shares.items():
            if taken[key] < share:
                dry.add(key)
                rotation.run_out(key)
        number += sum(taken.values())
        in_vain = 0 if found else in_vain + 1
    if room:  # other claims have locked the tasks of many keys, or the criteria leave them out
        assert rest.lanes is not None
        tasks += adapter.rows.lock_and_write(session, replace(request, pick=replace(rest.lanes.ordered, limit=room)))
    return tasks
