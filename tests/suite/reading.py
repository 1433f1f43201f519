"""Measures how much calls read, in the unit of each engine."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

from sqlalchemy import Connection, text

from tests.support.engines import EngineCase
from tests.support.harness import Actor, Database
from tests.support.models import Mail, Parcel, Seat, Task
from tests.support.rows import PAST, rows

READY, DUE, DEAD, OLD = 100, 60, 20, 60
"""Tasks that calls look for."""
SLACK = 10 * READY
"""Reads that are tolerated, since a small table may be scanned where a large one is searched by key."""
FACTOR = 3
"""The tolerated factor: index trees get deeper, and rolled-back rows may remain for a while."""
FEW, MANY = 1_000, 10_000
"""The numbers of tasks that calls must not read: finished ones, and as many scheduled ones."""
Call = Callable[[Actor, Any], Any]
HOUR = timedelta(hours=1)
SETTLINGS: Mapping[str, Call] = {
    "complete many": lambda session, tasks: session.complete(tasks),
    "complete one": lambda session, tasks: session.complete(tasks[0]),
    "fail many": lambda session, tasks: session.fail(tasks, "no"),
    "release many": lambda session, tasks: session.release(tasks),
    "heartbeat many": lambda session, tasks: session.heartbeat(tasks),
}


def key_of(model: Any, number: int) -> tuple[Any, ...]:
    """Return the keys of any model, in the order of their numbers."""
    return {Mail: (number + 1,), Task: (number + 1,), Parcel: (uuid.UUID(int=number),), Seat: ("a", number)}[model]


def stored(db: Database, model: Any, start: int, given: list[dict[str, Any]]) -> None:
    names = [column.name for column in model.__queue_spec__.primary_key]
    common: dict[str, Any] = {"attempt": 0, "max_attempts": 5, "claimed_at": None, "finished_at": None}
    common |= {"created_at": PAST}  # without Python defaults to call, a driver sends many rows at once
    common |= {"topic": "a"} if model is Mail else {}
    keys = (dict(zip(names, key_of(model, number), strict=True)) for number in count(start))
    db.insert(model, [{**common, **each, **key} for each, key in zip(given, keys, strict=False)])


def to_be_found(db: Database, model: Any, start: int = 0) -> int:
    """Insert the rows that the calls find, and return their number."""
    found = [
        *rows(READY),
        *rows(DUE, "scheduled", "retryable", "expired"),
        *rows(DEAD, "expired", max_attempts=1),
        *[{"status": "completed", "available_at": PAST, "finished_at": PAST}] * OLD,
    ]
    stored(db, model, start, found)
    return len(found)


@dataclass
class Read:
    amount: int = 0
    searched: frozenset[str] = frozenset()
    """The indexes used, and the tables scanned, if the engine reports them."""


@contextmanager
def reading(session: Actor, case: EngineCase) -> Iterator[Read]:
    """Measure what is read within the block."""
    read = Read()
    connection: Connection = session.run(lambda inner: inner.connection())
    if case.tells_steps:
        with steps(connection, read):
            yield read
        return
    said = text(str(case.reads_sql))
    before, own = (int(connection.scalar(said) or 0) for _ in range(2))
    already = searches(connection, case)
    yield read
    read.searched = frozenset(searches(connection, case) - already)
    read.amount = int(connection.scalar(said) or 0) - own - (own - before)


@contextmanager
def steps(connection: Connection, read: Read) -> Iterator[None]:
    def step() -> None:
        read.amount += 1

    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(step, 1)
    yield
    driver.set_progress_handler(None, 1)


def searches(connection: Connection, case: EngineCase) -> Counter[str]:
    found = connection.execute(text(case.searched_sql)) if case.searched_sql else ()
    return Counter({name: int(number) for name, number in found})


def efforts(db: Database, model: Any, calls: Mapping[str, Call], **options: Any) -> dict[str, Read]:
    """Return how much each call and each settlement reads; everything is rolled back."""
    other = db.variant(isolation_level="SERIALIZABLE" if db.case.one_writer else "READ COMMITTED", **options)
    found: dict[str, Read] = {}
    for name, call in calls.items():
        with other.session() as session, reading(session, db.case) as found[name]:
            call(session, model)
    for name, call in SETTLINGS.items():
        with other.session() as session:
            tasks = session.claim_many(model, limit=READY)
            with reading(session, db.case) as found[name]:
                call(session, tasks)
    return found


def growing(small: Mapping[str, Read], large: Mapping[str, Read]) -> dict[str, tuple[int, int]]:
    """Return the calls that read more from the larger table, and how much."""
    amounts = {name: (read.amount, large[name].amount) for name, read in small.items()}
    return {name: (less, more) for name, (less, more) in amounts.items() if more > FACTOR * less + SLACK}
