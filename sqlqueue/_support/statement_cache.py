"""What took long to make and is wanted again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from sqlalchemy.util import LRUCache

MOST = 100
"""So many are kept of one kind, for callers that never ask for the same twice."""


class Memo:
    """Statements by what they were made from.

    SQLAlchemy keeps what it compiled of a statement, but has to be given one to know which: to make it anew each time
    would take most of a short operation.
    """

    def __init__(self, most: int = MOST) -> None:
        self._kept: LRUCache[Hashable, Any] = LRUCache(most)

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` returned for this key, now or before.  From any thread; it may be made twice."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make()
        return found
