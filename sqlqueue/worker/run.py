"""A run of a worker from start to stop."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from .._support.processes import MIB, handle_signal, resident_memory, restore_signal
from .._support.texts import error_text
from ..diagnostics.check import live_handlers, unintended_tasks, verify_companions, verify_queues
from ..diagnostics.functions import unregistered_functions
from ..dialects import adapter_for
from ..operations.recording import brief
from ..operations.upkeep import Crash, recover
from ..queue.schedules import is_known_here, lacks_zones
from ..queue.spec import Finding, QueueSpec
from ..sql import picks
from ..transaction import channel_of
from .context import WorkerContext
from .database import MAX_TRANSACTIONS, Backoff, Database, SharedConnections, until_success
from .deadlines import SHORTEST_MAINTENANCE, maintenance_limit
from .fetcher import BaseFetcher, Fetcher, run_suspects
from .handlers import Handler, Place, Settings
from .heartbeat import Heartbeat, ProgressWriter, StallWatch
from .lock_mode import LockModeFetcher
from .looking import watches_of
from .news import Notifier, notifiers
from .registration import Registration, maintain
from .reports import Health, Reports, logger
from .threads import cancel

# -- the signals that stop a process ----------------------------------------------------------------------------------

ONE_SIGNAL = 0.5
"""Seconds within which two signals count as one."""


class Signals:
    """Tells a second signal, which does not wait for running handlers, from the first.

    A signal to a process group arrives twice, once directly and once through the supervisor: that is one signal.
    """

    def __init__(self) -> None:
        self._first: float | None = None

    def is_second(self) -> bool:
        """Return whether this signal, which has just arrived, is a second one."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        return now - self._first > ONE_SIGNAL


class Stop(Protocol):
    """A function that stops something: after a grace period or, with ``at_once``, without waiting."""

    def __call__(self, *, at_once: bool) -> object: ...


@contextmanager
def handling_signals(stop: Stop) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and SIGINT within the block, but not in processes that are forked there.

    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = Signals()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        handle_signal(number, lambda *_: stop(at_once=signals.is_second()))
    try:
        yield
    finally:
        for number, handler in before.items():
            restore_signal(number, handler)


# -- recycling: a worker process that has run many tasks, or has grown, ends and is replaced by a fresh one -----------

LOOK_EVERY = 0.2
"""Seconds between two checks of the limits."""
SPREAD = 0.1
"""How much the limits of several processes differ, as a fraction of the limits."""


