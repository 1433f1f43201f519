"""A run of a worker from start to stop."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from .._support.processes import MIB, handle_signal, resident_memory, restore_signal
from .._support.texts import error_text
from ..diagnostics.check import unintended_tasks, verify_companions, verify_queues
from ..dialects import adapter_for
from ..operations.recording import brief
from ..operations.upkeep import Crash, recover
from ..queue.schedules import is_known_here, lacks_zones
from ..queue.spec import Finding, QueueSpec
from ..sql import picks
from ..transaction import channel_of, default_claimer
from .children import Children
from .completer import Completer
from .context import BaseFetcher, WorkerContext
from .database import MAX_TRANSACTIONS, Backoff, Database, SharedConnections, passes, until_success
from .deadlines import SHORTEST_MAINTENANCE, maintenance_limit, track, transaction_limit
from .executor import StartedTasks
from .fetcher import Fetcher
from .handlers import Handler, Settings, handled_specs, is_importable, place_of
from .heartbeat import BEATS, Heartbeat
from .jobs import InFlight
from .lock_mode import LockModeFetcher
from .news import Notifier, PausedQueues, notifiers
from .registration import Registration, maintain
from .reports import STALLED, Health, Reports, logger
from .threads import cancel, soon

# -- the signals that stop a process ----------------------------------------------------------------------------------


@contextmanager
def handling_signals(heard: Callable[[], object]) -> Iterator[None]:
    """Call ``heard`` on SIGTERM and SIGINT within the block, but not in processes that are forked there.

    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        handle_signal(number, lambda *_: heard())
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


# -- requests to stop a run: after its grace period, without waiting, or once its running handlers have ended ---------

ONE_SIGNAL = 0.5
"""Seconds within which two signals count as one."""


class StopRequest:
    """Whether a run is to stop, and how long it waits for running handlers.

    Created on the event loop of the run.  :meth:`signal` and :meth:`make` may be called on any thread.
    """

    def __init__(self, grace: timedelta) -> None:
        self.grace = grace.total_seconds()
        """Seconds for which running handlers may continue after the request."""
        self._loop = asyncio.get_running_loop()
        self._made, self._immediate = asyncio.Event(), asyncio.Event()
        self._deadline = math.inf
        """When running handlers are abandoned, by the loop's time."""
        self._drains = False
        """Whether handlers may run however long they take."""
        self._signalled: float | None = None

    def signal(self) -> None:
        """Request a stop at the first signal, and one without waiting at the second.

        A signal to a process group arrives twice, once directly and once through the supervisor: that is one signal.
        """
        now = time.monotonic()
        if self._signalled is None:
            self._signalled = now
        self.make(at_once=now - self._signalled > ONE_SIGNAL)

    def make(self, *, at_once: bool) -> None:
        """Request a stop after the grace period, which begins now, or with ``at_once`` one without waiting."""
        soon(self._loop, self._begin_grace)
        soon(self._loop, self._made.set)
        if at_once:
            soon(self._loop, self._immediate.set)

    def drain(self) -> None:
        """Request a stop once all running handlers have ended, however long they take."""
        self._drains = True
        self._made.set()

    async def wait(self) -> None:
        """Wait for a request."""
        await self._made.wait()

    def begin(self) -> None:
        """Record that the run is stopping, whatever the reason: the grace period begins, unless the run drains."""
        if not self._drains:
            self._begin_grace()

    @property
    def is_immediate(self) -> bool:
        """Whether the run is to end without waiting."""
        return self._immediate.is_set()

    @property
    def gives_up_handlers(self) -> bool:
        """Whether running handlers have no time left."""
        return self.is_immediate or self._loop.time() >= self._deadline

    def _begin_grace(self) -> None:
        self._deadline = min(self._deadline, self._loop.time() + self.grace)


# -- the start of a run, before it claims anything: checks the schema and releases the tasks of processes that died ---

LONGEST_SCHEMA_CHECK = timedelta(minutes=10)
"""The longest time that checking the schema of a queue may take.  The first try gets less, and each later one more."""


