"""What a worker hears while it waits: notifications and pauses."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterable
from datetime import timedelta
from functools import partial

from sqlalchemy import Engine, Table, select
from sqlalchemy.orm import Session

from ..dialects import adapter_for
from ..dialects.connections import Listener
from ..model.companions import pause_table
from ..operations.control import not_paused
from ..queue.spec import Criterion, QueueSpec
from ..transaction import channel_of, spread, subscribe
from .database import Database, growing_pauses
from .deadlines import SHORTEST_MAINTENANCE
from .reports import Reports, logger
from .threads import happens_within, soon

# -- listens for notifications of other processes, on engines that have them ------------------------------------------


class Notifier(threading.Thread):
    """A thread whose connection listens.  While the connection is lost, workers still poll."""

    def __init__(
        self, engine: Engine, listener: Listener, names: Iterable[str], database: Database, reports: Reports
    ) -> None:
        super().__init__(name="sqlqueue-notifier", daemon=True)
        self._engine = engine
        self._listener = listener
        self._names = set(names)
        self._database = database
        self._reports = reports
        self._backoff = growing_pauses()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop listening; does not wait for the thread."""
        self._stopped.set()

    def run(self) -> None:
        """Listen until :meth:`stop`, and reconnect after errors."""
        own = self._database.own()
        try:
            while not self._stopped.is_set():
                try:
                    own.listen(self._engine, self._listener, self._begun, self._heard)
                except Exception as error:
                    pause = next(self._backoff)
                    self._reports.database_error("listen for notifications", error, pause)
                    self._stopped.wait(pause.total_seconds())
        finally:
            own.close()

    def _begun(self) -> None:
        self._backoff = growing_pauses()
        spread(self._names)  # notifications sent earlier were missed

    def _heard(self, names: set[str]) -> bool:
        spread(names & self._names)
        return not self._stopped.is_set()


def notifiers(engines: Iterable[tuple[Engine, str]], database: Database, reports: Reports) -> list[Notifier]:
    """Return a notifier for each engine that has notifications, for the queues on it.

    Logs which drivers cannot listen although their engines have notifications.
    """
    names: dict[Engine, set[str]] = {}
    for engine, name in engines:
        names.setdefault(engine, set()).add(name)
    found = list[Notifier]()
    for engine, some in names.items():
        connections, driver = adapter_for(engine.dialect).connections, engine.dialect.driver
        listener = connections.listener(driver)
        if listener is not None:
            found.append(Notifier(engine, listener, some, database, reports))
        elif connections.listeners:
            able = ", ".join(sorted(connections.listeners))
            text = "the driver %s cannot listen for notifications, so new tasks wait for the next poll; these can: %s"
            logger.warning(text, driver, able)
    return found


# -- tables of the application whose changes wake a part of the run ---------------------------------------------------


class WatchedTables:
    """Tables of companions, such as pauses, whose notifications set an event."""

    def __init__(self, tables: Iterable[tuple[Engine, Table]]) -> None:
        self.channels = [(engine, table.fullname) for engine, table in tables]
        """The engines and channel names of the notifications."""
        self._news = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._unsubscribe = subscribe((name for _, name in self.channels), lambda: soon(loop, self._news.set))

    def close(self) -> None:
        """Unsubscribe from notifications."""
        self._unsubscribe()


# -- keeps a worker from claiming from paused queues and topics -------------------------------------------------------


class PausedQueues(WatchedTables):
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
        super().__init__(set(self._places.values()))

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
