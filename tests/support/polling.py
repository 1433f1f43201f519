"""When a worker would look for a task again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from sqlqueue.operations.upkeep import poll


def next_due(session: Session, entity: type[Any], *where: Any, used_up: Sequence[str] = ()) -> timedelta | None:
    """The time until a claim may find a task: zero if it may now, ``None`` if no task is waiting."""
    return poll(session, entity, *where, used_up=used_up).due
