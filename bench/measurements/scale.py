"""Measures statistics of a queue of millions of tasks, and changes to many of them in batches.

    python -m bench.measurements.scale postgresql+psycopg://me@host/test --rows 5000000

Creates the table sqlqueue_scale, makes the server fill it, and drops it.  Of a hundred tasks 6 are available, 3
scheduled, 4 retryable and 3 running, all of them due, 2 of the running ones crashed in their last attempt; 74 are
completed, 7 discarded, and 3 cancelled.  Prints seconds: the minimum and maximum of all rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    Integer,
    String,
    and_,
    bindparam,
    case,
    cast,
    create_engine,
    insert,
    literal,
    null,
    or_,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqlqueue
from sqlqueue import QueueMixin, utcnow

CHUNK = 100_000
BATCH = 1_000


class Base(DeclarativeBase):
    pass


class Scale(QueueMixin, Base):
    __tablename__ = "sqlqueue_scale"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False)


class Number(Base):
    """Numbers from 0 to 99,999, from which the server generates rows."""

    __tablename__ = "sqlqueue_scale_number"

    n: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


def fill(engine: Engine, rows: int) -> None:
    with engine.begin() as connection:
        connection.execute(insert(Number), [{"n": n} for n in range(CHUNK)])
    for start in range(0, rows, CHUNK):
        with engine.begin() as connection:
            _copy(connection, start, min(CHUNK, rows - start))


def _copy(connection: Connection, start: int, count: int) -> None:
    kind, hour = Number.n % 100, Number.n % 24
    status = case(
        *((kind < end, literal(name)) for end, name in ((6, "available"), (9, "scheduled"), (13, "retryable"))),
        *((kind < end, literal(name)) for end, name in ((16, "running"), (90, "completed"), (97, "discarded"))),
        else_=literal("cancelled"),
    )
    moment = case(*((hour == n, utcnow(timedelta(hours=-n, minutes=-5))) for n in range(23)), else_=utcnow(-DAY))
    failed = or_(and_(kind >= 9, kind < 13), and_(kind >= 90, kind < 97))
    values: dict[Any, Any] = {
        "id": Number.n + bindparam("start", type_=BigInteger),
        "status": status,
        "available_at": moment,
        "created_at": moment,
        "attempt": case((and_(kind >= 13, kind < 15), 5), (kind < 9, 0), else_=1),
        "claimed_at": case((kind >= 9, moment), else_=null()),
        "finished_at": case((kind >= 16, moment), else_=null()),
        "error": case((failed, literal("TimeoutError: no answer from host ") + cast(hour, String(9))), else_=null()),
    }
    rows = select(*values.values()).where(Number.n < count)
    connection.execute(insert(Scale).from_select(list(values), rows), {"start": start})


DAY = timedelta(days=1)
LOOKS: dict[str, Callable[[Session], object]] = {
    "stats": lambda session: sqlqueue.stats(session, Scale),
    "stats, cap=None": lambda session: sqlqueue.stats(session, Scale, cap=None),
    "overview": lambda session: sqlqueue.overview(session, Scale),
    "errors": lambda session: sqlqueue.errors(session, Scale),
}


def seconds(engine: Engine, call: Callable[[Session], object]) -> float:
    with Session(engine) as session:
        session.connection()
        begun = time.perf_counter()
        call(session)
        session.commit()
        return time.perf_counter() - begun


def rescue(engine: Engine, batches: int) -> Iterator[float]:
    """Return the time of each batch."""
    changed = [BATCH]
    while changed[-1] == BATCH and len(changed) <= batches:
        yield seconds(engine, lambda session: changed.append(sqlqueue.rescue(session, Scale, limit=BATCH)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10, help="of crashed tasks to be rescued, at most")
    given = parser.parse_args()
    engine = create_engine(given.url)
    Base.metadata.create_all(engine, checkfirst=False)
    try:
        fill(engine, given.rows)
        for name, call in LOOKS.items():
            took = [seconds(engine, call) for _ in range(given.rounds)]
            print(f"| {name} | {min(took):.2f} | {max(took):.2f} |", flush=True)
        batches = list(rescue(engine, given.batches))
        print(f"| rescue, {len(batches)} batches | {min(batches):.2f} | {max(batches):.2f} |")
    finally:
        Base.metadata.drop_all(engine)


if __name__ == "__main__":
    main()
