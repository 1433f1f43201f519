"""Rows of finished tasks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tests.support.harness import Database

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def elsewhere(db: Database) -> Database:
    """Return the database with sessions at +05:30, if sessions have a time zone: their hours do not begin with those of
    UTC."""
    return db if db.case.time_zone_sql is None else db.variant(on_connect=next(db.case.time_zones()))


def finished(at: datetime, ran: timedelta = MINUTE, waited: timedelta = MINUTE, **columns: Any) -> dict[str, Any]:
    """Return a completed row, with `columns` replaced."""
    moments = {"finished_at": at, "available_at": at, "claimed_at": at - ran, "created_at": at - ran - waited}
    return {"status": "completed", "attempt": 1, **moments, **columns}
