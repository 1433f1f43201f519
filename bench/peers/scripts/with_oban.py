"""oban-py."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import monotonic
from typing import Any

import uvloop
from common import Mark, Peer, main
from oban import Oban, worker
from oban.schema import install

_mark: Mark = lambda _: None  # noqa: E731


@worker(queue="default")
class Numbered:
    """A worker of oban whose jobs have numbers."""

    async def process(self, job: object) -> None:
        """Mark the job, and do nothing else."""
        _mark(job.args["number"])


class WithOban(Peer):
    """oban."""

    distribution = "oban"
    is_done = "SELECT NOT EXISTS (SELECT FROM oban_jobs WHERE state NOT IN ('completed', 'discarded', 'cancelled'))"
    clear = "TRUNCATE oban_jobs"

    def run(self, role: Coroutine[Any, Any, None]) -> None:
        uvloop.run(role)

    async def install(self) -> None:
        await self.open()
        await install(self.pool, prefix=self.schema)

    async def open(self) -> None:
        self.pool = await Oban.create_pool(self.url)
        self.oban = Oban(pool=self.pool, prefix=self.schema)

    async def fill(self, numbers: list[int]) -> None:
        await self.oban.enqueue_many([_job(number) for number in numbers])

    async def enqueue(self, number: int) -> None:
        await self.oban.enqueue(_job(number))

    async def enqueue_within(self, number: int) -> float:
        async with self.pool.connection() as connection:
            await self.oban.enqueue(_job(number), conn=connection)
            begun = monotonic()
            await connection.commit()
        return begun

    async def work(self, mark: Mark) -> None:
        global _mark  # noqa: PLW0603  (workers are classes that are found by their names)
        _mark = mark
        pool = await Oban.create_pool(self.url)
        async with Oban(pool=pool, prefix=self.schema, queues={"default": self.concurrency}):
            await asyncio.Event().wait()


def _job(number: int) -> object:
    return Numbered.new({"number": number})


if __name__ == "__main__":
    main(WithOban)