class Preparation:
    """The steps of one run before its first claim.  They are retried until the database responds."""

    def __init__(self, handlers: Sequence[Handler], context: WorkerContext, crashes: Iterable[Crash]) -> None:
        self._specs = handled_specs(handlers)
        self._locked = {handler.spec for handler in handlers if handler.mode == "lock"}
        self._context = context
        self._crashes = crashes
        """The deaths of earlier processes, whose tasks are to be released."""
        self._schema_within = SHORTEST_MAINTENANCE

    async def run(self) -> None:
        """Check the schema, start the child processes, and release the tasks of earlier processes.

        Raises :class:`.SchemaMismatchError` if the tables do not match the models, and
        :class:`.UnsupportedDialectError` if this server has no locks that ``mode="lock"`` can rely on.
        """
        await until_success(self._check_schema, self._backoff("check the schema"), self._passes)
        loop = asyncio.get_running_loop()
        children = self._context.children.values()
        await asyncio.gather(*[loop.run_in_executor(None, each.prepare) for each in children])
        for crash in self._crashes:
            await until_success(partial(self._recover, crash), self._backoff("release tasks"), self._passes)
        self._context.started.recovered()

    async def _check_schema(self) -> None:
        run, within = self._context.database.run, self._schema_within
        self._schema_within = min(2 * within, LONGEST_SCHEMA_CHECK)  # for the next try, if this one times out
        for spec in self._specs:
            await run(partial(_check_queue, spec=spec, needs_locks=spec in self._locked), within)
            await self._warn(spec, within)
        engine = self._context.database.engine
        for spec in {(engine(spec), spec.table.metadata): spec for spec in self._specs}.values():
            await run(partial(_check_companions, spec=spec), within)
        await self._context.paused.look()

    async def _warn(self, spec: QueueSpec, within: timedelta) -> None:
        """Log findings that do not keep the worker from starting, and nor does an error while they are looked for."""
        try:
            found = await self._context.database.run(partial(_unintended_tasks, spec=spec), within)
        except Exception as error:
            if self._passes(error):
                raise
            logger.warning("cannot check the rows of %s: %s", spec.table.fullname, brief(error_text(error)))
            return
        for finding in found:
            logger.warning("%s; %s", finding.message, finding.fix)

    async def _recover(self, crash: Crash) -> None:
        """Release the tasks of a process before anything is claimed: one that only a lock held could be claimed again
        at once."""
        for spec in self._specs:
            within = maintenance_limit(spec.options.lease)
            found = await self._context.database.run(partial(recover, spec=spec, crash=crash), within)
            self._context.reports.recovered(spec, found)

    def _backoff(self, what: str) -> Backoff:
        return Backoff(what, self._context.reports, *{self._context.adapter(spec) for spec in self._specs})

    def _passes(self, error: BaseException) -> bool:
        return any(passes(error, self._context.adapter(spec)) for spec in self._specs)


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


def _unintended_tasks(session: Session, spec: QueueSpec) -> list[Finding]:
    return unintended_tasks(session.connection(spec.bind_arguments), spec)


def _check_companions(session: Session, spec: QueueSpec) -> None:
    verify_companions(session.connection(spec.bind_arguments), spec.table.metadata)


# -- makes the parts of a run from the handlers and settings of its worker --------------------------------------------


def make_context(
    handlers: Sequence[Handler],
    database: Database,
    reports: Reports,
    settings: Settings,
    origin: str | None,
    *,
    memory: Any,
) -> WorkerContext:
    """Return the state that the parts of a run share.  Call it on the event loop of the run.

    ``origin``: where child processes import the worker from; ``memory``: for the tasks that the run starts, see
    :class:`.StartedTasks`.
    """
    _apply_leases(handlers, database, reports)
    specs = handled_specs(handlers)
    in_flight = InFlight()
    completers = {
        spec: Completer(database, adapter_for(database.engine(spec).dialect), in_flight, reports) for spec in specs
    }
    paused = PausedQueues(specs, database, settings.poll, reports)
    children = _children(handlers, origin, reports, of=_has_children)
    importable = origin if is_importable(origin) else None
    context = WorkerContext(
        given_name=settings.name or default_claimer(),
        poll=settings.poll,
        database=database,
        paused=paused,
        in_flight=in_flight,
        completers=completers,
        children=children,
        apart=_children(handlers, importable, reports, of=_may_have_suspects) | children,
        reports=reports,
        started=StartedTasks(memory),
    )
    context.started.claim_by(context.tokens.worker)
    return context


def make_fetchers(handlers: Sequence[Handler], context: WorkerContext) -> list[BaseFetcher]:
    """Return the fetchers, one for each handler in the same order, and make them known to the suspects."""
    fetchers: list[BaseFetcher] = [
        (each.fetcher or (LockModeFetcher if each.mode == "lock" else Fetcher))(each, context) for each in handlers
    ]
    context.suspects.fetchers = fetchers
    return fetchers


def make_heartbeats(handlers: Sequence[Handler], context: WorkerContext) -> list[Heartbeat]:
    """Return the threads that extend leases, one for each queue.  They have not been started."""
    specs, database = handled_specs(handlers), context.database
    own = SharedConnections(database.own, len(specs))
    return [Heartbeat(spec, handlers, database, context.in_flight, context.reports, own=own) for spec in specs]


def _apply_leases(handlers: Sequence[Handler], database: Database, reports: Reports) -> None:
    """Limit the silence of connections, and the time without a response for which the worker counts as ready."""
    within = transaction_limit(min(handler.lease for handler in handlers))
    for spec in handled_specs(handlers):
        track(database.engine(spec), within)
    reports.liveness.ready_within = min(STALLED, within.total_seconds() * BEATS)


def _children(
    handlers: Sequence[Handler], origin: str | None, reports: Reports, *, of: Callable[[Handler], bool]
) -> dict[Handler, Children]:
    """Return the child processes of some handlers; none if these could not import the worker."""
    if origin is None:
        return {}
    return {each: Children(place_of(each, handlers, origin), each, reports) for each in handlers if of(each)}


def _has_children(handler: Handler) -> bool:
    return handler.isolation == "process"


def _may_have_suspects(handler: Handler) -> bool:
    """Return whether suspected tasks of this handler run in child processes, unlike its other tasks."""
    return handler.mode == "lease" and handler.fetcher is None and handler.isolation is None


# -- one run of a worker, from its start to its end -------------------------------------------------------------------
#
# :meth:`WorkerRun.serve` prepares the run, runs fetchers that claim tasks and call handlers, and completers that write
# the outcomes, waits until it is told to stop, and ends these parts in the order in which they depend on each other.

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
        adapters = {self._context.adapter(spec) for spec in self._specs}
        backoff = Backoff("run a suspect", self._context.reports, *adapters)
        suspects = asyncio.create_task(self._context.suspects.run(backoff))
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
