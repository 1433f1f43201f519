"""Tasks with a history, and its contents."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import func, select, update

from sqlqueue import PastAttempt, utcnow
from tests.support.harness import Database
from tests.support.history import Past

HOUR = timedelta(hours=1)


def put(db: Database, *tasks: Any) -> None:
    db.committed.add_all(tasks)


def count(db: Database) -> int:
    with db.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(Past)) or 0


def outcomes(attempts: list[PastAttempt]) -> list[tuple[int, str, str | None]]:
    return [(each.attempt, str(each.outcome), each.error) for each in attempts]


def expire(db: Database, model: Any) -> None:
    db.execute(update(model).values(available_at=utcnow(-HOUR)))
