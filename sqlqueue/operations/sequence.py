"""Claims of queues whose keys keep their order: the first unfinished task of each key, and those that follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile, takewhile
from typing import Any, TypeAlias

from sqlalchemy.orm import Session

from ..dialects.base import Adapter
from ..dialects.statements import LANES, ClaimRequest
from ..queue.spec import Identity
from ..sql import Pick
from .turns import Rotation

# A task is the first of its key if no earlier task of the key is unfinished.  It remains so until it is finished, so
# first tasks are searched for without locks, by a statement that sees one state of the table.  The locks by primary key
# then decide which session has a task, and whether it may still be claimed.

VISITED = 8_192
"""The number of keys after which a claim ends: keys whose first task may not be claimed now cost one search each."""
UNKEYED = 32
"""How many tasks without a key a claim takes at most when it is their turn."""

Write: TypeAlias = Callable[[Session, ClaimRequest, Sequence[Identity]], list[Any]]
"""Writes to rows that are locked, see :meth:`.Rows.write_locked`."""


def claim_in_sequence(
    adapter: Adapter, rotation: Rotation, write: Write, session: Session, request: ClaimRequest
) -> list[Any]:
    """Claim the first unfinished tasks of keys, those of a key together and without gaps; the keys take turns.

    Ends with fewer than the limit only if it has visited all keys, or :data:`VISITED`; the next claim goes on there.
    """
    pick, tasks, visited, width, is_old = request.pick, list[Any](), set[Any](), 0, rotation.is_old()
    lanes: Any = pick.lanes
    passed = set(lanes.excluded)
    while (room := pick.limit - len(tasks)) and len(visited) < VISITED and not request.unreadable:
        if is_old or not rotation.has_turns(room, passed):
            keys, _ = rotation.read(adapter, session, pick, room)
            if keys <= visited:
                break
            is_old = False
            visited |= keys & passed
        shares = rotation.grant(max(room, width), 1 if lanes.run == 1 else pick.limit, passed)
        lines = _lines(adapter, session, pick, shares, room)
        ended = {key for key in lines if key is not None or len(lines[None]) < UNKEYED}
        visited, passed = visited | ended, passed | ended
        if 0 < len(lines) < len(shares):
            rotation.return_to(list(lines)[-1])
        locked = _lock(adapter, session, request, lines)
        tasks += write(session, replace(request, pick=lanes.ordered), locked) if locked else ()
        if request.unreadable:
            readable = set(locked).difference(each.identity for each in request.unreadable)
            late = (dropwhile(readable.__contains__, line) for line in lines.values())
            request.late.extend(each for line in late for each in line)
        width = 0 if locked else LANES  # in vain: look at many keys at a time
    return tasks


def _lines(
    adapter: Adapter, session: Session, pick: Pick, shares: Mapping[Any, int], room: int
) -> dict[Any, Sequence[Identity]]:
    """Return the tasks that each key could start now, in order, at most its share, until there are enough of them."""
    run: int = pick.lanes.run  # type: ignore[union-attr,assignment]
    lines, keys = dict[Any, Sequence[Identity]](), [key for key in shares if key is not None]
    most = {key: min(max(shares[key], -(-room // len(keys))), run) for key in keys}
    number = 1 << (max(most.values(), default=1) - 1).bit_length()  # of few sizes, for which there are statements
    free = adapter.rows.free_rows(session, pick, keys, number) if keys else {}
    for key, share in shares.items():
        if not room:
            break
        some = min(share, room, run)
        lines[key] = free[key][:some] if key is not None else _unkeyed(adapter, session, pick, min(room, UNKEYED))
        room -= len(lines[key])
    for key in keys if room and run > 1 else ():  # what others could not use
        line = free[key][: min(most[key], len(lines[key]) + room)]
        room -= len(line) - len(lines[key])
        lines[key] = line
    return lines


def _unkeyed(adapter: Adapter, session: Session, pick: Pick, limit: int) -> Sequence[Identity]:
    """Lock tasks without a key, which wait for no others."""
    lanes: Any = pick.lanes

    def make() -> Pick:
        may_start = (*pick.state, *lanes.ordered.state)
        return replace(
            pick.lane(lanes.column.is_(None), limit),
            state=may_start,
            where=(*lanes.ordered.where, lanes.column.is_(None)),
        )

    return adapter.rows.lock(session, lanes.made.get(("unkeyed", limit), make))


def _lock(
    adapter: Adapter, session: Session, request: ClaimRequest, lines: Mapping[Any, Sequence[Identity]]
) -> list[Identity]:
    """Lock the tasks of each key up to the first one that another session has: those after it are left alone."""
    lanes: Any = request.pick.lanes
    naming = replace(request, pick=lanes.ordered)
    free: set[Identity] = set(lines.get(None, ()))
    keyed = {key: line for key, line in lines.items() if key is not None}
    for later in (False, True):
        wanted = [each for line in keyed.values() for each in (line[1:] if later else line[:1])]
        for some in adapter.rows.batches(request.pick.spec, wanted):
            free.update(adapter.rows.lock_some(session, naming, some))
        keyed = {key: line for key, line in keyed.items() if line and line[0] in free}
    return [each for line in lines.values() for each in takewhile(free.__contains__, line)]
