"""chancy, with its executor for coroutines."""

from __future__ import annotations

import logging
from time import monotonic

from chancy import Chancy, Job, Queue, Worker
from common import Mark, Peer, main
from psycopg.rows import dict_row

_mark: Mark = lambda _: None  # noqa: E731


async def job(*, number: int) -> None:
    """Mark the job, and do nothing else."""
    _mark(number)


class WithChancy(Peer):
    """chancy."""

    distribution = "chancy"
    is_done = "SELECT NOT EXISTS (SELECT FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed', 'expired'))"
    clear = "TRUNCATE chancy_jobs"

    def __init__(self, url: str, schema: str, concurrency: int, form: str) -> None:
        super().__init__(url, schema, concurrency, form)
        self.app = Chancy(url, log=logging.getLogger("chancy"))

    async def install(self) -> None:
        await self.open()
        await self.app.migrate()

    async def open(self) -> None:
        await self.app.__aenter__()

    async def fill(self, numbers: list[int]) -> None:
        async for _ in self.app.push_many([_job(number) for number in numbers]):
            pass

    async def enqueue(self, number: int) -> None:
        await self.app.push(_job(number))

    async def enqueue_within(self, number: int) -> float:
        async with self.app.pool.connection() as connection:
            await self.app.push_ex(connection.cursor(row_factory=dict_row), _job(number))
            begun = monotonic()
            await connection.commit()
        return begun

    async def work(self, mark: Mark) -> None:
        global _mark  # noqa: PLW0603  (jobs are functions that are found by their names)
        _mark = mark
        async with self.app:
            queue = Queue(
                "default",
                concurrency=self.concurrency,
                executor="chancy.executors.asyncex.AsyncExecutor",
                eager_polling=True,
            )
            await self.app.declare(queue, upsert=True)
            async with Worker(self.app, register_signal_handlers=False) as worker:
                await worker.wait_for_shutdown()


def _job(number: int) -> Job:
    return Job.from_func(job, kwargs={"number": number}, queue="default")


if __name__ == "__main__":
    main(WithChancy)
