"""Keeps available and scheduled tasks apart while a handler is busy."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy.orm import Session

from ...operations.upkeep import postpone, promote
from ...queue.spec import Where
from ..database.deadlines import transaction_limit
from ..handling.handlers import Handler
from .context import WorkerContext

EVERY = 1.0
"""Seconds between two runs."""
MAX_CHANGES = 1_000
"""The maximum number of tasks that one transaction changes, in either direction."""


class Readiness:
    """Promotes tasks that have come due or whose worker has crashed, and postpones those that are available too early,
    for one handler.

    While enough tasks are available, claims do not reach the due ones; once promoted, these compete by priority.
    Every claim would have to read past tasks that are available before their time.
    """

    def __init__(self, handler: Handler, context: WorkerContext) -> None:
        self._handler = handler
        self._context = context
        self._done = time.monotonic()

    async def now_and_then(self) -> None:
        """Run once a second, or at every call while a full transaction's worth is left, unless the queue is paused."""
        query = self._context.claim_query(self._handler)
        if query is None or time.monotonic() - self._done < EVERY:
            return
        began = time.monotonic()
        within = transaction_limit(self._handler.spec.options.lease)
        if await self._context.database.run(lambda session: self._sort(session, query.where), within) < MAX_CHANGES:
            self._done = began

    def _sort(self, session: Session, where: Sequence[Where]) -> int:
        entity = self._handler.entity
        promoted = promote(session, entity, *where, limit=MAX_CHANGES)
        return max(promoted, postpone(session, entity, *where, limit=MAX_CHANGES))
