"""Clients of a queue, with sqlqueue and written by hand, which have the same interface for the measured loops."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, sessionmaker

from sqlqueue import QueueSession, Status
from sqlqueue.evaluation.support import sessions

from .baselines import BASELINES, raw_connection
from .counter import StatementCounter
from .models import Note
from .plan import Plan

Jobs = Sequence[Any]
_LEASE = timedelta(minutes=5)


class Client(Protocol):
    """A user of the queue with one connection; its changes are visible to others after :meth:`commit`."""

    def claim(self, limit: int) -> Jobs:
        """Claim up to ``limit`` jobs and return them."""
        ...

    def complete(self, jobs: Any, /) -> None:
        """Complete claimed jobs."""
        ...

    def consume(self, limit: int) -> Jobs:
        """Claim and complete up to ``limit`` jobs at once, and return them."""
        ...

    def write(self, text: str) -> None:
        """Insert a row of the application, in the transaction that completes a job."""
        ...

    def write_all(self, texts: Sequence[str]) -> None:
        """Insert rows of the application."""
        ...

    def any_left(self) -> bool:
        """Return whether any job is available."""
        ...

    def add(self, payload: str) -> None:
        """Enqueue one job."""
        ...

    def insert(self, payloads: Sequence[str]) -> None:
        """Enqueue jobs in bulk."""
        ...

    def copy(self, payloads: Sequence[str]) -> None:
        """Enqueue jobs with COPY."""
        ...

    def commit(self) -> None:
        """Commit the transaction."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


Clients: TypeAlias = Callable[[Plan, StatementCounter, int], AbstractContextManager[Sequence[Client]]]
"""A function that yields the given number of clients, which count their statements, and closes them."""


S = TypeVar("S", bound=Session)


class _InSession(Generic[S]):
    """A client with a new session for each round of claim and completion, as in ``with Session() as session``."""

    def __init__(self, make: sessionmaker[S], model: type[Any]) -> None:
        self.sessions = make
        self.model = model
        self.session = make()

    def new_session(self) -> S:
        self.session.close()
        self.session = self.sessions()
        return self.session

    def any_left(self) -> bool:
        with self.sessions() as session:
            waiting = select(self.model.id).where(self.model.status == Status.AVAILABLE.value).limit(1)
            return session.scalar(waiting) is not None

    def write(self, text: str) -> None:
        self.session.add(Note(text=text))

    def write_all(self, texts: Sequence[str]) -> None:
        self.session.add_all([Note(text=text) for text in texts])

    def commit(self) -> None:
        self.session.commit()

    def close(self) -> None:
        self.session.close()


class Library(_InSession[QueueSession]):
    """A client that uses sqlqueue as its README shows."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        super().__init__(sessions(engine), plan.model)

    def claim(self, limit: int) -> Jobs:
        """Claim up to ``limit`` jobs with a lease."""
        return self.new_session().claim_many(self.model, limit=limit)

    def complete(self, jobs: Jobs) -> None:
        """Complete claimed jobs."""
        self.session.complete(jobs)

    def consume(self, limit: int) -> Jobs:
        """Claim and complete up to ``limit`` jobs at once."""
        return self.new_session().consume_many(self.model, limit=limit)

    def add(self, payload: str) -> None:
        """Enqueue one job as an instance."""
        self.new_session().enqueue(self.model(payload=payload))

    def insert(self, payloads: Sequence[str]) -> None:
        """Enqueue jobs in bulk, as dictionaries."""
        self.new_session().enqueue(self.model, [{"payload": payload} for payload in payloads])

    def copy(self, payloads: Sequence[str]) -> None:
        """Enqueue jobs with COPY."""
        self.new_session().enqueue(self.model, [{"payload": payload} for payload in payloads], copy=True)


class ByHand(_InSession[Session]):
    """A client of the same table without sqlqueue: a locking SELECT, attributes, and the application's clock."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        super().__init__(sessionmaker(engine, expire_on_commit=False), plan.plain_model)
        self.claimer = f"{socket.gethostname()}:{os.getpid()}"

    def claim(self, limit: int) -> Jobs:
        """Lock up to ``limit`` jobs with SKIP LOCKED and mark them as running."""
        now = datetime.now(UTC)
        jobs = _locked(self.new_session(), self.model, limit)
        for job in jobs:
            job.status = Status.RUNNING.value
            job.available_at = now + _LEASE
            self._stamp(job, now)
        self.session.flush()
        return jobs

    def complete(self, jobs: Jobs) -> None:
        """Mark jobs as completed, one by one."""
        now = datetime.now(UTC)
        for job in jobs:
            _end(job, now)

    def consume(self, limit: int) -> Jobs:
        """Lock up to ``limit`` jobs and mark them as completed."""
        now = datetime.now(UTC)
        jobs = _locked(self.new_session(), self.model, limit)
        for job in jobs:
            _end(job, now)
            self._stamp(job, now)
        return jobs

    def _stamp(self, job: Any, now: datetime) -> None:
        job.claimed_by, job.claimed_at, job.attempt = self.claimer, now, job.attempt + 1
        job.claim_token = 1

    def add(self, payload: str) -> None:
        """Add one job to the session."""
        self.new_session().add(self.model(payload=payload))

    def insert(self, payloads: Sequence[str]) -> None:
        """Add jobs to the session, which inserts them in bulk."""
        self.new_session().add_all([self.model(payload=payload) for payload in payloads])

    def copy(self, payloads: Sequence[str]) -> None:
        """Raise ``NotImplementedError``: the ORM has no COPY."""
        raise NotImplementedError  # COPY by hand is done by the driver's client


def _locked(session: Session, model: type[Any], limit: int) -> Jobs:
    waiting = select(model).where(model.status == Status.AVAILABLE.value)
    ordered = waiting.order_by(model.priority, model.available_at, model.id).limit(limit)
    return session.scalars(ordered.with_for_update(skip_locked=True)).all()


def _end(job: Any, now: datetime) -> None:
    job.status, job.available_at, job.finished_at = Status.COMPLETED.value, now, now


def by_driver(plan: Plan, counter: StatementCounter, count: int) -> AbstractContextManager[Sequence[Client]]:
    """Return a context manager of clients of the driver's baseline, which count by themselves."""
    engine = plan.engine()
    make = BASELINES[engine.driver]
    return _closing(engine, (make(raw_connection(engine), plan.shape, counter) for _ in range(count)))


def by_library(plan: Plan, counter: StatementCounter, count: int) -> AbstractContextManager[Sequence[Client]]:
    """Return a context manager of clients that use sqlqueue."""
    engine = counter.watch(plan.engine())
    return _closing(engine, (Library(engine, plan) for _ in range(count)))


def by_orm(plan: Plan, counter: StatementCounter, count: int) -> AbstractContextManager[Sequence[Client]]:
    """Return a context manager of clients that use SQLAlchemy's ORM by hand."""
    engine = counter.watch(plan.engine())
    return _closing(engine, (ByHand(engine, plan) for _ in range(count)))


@contextmanager
def _closing(engine: Engine, clients: Iterable[Client]) -> Iterator[Sequence[Client]]:
    """Yield the clients of ``engine``; close them and the engine afterwards, even if one cannot be created."""
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        yield [stack.enter_context(closing(client)) for client in clients]
