"""Rows in every claimable state, their stored values, and sessions that compete for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from typing import Any, TypeVar

import pytest
from sqlalchemy import RowMapping, and_, func, insert, inspect, or_, select, update
from sqlalchemy.orm import Session

from sqlqueue import Claim, utcnow
from tests.support.harness import Actor, Database
from tests.support.models import Base, Task

T = TypeVar("T")
M = TypeVar("M", bound=Base)

PAST = datetime(2020, 1, 1, tzinfo=UTC)
TOMORROW = datetime.now(UTC) + timedelta(days=1)
FUTURE = datetime(2090, 1, 1, tzinfo=UTC)

CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    "ready": {"status": "available", "available_at": PAST, "attempt": 0, "claimed_at": None},
    "scheduled": {"status": "scheduled", "available_at": PAST, "attempt": 0, "claimed_at": None},
    "retryable": {"status": "retryable", "available_at": PAST, "attempt": 1, "claimed_at": PAST},
    "expired": {"status": "running", "available_at": PAST, "attempt": 1, "claimed_at": PAST},
}
"""The states of rows that can be claimed: ready ones, and due ones."""
DUE = ("scheduled", "retryable", "expired")
_THREADS = ThreadPoolExecutor(10)


def rows(count: int, *conditions: str, **columns: Any) -> list[dict[str, Any]]:
    """Return `count` claimable rows, which alternate between these states."""
    kinds = cycle(CONDITIONS[condition] for condition in conditions or ("ready",))
    return [{**kind, **columns} for kind in islice(kinds, count)]


def insert_many(db: Database, model: Any, *rows: Mapping[str, Any], times: int = 4) -> None:
    """Insert 1,250 rows with these values in turn; the server doubles those that have them so many ``times``: 20,000
    rows, if there were none."""
    db.insert(model, list(islice(cycle(rows), 1_250)))
    table = model.__table__
    copied = [column for column in table.columns if column not in set(table.primary_key)]
    alike = or_(*(and_(*(table.c[name] == value for name, value in row.items())) for row in rows))
    for _ in range(times):
        db.execute(insert(table).from_select(copied, select(*copied).where(alike)))


def analyze(db: Database, model: Any) -> None:
    """Collect the planner's statistics of the table."""
    if db.case.analyze is not None:
        with db.engine.begin() as connection:
            connection.exec_driver_sql(db.case.analyze.format(table=model.__tablename__))


def contenders(db: Database, count: int = 2) -> list[Actor]:
    """Return sessions with connections that are already open."""
    actors = [db.session() for _ in range(count)]
    for actor in actors:
        actor.stats(Task)
    for actor in actors:
        actor.rollback()
    return actors


def waited(holder: Actor, call: Callable[[], T], within: float = 1) -> tuple[bool, T]:
    """Return whether `call` waited for `holder`, whose transaction is then committed, and the result of `call`."""
    result = _THREADS.submit(call)
    late = not wait([result], within).done
    if late:
        holder.commit()
    return late, result.result()


def without_waiting(holder: Actor, call: Callable[[], T], within: float = 60) -> T:
    """Return the result of `call`, which must not wait for locks of `holder`."""
    late, value = waited(holder, call, within)
    if late:
        pytest.fail(f"waited for another transaction for more than {within} s")
    return value


def ids(tasks: Iterable[Any]) -> set[Any]:
    found = [task.id for task in tasks]
    assert len(found) == len(set(found)), "a row was returned twice"
    return set(found)


def row(db: Database, task: Any) -> RowMapping:
    """Return the current row of a task from the table."""
    return _row(db, type(task), inspect(task).identity)


def load(db: Database, model: type[M], key: Any) -> M:
    """Load the task in a new session."""
    with Session(db.engine) as session:
        return session.get_one(model, key)


def load_all(db: Database, model: type[M]) -> list[M]:
    """Load the tasks in a new session, by primary key."""
    with Session(db.engine) as session:
        return list(session.scalars(select(model).order_by(*model.__table__.primary_key)))


def row_of(db: Database, claim: Claim) -> RowMapping:
    """Return the row of a claim's task."""
    return _row(db, claim.entity, claim.identity)


def _row(db: Database, model: Any, identity: tuple[Any, ...]) -> RowMapping:
    (key,) = identity
    table = model.__table__
    with db.engine.connect() as connection:
        return connection.execute(select(table).where(table.c.id == key)).mappings().one()


TICK = timedelta(milliseconds=10)
"""The maximum rounding of times by an engine."""


def clock(db: Database) -> datetime:
    """Return the time of the database."""
    with db.engine.connect() as connection:
        return connection.execute(select(utcnow())).scalar_one()


def zones(db: Database) -> list[Database]:
    """Return the database, and variants with sessions east and west of UTC where sessions have a time zone."""
    return [db, *(db.variant(on_connect=statement) for statement in db.case.time_zones())]


def end_leases(db: Database, model: Any = Task) -> None:
    """End the leases of all running rows."""
    db.execute(update(model.__table__).where(model.status == "running").values(available_at=PAST))


def make_due(db: Database, model: Any) -> None:
    """Let the time of all rows be past."""
    with db.engine.begin() as connection:
        connection.execute(update(model.__table__).values(available_at=PAST))


def count(db: Database, model: Any, *where: Any) -> int:
    with db.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(model.__table__).where(*where))
