"""Claims of many limited tasks, their slots, and the statements that are sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import Pool

from sqlqueue import Claim, claim_of
from tests.support.harness import Database
from tests.support.models import Slot, Visit
from tests.support.rows import count

MANY = 100


def claim(db: Database, *where: Any, limit: int = MANY) -> list[Claim]:
    with db.begin() as actor:
        return [claim_of(task) for task in actor.claim_many(Visit, *where, limit=limit)]


def held(db: Database) -> int:
    return count(db, Slot, Slot.status == "running")


@contextmanager
def sent() -> Iterator[dict[str, int]]:
    """Count the statements and the new connections of all engines within the block."""
    found = {"statements": 0, "connections": 0}

    def statement(*_: Any) -> None:
        found["statements"] += 1

    def connection(*_: Any) -> None:
        found["connections"] += 1

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Pool, "connect", connection)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", statement)
        event.remove(Pool, "connect", connection)