class ProcessLimits(NamedTuple):
    """The limits at which a worker process is replaced; ``None``: no limit."""

    max_tasks: int | None = None
    """The minimum number of tasks that it runs."""
    max_memory: int | None = None
    """The resident memory that it may use, in MiB, without its child processes."""

    def of_process(self, number: int, processes: int) -> ProcessLimits:
        """Return the limits of process ``number``: at most a tenth more tasks, or less memory, than of the first.

        Processes that started together and run alike would otherwise all be replaced at the same moment.
        """
        share = SPREAD * number / processes
        tasks = None if self.max_tasks is None else round(self.max_tasks * (1 + share))
        memory = None if self.max_memory is None else round(self.max_memory * (1 - share))
        return ProcessLimits(tasks, memory)

    def reached(self, tasks: int) -> str | None:
        """Return which limit a process that has run ``tasks`` tasks has reached, as text; ``None`` if none."""
        if self.max_tasks is not None and tasks >= self.max_tasks:
            return f"has run {tasks} tasks"
        if self.max_memory is not None and (memory := resident_memory() // MIB) > self.max_memory:
            return f"occupies {memory} MiB"
        return None

    async def until_reached(self, tasks: Callable[[], int]) -> str:
        """Wait until a limit is reached, and return what :meth:`reached` returns."""
        while (reached := self.reached(tasks())) is None:
            await asyncio.sleep(LOOK_EVERY)
        return reached


UNLIMITED = ProcessLimits()


# -- one run of a worker, from its start to its end -------------------------------------------------------------------
#
# :meth:`WorkerRun.serve` prepares the run, runs fetchers that claim tasks and call handlers, and completers that write
# the outcomes, waits until it is told to stop, and ends these parts in the order in which they depend on each other.

LONGEST_SCHEMA_CHECK = timedelta(minutes=10)
"""The longest time that checking the schema of a queue may take.  The first try gets less, and each later one more."""
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
        places: Mapping[Handler, Place],
        *,
        supervision: Supervision = UNSUPERVISED,
        version: str | None = None,
    ) -> None:
        for handler in handlers:
            picks(handler.spec, handler.where, ())  # rejects invalid criteria before anything starts
        context = self._context = WorkerContext(
            handlers, database, reports, settings, places, memory=supervision.memory
        )
        self._locked = {handler.spec for handler in handlers if handler.mode == "lock"}
        self._supervision = supervision
        self.has_reached_limit = False
        """Whether it stops because its process has reached a limit."""
        own = SharedConnections(database.own, len(context.specs) + 1)
        self._heartbeats = [Heartbeat(spec, handlers, context, own) for spec in context.specs]
        self._writers = [ProgressWriter(spec, context) for spec in context.specs if spec.has_progress]
        self._fetchers: list[BaseFetcher] = [
            (each.fetcher or (LockModeFetcher if each.mode == "lock" else Fetcher))(each, context) for each in handlers
        ]
        self._registration = Registration(self._fetchers, context, version)
        reports.handlers = self._registration.handlers
        self._latches = watches_of(context)
        self._stall_watch = StallWatch(context, own, partial(self._registration.tell_stall, own))
        reports.functions = frozenset(name for each in handlers for name in each.functions or ())
        channels = [(database.engine(spec), channel_of(spec)) for spec in context.specs]
        channels += [*context.paused.channels, *self._registration.channels, *(each.channel for each in self._latches)]
        self._notifiers = notifiers(channels, database, reports) if settings.notify else []

    def health(self) -> Health:
        """Return the state of the run.  Thread-safe; sends nothing to the database."""
        reports, is_stuck = self._context.reports, self._context.database.stuck >= MAX_TRANSACTIONS
        beats = not any(heartbeat.has_died for heartbeat in self._heartbeats) and not is_stuck
        return reports.liveness.health(beats=beats, running=len(self._context.in_flight), counts=reports.counts)

    @property
    def ends_at_once(self) -> bool:
        """Whether it was told to end without waiting."""
        return self._context.stopping.is_immediate

    def stop(self, *, at_once: bool) -> None:
        """Stop the run.  Thread-safe."""
        self._context.stopping.make(at_once=at_once)

    async def serve(self) -> None:
        """Work until :meth:`stop`.  Each cancellation of the calling task counts as a signal.

        Raises :class:`.SchemaMismatchError` at once if the tables do not match the models, and
        :class:`.UnsupportedDialectError` if this server has no locks that ``mode="lock"`` can rely on.
        """
        serving, signals = asyncio.create_task(self._serve()), Signals()
        cancelled = False
        while not serving.done():
            try:
                await asyncio.wait({serving})
            except asyncio.CancelledError:
                cancelled = True
                self.stop(at_once=signals.is_second())
        serving.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _serve(self) -> None:
        context = self._context
        liveness = asyncio.create_task(context.reports.liveness.watch_loop(context.started.turns))
        try:
            if await self._is_prepared():
                queues = ", ".join(spec.name for spec in context.specs)
                logger.info("worker %s started, for %s", context.name, queues)
                await self._work()
        finally:
            await cancel(liveness)
            await self._close()
            context.started.rests()
        logger.info("worker %s stopped", context.name)

    # the steps before the first claim, which are retried until the database responds

    async def _is_prepared(self) -> bool:
        """Prepare for the first claim, as soon as the database responds.  Returns false if stopped first."""
        preparing = asyncio.create_task(self._prepare())
        stopping = asyncio.create_task(self._context.stopping.wait())
        try:
            await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return preparing.done() and preparing.result() is None
        finally:
            await cancel(preparing, stopping)

    async def _prepare(self) -> None:
        """Check the schema, start the child processes, and release the tasks of earlier processes."""
        context, within = self._context, SHORTEST_MAINTENANCE
        backoff = self._backoff("check the schema")

        async def check() -> None:
            nonlocal within
            this_time, within = within, min(2 * within, LONGEST_SCHEMA_CHECK)  # more at the next try
            await self._check_schema(this_time, backoff)

        await until_success(check, backoff)
        loop = asyncio.get_running_loop()
        isolated = [each for handler, each in context.apart.items() if handler.isolation is not None]
        await asyncio.gather(*[loop.run_in_executor(None, each.prepare) for each in isolated])
        for crash in self._supervision.crashes:
            for spec in context.specs:
                await self._recover(spec, crash)
        context.started.recovered()

    async def _check_schema(self, within: timedelta, backoff: Backoff) -> None:
        run, engine = self._context.database.run, self._context.database.engine
        for spec in self._context.specs:
            await run(partial(_check_queue, spec=spec, needs_locks=spec in self._locked), within)
            await self._warn(spec, within, backoff)
        for spec in {(engine(spec), spec.table.metadata): spec for spec in self._context.specs}.values():
            await run(partial(_check_companions, spec=spec), within)
        await self._context.paused.look()

    async def _warn(self, spec: QueueSpec, within: timedelta, backoff: Backoff) -> None:
        """Log findings that do not keep the worker from starting, and nor does an error while they are looked for."""
        try:
            found = await self._context.database.run(partial(_findings, spec=spec, own=self._functions(spec)), within)
        except Exception as error:
            if backoff.passes(error):
                raise
            logger.warning("cannot check the rows of %s: %s", spec.name, brief(error_text(error)))
            return
        for finding in found:
            logger.warning("%s; %s", finding.message, finding.fix)

    def _functions(self, spec: QueueSpec) -> set[str] | None:
        """Return the functions that this worker has registered; ``None`` if one of its handlers takes any call."""
        mine = [fetcher.handler.functions for fetcher in self._fetchers if fetcher.handler.spec is spec]
        return None if None in mine else {name for names in mine for name in names or ()}

    async def _recover(self, spec: QueueSpec, crash: Crash) -> None:
        """Release the tasks of a process before anything is claimed: one that only a lock held could be claimed again
        at once.

        If the database rejects what that writes, the worker starts all the same, and they wait until their leases end.
        """
        context, within = self._context, maintenance_limit(spec.options.lease)
        backoff = Backoff("release tasks", context.reports, [context.adapter(spec)], writes_rows=True)
        try:
            work = partial(context.database.run, partial(recover, spec=spec, crash=crash), within)
            context.reports.recovered(spec, await until_success(work, backoff))
        except Exception as error:
            context.reports.broken(f"release the tasks of {spec.name} whose process has died", error)

    def _backoff(self, what: str) -> Backoff:
        return Backoff(what, self._context.reports, [*map(self._context.adapter, self._context.specs)])

    # the work, and its end

    async def _work(self) -> None:
        """Claim, handle and settle tasks until the run is to stop; then end these parts one after another."""
        for thread in self._threads:
            thread.start()
        completers = self._context.completers.values()
        settling = [asyncio.create_task(completer.run()) for completer in completers]
        chores = [
            asyncio.create_task(maintain(self._context)),
            asyncio.create_task(self._context.paused.run()),
            *(asyncio.create_task(each.run()) for each in self._latches),
        ]
        fetching = [asyncio.create_task(fetcher.run()) for fetcher in self._fetchers]
        backoff = self._backoff("run a suspect")
        suspects = asyncio.create_task(run_suspects(self._context, self._fetchers, backoff))
        registration = asyncio.create_task(self._registration.run())
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
        reached = await self._supervision.limits.until_reached(lambda: counts["claimed"] - len(held))
        logger.info("worker %s %s; it stops so that it can be replaced", self._context.name, reached)
        self.has_reached_limit = True
        self.stop(at_once=False)

    async def _until_stopped(self, parts: Sequence[asyncio.Task[None]]) -> None:
        """Wait until the run is stopped, or raise the error of the first part that fails."""
        stopping = asyncio.create_task(self._context.stopping.wait())
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
        self._context.stopping.begin()
        self._context.reports.stopping(self._context.name, self._context.in_flight, self._context.stopping.patience)
        while not all(fetcher.is_idle for fetcher in self._fetchers):
            if self._context.stopping.gives_up_handlers:
                for fetcher in self._fetchers:
                    fetcher.abandon("the worker stops")
                break
            await asyncio.sleep(TICK)

    async def _end_settling(self, settling: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the last outcomes: longer while the database responds and only locks of other transactions delay
        them."""
        loop, liveness = asyncio.get_running_loop(), self._context.reports.liveness
        deadline = loop.time() + self._context.stopping.grace
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
        for each in self._latches:
            each.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FINAL_WRITE_LIMIT
        await self._context.database.end(FINAL_WRITE_LIMIT)
        while any(thread.is_alive() for thread in self._threads) and loop.time() < deadline:
            await asyncio.sleep(TICK)  # their connections would block a DROP TABLE

    @property
    def _threads(self) -> list[Heartbeat | Notifier | ProgressWriter | StallWatch]:
        return [*self._heartbeats, *self._notifiers, *self._writers, self._stall_watch]


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


def _check_queue(session: Session, spec: QueueSpec, *, needs_locks: bool) -> None:
    """Check the schema of a queue.  ``needs_locks``: it has handlers of ``mode="lock"``."""
    connection = session.connection(spec.bind_arguments)
    if needs_locks:
        adapter_for(connection.dialect).inspection.check_locks(connection)
    verify_queues(connection, [spec])
    if spec.recurs and lacks_zones():  # is logged for each schedule, instead of when its task is claimed
        in_use = select(spec["schedule"]).where(spec["schedule"].is_not(None), spec["finished_at"].is_(None)).distinct()
        for schedule in connection.scalars(in_use):
            is_known_here(schedule)


def _findings(session: Session, spec: QueueSpec, own: set[str] | None) -> list[Finding]:
    """Return what to warn of at the start of a worker that has registered its ``own`` functions."""
    connection = session.connection(spec.bind_arguments)
    found = unintended_tasks(connection, spec)
    if "task" not in spec.columns or own is None:
        return found
    others = live_handlers(connection, spec.table.metadata)
    known = [handler["functions"] for handler in others or () if handler["queue"] == spec.name]
    if None in known:
        return found
    registered = own.union(*known)
    whose = "this worker has not" if others is None else "neither this worker nor another live one has"
    return [*found, *unregistered_functions(connection, adapter_for(connection.dialect), spec, registered, whose)]


def _check_companions(session: Session, spec: QueueSpec) -> None:
    verify_companions(session.connection(spec.bind_arguments), spec.table.metadata)
