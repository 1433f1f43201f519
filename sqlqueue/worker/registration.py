"""What a running worker does besides its jobs: it registers, and rescues, promotes and prunes for all."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sqlalchemy import Engine, Table, delete, event, insert, select, update
from sqlalchemy.orm import Session

from .. import operations
from .._support.processes import birth_of, has_ended, resident_memory
from .._support.texts import host_name
from ..dialects.base import Adapter
from ..model.companions import EVERY, LatchTable, history_of, latches_of, worker_table
from ..operations.control import unserved_functions
from ..operations.flows import unfinished_batches
from ..operations.keys import count_keys
from ..operations.upkeep import exhausted
from ..operations.workers import ENDED, Command, release_held, silent_workers
from ..queue.spec import QueueSpec
from ..sql import utcnow
from ..transaction import Access, open_
from .context import WorkerContext
from .database import Backoff, SharedConnections, until_success
from .deadlines import SHORTEST_MAINTENANCE, maintenance_limit
from .fetcher import BaseFetcher
from .news import WatchedTables
from .reports import Reports, logger
from .threads import cancel, happens_within

if TYPE_CHECKING:
    from .metrics import PrometheusMetrics
    from .telemetry import Telemetry

# -- registers a running worker in the database, and executes the commands in its row ---------------------------------

R = TypeVar("R")
FORGET = timedelta(hours=1)
"""The age of the last report at which the row of a dead worker is removed."""
FORGET_EVERY = timedelta(minutes=5)
REMOVAL_LIMIT = timedelta(seconds=5)
"""The time limit for removing the rows when the worker ends."""


class _Commands(NamedTuple):
    command: str | None = None
    concurrency: int | None = None


class Registration(WatchedTables):
    """The rows of one worker, one in each table of workers of its queues; nothing is sent if there is none.

    A row is written in a separate transaction, on a connection of the application's pool, every ten seconds; the same
    transaction reads the commands.  A notification makes the worker read commands sooner.
    """

    def __init__(self, fetchers: Sequence[BaseFetcher], context: WorkerContext, version: str | None) -> None:
        self._fetchers = fetchers
        self._context = context
        self._version = version
        self._id = uuid.uuid4().hex
        self._begun = time.monotonic()
        self._places: dict[tuple[Engine, Table], QueueSpec] = {}
        """The tables of workers, each with one queue through which a session reaches it."""
        for spec in context.specs:
            if (table := worker_table(spec.table.metadata)) is not None:
                self._places[context.database.engine(spec), table] = spec
        self._commands: dict[Table, _Commands] = {}
        self._released: set[str] = set()
        """The ids of workers whose tasks have been released because their processes have ended."""
        self._leaving = False
        super().__init__(self._places)

    def handlers(self) -> list[dict[str, Any]]:
        """Return all handlers as they are now, as JSON."""
        return [self._handler(fetcher) for fetcher in self._fetchers]

    async def run(self) -> None:
        """Write the rows, and obey commands, until :meth:`leave`."""
        if not self._places:
            return
        report, forget = 0.0, time.monotonic() + FORGET_EVERY.total_seconds() * random.random()
        while not self._leaving:
            now = time.monotonic()
            is_due = now >= report
            if is_due:
                report = now + EVERY.total_seconds()
            for (_, table), spec in self._places.items():
                work = partial(_report, spec=spec, table=table, row=self._row(table)) if is_due else None
                commands = await self._attempt(work or partial(_read, spec=spec, table=table, key=self._id))
                if commands is not None:
                    self._obey(table, commands)
                if is_due:
                    await self._release_ended(table, spec)
                if now >= forget:
                    await self._attempt(partial(_forget, spec=spec, table=table))
            if now >= forget:
                forget = now + FORGET_EVERY.total_seconds()
            await happens_within(self._news, max(0, report - time.monotonic()))
            self._news.clear()

    def tell_stall(self, own: SharedConnections, since: float) -> None:
        """Write the rows from another thread, while the event loop has been standing still ``since`` that time."""
        for (engine, table), spec in self._places.items():
            row = self._row(table) | {"stalled_at": utcnow(timedelta(seconds=since - time.monotonic()))}
            try:
                own.run(engine, partial(_report, spec=spec, table=table, row=row), SHORTEST_MAINTENANCE)
            except Exception as error:
                self._context.reports.database_error("register the worker", error, EVERY)

    async def leave(self, running: asyncio.Task[None]) -> None:
        """End :meth:`run`, which runs in this task, and remove the rows, because the worker shuts down cleanly."""
        self._leaving = True
        self._news.set()
        await asyncio.wait({running}, timeout=REMOVAL_LIMIT.total_seconds())  # it might write a row after the removal
        await cancel(running)
        if self._context.reports.liveness.away_seconds:
            return  # other workers remove the rows later
        for (_, table), spec in self._places.items():
            with suppress(Exception):
                await self._context.database.run(partial(_leave, spec=spec, table=table, key=self._id), REMOVAL_LIMIT)

    async def _attempt(self, work: Callable[[Session], R]) -> R | None:
        try:
            return await self._context.database.run(work, SHORTEST_MAINTENANCE)
        except Exception as error:  # the worker does its work without being registered
            self._context.reports.database_error("register the worker", error, EVERY)
            return None

    async def _release_ended(self, table: Table, spec: QueueSpec) -> None:
        """Release the tasks of silent workers whose processes are known to have ended.

        A supervisor that is alive knows more about the tasks of a process, and has released them before it is silent.
        """
        for gone in await self._attempt(partial(silent_workers, spec=spec, host=host_name())) or ():
            if gone.id in self._released or not has_ended(gone.process, gone.birth):
                continue
            mine = [each for each in self._context.specs if worker_table(each.table.metadata) is table]
            left = False
            for each in mine:
                work = partial(release_held, spec=each, claimer=gone.claimer, reason=ENDED)
                released = await self._attempt(work)
                left |= released is None or released.locked > 0
                if released:
                    self._context.reports.released(each, gone.name, released)
            if not left:
                self._released.add(gone.id)

    def _obey(self, table: Table, commands: _Commands) -> None:
        before, self._commands[table] = self._commands.get(table, _Commands()), commands
        if commands.concurrency != before.concurrency:
            for fetcher in self._of(table):
                fetcher.resize(commands.concurrency or fetcher.handler.concurrency)
            logger.info(
                "worker %s runs %s calls of each handler",
                self._context.name,
                commands.concurrency or "the registered number of",
            )
        if commands.command == before.command or commands.command is None:
            return
        logger.info("worker %s received the command %s", self._context.name, commands.command)
        if commands.command == Command.DRAIN:
            self._context.stopping.drain()
        else:
            self._context.stopping.make(at_once=False)

    def _row(self, table: Table) -> dict[str, Any]:
        claimed, now = self._context.reports.last_claim, time.monotonic()
        return {
            "id": self._id,
            "name": self._context.name,
            "host": host_name(),
            "process": self._context.process,
            "birth": birth_of(self._context.process),
            "claimer": self._context.tokens.worker,
            "started_at": utcnow(timedelta(seconds=self._begun - now)),
            "seen_at": utcnow(),
            "stalled_at": None,
            "version": self._version,
            "handlers": [self._handler(fetcher) for fetcher in self._of(table)],
            "last_claim_at": None if claimed is None else utcnow(timedelta(seconds=claimed - now)),
            "memory": resident_memory(),
        }

    def _of(self, table: Table) -> list[BaseFetcher]:
        return [each for each in self._fetchers if worker_table(each.handler.spec.table.metadata) is table]

    def _handler(self, fetcher: BaseFetcher) -> dict[str, Any]:
        handler = fetcher.handler
        mine = (job for job in self._context.in_flight if job.handler is handler)
        return {
            "queue": handler.spec.name,
            "functions": None if handler.functions is None else list(handler.functions),
            "whole": not handler.where and handler.functions is None,
            "slots": fetcher.slots,
            "busy": sum(job.started is not None and job.seconds is None for job in mine),
        }


def _report(session: Session, spec: QueueSpec, table: Table, row: Mapping[str, Any]) -> _Commands:
    """Write the row, and return its commands."""
    rows = open_(session, spec, Access.CHANGE).rows
    changes = {name: row[name] for name in ("seen_at", "stalled_at", "handlers", "last_claim_at", "memory")}
    if not rows.count(session, spec, update(table).where(table.c.id == row["id"]).values(**changes)):
        rows.execute(session, spec, insert(table).values(**row))
    return _read(session, spec, table, row["id"])


def _read(session: Session, spec: QueueSpec, table: Table, key: str) -> _Commands:
    asked = select(table.c.command, table.c.concurrency).where(table.c.id == key)
    found: Any = open_(session, spec).rows.execute(session, spec, asked).one_or_none()
    return _Commands() if found is None else _Commands(*found)


def _leave(session: Session, spec: QueueSpec, table: Table, key: str) -> None:
    open_(session, spec, Access.CHANGE).rows.execute(session, spec, delete(table).where(table.c.id == key))


def _forget(session: Session, spec: QueueSpec, table: Table) -> None:
    """Remove the rows of workers that died long ago, by key, so that this waits for no other worker."""
    rows = open_(session, spec, Access.SKIP).rows
    old: Any = rows.execute(session, spec, select(table.c.id).where(table.c.seen_at < utcnow(-FORGET)))
    for key in sorted(old.scalars()):
        rows.execute(session, spec, delete(table).where(table.c.id == key))


# -- maintenance of queues: rescue, prune and report. Any number of workers may run it at once ------------------------

RESCUE_EVERY = timedelta(seconds=30)
PRUNE_EVERY = timedelta(minutes=5)
REPORT_EVERY = timedelta(minutes=1)
MEASURE_EVERY = timedelta(seconds=15)
PRUNED = 1_000
"""The maximum number of rows that one transaction deletes or discards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """A periodic operation on one queue."""

    name: str
    """As in the log line "pruning Order failed"."""
    work: Callable[[Session], int]
    every: timedelta
    within: timedelta
    """Its deadline, after which it is tried again."""


