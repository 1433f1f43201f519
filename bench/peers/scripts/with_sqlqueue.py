"""sqlqueue, with psycopg."""

from __future__ import annotations

from time import monotonic
from typing import Any

from common import Mark, Peer, main
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import sessionmaker

from bench.models import Call, Job
from sqlqueue import QueueSession, Worker
from sqlqueue._support.processes import settle_in


def _task(number: int) -> None:
    _mark(number)


_mark: Mark = lambda _: None  # noqa: E731


class WithSqlqueue(Peer):
    """sqlqueue, with the given form of handler."""

    distribution = "sqlalchemy-queue"

    def __init__(self, url: str, schema: str, concurrency: int, form: str) -> None:
        super().__init__(url, schema, concurrency, form)
        own = make_url(url).set(drivername="postgresql+psycopg")
        self.engine = create_engine(own, isolation_level="READ COMMITTED", pool_size=concurrency + 5)
        self.sessions = sessionmaker(self.engine, class_=QueueSession, expire_on_commit=False)
        self.worker = Worker(self.sessions)
        self.model: Any = Call if form == "task" else Job
        table = self.model.__tablename__
        self.is_done = f"SELECT NOT EXISTS (SELECT FROM {table} WHERE status IN ('available', 'running'))"
        self.clear = f"TRUNCATE {table}"
        self.task = self.worker.task(Call, concurrency=concurrency)(_task)

    async def install(self) -> None:
        self.model.__table__.create(self.engine)

    async def fill(self, numbers: list[int]) -> None:
        with self.sessions.begin() as session:
            if self.form == "task":
                session.enqueue(Call, [{"task": self.task.name, "arguments": {"number": n}} for n in numbers])
            else:
                session.enqueue(Job, [{"payload": str(number)} for number in numbers])

    async def enqueue(self, number: int) -> None:
        with self.sessions.begin() as session:
            self._add(session, number)

    async def enqueue_within(self, number: int) -> float:
        with self.sessions() as session:
            self._add(session, number)
            begun = monotonic()
            session.commit()
        return begun

    def _add(self, session: Any, number: int) -> None:
        if self.form == "task":
            self.task.enqueue(session, number)
        else:
            session.enqueue(Job(payload=str(number)))

    async def work(self, mark: Mark) -> None:
        global _mark  # noqa: PLW0603  (as in the module of an application)
        _mark = mark
        worker = self.worker if self.form == "task" else Worker(self.sessions)
        if self.form != "task":
            worker.handler(Job, concurrency=self.concurrency)(_handlers()[self.form])
        settle_in()
        await worker.serve()


def _handlers() -> dict[str, Any]:
    def without(job: Job) -> None:
        _mark(int(job.payload))

    def within(session: Any, job: Job) -> None:
        _mark(int(job.payload))

    async def coroutine(job: Job) -> None:
        _mark(int(job.payload))

    return {"without": without, "within": within, "coroutine": coroutine}


if __name__ == "__main__":
    main(WithSqlqueue)
