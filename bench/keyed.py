"""Measurements of queues with keys: what shares, limits and orders of keys cost, and a key with a large backlog."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Engine, Integer, String, func, insert, select
from sqlalchemy.orm import DeclarativeBase, mapped_column, sessionmaker

from sqlqueue import LimitMixin, QueueMixin, QueueOptions, QueueSession, SlotMixin

from .figures import Spread
from .growth import CHUNK, Model, Progress, copy_rows, drain

KEYS = 50
"""How many keys take turns."""
_SMALL = 1_000
"""The backlog that a large one is compared with."""
_LARGE_KEY = "a"
_LIMIT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """The result of the drains of one queue."""

    name: str
    against: str
    """The queue that it is compared with."""
    rate: Spread
    """Tasks per second."""
    ratio: Spread
    """Ratio to the rate of that queue in the same round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    name: str
    against: str
    model: Model
    keys: int = KEYS
    """How many keys the tasks have that are enqueued for each drain."""
    backlog: int = 0
    """How many tasks of one key wait besides."""


def measure_keyed(
    engine: Engine, sessions: sessionmaker[QueueSession], *, backlog: int, tasks: int, rounds: int, say: Progress
) -> list[Keyed]:
    """Drain ``tasks`` tasks from each queue in turn, in ``rounds`` rounds, and return the rates.

    Each queue has its own table, and each round shuffles the queues.  The tables are created and dropped; existing
    tables of the same name raise a database error.
    """
    with _programs(engine, backlog, say) as programs:
        rates: dict[str, list[float]] = {program.name: [] for program in programs}
        for number in range(-1, rounds):  # the first is a warm-up and does not count
            for program in random.sample(programs, len(programs)):
                say(f"draining {program.name}, round {number + 1} of {rounds}")
                _enqueue(sessions, program, tasks)
                rate = drain(sessions, program.model, tasks)
                if number >= 0:
                    rates[program.name].append(rate)
    return [
        Keyed(
            name=program.name,
            against=program.against,
            rate=Spread.of(rates[program.name]),
            ratio=Spread.of([a / b for a, b in zip(rates[program.name], rates[program.against], strict=True)]),
        )
        for program in programs
    ]


@contextmanager
def _programs(engine: Engine, backlog: int, say: Progress) -> Iterator[Sequence[_Program]]:
    class Base(DeclarativeBase):
        pass

    slots: Any = type("Slots", (SlotMixin, Base), {"__tablename__": "sqlqueue_bench_slots"})
    fair, limits = QueueOptions(fair="tenant"), QueueOptions(slots=slots, limit=_LIMIT)
    plain, single, small = "plain", "fair, one key", f"fair, {_SMALL:,} tasks of one key beside others"
    programs = [
        _Program(name=plain, against=plain, model=_model(Base, "plain", QueueOptions())),
        _Program(name=single, against=plain, model=_model(Base, "single", fair), keys=1),
        _Program(name=f"fair, {KEYS} keys", against=plain, model=_model(Base, "fair", fair)),
        _Program(name=small, against=small, model=_model(Base, "small", fair), backlog=_SMALL),
        _Program(
            name=f"fair, {backlog:,} tasks of one key beside others",
            against=small,
            model=_model(Base, "large", fair),
            backlog=backlog,
        ),
        _Program(name=f"limits of {KEYS} keys", against=plain, model=_model(Base, "limited", limits, LimitMixin)),
        _Program(
            name="in order, a key for every ten tasks",
            against=plain,
            model=_model(Base, "ordered", QueueOptions(sequential="tenant")),
            keys=0,
        ),
    ]
    Base.metadata.create_all(engine, checkfirst=False)
    try:
        for program in programs:
            _fill(engine, program.model, program.backlog, say)
        yield programs
    finally:
        Base.metadata.drop_all(engine)


def _model(base: Any, name: str, options: QueueOptions, mixin: type[Any] = QueueMixin) -> Model:
    key = BigInteger().with_variant(Integer, "sqlite")
    columns = {
        "id": mapped_column(key, primary_key=True, autoincrement=False),
        "tenant": mapped_column(String(40), nullable=False),
    }
    return type(name, (mixin, base), {"__tablename__": f"sqlqueue_bench_{name}", "__queue__": options, **columns})


def _enqueue(sessions: sessionmaker[QueueSession], program: _Program, tasks: int) -> None:
    """Enqueue the tasks of a drain: of the large backlog there are enough."""
    keys = program.keys or max(tasks // 10, 1)
    with sessions.begin() as session:
        start = session.scalar(select(func.coalesce(func.max(program.model.id), 0))) or 0
        names = [f"tenant {n % keys}" for n in range(tasks)]
        limited = program.model.__queue_spec__.is_limited
        rows = [{"id": start + n, "tenant": name} for n, name in enumerate(names, start=1)]
        session.enqueue(program.model, [{**row, "limit_key": row["tenant"]} for row in rows] if limited else rows)


def _fill(engine: Engine, model: Model, size: int, say: Progress) -> None:
    """Insert the backlog of one key; the server copies most of it from the first rows."""
    first = min(size, CHUNK)
    with engine.begin() as connection:
        if first:
            rows = [{"id": n, "tenant": _LARGE_KEY} for n in range(1, first + 1)]
            connection.execute(insert(model), rows)
    for done in range(first, size, CHUNK):
        say(f"{done:,} of {size:,} tasks of one key wait")
        with engine.begin() as connection:
            copy_rows(connection, model, 0, min(CHUNK, size - done), by=done)