async def maintain(context: WorkerContext) -> None:
    """Run the chores of all queues until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for spec in context.specs:
            for chore in _chores(spec, context):
                tasks.create_task(_repeat(chore, context, context.adapter(spec)))
        places = {(context.database.engine(spec), latches_of(spec)): spec for spec in context.specs}
        for (_, latches), spec in places.items():
            for chore in () if latches is None else _chores_of_latches(spec, latches, context.reports):
                tasks.create_task(_repeat(chore, context, context.adapter(spec)))


def _chores(spec: QueueSpec, context: WorkerContext) -> Iterator[Chore]:
    name, entity, reports = spec.name, spec.entity, context.reports
    chore = partial(Chore, within=maintenance_limit(spec.options.lease))
    yield chore(name=f"rescuing {name}", work=partial(_rescue, spec=spec, reports=reports), every=RESCUE_EVERY)
    if spec.options.prunes:
        work = partial(operations.prune, entity=entity, limit=PRUNED)
        yield chore(name=f"pruning {name}", work=work, every=PRUNE_EVERY)
    history = history_of(spec.table.metadata)
    if history is not None and history.options.retention is not None:
        old = partial(operations.prune_history, entity=entity, limit=PRUNED)
        yield chore(name=f"pruning the history of {name}", work=old, every=PRUNE_EVERY)
    if reports.prometheus is not None:
        figures = partial(_measure, spec=spec, prometheus=reports.prometheus)
        yield chore(name=f"measuring {name}", work=figures, every=MEASURE_EVERY)
    if "task" in spec.columns:
        yield chore(
            name=f"looking for unserved functions of {name}", work=UnservedFunctions(spec, context), every=REPORT_EVERY
        )
    if reports.telemetry is not None:
        depth = partial(_report_depth, spec=spec, telemetry=reports.telemetry)
        yield chore(name=f"counting {name}", work=depth, every=REPORT_EVERY)


def _chores_of_latches(spec: QueueSpec, latches: LatchTable, reports: Reports) -> Iterator[Chore]:
    """Yield the chores of a table of latches, once for all queues that share it; ``spec`` is one of these."""
    name, chore = latches.table.fullname, partial(Chore, within=maintenance_limit(spec.options.lease))
    if latches.options.retention is not None:
        ended = partial(operations.prune_batches, entity=spec.entity, limit=PRUNED)
        yield chore(name=f"pruning {name}", work=ended, every=PRUNE_EVERY)
    if reports.prometheus is not None:
        figures = partial(_measure_batches, spec=spec, name=name, prometheus=reports.prometheus)
        yield chore(name=f"measuring {name}", work=figures, every=MEASURE_EVERY)


def _rescue(session: Session, spec: QueueSpec, reports: Reports) -> int:
    """Call :func:`.rescue` if any task is exhausted, and report it after the commit.  Returns the number of rows."""
    # with schedules, the outcome of a task depends on its row
    some = exhausted(session, spec.entity, limit=PRUNED if spec.recurs else reports.named)
    number = operations.rescue(session, spec.entity, limit=PRUNED) if some else 0
    if number:
        event.listen(session, "after_commit", lambda _: reports.crashed(spec, number, some), once=True)
    return number


def _report_depth(session: Session, spec: QueueSpec, telemetry: Telemetry) -> int:
    telemetry.depth(spec, operations.stats(session, spec.entity, cap=None))  # a gauge cannot express a lower bound
    return 0


def _measure(session: Session, spec: QueueSpec, prometheus: PrometheusMetrics) -> int:
    if prometheus.is_watched:
        prometheus.gauges.overviews[spec.name] = operations.overview(session, spec.entity)
        if spec.keyed_by is not None:
            prometheus.gauges.keys[spec.name] = count_keys(session, spec.entity)
    return 0


def _measure_batches(session: Session, spec: QueueSpec, name: str, prometheus: PrometheusMetrics) -> int:
    if prometheus.is_watched:
        prometheus.gauges.batches[name] = unfinished_batches(session, spec.entity)
    return 0


class UnservedFunctions:
    """Reports functions that no worker seems to have registered, each once for as long as that lasts."""

    def __init__(self, spec: QueueSpec, context: WorkerContext) -> None:
        self._spec = spec
        self._context = context
        self._known: set[str] = set()
        """Those that have been reported."""

    def __call__(self, session: Session) -> int:
        where = self._context.paused.where(self._spec)
        found = {} if where is None else unserved_functions(session, self._spec.entity, *where)
        for name in found.keys() - self._known:
            self._context.reports.unserved(self._spec, name, found[name])
        self._known = set(found)
        return 0


async def _repeat(chore: Chore, context: WorkerContext, adapter: Adapter) -> None:
    backoff = Backoff(f"finish {chore.name}", context.reports, [adapter])
    run = partial(context.database.run, chore.work, chore.within)
    while True:
        await asyncio.sleep(chore.every.total_seconds() * random.uniform(0.75, 1.25))
        try:
            while await until_success(run, backoff) >= PRUNED:
                pass
        except Exception as error:  # the other chores go on
            context.reports.chore_failed(chore.name, error)
