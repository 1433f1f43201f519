"""One run of a worker, from its start to its end.

:meth:`WorkerRun.serve` prepares the run, runs fetchers that claim tasks and call handlers, and completers that write
the outcomes, waits until it is told to stop, and ends these parts in the order in which they depend on each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ...operations.upkeep import Crash
from ...sql.selection import picks
from ...transaction.notifications import channel_of
from ..concurrency.event_loop import cancel
from ..database.base import MAX_TRANSACTIONS, Database
from ..fetching.notifier import Notifier, notifiers
from ..handling.handlers import Handler, Settings, handled_specs
from ..reporting.health import Health
from ..reporting.reports import Reports, logger
from ..running.heartbeat import Heartbeat
from .assembly import make_context, make_fetchers, make_heartbeats
from .maintenance import maintain
from .preparation import Preparation
from .recycling import UNLIMITED, ProcessLimits
from .registration import Registration
from .stopping import StopRequest

TICK = 0.02
"""Seconds between two checks whether the last handler has ended, while the worker stops."""

FINAL_WRITE_LIMIT = 5.0
"""Seconds for writing the last outcomes when the worker stops."""


class Supervision(NamedTuple):
    """The values that a supervisor passes to a process."""

    memory: Any = None
    """Shared memory in which it records the tasks that it starts."""
    crashes: tuple[Crash, ...] = ()
    """The deaths of earlier processes, whose tasks are to be released."""
    limits: ProcessLimits = UNLIMITED
    """The limits at which it stops, to be replaced."""


UNSUPERVISED = Supervision()


class WorkerRun:
    """Runs on the event loop that is running when it is created."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        database: Database,
        reports: Reports,
        settings: Settings,
        origin: str | None = None,
        *,
        supervision: Supervision = UNSUPERVISED,
        version: str | None = None,
    ) -> None:
        for handler in handlers:
            picks(handler.spec, handler.where, ())  # rejects invalid criteria before anything starts
        self._specs = handled_specs(handlers)
        self._context = make_context(handlers, database, reports, settings, origin, memory=supervision.memory)
        self._limits = supervision.limits
        self.has_reached_limit = False
        """Whether it stops because its process has reached a limit."""
        self._stopping = StopRequest(settings.grace)
        self._preparation = Preparation(handlers, self._context, supervision.crashes)
        self._heartbeats = make_heartbeats(handlers, self._context)
        self._fetchers = make_fetchers(handlers, self._context)
        fetchers = dict(zip(handlers, self._fetchers, strict=True))
        self._registration = Registration(fetchers, self._context, version)
        reports.handlers = self._registration.handlers
        self._notifiers = self._listeners() if settings.notify else []

    def _listeners(self) -> list[Notifier]:
        """Return the threads that listen for new tasks, pauses, and commands to this worker."""
        database = self._context.database
        channels = [(database.engine(spec), channel_of(spec)) for spec in self._specs]
        channels += [*self._context.paused.channels, *self._registration.channels]
        return notifiers(channels, database, self._context.reports)

    def health(self) -> Health:
        """Return the state of the run.  Thread-safe; sends nothing to the database."""
        reports, is_stuck = self._context.reports, self._context.database.stuck >= MAX_TRANSACTIONS
        beats = not any(heartbeat.has_died for heartbeat in self._heartbeats) and not is_stuck
        return reports.liveness.health(beats=beats, running=len(self._context.in_flight), counts=reports.counts)

    @property
    def ends_at_once(self) -> bool:
        """Whether it was told to end without waiting."""
        return self._stopping.is_immediate

    def signalled(self) -> None:
        """Drain at the first signal, and stop waiting at the second.  Thread-safe."""
        self._stopping.signal()

    def stop(self, *, at_once: bool) -> None:
        """Stop the run.  Thread-safe."""
        self._stopping.make(at_once=at_once)

    def drain(self) -> None:
        """Claim nothing more, finish what runs however long it takes, and end."""
        self._stopping.drain()

    async def serve(self) -> None:
        """Work until :meth:`stop`.  Each cancellation of the calling task counts as a signal.

        Raises :class:`.SchemaMismatchError` at once if the tables do not match the models, and
        :class:`.UnsupportedDialectError` if this server has no locks that ``mode="lock"`` can rely on.
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
        liveness = asyncio.create_task(self._context.reports.liveness.watch_loop())
        try:
            if await self._prepare():
                queues = ", ".join(spec.entity.__name__ for spec in self._specs)
                logger.info("worker %s started, for %s", self._context.name, queues)
                await self._work()
        finally:
            await cancel(liveness)
            await self._close()
        logger.info("worker %s stopped", self._context.name)

    async def _prepare(self) -> bool:
        """Prepare for the first claim, as soon as the database responds.  Returns false if stopped first."""
        preparing = asyncio.create_task(self._preparation.run())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return preparing.done() and preparing.result() is None
        finally:
            await cancel(preparing, stopping)

    async def _work(self) -> None:
        """Claim, handle and settle tasks until the run is to stop; then end these parts one after another."""
        for thread in self._threads:
            thread.start()
        completers = self._context.completers.values()
        settling = [asyncio.create_task(completer.run()) for completer in completers]
        chores = [
            asyncio.create_task(maintain(self._specs, self._context)),
            asyncio.create_task(self._context.paused.run()),
        ]
        fetching = [asyncio.create_task(fetcher.run()) for fetcher in self._fetchers]
        suspects = asyncio.create_task(self._context.suspects.run())
        registration = asyncio.create_task(self._registration.run(self))
        recycling = asyncio.create_task(self._until_limit_reached())
        try:
            await self._until_stopped([*settling, *fetching, *chores, suspects, registration, recycling])
        finally:
            await cancel(recycling, *chores)
            await self._drain()
            await cancel(suspects)
            await _end(fetching, FINAL_WRITE_LIMIT)
            for completer in completers:
                completer.close()
            await self._end_settling(settling)
            await self._registration.leave(registration)

    async def _until_limit_reached(self) -> None:
        """Stop the run once its process has reached a limit."""
        counts, held = self._context.reports.counts, self._context.in_flight
        reached = await self._limits.until_reached(lambda: counts["claimed"] - len(held))
        logger.info("worker %s %s; it stops so that it can be replaced", self._context.name, reached)
        self.has_reached_limit = True
        self.stop(at_once=False)

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

    async def _drain(self) -> None:
        """Wait for running handlers up to the grace period; release the other tasks."""
        for fetcher in self._fetchers:
            fetcher.drain()
        self._stopping.begin()
        while not all(fetcher.is_idle for fetcher in self._fetchers):
            if self._stopping.gives_up_handlers:
                for fetcher in self._fetchers:
                    fetcher.abandon("the worker stops")
                break
            await asyncio.sleep(TICK)

    async def _end_settling(self, settling: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the last outcomes: longer while the database responds and only locks of other transactions delay
        them."""
        loop, liveness = asyncio.get_running_loop(), self._context.reports.liveness
        deadline = loop.time() + self._stopping.grace
        _, pending = await asyncio.wait(settling, timeout=FINAL_WRITE_LIMIT)
        while pending and not self.ends_at_once and loop.time() < deadline:
            if liveness.away_seconds > 2 * FINAL_WRITE_LIMIT:
                break
            _, pending = await asyncio.wait(settling, timeout=TICK)
        await _end(settling, 0)

    async def _close(self) -> None:
        """End threads, child processes and connections.  Also called after a preparation that failed."""
        for thread in self._threads:
            thread.stop()
        for fetcher in self._fetchers:
            fetcher.close()
        for children in self._context.apart.values():
            children.close()
        self._context.paused.close()
        self._registration.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FINAL_WRITE_LIMIT
        await self._context.database.end(FINAL_WRITE_LIMIT)
        while any(thread.is_alive() for thread in self._threads) and loop.time() < deadline:
            await asyncio.sleep(TICK)  # their connections would block a DROP TABLE

    @property
    def _threads(self) -> list[Heartbeat | Notifier]:
        return [*self._heartbeats, *self._notifiers]


async def _end(tasks: Iterable[asyncio.Task[None]], timeout: float) -> None:
    """Wait for tasks that are about to end.  If the database does not respond, the leases of their rows will expire."""
    ended, pending = await asyncio.wait(tasks, timeout=timeout)
    for task in pending:
        task.cancel()
    for task in ended:
        task.result()
    if pending:
        logger.warning(
            "some tasks could not be settled because of locks or an unreachable database: their leases will expire"
        )
