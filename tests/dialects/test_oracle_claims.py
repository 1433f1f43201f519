"""The rows that a claim on Oracle locks and reads again, according to its statements; there is no server."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from sqlalchemy import Identity, MetaData, event
from sqlalchemy.engine.interfaces import CacheStats
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlqueue import ArgumentError, ConfigurationError, QueueMixin, QueueSession
from sqlqueue.dialects import adapters
from sqlqueue.dialects.statements import ClaimRequest
from sqlqueue.sql import picks
from tests.dialects import recorder
from tests.dialects.test_pinned import ENGINES, PINNED
from tests.support.models import Mail, Seat, Task, Visit

STATEMENTS: dict[str, str] = json.loads((PINNED / "oracle.json").read_text())
BLOCKS = {name: each for name, each in STATEMENTS.items() if each.startswith("DECLARE")}
ORDER = r" ORDER BY ((?:(?!FETCH)[^;])*?)"
"""Not that of a subquery."""
CURSOR = re.compile(rf"CURSOR sqlqueue_free IS SELECT .*?\nWHERE (.*?)(?:{ORDER})? FOR UPDATE SKIP LOCKED;", re.DOTALL)
AGAIN = re.compile(r"IN \(SELECT .*?\nWHERE \w+\.ROWID = sqlqueue_picked\(sqlqueue_i\) AND (.*?)\) LOOP\n", re.DOTALL)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_locked_row_must_still_match(name: str) -> None:
    # it was found when the cursor was opened, and may have been claimed, finished or changed since
    cursor, again = CURSOR.search(BLOCKS[name]), AGAIN.search(BLOCKS[name])
    assert cursor is not None
    assert again is not None
    assert again[1] == cursor[1]


@pytest.mark.parametrize("name", [name for name, each in BLOCKS.items() if "FORALL" in each])
def test_only_the_locked_rows_are_written(name: str) -> None:
    assert re.search(
        r"FORALL \w+ IN 1 \.\. sqlqueue_taken\.COUNT\s+UPDATE .* WHERE ROWID = sqlqueue_taken\(\w+\);\n", BLOCKS[name]
    )


def test_a_claim_is_compiled_once_for_all_values() -> None:
    engine, _ = recorder.recording_engine(*ENGINES["oracle"])
    seen: list[tuple[Any, dict[str, Any]]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, context: Any, ___: bool) -> None:
        if statement.startswith("DECLARE"):
            seen.append((context.cache_hit, parameters))

    for number in (3, 5):
        with QueueSession(engine) as session:
            session.claim_many(Task, Task.number > number, limit=number)
            session.claim_many(Mail, Mail.topic.in_(["a", str(number)]), limit=number, lease=None)
    again = seen[len(seen) // 2 :]
    assert {hit for hit, _ in again} == {CacheStats.CACHE_HIT}
    wanted = [(each["sqlqueue_wanted"], each.get("number_1"), each.get("topic_1_2")) for _, each in again]
    assert wanted[0] == (5, 5, None)
    assert wanted[-1] == (1, None, "5")  # the one row that was read


@pytest.mark.parametrize("model", [Task, Seat, Visit, Mail])
@pytest.mark.parametrize("limit", [1, 3])
def test_the_next_transaction_may_take_a_released_lock(model: Any, limit: int) -> None:
    # if candidates were first read without locks, all concurrent claims would choose the same ones
    engine, log = recorder.recording_engine(*ENGINES["oracle"])
    ready, due = (step(limit) for step in picks(model.__queue_spec__))
    for pick in (ready, *due.parts):
        log.clear()
        with QueueSession(engine) as session:
            assert adapters()["oracle"].rows.lock(session, pick)
        block, keys = log
        assert block.startswith("DECLARE")
        assert CURSOR.search(block)
        assert not re.search("FOR UPDATE|FETCH FIRST", keys)


def test_no_cursor_that_locks_is_left_to_the_driver() -> None:
    # except statements that select rows by key and need all of them
    locking = {name: each for name, each in STATEMENTS.items() if "SKIP LOCKED" in each and name not in BLOCKS}
    assert [name for name, each in locking.items() if " ORDER BY " in each] == []


def test_a_row_that_cannot_be_loaded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder.Variable, "getvalue", lambda *_: f"{recorder.ROWID},AAAhidden,")
    engine, _ = recorder.recording_engine(*ENGINES["oracle"])
    with QueueSession(engine) as session, pytest.raises(ArgumentError, match="AAAhidden is claimed but cannot be"):
        session.claim_many(Task, limit=2)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, each in BLOCKS.items()
        # the indexes of the queues with a history are not pinned
        if re.search(f"{ORDER} FOR", each) and "(key)" not in name and not name.startswith("Past.")
    ],
)
def test_the_index_that_has_the_order_is_named(name: str) -> None:
    # rows that are not read in order are sorted, which reads all of them, whatever the limit
    hint = re.search(r"CURSOR sqlqueue_free IS SELECT /\*\+ INDEX\((\S+) (\S+)\) \*/ ", BLOCKS[name])
    order = re.search(f"{ORDER} FOR UPDATE SKIP LOCKED;", BLOCKS[name])
    assert hint is not None
    assert order is not None
    columns = order[1].replace(f"{hint[1]}.", "")
    assert f"ON {hint[1]} (" in STATEMENTS[f"create index {hint[2]}"]
    assert columns in STATEMENTS[f"create index {hint[2]}"]


def test_a_hint_names_no_schema() -> None:
    # a hint for it would be ignored silently
    class Base(DeclarativeBase):
        metadata = MetaData(schema="Own")

    class Errand(QueueMixin, Base):
        __tablename__ = "100% errand"
        id: Mapped[int] = mapped_column(Identity(), primary_key=True)

    engine, log = recorder.recording_engine(*ENGINES["oracle"])
    with QueueSession(engine) as session:
        session.claim(Errand)
    assert '/*+ INDEX("100% errand" "ix_100_ errand_claim") */' in log[0]
    assert 'FROM "Own"."100% errand"' in log[0]


VARIABLES = sorted({name for block in BLOCKS.values() for name in re.findall(r"(?<!:)\bsqlqueue_\w+", block)})


@pytest.mark.parametrize("name", [*VARIABLES, "SQLQUEUE_I"])
@pytest.mark.parametrize("lease", ["default", None])
def test_no_column_has_the_name_of_a_variable(name: str, lease: Any) -> None:
    """In SQL within a block, the column would be used instead."""

    class Base(DeclarativeBase):
        pass

    class Errand(QueueMixin, Base):
        __tablename__ = "errand"
        id: Mapped[int] = mapped_column(Identity(), primary_key=True)
        own: Mapped[int] = mapped_column(name)

    engine, log = recorder.recording_engine(*ENGINES["oracle"])
    with QueueSession(engine) as session, pytest.raises(ConfigurationError, match=f"column {name} of errand .* rename"):
        session.claim(Errand, lease=lease)
    assert log == []


@pytest.mark.parametrize(("engine", "statements"), [("postgresql", 1), ("oracle", 2)])
def test_one_statement_for_any_number_of_named_rows(
    monkeypatch: pytest.MonkeyPatch, engine: str, statements: int
) -> None:
    """On Oracle, the number decides whether rowids are returned as a LOB."""
    claims: Any = adapters()[engine].rows
    ready, _ = picks(Mail.__queue_spec__, [Mail.topic.in_(["a", "b"])])
    taken: list[Any] = []

    def take(_: Any, request: ClaimRequest) -> list[Any]:
        taken.append(request.pick)
        return []

    monkeypatch.setattr(claims, "lock_and_write", take)
    pick = ready(5)
    for keys in ([(1,), (2,)], [(1,), (2,), (3,)]):
        claims._write_keys(None, ClaimRequest(pick=pick), keys, 5)
    assert len(set(map(id, taken))) == statements
