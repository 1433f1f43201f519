"""Measures how long it takes to group the errors of a queue with many failures, and to change the tasks of a group.

    python -m bench.measurements.errors postgresql+psycopg://me@host/test --rows 1000000 5000000

Creates tables whose names begin with sqlqueue_errors, makes the server fill them, and drops them, for each number of
rows.  Of a hundred tasks 40 are discarded, 10 retryable, 10 available after a failure, and 40 completed; the history
has as many attempts as there are tasks, of which 60 in a hundred failed.  Their errors make 200 groups.  Prints
seconds: the minimum and maximum of all rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Engine,
    Integer,
    String,
    bindparam,
    case,
    cast,
    create_engine,
    insert,
    literal,
    null,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from sqlqueue import HistoryMixin, QueueMixin, QueueOptions, QueueSession, in_error_group, utcnow
from sqlqueue._support.texts import error_group

CHUNK = 100_000
GROUPS = 200


class Base(DeclarativeBase):
    pass


class Failing(QueueMixin, Base):
    __tablename__ = "sqlqueue_errors"
    __queue__ = QueueOptions(retention=timedelta(days=30))

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False)


class Past(HistoryMixin, Base):
    __tablename__ = "sqlqueue_errors_history"


class Number(Base):
    """Numbers from 0 to 99,999, from which the server generates rows, each with an error."""

    __tablename__ = "sqlqueue_errors_number"

    n: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    message: Mapped[str] = mapped_column(String(100))
    fingerprint: Mapped[str] = mapped_column(String(100))


def fill(engine: Engine, rows: int) -> None:
    numbers = [{"n": n, "message": f"Refused: {_word(n % GROUPS)} refused user{n}@example.org"} for n in range(CHUNK)]
    fingerprints = [error_group(each["message"]) for each in numbers[:GROUPS]]
    with engine.begin() as connection:
        connection.execute(
            insert(Number), [each | {"fingerprint": fingerprints[each["n"] % GROUPS]} for each in numbers]
        )
    for start in range(0, rows, CHUNK):
        _copy(engine, start, min(CHUNK, rows - start))
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        for table in (Failing.__tablename__, Past.__tablename__):
            analyze = {"postgresql": "VACUUM ANALYZE", "sqlite": "ANALYZE"}.get(engine.dialect.name, "ANALYZE TABLE")
            connection.exec_driver_sql(f"{analyze} {table}")


def _word(n: int) -> str:
    """Return one of as many words: an error group does not differ in numbers."""
    return f"{chr(97 + n // 26)}{chr(97 + n % 26)}"


def _copy(engine: Engine, start: int, count: int) -> None:
    kind, hour, key = Number.n % 100, Number.n % 24, Number.n + bindparam("start", type_=BigInteger)
    moment = case(*((hour == n, utcnow(timedelta(hours=-n, minutes=-5))) for n in range(23)), else_=utcnow(-DAY))
    failed, final = kind < 60, (kind < 40) | (kind >= 60)
    status = case(
        *((kind < end, literal(name)) for end, name in ((40, "discarded"), (50, "retryable"), (60, "available"))),
        else_=literal("completed"),
    )
    error = case((failed, Number.message), else_=null())
    group = case((failed, Number.fingerprint), else_=null())
    task: dict[Any, Any] = {
        "id": key,
        "status": status,
        "available_at": moment,
        "created_at": moment,
        "attempt": literal(1),
        "claimed_at": moment,
        "finished_at": case((final, moment), else_=null()),
        "error": error,
        "error_group": group,
    }
    attempt: dict[Any, Any] = {
        "queue": literal(Failing.__tablename__),
        "task": cast(key, String(20)),
        "attempt": literal(1),
        "finished_at": moment,
        "outcome": case((kind < 40, literal("discarded")), (failed, literal("failed")), else_=literal("completed")),
        "error": error,
        "error_group": group,
    }
    with engine.begin() as connection:
        for table, values in ((Failing, task), (Past, attempt)):
            rows = select(*values.values()).where(Number.n < count)
            connection.execute(insert(table).from_select(list(values), rows), {"start": start})


DAY = timedelta(days=1)
CALLS: dict[str, Callable[[QueueSession], object]] = {
    "errors": lambda session: session.errors(Failing),
    "errors, of tasks alone": lambda session: session.errors(Failing, Failing.id >= 0),
    "retry 1,000 tasks of a group": lambda session: session.retry(
        Failing, in_error_group(Failing, error_group("Refused: ab refused user1@example.org")), limit=1_000
    ),
}


def seconds(sessions: sessionmaker[QueueSession], call: Callable[[QueueSession], object]) -> float:
    with sessions() as session:
        session.connection()
        begun = time.perf_counter()
        call(session)
        session.commit()
        return time.perf_counter() - begun


def measure(engine: Engine, rows: int, rounds: int) -> None:
    Base.metadata.create_all(engine, checkfirst=False)
    try:
        fill(engine, rows)
        sessions = sessionmaker(engine, class_=QueueSession)
        for name, call in CALLS.items():
            took = [seconds(sessions, call) for _ in range(rounds)]
            print(f"| {name} | {rows:,} | {min(took):.2f} | {max(took):.2f} |", flush=True)
    finally:
        Base.metadata.drop_all(engine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    engine = create_engine(given.url)
    try:
        for rows in given.rows:
            measure(engine, rows, given.rounds)
    finally:
        engine.dispose()


if __name__ == "__main__":
    main()
