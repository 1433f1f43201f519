"""Keeps a worker from claiming what is paused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from sqlalchemy import Engine, Table, inspect, select
from sqlalchemy.orm import Session

from ..dialects import adapter_for
from ..exc import SchemaMismatchError
from ..pausing import not_paused, pause_table
from ..spec import Criterion, QueueSpec
from ..wakeups import channel_of, spread, subscribe
from .database import Database
from .loops import soon
from .reports import Reports, logger


class Gate:
    """What is paused, as of the last look: one statement every now and then, however many queues there are.

    It looks at once on news of a pause.  Without a model for pauses it never looks.
    """

    def __init__(self, specs: Iterable[QueueSpec], database: Database, every: timedelta, reports: Reports) -> None:
        self._database = database
        self._every = every
        self._reports = reports
        self._places: dict[QueueSpec, tuple[Engine, Table]] = {
            spec: (database.engine(spec), table)
            for spec in specs
            if (table := pause_table(spec.table.metadata)) is not None
        }
        self._paused: dict[tuple[Engine, Table], frozenset[str]] = {}
        self._where: dict[QueueSpec, tuple[Criterion, ...] | None] = {}
        self._news = asyncio.Event()
        self.channels = [(engine, table.fullname) for engine, table in set(self._places.values())]
        """Where news of pauses comes from, and by which name."""
        loop = asyncio.get_running_loop()
        self._unsubscribe = subscribe((name for _, name in self.channels), lambda: soon(loop, self._news.set))

    def close(self) -> None:
        self._unsubscribe()

    def where(self, spec: QueueSpec) -> tuple[Criterion, ...] | None:
        """What else a task has to satisfy to be claimed now; ``None`` if nothing is to be claimed.

        The very same object until something changes.
        """
        place = self._places.get(spec)
        if place is None:
            return ()
        if spec not in self._where:
            self._where[spec] = not_paused(adapter_for(place[0].dialect), spec, self._paused.get(place, ()))
        return self._where[spec]

    async def verify(self) -> None:
        """:class:`.SchemaMismatchError` unless there is a table to look at; then look."""
        for (_, table), spec in self._whom_to_ask():
            await self._database.run(partial(_verify, spec=spec, table=table))
        await self.look()

    async def look(self) -> None:
        """See what is paused now, and wake the lanes if that has changed."""
        for place, spec in self._whom_to_ask():
            found = await self._database.run(partial(_read, spec=spec, table=place[1]))
            if found != self._paused.get(place, frozenset()):
                self._paused[place] = found
                self._where.clear()
                logger.info("paused are now: %s", ", ".join(sorted(found)) or "none")
                spread(channel_of(each) for each, its in self._places.items() if its == place)

    async def run(self) -> None:
        """Until cancelled."""
        if not self._places:
            return
        while True:
            pause = self._every * random.uniform(0.75, 1)
            await self._wait(pause)
            try:
                await self.look()
            except Exception as error:
                self._reports.database_error("see what is paused", error, pause)

    async def _wait(self, pause: timedelta) -> None:
        try:
            async with asyncio.timeout(pause.total_seconds()):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    def _whom_to_ask(self) -> Iterable[tuple[tuple[Engine, Table], QueueSpec]]:
        """One queue for each place: its session leads there."""
        return {place: spec for spec, place in self._places.items()}.items()


def _read(session: Session, spec: QueueSpec, table: Table) -> frozenset[str]:
    return frozenset(session.scalars(select(table.c.queue), bind_arguments=spec.bind_arguments))


def _verify(session: Session, spec: QueueSpec, table: Table) -> None:
    connection = session.connection(spec.bind_arguments)
    if not inspect(connection).has_table(table.name, schema=connection.schema_for_object(table)):
        raise SchemaMismatchError(
            f"there is no table {table.fullname}, where it is written which queues are paused: migrate, by alembic"
            " revision --autogenerate and alembic upgrade head",
            differences=[f"missing table {table.fullname}"],
        )
