"""A cache of statements, which are slow to build."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from sqlalchemy.util import LRUCache

CACHE_SIZE = 100
"""Maximum entries of a cache, for callers whose keys never repeat."""


class StatementCache:
    """A cache of statements by the values they were built from.

    SQLAlchemy caches compiled statements, but needs a statement to look one up, and building it takes most of the time
    of a short operation.
    """

    def __init__(self, most: int = CACHE_SIZE) -> None:
        self._kept: LRUCache[Hashable, Any] = LRUCache(most)

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the cached value of ``key``, or the result of ``make``.  Thread-safe; ``make`` may be called twice."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make()
        return found
