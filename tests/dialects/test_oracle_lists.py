"""Oracle takes 1,000 expressions in a list (ORA-01795) and 65,535 parameters: no statement has more.

"SQL Language Reference", Expression Lists: a list can have 1,000 expressions before 23ai, and 65,535 from then on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, Integer, String, event, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.orm.exc import FlushError

from sqlqueue import ArgumentError, Claim, ClaimLostError, QueueMixin, QueueSession
from sqlqueue.dialects import adapter_for, adapters
from sqlqueue.operations.control import not_paused
from sqlqueue.operations.upkeep import extend
from sqlqueue.transaction import HeldClaim, ledger_of
from tests.dialects.recorder import recording_engine
from tests.dialects.test_pinned import ENGINES
from tests.support.models import Document, Film, Mail, Report, Seat, Task, Visit
from tests.support.polling import next_due

MANY = 2_500
MOST_IN_A_LIST = 1_000
MOST_PARAMETERS = 65_535
MINUTE = timedelta(minutes=1)
_INNERMOST = re.compile(r"\(([^()]*)\)")


class Base(DeclarativeBase):
    pass


class Reading(QueueMixin, Base):
    """A model with a key of three columns."""

    __tablename__ = "reading"
    station: Mapped[str] = mapped_column(String(20), primary_key=True)
    year: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


KEYS: dict[type[Any], Callable[[int], tuple[Any, ...]]] = {
    Seat: lambda n: ("x", n),
    Reading: lambda n: ("x", 2026, n),
    Document: lambda n: (f"d{n}",),
}
SETTLING: list[Callable[[QueueSession, list[Claim]], object]] = [
    lambda session, claims: session.complete(claims),
    lambda session, claims: session.fail(claims, "no"),
    lambda session, claims: session.release(claims),
    lambda session, claims: session.heartbeat(claims),
    lambda session, claims: extend(session, claims, MINUTE),
]


def claims_of(model: type[Any], count: int = MANY) -> list[Claim]:
    key = KEYS.get(model, lambda n: (n,))
    return [Claim(model, key(n + 1), 1 + n % 2, 7) for n in range(count)]


def longest(statement: str) -> int:
    """Return the length of the longest list in a statement, of expressions or of tuples."""
    most = 0
    while found := _INNERMOST.findall(statement):
        most = max(most, *(each.count(",") + 1 for each in found))
        statement = _INNERMOST.sub("x", statement)
    return most


@pytest.fixture
def sent() -> Iterator[tuple[Engine, list[tuple[str, int]]]]:
    """Record every statement with its number of parameters."""
    engine, _ = recording_engine(*ENGINES["oracle"])
    log: list[tuple[str, int]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
        log.append((statement, len(parameters[0] if many else parameters)))

    yield engine, log
    assert log
    assert max(longest(statement) for statement, _ in log) <= MOST_IN_A_LIST
    assert max(count for _, count in log) <= MOST_PARAMETERS


def hold(session: QueueSession, model: type[Any]) -> None:
    """Hold rows as claims with ``lease=None`` do."""
    tasks = [
        model(**dict(zip((each.name for each in inspect(model).primary_key), claim.identity, strict=True)))
        for claim in claims_of(model)
    ]
    holds = [(inspect(task), HeldClaim(claim, "me")) for task, claim in zip(tasks, claims_of(model), strict=True)]
    ledger_of(session).remember(session, holds)
    session.info["held"] = tasks


def test_the_length_of_lists_is_measured() -> None:
    assert longest("a IN (1, 2, 3) AND f(b, c)") == 3
    assert longest("(a, b) IN ((1, 2), (3, 4), (5, 6), (7, 8))") == 4


@pytest.mark.parametrize("model", [Task, Seat, Reading, Visit, Film, Report])
@pytest.mark.parametrize("settle", SETTLING, ids=["complete", "fail", "release", "heartbeat", "extend"])
def test_settlements_stay_below_the_limits(model: type[Any], settle: Callable[..., object], sent: Any) -> None:
    with QueueSession(sent[0]) as session, suppress(ClaimLostError, FlushError):
        settle(session, claims_of(model))


@pytest.mark.parametrize("model", [Task, Seat, Reading])
def test_rows_that_are_held_already_are_left_out(model: type[Any], sent: Any) -> None:
    with QueueSession(sent[0]) as session, suppress(FlushError):
        hold(session, model)
        session.claim_many(model, limit=MANY, lease=None)


def test_a_row_that_is_held_is_not_run_again(sent: Any) -> None:
    with QueueSession(sent[0]) as session:
        hold(session, Document)
        rows = [{"id": f"e{n}", "version": n} for n in range(MANY)]
        with pytest.raises(ArgumentError, match="lease=None"):
            session.enqueue(Document, rows, on_conflict="rerun")


def test_paused_topics_stay_below_the_limits(sent: Any) -> None:
    paused = {f"mail:topic {n}" for n in range(MANY)}
    where = not_paused(adapter_for(sent[0].dialect), Mail.__queue_spec__, paused)
    assert where is not None
    with QueueSession(sent[0]) as session:
        next_due(session, Mail, *where)
        session.claim_many(Mail, *where, limit=7)
    assert all("topic 2499" in statement for statement, _ in sent[1][:2])


def test_all_rows_are_named() -> None:
    """The last list ends with its last key again, up to a power of two."""
    named = adapters()["oracle"].rows.key_in(Task.__queue_spec__, [(n,) for n in range(MANY)])
    dialect = recording_engine(*ENGINES["oracle"])[0].dialect
    text = str(named.compile(dialect=dialect, compile_kwargs={"render_postcompile": True}))
    assert len(re.findall(r":\w+", text)) == 1_000 + 1_000 + 512
    assert text.count(" OR ") == 2
