"""Keeps a worker from claiming from paused queues and topics."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from sqlalchemy import Engine, Table, select
from sqlalchemy.orm import Session

from ...dialects import adapter_for
from ...model.companions import pause_table
from ...operations.pausing import not_paused
from ...queue.spec import Criterion, QueueSpec
from ...transaction.notifications import channel_of, spread, subscribe
from ..concurrency.event_loop import happens_within, soon
from ..database.base import Database
from ..database.deadlines import SHORTEST_MAINTENANCE
from ..reporting.reports import Reports, logger


class PausedQueues:
    """The queues and topics that were paused at the last query.

    One periodic statement serves all queues; a notification of a pause triggers it at once.  Without a model for pauses
    nothing is sent.
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
        """The engines and channel names of notifications of pauses."""
        loop = asyncio.get_running_loop()
        self._unsubscribe = subscribe((name for _, name in self.channels), lambda: soon(loop, self._news.set))

    def close(self) -> None:
        """Unsubscribe from notifications."""
        self._unsubscribe()

    def where(self, spec: QueueSpec) -> tuple[Criterion, ...] | None:
        """Return the criteria that exclude paused topics, or ``None`` if the whole queue is paused.

        Returns the same object until something changes.
        """
        place = self._places.get(spec)
        if place is None:
            return ()
        if spec not in self._where:
            self._where[spec] = not_paused(adapter_for(place[0].dialect), spec, self._paused.get(place, ()))
        return self._where[spec]

    async def look(self) -> None:
        """Read what is paused now, and wake the fetchers if that has changed."""
        for place, spec in self._sources():
            found = await self._database.run(partial(_read, spec=spec, table=place[1]), SHORTEST_MAINTENANCE)
            if found != self._paused.get(place, frozenset()):
                self._paused[place] = found
                self._where.clear()
                logger.info("paused queues: %s", ", ".join(sorted(found)) or "none")
                spread(channel_of(each) for each, its in self._places.items() if its == place)

    async def run(self) -> None:
        """Read what is paused periodically, until cancelled."""
        if not self._places:
            return
        while True:
            pause = self._every * random.uniform(0.75, 1)
            await happens_within(self._news, pause.total_seconds())
            self._news.clear()
            try:
                await self.look()
            except Exception as error:
                self._reports.database_error("read the pauses", error, pause)

    def _sources(self) -> Iterable[tuple[tuple[Engine, Table], QueueSpec]]:
        """Return one queue for each table of pauses, through which a session reaches the table."""
        return {place: spec for spec, place in self._places.items()}.items()


def _read(session: Session, spec: QueueSpec, table: Table) -> frozenset[str]:
    return frozenset(session.scalars(select(table.c.queue), bind_arguments=spec.bind_arguments))
