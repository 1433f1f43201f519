"""Locks: their modes, their holders, and which conflict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from enum import IntEnum
from typing import Any


class Mode(IntEnum):
    """Lock modes, from the weakest to the strongest."""

    KEY_SHARE = 1
    """PostgreSQL, for foreign keys: the row may change, but not its key."""
    SHARE = 2
    UPDATE = 3
    """SQL Server's U lock: others may read, but no other transaction may take a U lock or write."""
    NO_KEY_UPDATE = 4
    """PostgreSQL: a write that does not change the key."""
    EXCLUSIVE = 5


_COMPATIBLE = {
    frozenset(pair)
    for pair in [
        (Mode.KEY_SHARE, Mode.KEY_SHARE),
        (Mode.KEY_SHARE, Mode.SHARE),
        (Mode.KEY_SHARE, Mode.NO_KEY_UPDATE),
        (Mode.SHARE, Mode.SHARE),
        (Mode.SHARE, Mode.UPDATE),
    ]
}
"""https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-ROWS
https://learn.microsoft.com/en-us/sql/relational-databases/sql-server-transaction-locking-and-row-versioning-guide"""

Resource = tuple[str, Hashable]
"""A row, such as `("task", 7)`, or an index entry, such as `("ix_task_claim", (7, ...))`, which begins with the row."""


class Locks:
    """The holders of locks.  The order of the waiting transactions is not modelled."""

    def __init__(self) -> None:
        self.held: dict[Resource, dict[Any, Mode]] = defaultdict(dict)

    def in_the_way(self, owner: object, resource: Resource, mode: Mode) -> list[Any]:
        holders = self.held[resource].items()
        return [other for other, its in holders if other is not owner and frozenset((its, mode)) not in _COMPATIBLE]

    def take(self, owner: object, resource: Resource, mode: Mode) -> None:
        self.held[resource][owner] = max(mode, self.held[resource].get(owner, mode))

    def has(self, owner: object, resource: Resource) -> bool:
        return owner in self.held[resource]

    def release(self, owner: object, resource: Resource) -> None:
        del self.held[resource][owner]

    def release_all(self, owner: object) -> None:
        for holders in self.held.values():
            holders.pop(owner, None)

    def of(self, owner: object) -> set[Resource]:
        return set(self.modes_of(owner))

    def modes_of(self, owner: object) -> dict[Resource, Mode]:
        return {resource: holders[owner] for resource, holders in self.held.items() if owner in holders}
