"""Keeps what may be claimed apart from what waits, while a handler is busy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from ...operations.upkeep import postpone, promote
from ...queue.spec import Where
from .context import WorkerContext

EVERY = 1.0
"""Seconds."""
AT_ONCE = 1_000
"""Tasks that one transaction changes at the most, in either direction."""


class Readiness:
    """For one handler.  Claims do not come to what has come due while there is enough that is available: promoted, it
    has the place that its priority says.  And they read over what is available for later, until it is postponed."""

    def __init__(self, entity: type[Any], context: WorkerContext) -> None:
        self._entity = entity
        self._context = context
        self._done = time.monotonic()

    async def now_and_then(self, where: Sequence[Where]) -> None:
        """Once a second; at every call while there is more to be done than one transaction should do."""
        if time.monotonic() - self._done < EVERY:
            return
        began = time.monotonic()
        if await self._context.database.run(lambda session: self._sort(session, where)) < AT_ONCE:
            self._done = began

    def _sort(self, session: Session, where: Sequence[Where]) -> int:
        promoted = promote(session, self._entity, limit=AT_ONCE)
        return max(promoted, postpone(session, self._entity, *where, limit=AT_ONCE))
