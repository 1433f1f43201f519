"""The number of rows read from a history does not depend on the number of other attempts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert

from sqlqueue import Claim
from sqlqueue.operations.history import count_old_attempts
from sqlqueue.queue.options import FAILED, AttemptOutcome
from tests.suite.reading import FEW, MANY, Read, growing, reading
from tests.support.harness import Actor, Database
from tests.support.history import Parcel, Past, sync_archive
from tests.support.rows import PAST, clock

__all__ = ["sync_archive"]

SOME = 50
"""The number of attempts that each call finds."""
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

CALLS: Mapping[str, Callable[[Actor], Any]] = {
    "history of a task": lambda session: session.history(Claim(Parcel, (7,), 0)),
    "errors": lambda session: session.errors(Parcel, cap=SOME),
    "timeline": lambda session: session.timeline(Parcel, since=HOUR, bucket=MINUTE),
    "timeline, capped": lambda session: session.timeline(Parcel, since=7 * DAY, cap=SOME),
    "prune": lambda session: session.prune_history(Parcel, 30 * DAY, limit=SOME),
    "prune all": lambda session: session.prune_history(Parcel, 30 * DAY),
    "count those to prune": lambda session: session.run(count_old_attempts, Parcel, 30 * DAY, cap=SOME),
}


def stored(db: Database, number: int, **columns: Any) -> None:
    common = {"queue": "past_parcel", "attempt": 1, "outcome": "completed", "claimed_by": "a", "error": None}
    rows = [{"task": str(1_000 + n), "started_at": PAST, **common, **columns} for n in range(number)]
    with db.engine.begin() as connection:
        connection.execute(insert(Past), rows)


def to_be_found(db: Database, now: datetime) -> None:
    stored(db, SOME, task="7", finished_at=now - HOUR / 2)
    stored(db, SOME, finished_at=PAST)
    for outcome in FAILED:
        stored(db, SOME, outcome=outcome.value, error="no", finished_at=now - HOUR / 2)


def in_the_way(db: Database, now: datetime, number: int) -> None:
    """Insert attempts at other tasks and of other queues, with other outcomes and times."""
    for queue in ("past_flare", "past_parcel"):
        for outcome in AttemptOutcome:
            error = "no" if outcome in FAILED else None
            stored(db, number // 10, queue=queue, outcome=outcome.value, error=error, finished_at=now - 2 * DAY)
    stored(db, number, finished_at=now - 2 * DAY)
    stored(db, number, queue="past_flare", finished_at=PAST)


def efforts(db: Database) -> dict[str, Read]:
    other = db.variant(isolation_level="SERIALIZABLE" if db.case.one_writer else "READ COMMITTED")
    found: dict[str, Read] = {}
    for name, call in CALLS.items():
        with other.session() as session, reading(session, db.case) as found[name]:
            call(session)
    return found


@pytest.mark.requires("statistics")
def test_the_attempts_read_do_not_grow(sync_archive: Database, counted: Callable[[Any], None]) -> None:
    now = clock(sync_archive)
    to_be_found(sync_archive, now)
    in_the_way(sync_archive, now, FEW)
    small = efforts(sync_archive)
    in_the_way(sync_archive, now, MANY)
    assert growing(small, efforts(sync_archive)) == {}, "with a planner that knows nothing"
    counted(Past)
    assert growing(small, efforts(sync_archive)) == {}, "with a planner that knows the table"
