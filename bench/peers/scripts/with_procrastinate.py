"""procrastinate, with its connector for psycopg."""

from __future__ import annotations

from time import monotonic

import procrastinate
import psycopg
from common import Mark, Peer, main


class Procrastinate(Peer):
    """procrastinate."""

    distribution = "procrastinate"
    is_done = "SELECT NOT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
    clear = "TRUNCATE procrastinate_jobs CASCADE"

    def __init__(self, url: str, schema: str, concurrency: int, form: str) -> None:
        super().__init__(url, schema, concurrency, form)
        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=2, max_size=20))
        self.mark: Mark = lambda _: None

        @self.app.task(name="job")
        async def job(number: int) -> None:
            self.mark(number)

        self.job = job

    async def install(self) -> None:
        await self.open()
        await self.app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await self.app.open_async()
        self.connection = await psycopg.AsyncConnection.connect(self.url)

    async def fill(self, numbers: list[int]) -> None:
        await self.job.batch_defer_async(*({"number": number} for number in numbers))

    async def enqueue(self, number: int) -> None:
        await self.job.defer_async(number=number)

    async def enqueue_within(self, number: int) -> float:
        await self.job.configure(connection=self.connection).defer_async(number=number)
        begun = monotonic()
        await self.connection.commit()
        return begun

    async def work(self, mark: Mark) -> None:
        self.mark = mark
        async with self.app.open_async():
            await self.app.run_worker_async(concurrency=self.concurrency, install_signal_handlers=False)


if __name__ == "__main__":
    main(Procrastinate)
