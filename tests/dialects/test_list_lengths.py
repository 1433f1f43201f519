"""SQL Server and Oracle keep a plan for each text: lists of any length have few different texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.orm.exc import FlushError

from sqlqueue import ArgumentError, Claim, ClaimLostError, QueueSession
from sqlqueue.dialects import adapter_for
from sqlqueue.dialects.statements import Rows
from tests.dialects.recorder import recording_engine
from tests.dialects.test_pinned import ENGINES
from tests.support.harness import Database
from tests.support.models import Film, Mail, Seat, Task, Visit
from tests.support.rows import count, rows

LENGTHS = (1, 2, 3, 4, 6, 8, 9, 16, 17, 30, 33, 64, 65, 100, 128, 129, 200, 256, 300, 500)
FEW = 10
"""The powers of two up to 256, and the longest list."""


def claims_of(model: type[Any], number: int, *, alike: bool = True) -> list[Claim]:
    keys = [("x", n) if model is Seat else (n,) for n in range(1, number + 1)]
    return [Claim(model, key, 1 if alike else 1 + n % 2, 7) for n, key in enumerate(keys)]


def load(session: QueueSession, model: type[Any], number: int) -> None:
    keys = [claim.identity for claim in claims_of(model, number)]
    adapter_for(session.get_bind().dialect).rows.load(session, model.__queue_spec__, keys)


def read_topics(session: QueueSession, model: type[Any], number: int) -> None:
    spec, keys = model.__queue_spec__, adapter_for(session.get_bind().dialect).rows
    for some in keys.batches(spec, [f"topic {n}" for n in range(number)]):
        session.execute(select(spec["topic"]).where(keys.one_of(spec, spec["topic"], some)))


def enqueue(session: QueueSession, model: type[Any], number: int) -> None:
    session.enqueue(model, [{"unique_key": f"key {n}"} for n in range(number)], on_conflict="ignore")


def read_others(session: QueueSession, model: type[Any], number: int) -> None:
    spec, adapter = model.__queue_spec__, adapter_for(session.get_bind().dialect)
    for some in adapter.rows.batches(spec, claims_of(model, number)):
        named = adapter.rows.key_in(spec, [each.identity for each in some])
        session.execute(select(*spec.primary_key).where(~named))


CALLS: dict[str, tuple[Callable[[QueueSession, type[Any], int], object], list[type[Any]]]] = {
    "one attempt": (lambda session, model, number: session.complete(claims_of(model, number)), [Task, Seat, Visit]),
    "attempts": (lambda session, model, number: session.complete(claims_of(model, number, alike=False)), [Task, Seat]),
    "load": (load, [Task, Seat]),
    "others": (read_others, [Task, Seat]),
    "topics": (read_topics, [Mail]),
    "enqueue": (enqueue, [Film]),
}


@pytest.mark.parametrize("engine", ["mssql", "oracle"])
@pytest.mark.parametrize(("call", "model"), [(name, model) for name, (_, models) in CALLS.items() for model in models])
def test_lists_of_all_lengths_have_few_texts(engine: str, call: str, model: type[Any]) -> None:
    recorder, log = recording_engine(*ENGINES[engine])
    texts: dict[str, set[str]] = {}
    for number in LENGTHS:
        log.clear()
        with QueueSession(recorder) as session, suppress(ArgumentError, ClaimLostError, FlushError):
            CALLS[call][0](session, model, number)
        for statement in log:
            shape = re.sub(r"\W*:\w+\W*", "", statement)[:60]
            if not shape.startswith("INSERT"):  # has the rows of the caller
                texts.setdefault(shape, set()).add(statement)
    assert texts
    assert max(map(len, texts.values())) <= FEW


@pytest.mark.parametrize("engine", ["mssql", "oracle"])
def test_a_list_ends_with_its_last_element(engine: str) -> None:
    dialect, spec = recording_engine(*ENGINES[engine])[0].dialect, Task.__queue_spec__
    keys = adapter_for(dialect).rows
    padded = [keys.padded(spec, range(number)) for number in range(1, min(keys.most(spec), 500) + 1)]
    assert len({len(each) for each in padded}) == FEW
    for number, each in enumerate(padded, 1):
        assert list(each[:number]) == list(range(number))
        assert set(each[number:]) <= {number - 1}
        assert len(each) <= keys.most(spec)
    assert list(keys.padded(spec, [])) == []


@pytest.mark.parametrize("model", [Task, Seat, Visit])
def test_padding_changes_no_result(db: Database, model: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "pads_lists", True)
    own = {Seat: lambda n: {"line": "x", "number": n}, Visit: lambda n: {"limit_key": "ab"[n % 2]}}.get(
        model, lambda n: {}
    )
    db.insert(model, [{**row, **own(n)} for n, row in enumerate(rows(5, "ready"))])
    with db.begin() as session:
        tasks: list[Any] = session.claim_many(model, limit=3)
    assert len(tasks) == 3
    with db.begin() as session:
        session.heartbeat(tasks)
        session.complete(tasks)
    assert count(db, model, model.status == "completed") == 3
    others = [Claim(model, inspect(task).identity, 1, 7) for task in tasks]
    with db.session() as session, pytest.raises(ClaimLostError) as lost:
        session.complete(others)
    assert set(lost.value.claims) == set(others)
