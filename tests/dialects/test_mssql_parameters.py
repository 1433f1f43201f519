"""SQL Server takes 2,100 parameters: no statement has more, for any number of rows and any keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import (
    ArgumentError,
    Claim,
    ClaimLostError,
    LimitMixin,
    QueueMixin,
    QueueOptions,
    QueueSession,
    RecurringMixin,
    SlotMixin,
    TopicMixin,
    UniqueMixin,
    promote,
)
from sqlqueue.dialects import adapters
from sqlqueue.operations.control import not_paused
from sqlqueue.operations.upkeep import extend, postpone
from sqlqueue.outbox import OutboxMixin, claim_messages
from tests.dialects.recorder import recording_engine
from tests.dialects.test_pinned import ENGINES
from tests.support.polling import next_due

MOST = 2_100
MANY = 701
"""The number of rows whose keys of three columns are more than one statement takes."""
MINUTE = timedelta(minutes=1)


class Base(DeclarativeBase):
    pass


class Place:
    """A model with a key of three columns."""

    x: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    y: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    z: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Point(QueueMixin, Base):
    __tablename__ = "point"
    x: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Cell(Place, UniqueMixin, Base):
    __tablename__ = "cell"


class Round(Place, RecurringMixin, Base):
    __tablename__ = "round"


class Slot(SlotMixin, Base):
    __tablename__ = "cell_slot"


class Held(Place, LimitMixin, Base):
    __tablename__ = "held"
    __queue__ = QueueOptions(slots=Slot, limit=MANY)


class Letter(TopicMixin, Base):
    __tablename__ = "letter"
    x: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Note(Place, OutboxMixin, Base):
    __tablename__ = "note"


def claims(model: type[QueueMixin]) -> list[Claim]:
    """Return claims in two attempts."""
    return [Claim(model, identity(model, n), 1 + n % 2, 7) for n in range(MANY)]


def identity(model: type[QueueMixin], n: int) -> tuple[int, ...]:
    return (n,) * len(model.__queue_spec__.primary_key)


def claim_twice(session: QueueSession, model: Any) -> None:
    """The second claim excludes the rows that the first has locked."""
    session.claim_many(model, limit=MANY, lease=None)
    session.claim(model)


def rerun_locked(session: QueueSession, model: Any) -> None:
    """Enqueue again while the transaction holds locks, so that it must query whether the row is one of them."""
    session.claim_many(model, limit=MANY, lease=None)
    names = [column.name for column in model.__queue_spec__.primary_key]
    session.enqueue(model, [dict.fromkeys(names, MANY)], on_conflict="rerun")


CALLS: dict[str, Callable[[QueueSession, Any], Any]] = {
    "claim": lambda s, m: s.claim_many(m, limit=MANY),
    "claim twice": claim_twice,
    "rerun locked": rerun_locked,
    "complete": lambda s, m: s.complete(claims(m)),
    "fail": lambda s, m: s.fail(claims(m), "no"),
    "release": lambda s, m: s.release(claims(m)),
    "heartbeat": lambda s, m: s.heartbeat(claims(m)),
    "extend": lambda s, m: extend(s, claims(m), MINUTE),
    "cancel": lambda s, m: s.cancel(m),
    "retry": lambda s, m: s.retry(m, limit=MANY),
    "rerun": lambda s, m: s.rerun(m, limit=MANY),
    "rescue": lambda s, m: s.rescue(m, limit=MANY),
    "prune": lambda s, m: s.prune(m, MINUTE, limit=MANY),
    "promote": lambda s, m: promote(s, m, limit=MANY),
    "postpone": lambda s, m: postpone(s, m, limit=MANY),
}


OF_SLOTS = ("claim", "claim twice", "complete", "heartbeat", "extend", "cancel")
"""The calls that take, extend and free slots; the other calls free them as `cancel` does."""


def numbers(call: Callable[[QueueSession, Any], Any], model: type[QueueMixin], missing: int = 0) -> list[int]:
    """Return the number of parameters of each statement that `call` sends for many rows."""
    engine, log = recording_engine(*ENGINES["mssql"])

    @event.listens_for(engine, "before_cursor_execute")
    def multiply(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        cursor.rowcount = MANY
        holders = len(re.findall(r":claimed_by_\d+_\d+", statement))  # each of which holds one slot
        names = [name for name, *_ in cursor.description or ()]
        wide = any(re.match(r"(x|slot_number|key_\d|column_\d)(_\d+)?$", name) for name in names)
        if wide and cursor.rows:
            (row,) = cursor.rows
            keys = [bool(re.match(r"([xyz]|slot_number|key_\d|column_[123])(_\d+)?$", name)) for name in names]
            cursor.rows = [
                tuple(n if is_key else value for is_key, value in zip(keys, row, strict=True))
                for n in range(missing, holders or MANY)
            ]

    with QueueSession(engine) as session, suppress(ClaimLostError, ArgumentError):
        call(session, model)
    return [len(re.findall(r"(?<![:\w]):[a-z]\w*", statement)) for statement in log]


@pytest.mark.parametrize(
    ("call", "model"),
    [*product(CALLS, [Cell]), *product(OF_SLOTS, [Held]), ("complete", Round), ("claim", Round)],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_there_is_room_for_all_parameters(call: str, model: type[QueueMixin]) -> None:
    found = numbers(CALLS[call], model)
    assert found
    assert max(found) < MOST


@pytest.mark.parametrize("model", [Point, Cell, Held], ids=lambda model: model.__name__)
def test_there_is_room_for_those_that_are_not_locked_too(model: type[QueueMixin]) -> None:
    found = numbers(CALLS["extend"], model, missing=1)
    assert MOST // 2 < max(found) < MOST


def test_there_is_room_for_messages() -> None:
    assert max(numbers(lambda s, m: claim_messages(s, m, limit=MANY), Note)) < MOST


def without_paused(session: QueueSession, model: type[QueueMixin]) -> None:
    """A poll queries them three times."""
    where = not_paused(adapters()["mssql"], model.__queue_spec__, {f"letter:topic {n}" for n in range(MANY)})
    assert where is not None
    next_due(session, model, *where)
    session.claim_many(model, *where, limit=MANY)


def test_there_is_room_for_topics_that_are_paused() -> None:
    assert max(numbers(without_paused, Letter)) < MOST


def test_topics_that_are_written_out_are_wide() -> None:
    where = adapters()["mssql"].rows.one_of(Letter.__queue_spec__, Letter.__table__.c.topic, ["\u65e5\u672c's"] * MANY)
    engine, _ = recording_engine(*ENGINES["mssql"])
    text = str(where.compile(engine, compile_kwargs={"render_postcompile": True}))
    assert text.count("N'\u65e5\u672c''s'") == MANY


def naming(name: str, model: type[QueueMixin], count: int) -> str:
    engine, _ = recording_engine(*ENGINES[name])
    spec = model.__queue_spec__
    named = adapters()[name].rows.key_in(spec, [identity(model, 7_000 + n) for n in range(count)])
    return str(spec.table.delete().where(named).compile(engine, compile_kwargs={"render_postcompile": True}))


@pytest.mark.parametrize("model", [Point, Cell], ids=lambda model: model.__name__)
def test_more_keys_than_there_are_parameters_are_written_out(model: type[QueueMixin]) -> None:
    few, many = naming("mssql", model, 100), naming("mssql", model, MOST + 1)
    assert (":" in few, "7000" in few) == (True, False)
    assert (":" in many, "7000" in many, str(7_000 + MOST) in many) == (False, True, True)


@pytest.mark.parametrize("model", [Point, Cell], ids=lambda model: model.__name__)
def test_no_list_is_longer_than_oracle_takes(model: type[QueueMixin]) -> None:
    """Error ORA-01795; a list ends with its last key again, up to a power of two."""
    lists = re.findall(r"IN \(((?:[^()]|\([^()]*\))*)\)", naming("oracle", model, 2_500))
    assert [each.count(":") for each in lists] == [
        len(row) * n for row in [identity(model, 0)] for n in (1_000, 1_000, 512)
    ]
