"""Measurements of a large queue: among finished and scheduled tasks, and while an old snapshot is held."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, ColumnElement, Connection, Engine, func, insert, literal_column, select
from sqlalchemy.orm import DeclarativeBase, mapped_column, sessionmaker

from sqlqueue import QueueMixin, QueueSession, Status, utcnow

from .figures import Spread
from .servertime import ServerTime, read_server_time

Progress: TypeAlias = Callable[[str], None]
Model: TypeAlias = type[Any]
_BATCH = 100
CHUNK = 20_000
"""Rows per copying statement and transaction."""
_TENTHS = 10
_SNAPSHOT = "REPEATABLE READ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The result of drains among ``rows`` finished tasks, and as many scheduled ones."""

    rows: int
    rate: Spread
    """Tasks per second."""
    ratio: Spread
    """Ratio to the rate of the first size in the same round."""
    server_microseconds: float | None
    """The server's time per task, as the median of all rounds; ``None`` if the server does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSnapshot:
    """The result of a drain while another transaction holds an older snapshot, which blocks cleanup."""

    rates: tuple[float, ...]
    """Tasks per second, for each tenth."""
    ratio: float
    """Ratio of the last tenth's rate to the first's."""
    server: ServerTime | None
    """The server's time for each tenth; ``None`` if the server does not report it."""


def measure_growth(
    engine: Engine,
    sessions: sessionmaker[QueueSession],
    *,
    sizes: Sequence[int],
    tasks: int,
    rounds: int,
    say: Progress,
) -> list[Growth]:
    """Drain ``tasks`` tasks from queues of each of the ``sizes`` in turn, in ``rounds`` rounds, and return the rates.

    Each size has its own table, and each round shuffles the sizes, so that other load on the machine affects all of
    them alike.  The tables are created and dropped; existing tables of the same name raise a database error.
    """
    engine.dispose()  # older connections in the pool would share the work, but one session must do it all
    with _queues(engine, {f"growth_{size}": size for size in sizes}, say) as models:
        rates: dict[int, list[float]] = {size: [] for size in sizes}
        spent: dict[int, list[float | None]] = {size: [] for size in sizes}
        by_size = list(zip(sizes, models, strict=True))
        for number in range(-1, rounds):  # the first is a warm-up and does not count
            for size, model in random.sample(by_size, len(by_size)):
                say(f"draining among {size:,} finished tasks, round {number + 1} of {rounds}")
                _enqueue(sessions, model, tasks)
                rate, server = _measured_drain(engine, sessions, model, tasks)
                if number >= 0:
                    rates[size].append(rate)
                    spent[size].append(server)
    empty = rates[sizes[0]]
    return [
        Growth(
            rows=size,
            rate=Spread.of(rates[size]),
            ratio=Spread.of([rate / first for rate, first in zip(rates[size], empty, strict=True)]),
            server_microseconds=_median(spent[size]),
        )
        for size in sizes
    ]


