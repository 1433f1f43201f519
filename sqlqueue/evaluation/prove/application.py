"""The application that ``sqlqueue prove`` tests: its models, their tables, and its worker."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection

from sqlalchemy import URL, BigInteger, Engine, Identity, String, event, update
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqlqueue import ConstantBackoff, LimitMixin, QueueOptions, QueueSession, SlotMixin, TopicMixin, Worker

from ...dialects import adapter_for
from ..support import connect, created_tables, reached, sessions

# -- the tables of the proof: tasks, the rows that their handlers write, and tasks whose concurrency is limited -------

LEASE = timedelta(seconds=2)
LIMIT = 2
ACCOUNTS = 6
"""The number of accounts: few enough that transactions that change two of them conflict."""
_ATTEMPTS = 1_000
"""The number of attempts and crashes: faults use them up, and must not make a task fail here."""


class Base(DeclarativeBase):
    """The declarative base of the proof's models."""


class Task(TopicMixin, Base):
    """A task. Its topic determines whether workers or a scenario handle it."""

    __tablename__ = "sqlqueue_prove_task"
    __queue__ = QueueOptions(
        lease=LEASE,
        max_attempts=_ATTEMPTS,
        max_crashes=_ATTEMPTS,
        retry=ConstantBackoff(timedelta(milliseconds=100)),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


class Receipt(Base):
    """A receipt, written in the transaction that completes a task. Only the queue prevents a second one."""

    __tablename__ = "sqlqueue_prove_receipt"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    task_id: Mapped[int] = mapped_column(BigInteger)
    worker: Mapped[str] = mapped_column(String(40))


class Account(Base):
    """A row that many handlers change.  Each handler adds one to the balances of two."""

    __tablename__ = "sqlqueue_prove_account"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    balance: Mapped[int] = mapped_column(BigInteger, default=0)


class Slot(SlotMixin, Base):
    """A slot that a running visit holds."""

    __tablename__ = "sqlqueue_prove_slot"


class Visit(LimitMixin, Base):
    """A task of which at most :data:`LIMIT` may run at once."""

    __tablename__ = "sqlqueue_prove_visit"
    __queue__ = QueueOptions(slots=Slot, limit=LIMIT, lease=timedelta(minutes=5), max_attempts=_ATTEMPTS)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)


# -- the connections and tables of the proof --------------------------------------------------------------------------


def connected(url: URL) -> Engine:
    """Return an engine whose transactions wait only briefly for locks, on engines where sessions can set a limit."""
    engine = connect(url)
    short_lock_wait = adapter_for(engine.dialect).connections.short_lock_wait
    if short_lock_wait is not None:

        @event.listens_for(engine, "connect")
        def set_patience(connection: DBAPIConnection, _: object) -> None:
            cursor = connection.cursor()
            cursor.execute(short_lock_wait)
            cursor.close()
            connection.commit()

    return engine


@contextmanager
def tables(url: str, *, drop: bool) -> Iterator[Engine]:
    """Yield an engine with the proof's own tables, which are dropped at the end.

    Raises :class:`.EvaluationError` if tables with these names exist, unless ``drop`` is given.
    """
    with ExitStack() as stack:
        engine = reached(url)
        stack.callback(engine.dispose)
        advice = "if an interrupted run left them behind, add --drop"
        stack.enter_context(created_tables(engine, Base.metadata, drop=drop, advice=advice))
        with Session(engine) as session, session.begin():
            session.add_all(Account(id=number, balance=0) for number in range(1, ACCOUNTS + 1))
        yield engine


# -- the worker processes, which are killed, frozen and cut off from the server ---------------------------------------

WORK = "work"
"""The topic of the tasks that worker processes handle."""
CONCURRENCY = 4
_PAUSE = 0.005
_CARELESS = 0.1
_DESCRIPTORS = 1_024


def main(channel: Connection, url: URL, name: str) -> None:
    """Run a worker until the other end of ``channel`` sends ``stop`` or is closed."""
    logging.disable()  # the faults are intentional, and drivers warn of them too
    engine = connected(url)
    engine.connect().close()
    worker = Worker(sessions(engine), name=name, poll=timedelta(seconds=0.3), grace=timedelta(seconds=5))

    @worker.handler(Task, Task.topic == WORK, concurrency=CONCURRENCY)
    def handle(session: QueueSession, task: Task) -> None:
        accounts = random.sample(range(1, ACCOUNTS + 1), 2)
        if random.random() > _CARELESS:  # in different orders, two transactions can deadlock
            accounts.sort()
        for number in accounts:
            session.execute(update(Account).where(Account.id == number).values(balance=Account.balance + 1))
            time.sleep(_PAUSE)
        session.add(Receipt(task_id=task.id, worker=name))

    channel.send("ready")
    threading.Thread(target=_obey, args=(channel, worker), daemon=True).start()
    worker.run()
    channel.send(dict(worker._reports.counts))


def _obey(channel: Connection, worker: Worker) -> None:
    with suppress(EOFError):
        while channel.recv() == "cut":
            cut_connections()
    worker.stop()


def cut_connections() -> int:
    """Shut down this process's connections to servers, whatever the driver, and return how many there were."""
    number = 0
    for descriptor in range(3, _DESCRIPTORS):
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.getpeername():  # socket pairs, such as pipes between processes, have no name
                connection.shutdown(socket.SHUT_RDWR)
                number += 1
    return number
