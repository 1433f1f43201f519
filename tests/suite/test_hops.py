"""How many functions of the library a warm call runs, and in how many files: what somebody reads who follows it.  Each
is counted once.  What runs between them in other libraries is not counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from sqlalchemy.orm import Session

import sqlqueue
from tests.support.engines import SELECTED
from tests.support.harness import Database
from tests.support.models import Document, Ledger, Task, Visit
from tests.support.workers import Workers, eventually

pytestmark = pytest.mark.parametrize(
    "sync_db",
    [pytest.param((case, "sync"), id=case.name) for case in SELECTED if case.name == "postgresql"],
    indirect=True,
)

PACKAGE = str(Path(sqlqueue.__file__).parent) + os.sep
COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
"""Python 3.12 calls no functions for most of them."""


class Hops:
    """Records the functions of the library that a thread calls, in the order of their first calls."""

    def __init__(self) -> None:
        self._called: dict[CodeType, None] = {}

    def _note(self, frame: FrameType, what: str, _: object) -> None:
        code = frame.f_code
        if what == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in COMPREHENSIONS:
            self._called.setdefault(code)

    def __len__(self) -> int:
        return len(self._called)

    def begin(self) -> None:
        self._called.clear()
        sys.setprofile(self._note)

    def end(self) -> None:
        sys.setprofile(None)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()

    def check(self, functions: int, files: int) -> None:
        """Fail if there were more than these; after a change that removes some, lower the numbers."""
        places = [(code.co_filename.removeprefix(PACKAGE), code) for code in self._called]
        count = len(places), len({file for file, _ in places})
        listed = "\n".join(f"{file}:{code.co_firstlineno} {code.co_qualname}" for file, code in places)
        print(f"{count[0]} functions in {count[1]} files:\n{listed}")
        assert count[0] <= functions
        assert count[1] <= files


def repeated(db: Database, enqueue: Callable[[Any], None], call: Callable[[Any, Hops], None]) -> Hops:
    """Return the hops that ``call`` records in its last repetition, for which everything has been prepared once."""
    hops, db = Hops(), db.variant()  # a worker may have left listeners at the engine that tests share
    for _ in range(3):
        with db.begin() as actor:
            enqueue(actor.session)
        with db.begin() as actor:
            call(actor.session, hops)
    return hops


def test_claim(sync_db: Database) -> None:
    def call(session: Any, hops: Hops) -> None:
        with hops.recorded():
            assert session.claim(Task) is not None

    repeated(sync_db, lambda session: session.enqueue(Task()), call).check(functions=34, files=10)


def test_complete(sync_db: Database) -> None:
    def call(session: Any, hops: Hops) -> None:
        task = session.claim(Task)
        session.commit()
        with hops.recorded():
            session.complete(task)

    repeated(sync_db, lambda session: session.enqueue(Task()), call).check(functions=36, files=9)


def test_enqueue_with_conflict(sync_db: Database) -> None:
    def enqueue(session: Any) -> None:
        session.enqueue(Document, [{"id": "a"}], on_conflict="replace")

    def call(session: Any, hops: Hops) -> None:
        with hops.recorded():
            enqueue(session)

    repeated(sync_db, enqueue, call).check(functions=52, files=14)


def test_claim_with_limits(sync_db: Database) -> None:
    def call(session: Any, hops: Hops) -> None:
        with hops.recorded():
            task = session.claim(Visit)
        session.complete(task)

    repeated(sync_db, lambda session: session.enqueue(Visit(limit_key="a")), call).check(functions=110, files=14)


def test_job_with_session(sync_db: Database) -> None:
    """The thread of a worker's handler, from one call of it to the next."""
    sync_db.insert(Task, [{"number": number} for number in range(6)])
    workers, hops = Workers(sync_db), [Hops()]
    worker = workers.make(poll=timedelta(seconds=0.01))

    @worker.handler(Task, concurrency=1)
    def handle(session: Session, task: Task) -> None:
        hops[-1].end()
        session.add(Ledger(task_id=task.id))  # so that its transaction completes the task
        hops.append(Hops())
        hops[-1].begin()

    workers.start(worker)
    eventually(lambda: len(hops) == 7)
    workers.end_test()
    # the fewest of those after the first: a busy machine adds some, and a full one a call to the loop
    min(hops[2:6], key=len).check(functions=96, files=20)
