"""Code without a library: psycopg alone, or SQLAlchemy's ORM, on sqlqueue's table; both notify workers, as sqlqueue
does."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from common import Mark, Peer, main
from sqlalchemy import make_url, text

from bench.baselines import raw_connection
from bench.baselines.psycopg import Psycopg
from bench.clients import ByHand
from bench.counter import StatementCounter
from bench.models import Job, KeyKind
from bench.plan import Plan

_CHANNEL = "sqlqueue_bench_by_hand"
_NOTIFY = f"SELECT pg_notify('{_CHANNEL}', '')"


class ByHandPeer(Peer):
    """The common base of code without a library, on the table of sqlqueue."""

    is_done = f"SELECT NOT EXISTS (SELECT FROM {Job.__tablename__} WHERE status IN ('available', 'running'))"
    clear = f"TRUNCATE {Job.__tablename__}"

    def __init__(self, url: str, schema: str, concurrency: int, form: str) -> None:
        super().__init__(url, schema, concurrency, form)
        self.plan = Plan(
            url=make_url(url).set(drivername="postgresql+psycopg"),
            key=KeyKind.INT,
            payload=0,
            jobs=0,
            rounds=1,
            processes=(1,),
            threads=1,
            batch=concurrency,
        )
        self.engine = self.plan.engine()

    async def install(self) -> None:
        Job.__table__.create(self.engine)  # type: ignore[attr-defined]
        await self.open()

    async def open(self) -> None:
        self.client = self._connected()

    def _connected(self) -> Any:
        raise NotImplementedError

    async def fill(self, numbers: list[int]) -> None:
        self.client.insert([str(number) for number in numbers])
        self._notify()
        self.client.commit()

    def _notify(self) -> None:
        raise NotImplementedError

    async def enqueue(self, number: int) -> None:
        await self.enqueue_within(number)

    async def enqueue_within(self, number: int) -> float:
        self.client.add(str(number))
        self._notify()
        begun = monotonic()
        self.client.commit()
        return begun


class WithPsycopg(ByHandPeer):
    """SQL written by hand, through psycopg."""

    distribution = "psycopg"

    def _connected(self) -> Psycopg:
        return Psycopg(raw_connection(self.engine), self.plan.shape, StatementCounter())

    def _notify(self) -> None:
        self.client.execute(_NOTIFY)

    async def work(self, mark: Mark) -> None:
        await asyncio.to_thread(self._work, mark)

    def _work(self, mark: Mark) -> None:
        client = self._connected()
        for _ in client.news(_CHANNEL):
            while rows := client.claim(self.concurrency):
                client.commit()
                for row in rows:
                    mark(int(row[2]))
                client.complete(rows)
                client.commit()
            client.commit()


class WithORM(ByHandPeer):
    """Code written by hand with SQLAlchemy's ORM."""

    distribution = "SQLAlchemy"

    def _connected(self) -> ByHand:
        return ByHand(self.engine, self.plan)

    def _notify(self) -> None:
        self.client.session.flush()
        self.client.session.execute(text(_NOTIFY))

    async def work(self, mark: Mark) -> None:
        client = self._connected()
        while True:
            jobs = client.claim(self.concurrency)
            client.commit()
            for job in jobs:
                mark(int(job.payload))
            client.complete(jobs)
            client.commit()
            if not jobs:
                await asyncio.sleep(0.05)


if __name__ == "__main__":
    import sys

    main({"psycopg": WithPsycopg, "orm": WithORM}[sys.argv[-1]])
