"""Targets of the tests' child processes."""

from __future__ import annotations

import fcntl
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import aliased, sessionmaker

import sqlqueue
from sqlqueue import Claim, ClaimLostError, QueueSession, Worker
from tests.suite.settlements import SETTLINGS
from tests.support.flows import Note, Page
from tests.support.models import Ledger, Task, Transfer, Visit
from tests.support.processes import Gate


@contextmanager
def session(url: URL) -> Iterator[QueueSession]:
    engine = create_engine(url)
    with QueueSession(engine, expire_on_commit=False) as opened:
        yield opened
    engine.dispose()


def drain(gate: Gate, url: URL, total: int, worker: str) -> int:
    """Process rows until all processes together have done `total`; return how many this one did."""
    done = 0
    with session(url) as s:
        gate.wait()
        while True:
            tasks = s.claim_many(Task, limit=50)
            s.add_all(Ledger(task_id=task.id, worker=worker) for task in tasks)
            s.complete(tasks)
            s.commit()
            done += len(tasks)
            if not tasks:
                if s.scalar(select(func.count()).select_from(Ledger)) == total:
                    return done
                s.rollback()
                time.sleep(0.01)


def run_flow(gate: Gate, url: URL, dies: str) -> None:
    """Run tasks, one per transaction, and open latches until no callback is left; three pages fail.  It arrives to be
    killed in a transaction that has settled a task or, if it only looks, opened a latch."""
    done, chance = 0, random.Random()
    with session(url) as s:
        while s.scalar(select(func.count()).select_from(Note).where(Note.finished_at.is_(None))):
            s.rollback()
            with suppress(OperationalError):  # SQLite's one writer is busy, or a deadlock
                models = () if dies == "looking" else (Page, Note)
                task = next(filter(None, (s.claim(model) for model in models)), None)
                if task is not None and task.name in ("5", "50", "150"):
                    s.discard(task, "boom")
                elif task is not None:
                    s.complete(task)
                done += task is not None
                if dies == "settling" and done >= 15:
                    gate.wait()
                s.commit()
                if task is None or chance.random() < 0.5:  # otherwise it is as if it had died since
                    if s.advance(Page) and dies == "looking":
                        gate.wait()
                    s.commit()
            s.rollback()


def enqueue(gate: Gate, url: URL, number: int) -> None:
    with session(url) as s:
        gate.wait()
        for _ in range(number // 10):
            s.enqueue(Task, [{"name": "late"}] * 10)
            s.commit()


def transfer(gate: Gate, url: URL) -> None:
    """Run tasks of accounts until killed, and write down each start before an earlier task of its account is final."""
    earlier, chance = aliased(Transfer), random.Random()
    with session(url) as s:
        gate.wait()
        while True:
            with suppress(OperationalError):  # a deadlock, or SQLite's one writer is busy
                for task in s.claim_many(Transfer, limit=chance.randint(1, 3), lease=timedelta(seconds=1)):
                    before = (earlier.account == task.account, earlier.id < task.id, earlier.status != "completed")
                    if s.scalar(select(func.count(earlier.id)).where(*before)):
                        s.add(Ledger(task_id=task.id, worker="out of order"))
                    s.commit()
                    time.sleep(chance.random() * 0.02)
                    with suppress(ClaimLostError):
                        s.release(task) if chance.random() < 0.1 else s.complete(task)
                        s.commit()
            s.rollback()
            time.sleep(0.005)


def set_clock(hours: int) -> None:
    """Let this process see another time, in another time zone, wherever the library or its code may ask for it."""
    real, moments = time.time, datetime

    class OfAny(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, moments)

    class Shifted(datetime, metaclass=OfAny):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromtimestamp(time.time(), tz)

    time.time = lambda: real() + hours * 3_600
    os.environ["TZ"] = f"XYZ{hours:+}"
    time.tzset()
    for name, module in [*sys.modules.items()]:
        if name.startswith("sqlqueue") and getattr(module, "datetime", None) is datetime:
            module.datetime = Shifted  # type: ignore[attr-defined]


def start(gate: Gate, url: URL, hours: int) -> None:
    """Start tasks until killed, on a host whose clock is off, in transactions that stay open or are rolled back."""
    chance = random.Random()
    set_clock(hours)
    with session(url) as s:
        gate.wait()
        while True:
            with suppress(OperationalError):  # SQLite's one writer is busy, or a deadlock
                tasks = s.claim_many(Visit, limit=chance.randint(1, 4))
                if chance.random() < 0.3:
                    time.sleep(chance.random() * 0.03)
                if chance.random() < 0.9:
                    s.complete(tasks)
                    s.commit()
            s.rollback()
            time.sleep(0.002)


def claim_and_stay(gate: Gate, url: URL) -> None:
    """Claim, and wait at the gate in mid-transaction to be killed."""
    with session(url) as s:
        task = s.claim(Task)
        s.add(Ledger(task_id=task.id, worker="killed"))
        s.complete(task)
        s.flush()
        gate.wait()


def claim_and_commit(gate: Gate, url: URL, lease: timedelta) -> None:
    """Commit a claim, and wait at the gate to be killed before the work is done."""
    with session(url) as s:
        task = s.claim(Task, lease=lease)
        s.commit()
        s.add(Ledger(task_id=task.id, worker="killed"))
        s.flush()
        gate.wait()


def settle(gate: Gate, url: URL, claim: Claim, names: list[str]) -> dict[str, str]:
    """Try these calls one after another, each with a write of the application; return the result of each."""
    outcome = {}
    with session(url) as s:
        for number, name in enumerate(names):
            try:
                s.add(Ledger(task_id=number, worker=name))
                s.flush()
                SETTLINGS[name](s, claim)
                s.commit()
                outcome[name] = "done"
            except sqlqueue.ClaimLostError as error:
                s.rollback()
                outcome[name] = f"lost {error.model.__name__} {error.identity} {error.attempt}"
    return outcome


def visit(gate: Gate, url: URL, directory: str) -> None:
    """Run tasks until killed. A process locks the first free file while it runs a task."""
    worker = Worker(sessionmaker(create_engine(url), class_=QueueSession), poll=timedelta(seconds=0.2))

    @worker.handler(Visit, concurrency=2, lease=timedelta(seconds=4))
    def handle(task: Visit) -> None:
        for number in range(1, 100):
            with open(Path(directory, str(number)), "w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                time.sleep(random.uniform(0.01, 0.06))
                return

    gate.wait()
    worker.run()