def measure_held_snapshot(
    engine: Engine, sessions: sessionmaker[QueueSession], *, tasks: int, say: Progress
) -> HeldSnapshot:
    """Drain ``tasks`` tasks, at least ten, while an older transaction holds its snapshot, and return the rates.

    The tables are created and dropped; existing tables of the same name raise a database error.
    """
    engine.dispose()  # older connections in the pool would share the work, but one session must do it all
    tenth, rates = max(tasks // _TENTHS, 1), list[float]()
    with _queues(engine, {"snapshot": 0, "other": 2}, say) as (model, other), engine.connect() as reader:
        _enqueue(sessions, model, _BATCH * _TENTHS)
        drain(sessions, model, _BATCH * _TENTHS)
        _enqueue(sessions, model, tenth * _TENTHS)
        with _snapshot(reader, other):
            say(f"draining {tenth * _TENTHS:,} tasks under an old snapshot")
            readings = [read_server_time(engine)]
            for _ in range(_TENTHS):
                rates.append(drain(sessions, model, tenth))
                readings.append(read_server_time(engine))
    return HeldSnapshot(
        rates=tuple(round(rate, 1) for rate in rates),
        ratio=round(rates[-1] / rates[0], 3),
        server=ServerTime.of(readings, tenth),
    )


@contextmanager
def _queues(engine: Engine, sizes: dict[str, int], say: Progress) -> Iterator[list[Model]]:
    class Base(DeclarativeBase):
        pass

    models = [_model(Base, f"sqlqueue_bench_{name}") for name in sizes]
    Base.metadata.create_all(engine, checkfirst=False)
    try:
        for model, size in zip(models, sizes.values(), strict=True):
            for status in (Status.COMPLETED, Status.SCHEDULED):
                _fill(engine, model, status, size, say)
        yield models
    finally:
        Base.metadata.drop_all(engine)


def _model(base: type[DeclarativeBase], table: str) -> Model:
    return type(
        table,
        (QueueMixin, base),
        {"__tablename__": table, "id": mapped_column(BigInteger, primary_key=True, autoincrement=False)},
    )


def _fill(engine: Engine, model: Model, status: Status, size: int, say: Progress) -> None:
    """Insert rows; the server copies most of them from the first ones."""
    first = min(size, CHUNK)
    with engine.begin() as connection:
        start = connection.scalar(select(func.coalesce(func.max(model.id), 0))) or 0
        moments = _moments(connection, status, first)
        ended = [moment if status is Status.COMPLETED else None for moment in moments]
        rows = [
            {"id": start + n, "status": status, "available_at": moment, "finished_at": end}
            for n, (moment, end) in enumerate(zip(moments, ended, strict=True), start=1)
        ]
        if rows:
            connection.execute(insert(model), rows)
    for done in range(first, size, CHUNK):
        say(f"{done:,} of {size:,} tasks are {status}")
        with engine.begin() as connection:
            copy_rows(connection, model, start, min(CHUNK, size - done), by=done)


def _moments(connection: Connection, status: Status, count: int) -> list[Any]:
    now = connection.execute(select(utcnow())).scalar_one()
    way = -1 if status is Status.COMPLETED else 1
    return [now + way * timedelta(days=1, seconds=n) for n in range(count)]


def copy_rows(connection: Connection, model: Model, start: int, count: int, *, by: int) -> None:
    table = model.__table__
    values: dict[str, ColumnElement[Any]] = {column.name: column for column in table.columns}
    values["id"] = table.c.id + literal_column(str(by))
    copied = select(*values.values()).where(table.c.id > start, table.c.id <= start + count)
    connection.execute(insert(table).from_select(list(values), copied))


def _enqueue(sessions: sessionmaker[QueueSession], model: Model, tasks: int) -> None:
    with sessions.begin() as session:
        start = session.scalar(select(func.coalesce(func.max(model.id), 0))) or 0
        session.enqueue(model, [{"id": start + n} for n in range(1, tasks + 1)])


def drain(sessions: sessionmaker[QueueSession], model: Model, tasks: int) -> float:
    """Claim and complete tasks, and return the rate per second."""
    done, begun = 0, time.perf_counter()
    while done < tasks:
        with sessions.begin() as session:
            claimed = session.claim_many(model, limit=min(_BATCH, tasks - done))
            session.complete(claimed)
        done += len(claimed)
    return done / (time.perf_counter() - begun)


def _measured_drain(
    engine: Engine, sessions: sessionmaker[QueueSession], model: Model, tasks: int
) -> tuple[float, float | None]:
    """Drain tasks, and return the rate per second and the server's microseconds per task."""
    before = read_server_time(engine)
    rate = drain(sessions, model, tasks)
    after = read_server_time(engine)
    return rate, None if before is None or after is None else (after - before) / tasks


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]  # a server that does not measure it reports no time at all
    return round(median(known), 2) if len(known) == len(values) else None


@contextmanager
def _snapshot(connection: Connection, other: Model) -> Iterator[None]:
    """Keep a read transaction open, on a table other than the drained one, so that its locks block nothing."""
    levels = connection.dialect.get_isolation_level_values(connection.connection.dbapi_connection)  # type: ignore[arg-type]
    level = {"isolation_level": _SNAPSHOT} if _SNAPSHOT in levels else {}
    reading = connection.execution_options(stream_results=True, **level).execute(select(other.id))
    reading.fetchone()
    yield
    reading.close()
