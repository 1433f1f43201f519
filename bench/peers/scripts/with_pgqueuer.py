"""pgqueuer, with its driver for asyncpg."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic

import asyncpg
from common import Mark, Peer, main
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


class WithPgQueuer(Peer):
    """pgqueuer."""

    distribution = "pgqueuer"
    is_done = "SELECT NOT EXISTS (SELECT FROM pgqueuer)"
    clear = "TRUNCATE pgqueuer, pgqueuer_log"

    async def install(self) -> None:
        await self.open()
        await self.queries.install()

    async def open(self) -> None:
        self.connection = await asyncpg.connect(self.url)
        self.queries = Queries(AsyncpgDriver(self.connection))

    async def fill(self, numbers: list[int]) -> None:
        payloads: list[bytes | None] = [str(number).encode() for number in numbers]
        await self.queries.enqueue(["job"] * len(numbers), payloads, [0] * len(numbers))

    async def enqueue(self, number: int) -> None:
        await self.queries.enqueue("job", str(number).encode())

    async def enqueue_within(self, number: int) -> float:
        transaction = self.connection.transaction()
        await transaction.start()
        await self.enqueue(number)
        begun = monotonic()
        await transaction.commit()
        return begun

    async def work(self, mark: Mark) -> None:
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.url)))

        @queuer.entrypoint("job")
        async def job(job: Job) -> None:
            mark(int(job.payload or b""))

        await queuer.run(batch_size=self.concurrency, dequeue_timeout=timedelta(seconds=3))


if __name__ == "__main__":
    main(WithPgQueuer)
