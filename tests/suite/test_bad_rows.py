"""Rows that cannot be enqueued raise an error that names the reason, before anything is sent."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, insert, text
from sqlalchemy.schema import CreateTable

from sqlqueue import QueueSession
from tests.suite.refusals import NAIVE, Recorded, ascii_id, refused
from tests.support.models import Document, Ledger, Seat, Task


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        ((Task, [{"nam": "x"}]), {}, "nam"),
        ((Task, [{"name": "x"}, {"name": "y", "nam": "x"}]), {}, "row 1"),
        ((Task, [{"available_at": NAIVE}]), {}, "naive"),
        ((Task, [{"created_at": NAIVE}]), {}, "naive"),
        ((Task, [{"name": "x"}, {"available_at": NAIVE}]), {}, "naive"),
        ((Task, {"name": "x"}), {}, "rows"),
        ((Task, ["name"]), {}, "row 0"),
        ((Task, [Task()]), {}, "row 0"),
        ((Task,), {}, "rows"),
        ((Task(), [{"name": "x"}]), {}, "not a queue model"),
        ((None,), {}, "NoneType"),
        (([None],), {}, "NoneType"),
        (({"name": "x"},), {}, "dictionaries need their model"),
        (([{"name": "x"}],), {}, "dictionaries need their model"),
        ((Ledger(task_id=1),), {}, "Ledger"),
        (([Task(), Ledger(task_id=1)],), {}, "Ledger"),
        ((Task(available_at=NAIVE),), {}, "naive"),
        ((Task(created_at=NAIVE),), {}, "naive"),
        ((Task(available_at=date(2020, 1, 1)),), {}, "datetime"),
        ((Document(id="x", available_at=NAIVE),), {"on_conflict": "replace"}, "naive"),
        ((Document(id="x"),), {"on_conflict": "update"}, "on_conflict"),
        ((Document(id="x"),), {"on_conflict": None}, "on_conflict"),
        ((Document, [{"version": 1}]), {"on_conflict": "replace"}, "id"),
        ((Document, [{"id": "x"}, {"version": 1}]), {"on_conflict": "replace"}, "id"),
        (([Document(id="x"), Task()],), {"on_conflict": "ignore"}, "id"),
        ((Task, [{"name": "x"}]), {"copy": True}, "COPY"),
    ],
    ids=ascii_id,
)
def test_enqueue(session: Recorded, arguments: tuple[Any, ...], options: dict[str, Any], word: str) -> None:
    with refused(session, word):
        session.enqueue(*arguments, **options)


def test_naive_by_add(session: Recorded) -> None:
    session.add(Task(available_at=NAIVE))
    with refused(session, "naive", "time zone"):
        session.flush()


def test_rows_with_a_part_of_their_key_missing_stop_nothing(tmp_path: Path) -> None:
    """SQLite allows NULL in a key column that is not declared NOT NULL; such a row cannot be selected by key, and is
    skipped."""
    engine = create_engine(f"sqlite:///{tmp_path}/seats.db")
    declared = str(CreateTable(Seat.__table__).compile(engine))
    with engine.begin() as connection:
        connection.execute(text(declared.replace("line VARCHAR(20) NOT NULL", "line VARCHAR(20)")))
        connection.execute(insert(Seat.__table__), [{"line": line, "number": 1} for line in (None, None, "a")])
    with QueueSession(engine) as session, session.begin():
        assert [seat.line for seat in session.claim_many(Seat, limit=9)] == ["a"]
    engine.dispose()
