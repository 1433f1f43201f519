"""Helpers that claim tasks and return their ids."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

from tests.support.harness import Database
from tests.support.models import Base, Task

M = TypeVar("M", bound=Base)
PAST = datetime(2020, 1, 1, tzinfo=UTC)


def ids(tasks: Any) -> list[int]:
    return [task.id for task in tasks]


def claimed(db: Database, *where: Any, limit: int = 10, **arguments: Any) -> list[int]:
    with db.begin() as session:
        return ids(session.claim_many(Task, *where, limit=limit, **arguments))
