"""Measurements of queues with keys: what shares, limits and orders of keys cost, and a key with a large backlog."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, Engine, Integer, String, func, insert, select
from sqlalchemy.orm import DeclarativeBase, mapped_column, sessionmaker

from sqlqueue import LimitMixin, QueueMixin, QueueOptions, QueueSession, Rate, SlotMixin

from .figures import Spread
from .growth import CHUNK, Model, Progress, copy_rows, drain

KEYS = 50
"""How many keys take turns."""
_SMALL = 1_000
"""The backlog that a large one is compared with."""
_LARGE_KEY = "a"
_LIMIT = 100
_LONG = timedelta(days=30)
"""How long a task runs, or a rate is used up, that keeps the others of the large key from starting."""
Hold: TypeAlias = Callable[[QueueSession, Model], None]


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
    hold: Hold | None = None
    """What keeps these from starting, if anything does."""


def measure_keyed(
    engine: Engine, sessions: sessionmaker[QueueSession], *, backlog: int, tasks: int, rounds: int, say: Progress
) -> list[Keyed]:
    """Drain ``tasks`` tasks from each queue in turn, in ``rounds`` rounds, and return the rates.

    Each queue has its own table, and each round shuffles the queues.  The tables are created and dropped; existing
    tables of the same name raise a database error.
    """
    with _programs(engine, sessions, backlog, say) as programs:
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
def _programs(
    engine: Engine, sessions: sessionmaker[QueueSession], backlog: int, say: Progress
) -> Iterator[Sequence[_Program]]:
    class Base(DeclarativeBase):
        pass

    def limited(name: str) -> Model:
        slots: Any = type(f"SlotsOf{name}", (SlotMixin, Base), {"__tablename__": f"sqlqueue_bench_{name}_slots"})
        return _model(Base, name, QueueOptions(slots=slots, limit=_LIMIT), LimitMixin)

    def fair(name: str) -> Model:
        return _model(Base, name, QueueOptions(fair="tenant"))

    def ordered(name: str) -> Model:
        return _model(Base, name, QueueOptions(sequential="tenant"))

    plain = "plain"
    programs = [
        _Program(name=plain, against=plain, model=_model(Base, "plain", QueueOptions())),
        _Program(name="fair, one key", against=plain, model=fair("single"), keys=1),
        _Program(name=f"fair, {KEYS} keys", against=plain, model=fair("fair")),
        _Program(name=f"limits of {KEYS} keys", against=plain, model=limited("limited")),
        _Program(name="in order, a key for every ten tasks", against=plain, model=ordered("ordered"), keys=0),
    ]
    beside: Sequence[tuple[str, Callable[[str], Model], int, Hold | None]] = [
        ("fair", fair, KEYS, None),
        ("limits, full", limited, KEYS, _fill_limit),
        ("rates, used up", limited, KEYS, _use_up_rate),
        ("in order, the first one running", ordered, 0, _start_first),
    ]
    for number, (way, declare, keys, hold) in enumerate(beside):
        small, large = (f"{way}: {size:,} tasks of one key beside others" for size in (_SMALL, backlog))
        for name, size, table in ((small, _SMALL, f"small_{number}"), (large, backlog, f"large_{number}")):
            model = declare(table)
            programs.append(_Program(name=name, against=small, model=model, keys=keys, backlog=size, hold=hold))
    Base.metadata.create_all(engine, checkfirst=False)
    try:
        for program in programs:
            _fill(engine, program.model, program.backlog, say)
            if program.hold is not None:
                with sessions.begin() as session:
                    program.hold(session, program.model)
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


def _fill_limit(session: QueueSession, model: Model) -> None:
    session.set_limit(model, _LARGE_KEY, 1)
    _start_first(session, model)


def _use_up_rate(session: QueueSession, model: Model) -> None:
    session.set_rate(model, _LARGE_KEY, Rate(1, per=_LONG))
    _start_first(session, model)


def _start_first(session: QueueSession, model: Model) -> None:
    assert session.claim(model, model.tenant == _LARGE_KEY, lease=_LONG) is not None


def _enqueue(sessions: sessionmaker[QueueSession], program: _Program, tasks: int) -> None:
    """Enqueue the tasks of a drain: of the large backlog there are enough."""
    keys = program.keys or max(tasks // 10, 1)
    with sessions.begin() as session:
        start = session.scalar(select(func.coalesce(func.max(program.model.id), 0))) or 0
        names = [f"tenant {n % keys}" for n in range(tasks)]
        session.enqueue(program.model, [_row(program.model, start + n, name) for n, name in enumerate(names, start=1)])


def _row(model: Model, number: int, key: str) -> dict[str, Any]:
    return {"id": number, "tenant": key, **({"limit_key": key} if model.__queue_spec__.is_limited else {})}


def _fill(engine: Engine, model: Model, size: int, say: Progress) -> None:
    """Insert the backlog of one key; the server copies most of it from the first rows."""
    first = min(size, CHUNK)
    with engine.begin() as connection:
        if first:
            connection.execute(insert(model), [_row(model, n, _LARGE_KEY) for n in range(1, first + 1)])
    for done in range(first, size, CHUNK):
        say(f"{done:,} of {size:,} tasks of one key wait")
        with engine.begin() as connection:
            copy_rows(connection, model, 0, min(CHUNK, size - done), by=done)
