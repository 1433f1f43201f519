"""One run of a worker, from its start to its end."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from ...diagnostics.check import verify_companions, verify_queues
from ...diagnostics.unadopted import unintended_tasks
from ...dialects import adapter_for
from ...operations import default_claimer
from ...operations.crashes import Crash, recover
from ...queue.spec import QueueSpec
from ...sql.selection import picks
from ...transaction.notifications import channel_of
from ..concurrency.event_loop import cancel, soon
from ..database.backoff import Backoff, passes, until_success
from ..database.base import AT_ONCE, Database
from ..database.checkouts import track
from ..database.deadlines import SHORTEST_MAINTENANCE, maintenance_limit, transaction_limit
from ..database.shared import SharedConnections
from ..fetching.context import WorkerContext
from ..fetching.fetcher import Fetcher
from ..fetching.lock_mode import LockModeFetcher
from ..fetching.notifier import Notifier, notifiers
from ..fetching.paused import PausedQueues
from ..handling.handlers import Handler, Settings
from ..handling.jobs import InFlight
from ..handling.origin import is_importable, place_of
from ..reporting.health import STALLED, Health
from ..reporting.reports import Reports, logger
from ..running.children import Children
from ..running.completer import Completer
from ..running.heartbeat import BEATS, Heartbeat
from ..running.started import StartedTasks
from .maintenance import maintain
from .recycling import UNLIMITED, Limits
from .registration import Registration

TICK = 0.02
"""Seconds between two checks whether the last handler has ended, while the worker stops."""

ONE_SIGNAL = 0.5
"""Seconds within which two signals count as one."""

LAST_WORDS = 5.0
"""Seconds for writing the last outcomes when the worker stops."""


SLOWEST_CATALOG = timedelta(minutes=10)
"""The longest time that the look at the schema of a queue may take; the first try gets less, and each one more."""


class Supervision(NamedTuple):
    """What a supervisor gives to a process."""

    memory: Any
    """For the tasks that it starts."""
    crashes: tuple[Crash, ...]
    """The deaths of earlier processes, whose tasks are to be released."""
    limits: Limits
    """When it stops, to be replaced."""


class Run:
    """Runs on the event loop that is running when it is created."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        database: Database,
        reports: Reports,
        settings: Settings,
        origin: str | None = None,
        *,
        supervision: Supervision | None = None,
        version: str | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._handlers = handlers
        for handler in handlers:
            picks(handler.spec, handler.where, ())  # rejects invalid criteria before anything starts
        self._specs: list[QueueSpec] = list(dict.fromkeys(handler.spec for handler in handlers))
        within = transaction_limit(min(handler.lease for handler in handlers))
        for spec in self._specs:
            track(database.engine(spec), within)
        reports.pulse.ready_within = min(STALLED, within.total_seconds() * BEATS)
        self._database = database
        self._grace = settings.grace
        self._deadline = math.inf
        """When running handlers are given up, by the loop's time."""
        self._patient = False
        """Whether it drains without a deadline."""
        self._in_flight = InFlight()
        self._completers = {
            spec: Completer(database, adapter_for(database.engine(spec).dialect), self._in_flight, reports)
            for spec in self._specs
        }
        self._schema_within = SHORTEST_MAINTENANCE
        self._paused = PausedQueues(self._specs, database, settings.poll, reports)
        self._children = {
            handler: Children(place_of(handler, handlers, origin), handler, reports)
            for handler in handlers
            if handler.isolation == "process" and origin is not None
        }
        self._apart = {
            handler: Children(place_of(handler, handlers, origin), handler, reports)
            for handler in handlers
            if handler.mode == "lease" and handler.fetcher is None and handler not in self._children
            if is_importable(origin)
        }
        self._context = WorkerContext(
            name=settings.name or default_claimer(),
            poll=settings.poll,
            database=database,
            paused=self._paused,
            in_flight=self._in_flight,
            completers=self._completers,
            children=self._children,
            apart=self._apart | self._children,
            reports=reports,
            started=StartedTasks(supervision and supervision.memory),
        )
        self._context.started.claim_by(self._context.tokens.worker)
        self._crashes = supervision.crashes if supervision else ()
        self._limits = supervision.limits if supervision else UNLIMITED
        self.is_worn = False
        """Whether it stops because its process has reached a limit."""
        self._stopping, self._hurrying = asyncio.Event(), asyncio.Event()
        self._signalled: float | None = None
        own = SharedConnections(database.own, len(self._specs))
        self._heartbeats = [
            Heartbeat(spec, handlers, database, self._in_flight, reports, own=own) for spec in self._specs
        ]
        self._fetchers = [
            (h.fetcher or (LockModeFetcher if h.mode == "lock" else Fetcher))(h, self._context) for h in handlers
        ]
        self._context.suspects.lanes = self._fetchers
        lanes = dict(zip(handlers, self._fetchers, strict=True))
        self._registration = Registration(lanes, self._context, version)
        reports.lanes = self._registration.lanes
        engines = [(database.engine(spec), channel_of(spec)) for spec in self._specs]
        engines += [*self._paused.channels, *self._registration.channels]
        self._notifiers = notifiers(engines, database, reports) if settings.notify else []

    def health(self) -> Health:
        """Return the state of the run.  Thread-safe; sends nothing to the database."""
        reports = self._context.reports
        beats = not any(heartbeat.has_died for heartbeat in self._heartbeats) and self._database.stuck < AT_ONCE
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
        soon(self._loop, self._expire)
        soon(self._loop, self._stopping.set)
        if at_once:
            soon(self._loop, self._hurrying.set)

    def drain(self) -> None:
        """Claim nothing more, finish what runs however long it takes, and end."""
        self._patient = True
        self._stopping.set()

    def _expire(self) -> None:
        """Let the grace period begin."""
        self._deadline = min(self._deadline, self._loop.time() + self._grace.total_seconds())

    async def serve(self) -> None:
        """Work until :meth:`stop`.  Each cancellation of the calling task counts as a signal.

        Raises :class:`.SchemaMismatchError` at once if the tables do not match the models, and
        :class:`.UnsupportedDialectError` if a handler of ``mode="lock"`` would not keep others out on this server.
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
        suspects = asyncio.create_task(self._context.suspects.run())
        registration = asyncio.create_task(self._registration.run(self))
        wear = asyncio.create_task(self._until_worn())
        try:
            await self._until_stopped([*settling, *fetchers, *chores, suspects, registration, wear])
        finally:
            await cancel(wear, *chores)
            await self._drain()
            await cancel(suspects)
            await _end(fetchers, LAST_WORDS)
            for completer in self._completers.values():
                completer.close()
            await self._end_settling(settling)
            await self._registration.leave(registration)

    async def _until_worn(self) -> None:
        """Stop the run once its process has reached a limit."""
        counts, held = self._context.reports.counts, self._in_flight
        reached = await self._limits.until_reached(lambda: counts["claimed"] - len(held))
        logger.info("worker %s %s, and stops to be replaced", self._context.name, reached)
        self.is_worn = True
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

    async def _verify(self) -> bool:
        """Verify the schema once the database can be reached, start child processes, and release tasks of dead ones.

        Returns false if the worker is stopped first.
        """
        looking = asyncio.create_task(self._prepare())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return looking.done() and looking.result() is None
        finally:
            await cancel(looking, stopping)

    def _passes(self, error: BaseException) -> bool:
        return any(passes(error, self._context.adapter(spec)) for spec in self._specs)

    async def _look_at_schema(self) -> None:
        locked = {handler.spec for handler in self._handlers if handler.mode == "lock"}
        within = self._schema_within
        self._schema_within = min(2 * within, SLOWEST_CATALOG)  # the next try may take longer, should this one be cut
        for spec in self._specs:
            await self._database.run(partial(_verify, spec=spec, holds=spec in locked), within)
        for spec in {(self._database.engine(spec), spec.table.metadata): spec for spec in self._specs}.values():
            await self._database.run(partial(_verify_companions, spec=spec), within)
        await self._paused.verify()

    async def _prepare(self) -> None:
        adapters = {self._context.adapter(spec) for spec in self._specs}
        backoff = Backoff("look at the schema", self._context.reports, *adapters)
        await until_success(self._look_at_schema, backoff, self._passes)
        prepare = [self._loop.run_in_executor(None, children.prepare) for children in self._children.values()]
        await asyncio.gather(*prepare)
        for crash in self._crashes:
            backoff = Backoff("release tasks", self._context.reports, *adapters)
            await until_success(partial(self._recover, crash), backoff, self._passes)
        self._context.started.recovered()

    async def _recover(self, crash: Crash) -> None:
        """Before anything is claimed: a task that was held by its lock alone could be claimed again at once."""
        for spec in self._specs:
            within = maintenance_limit(spec.options.lease)
            found = await self._database.run(partial(recover, spec=spec, crash=crash), within)
            self._context.reports.recovered(spec, found)

    async def _drain(self) -> None:
        """Wait for running handlers up to the grace period; release the other tasks."""
        for fetcher in self._fetchers:
            fetcher.drain()
        if not self._patient:
            self._expire()
        while not all(fetcher.is_idle for fetcher in self._fetchers):
            if self._loop.time() >= self._deadline or self._hurrying.is_set():
                for fetcher in self._fetchers:
                    fetcher.abandon("the worker stops")
                break
            await asyncio.sleep(TICK)

    async def _end_settling(self, settling: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the last outcomes: longer while the database answers and only others' locks are in the way."""
        pulse, deadline = self._context.reports.pulse, self._loop.time() + self._grace.total_seconds()
        _, pending = await asyncio.wait(settling, timeout=LAST_WORDS)
        while pending and not self._hurrying.is_set() and self._loop.time() < deadline:
            if pulse.away_seconds > 2 * LAST_WORDS:
                break
            _, pending = await asyncio.wait(settling, timeout=TICK)
        await _end(settling, 0)

    async def _end(self) -> None:
        threads: list[Heartbeat | Notifier] = [*self._heartbeats, *self._notifiers]
        for thread in threads:
            thread.stop()
        for fetcher in self._fetchers:
            fetcher.close()
        for children in (*self._children.values(), *self._apart.values()):
            children.close()
        self._paused.close()
        self._registration.close()
        deadline = self._loop.time() + LAST_WORDS
        await self._database.end(LAST_WORDS)
        while any(thread.is_alive() for thread in threads) and self._loop.time() < deadline:
            await asyncio.sleep(TICK)  # their connections would block a DROP TABLE


def _verify(session: Session, spec: QueueSpec, *, holds: bool) -> None:
    """``holds``: there are handlers of ``mode="lock"`` for this queue."""
    connection = session.connection(spec.bind_arguments)
    if holds:
        adapter_for(connection.dialect).server.check_locks(connection)
    verify_queues(connection, [spec])
    for finding in unintended_tasks(connection, spec):
        logger.warning("%s; %s", finding.message, finding.fix)


def _verify_companions(session: Session, spec: QueueSpec) -> None:
    verify_companions(session.connection(spec.bind_arguments), spec.table.metadata)


async def _end(tasks: Iterable[asyncio.Task[None]], backoff: float) -> None:
    """Wait for tasks that are about to end.  If the database does not answer, the leases of their rows will expire."""
    ended, pending = await asyncio.wait(tasks, timeout=backoff)
    for task in pending:
        task.cancel()
    for task in ended:
        task.result()
    if pending:
        logger.warning("some tasks could not be settled, for locks or an unreachable database: their leases will end")
