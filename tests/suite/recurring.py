"""Tasks that recur every hour."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import update

from tests.support.harness import Database
from tests.support.models import Report
from tests.support.rows import PAST, clock

HOUR, HOURLY = timedelta(hours=1), "PT3600S"


def recurring(db: Database, model: Any = Report, **columns: Any) -> Any:
    """Enqueue a task that was due an hour and a half ago by default."""
    with db.begin() as actor:
        values = {"schedule": HOURLY, "available_at": clock(db) - 1.5 * HOUR, **columns}
        actor.enqueue(task := model(**values))
    return task


def claim(db: Database, model: Any = Report) -> Any:
    with db.begin() as actor:
        return actor.claim(model)


def make_due(db: Database, model: Any = Report) -> None:
    with db.engine.begin() as connection:
        connection.execute(update(model.__table__).values(available_at=PAST))
