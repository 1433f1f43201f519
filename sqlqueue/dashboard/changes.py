"""Changes to many tasks, which run in this process, in batches that each commit.  Pages show their progress."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from sqlalchemy.orm import Session

from .._support.logs import logger_of
from ..operations.batches import Batch
from .access import Viewer
from .database import SessionRunner

logger = logger_of("sqlqueue.dashboard")
MAX_CHANGES = 100
"""The maximum number of changes that are kept."""
SOON = 1.0
"""Seconds that a request waits for its change, so that most changes are finished when the page is shown."""


Batches: TypeAlias = Callable[[Session], Iterable[Batch]]


@dataclass(slots=True, kw_only=True)
class Change:
    """A change, running or finished."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    what: str
    """A description: ``retry 3 tasks of Email``."""
    by: Viewer
    total: int | None
    """The number of tasks counted beforehand; ``None`` if counting stopped at the cap."""
    changed: int = 0
    taken: int = 0
    """The number of tasks that could not be changed because another task has their ``unique_key``."""
    state: Literal["running", "done", "stopped", "failed"] = "running"
    stop: bool = False
    """Whether to stop after the current batch."""


class Changes:
    """The changes of this process."""

    def __init__(self) -> None:
        self._known: dict[str, Change] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, id: str | None, by: Viewer) -> Change | None:
        """Return the change with this id, if this viewer started it."""
        change = self._known.get(id or "")
        is_own = change is not None and (change.by.name, change.by.scope) == (by.name, by.scope)
        return change if is_own else None

    async def begin(
        self,
        change: Change,
        database: SessionRunner,
        batches: Batches,
        then: Callable[[], None],
    ) -> None:
        """Start a change, and wait up to a second for it to finish.  ``then`` is called when it has finished."""
        self._remember(change)
        task = asyncio.create_task(self._run(change, database, batches, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task], timeout=SOON)

    async def _run(
        self,
        change: Change,
        database: SessionRunner,
        batches: Batches,
        then: Callable[[], None],
    ) -> None:
        by = change.by.name
        logger.info("%s: %s", by, change.what)
        try:
            await database.run(lambda session: _carry_out(change, batches(session)))
            change.state = "stopped" if change.stop else "done"
        except Exception:
            change.state = "failed"
            logger.exception("%s: %s failed after %d tasks", by, change.what, change.changed)
        finally:
            then()
        logger.info("%s: %s: %s, %d tasks changed", by, change.what, change.state, change.changed)

    def _remember(self, change: Change) -> None:
        over = [each.id for each in self._known.values() if each.state != "running"]
        for id in over[: max(len(self._known) - MAX_CHANGES + 1, 0)]:
            del self._known[id]
        self._known[change.id] = change


def _carry_out(change: Change, batches: Iterable[Batch]) -> None:
    for batch in batches:
        change.changed += batch.changed
        change.taken += batch.taken
        if change.stop:
            return
