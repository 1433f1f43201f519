"""Claims of queues whose keys keep their order: the first unfinished task of each key, and those that follow it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import dropwhile, takewhile
from typing import Any

from sqlalchemy import or_
from sqlalchemy.orm import Session

from ..dialects.base import Adapter
from ..dialects.statements import LANES, MANY_LANES, ClaimRequest
from ..queue.spec import Identity
from ..sql import Pick, follower, has_come, is_held
from ..transaction import ledger_of
from .turns import VISITED, Rotation, Writing, further

# A task is the first of its key if no earlier task of the key is unfinished.  First tasks are searched for without
# locks, by a statement that sees one state of the table.  The locks by primary key then decide which session has a
# task, and whether it still is the first of its key, and may be claimed.
#
# A final task that is made available again comes before others of its key, one of which may be running, or locked by a
# claim that is not committed.  All unfinished tasks before that one have been reactivated after its claim.  So a
# reactivated task waits as long as the first one after it that was not reactivated is running or locked.

UNKEYED = 32
"""How many tasks without a key a claim takes at most when it is their turn."""


def claim_in_sequence(
    adapter: Adapter, rotation: Rotation, write: Writing, session: Session, request: ClaimRequest
) -> list[Any]:
    """Claim the first unfinished tasks of keys, those of a key together and without gaps; the keys take turns.

    Ends with fewer than the limit only if it has visited all keys, or :data:`VISITED`; the next claim goes on there.
    """
    pick, tasks, visited, width, is_old = request.pick, list[Any](), set[Any](), 0, rotation.is_old()
    lanes: Any = pick.lanes
    passed, read, seen = set(lanes.excluded), set[Any](), set[Identity]()
    while (room := pick.limit - len(tasks)) and len(visited) < VISITED and not request.unreadable:
        if is_old or not rotation.has_turns(room, passed):
            keys, are_all = rotation.read(adapter, session, pick, room, reach=width)
            if keys <= (visited | passed if are_all else visited & read):
                break
            is_old = False
            visited, read = visited | keys & passed, read | keys
        shares = rotation.grant(max(room, width), 1 if lanes.run == 1 else pick.limit, passed, reach=width)
        lines, reactivated = _lines(adapter, session, pick, shares, room)
        for key, line in lines.items():
            if key is not None:  # keys that a collation equates have the same tasks
                lines[key] = [each for each in line if each not in seen]
                seen.update(line)
        ended = {key for key in lines if key is not None or len(lines[None]) < UNKEYED}
        visited, passed = visited | ended, passed | ended
        if 0 < len(lines) < len(shares):
            rotation.return_to(list(lines)[-1])
        locked = _lock(adapter, session, request, lines, reactivated)
        tasks += write(session, replace(request, pick=lanes.ordered), locked) if locked else ()
        if locked and not request.assignments and not request.delete:  # the rows still match
            spec = pick.spec
            pick = request.pick.without(adapter.rows.key_in(spec, [spec.identity_of(task) for task in tasks]))
        if request.unreadable:
            readable = set(locked).difference(each.identity for each in request.unreadable)
            late = (dropwhile(readable.__contains__, line) for line in lines.values())
            request.late.extend(each for line in late for each in line)
        width = 0 if locked else min(further(width or LANES), MANY_LANES)  # in vain: look at many keys at a time
    return tasks


def _lines(
    adapter: Adapter, session: Session, pick: Pick, shares: Mapping[Any, int], room: int
) -> tuple[dict[Any, Sequence[Identity]], set[Any]]:
    """Return the tasks that each key could start now, in order, at most its share, until there are enough of them; and
    the keys whose first task has been reactivated."""
    lanes: Any = pick.lanes
    lines, keys = dict[Any, Sequence[Identity]](), [key for key in shares if key is not None]
    most = {key: min(max(shares[key], -(-room // len(keys))), lanes.run) for key in keys}
    number = 1 << (max(most.values(), default=1) - 1).bit_length()  # of few sizes, for which there are statements
    free, reactivated = adapter.rows.free_rows(session, pick, keys, number) if keys else ({}, set())
    for key, share in shares.items():
        if not room:
            break
        if key is None:
            some = min(room, UNKEYED)
            unkeyed = lanes.made.get(("unkeyed", some), partial(replace, lanes.unkeyed, limit=some))
            lines[key] = adapter.rows.lock(session, unkeyed)
        else:
            lines[key] = free[key][: min(share, room, lanes.run)]
        room -= len(lines[key])
    for key in keys if room and lanes.run > 1 else ():  # what others could not use
        line = free[key][: min(most[key], len(lines[key]) + room)]
        room -= len(line) - len(lines[key])
        lines[key] = line
    return lines, reactivated


def _lock(
    adapter: Adapter,
    session: Session,
    request: ClaimRequest,
    lines: Mapping[Any, Sequence[Identity]],
    reactivated: Collection[Any],
) -> list[Identity]:
    """Lock the tasks of each key up to the first one that another session has: those after it are left alone."""
    lanes: Any = request.pick.lanes
    later = replace(request, pick=lanes.ordered)
    first = replace(later, pick=lanes.made.get((adapter.rows, "first"), partial(adapter.rows.firsts, lanes.ordered)))
    heads = {line[0]: key for key, line in lines.items() if key is not None and line}
    free = set(lines.get(None, ()))
    for some in adapter.rows.batches(request.pick.spec, list(heads)):
        for head in adapter.rows.lock_some(session, first, some):
            if heads[head] not in reactivated or _is_alone(adapter, session, request, heads[head], head):
                free.add(head)
    followers = {each: key for head, key in heads.items() if head in free for each in lines[key][1:]}
    for some in adapter.rows.batches(request.pick.spec, list(followers)):
        free.update(adapter.rows.lock_some(session, later, some, followers))
    return [each for line in lines.values() for each in takewhile(free.__contains__, line)]


def _is_alone(adapter: Adapter, session: Session, request: ClaimRequest, key: Any, head: Identity) -> bool:
    """Return whether no task after the reactivated ``head`` of a key is running, or about to; lock the one that might
    be."""
    spec = request.pick.spec
    pick = follower(spec, key, head)
    found = adapter.rows.candidates(session, pick, 1)
    if not found:
        return True
    idle = replace(pick, state=(or_(~is_held(spec), has_come(spec)),), where=())
    locked = adapter.rows.lock_keys(session, idle, found, 1, locks_only=not request.assignments)
    return bool(locked) and found[0] not in ledger_of(session).locked(spec.table)
