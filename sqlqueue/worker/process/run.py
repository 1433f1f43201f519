"""One run of a worker, from its start to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from ...diagnostics.check import verify_schema
from ...diagnostics.unadopted import unintended_tasks
from ...dialects import adapter_for
from ...operations import default_claimer
from ...queue.spec import QueueSpec
from ...sql.selection import picks
from ...transaction.notifications import channel_of
from ..concurrency.event_loop import cancel, soon
from ..database.backoff import insist, passes
from ..database.base import Database
from ..fetching.context import WorkerContext
from ..fetching.fetcher import Fetcher
from ..fetching.lock_mode import LockModeFetcher
from ..fetching.notifier import Notifier, notifiers
from ..fetching.paused import PausedQueues
from ..handling.handlers import Handler, Settings
from ..handling.jobs import InFlight
from ..reporting.health import Health
from ..reporting.reports import Reports, logger
from ..running.completer import Completer
from ..running.heartbeat import Heartbeat
from .maintenance import maintain

TICK = 0.02
"""Seconds between two checks whether the last handler has ended, while the worker stops."""

ONE_SIGNAL = 0.5
"""Seconds within which two signals count as one."""

LAST_WORDS = 5.0
"""Seconds for writing the last outcomes when the worker stops."""


class Run:
    """Runs on the event loop that is running when it is created."""

    def __init__(self, handlers: Sequence[Handler], database: Database, reports: Reports, settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        for handler in handlers:
            picks(handler.spec, handler.where, ())  # rejects invalid criteria before anything starts
        self._specs: list[QueueSpec] = list(dict.fromkeys(handler.spec for handler in handlers))
        self._database = database
        self._grace = settings.grace
        self._in_flight = InFlight()
        self._completers = {
            spec: Completer(database, adapter_for(database.engine(spec).dialect), self._in_flight, reports)
            for spec in self._specs
        }
        self._paused = PausedQueues(self._specs, database, settings.poll, reports)
        self._context = WorkerContext(
            name=settings.name or default_claimer(),
            poll=settings.poll,
            database=database,
            paused=self._paused,
            in_flight=self._in_flight,
            completers=self._completers,
            reports=reports,
        )
        self._stopping, self._hurrying = asyncio.Event(), asyncio.Event()
        self._signalled: float | None = None
        self._heartbeats = [Heartbeat(spec, handlers, database, self._in_flight, reports) for spec in self._specs]
        engines = [*((database.engine(spec), channel_of(spec)) for spec in self._specs), *self._paused.channels]
        self._notifiers = notifiers(engines, database, reports) if settings.notify else []
        self._fetchers = [
            (h.fetcher or (LockModeFetcher if h.mode == "lock" else Fetcher))(h, self._context) for h in handlers
        ]

    def health(self) -> Health:
        reports = self._context.reports
        beats = not any(heartbeat.has_died for heartbeat in self._heartbeats)
        return reports.pulse.health(beats=beats, running=len(self._in_flight), counts=reports.counts)

    @property
    def hurries(self) -> bool:
        """Whether it was told to end without waiting."""
        return self._hurrying.is_set()

    def signalled(self) -> None:
        """Drain at the first signal, and stop waiting at the second.

        A signal to a process group arrives twice, once directly and once through the supervisor: that is one signal.
        """
        now = time.monotonic()
        if self._signalled is None:
            self._signalled = now
        self.stop(at_once=now - self._signalled > ONE_SIGNAL)

    def stop(self, *, at_once: bool) -> None:
        """Stop the run.  Thread-safe."""
        soon(self._loop, self._stopping.set)
        if at_once:
            soon(self._loop, self._hurrying.set)

    async def serve(self) -> None:
        """Work until :meth:`stop`.  Each cancellation of the calling task counts as a signal.

        Raises :class:`.SchemaMismatchError` at once if the tables do not match the models.
        """
        serving = asyncio.create_task(self._serve())
        cancelled = False
        while not serving.done():
            try:
                await asyncio.wait({serving})
            except asyncio.CancelledError:
                cancelled = True
                self.signalled()
        serving.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _serve(self) -> None:
        pulse = asyncio.create_task(self._context.reports.pulse.beat())
        try:
            if await self._verify():
                queues = ", ".join(spec.entity.__name__ for spec in self._specs)
                logger.info("worker %s started, for %s", self._context.name, queues)
                await self._work()
        finally:
            await cancel(pulse)
            await self._end()
        logger.info("worker %s stopped", self._context.name)

    async def _work(self) -> None:
        for thread in (*self._heartbeats, *self._notifiers):
            thread.start()
        settling = [asyncio.create_task(completer.run()) for completer in self._completers.values()]
        chores = [
            asyncio.create_task(maintain(self._specs, self._context)),
            asyncio.create_task(self._paused.run()),
        ]
        fetchers = [asyncio.create_task(fetcher.run()) for fetcher in self._fetchers]
        try:
            await self._until_stopped([*settling, *fetchers, *chores])
        finally:
            await cancel(*chores)
            await self._drain()
            await _end(fetchers)
            for completer in self._completers.values():
                completer.close()
            await _end(settling)

    async def _until_stopped(self, parts: Sequence[asyncio.Task[None]]) -> None:
        """Wait until the run is stopped, or raise the error of the first part that fails."""
        stopping = asyncio.create_task(self._stopping.wait())
        working: set[asyncio.Task[Any]] = set(parts)
        try:
            while not stopping.done():
                ended, _ = await asyncio.wait({stopping, *working}, return_when=asyncio.FIRST_COMPLETED)
                for part in ended & working:
                    part.result()
                working -= ended
        finally:
            await cancel(stopping)

    async def _verify(self) -> bool:
        """Verify the schema once the database can be reached; false if the worker is stopped first."""
        look = insist(self._look_at_schema, "look at the schema", self._context.reports, self._passes)
        looking = asyncio.create_task(look)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return looking.done() and looking.result() is None
        finally:
            await cancel(looking, stopping)

    def _passes(self, error: BaseException) -> bool:
        return any(passes(error, self._context.adapter(spec)) for spec in self._specs)

    async def _look_at_schema(self) -> None:
        for spec in self._specs:
            await self._database.run(partial(_verify, spec=spec))
        await self._paused.verify()

    async def _drain(self) -> None:
        """Wait for running handlers up to the grace period; release the other tasks."""
        for fetcher in self._fetchers:
            fetcher.drain()
        deadline = self._loop.time() + self._grace.total_seconds()
        while not all(fetcher.is_idle for fetcher in self._fetchers):
            if self._loop.time() >= deadline or self._hurrying.is_set():
                for fetcher in self._fetchers:
                    fetcher.abandon("the worker stops")
                break
            await asyncio.sleep(TICK)

    async def _end(self) -> None:
        threads: list[Heartbeat | Notifier] = [*self._heartbeats, *self._notifiers]
        for thread in threads:
            thread.stop()
        for fetcher in self._fetchers:
            fetcher.close()
        self._paused.close()
        deadline = self._loop.time() + LAST_WORDS
        await self._database.end(LAST_WORDS)
        while any(thread.is_alive() for thread in threads) and self._loop.time() < deadline:
            await asyncio.sleep(TICK)  # their connections would block a DROP TABLE


def _verify(session: Session, spec: QueueSpec) -> None:
    connection = session.connection(spec.bind_arguments)
    verify_schema(connection, spec.entity)
    for finding in unintended_tasks(connection, spec):
        logger.warning("%s; %s", finding.message, finding.fix)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for tasks that are about to end.  If the database does not answer, the leases of their rows will expire."""
    ended, pending = await asyncio.wait(tasks, timeout=LAST_WORDS)
    for task in pending:
        task.cancel()
    for task in ended:
        task.result()
    if pending:
        logger.warning("some tasks could not be settled, for locks or an unreachable database: their leases will end")
