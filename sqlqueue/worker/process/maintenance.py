"""Maintenance of queues: rescue, prune and report.  Any number of workers may run it at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from sqlalchemy import event
from sqlalchemy.orm import Session

from ... import operations
from ...dialects.base import Adapter
from ...model.companions import history_of
from ...operations.upkeep import exhausted
from ...operations.workers import unserved_functions
from ...queue.spec import QueueSpec
from ..database.backoff import Backoff, passes, until_success
from ..database.deadlines import maintenance_limit
from ..fetching.context import WorkerContext
from ..reporting.reports import Reports

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


async def maintain(specs: Iterable[QueueSpec], context: WorkerContext) -> None:
    """Run the chores of all queues until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for spec in specs:
            for chore in _chores(spec, context):
                tasks.create_task(_repeat(chore, context, context.adapter(spec)))


def _chores(spec: QueueSpec, context: WorkerContext) -> Iterator[Chore]:
    name, entity, reports = spec.entity.__name__, spec.entity, context.reports
    chore = partial(Chore, within=maintenance_limit(spec.options.lease))
    yield chore(name=f"rescuing {name}", work=partial(_rescue, spec=spec, reports=reports), every=RESCUE_EVERY)
    if spec.options.prunes:
        work = partial(operations.prune, entity=entity, limit=PRUNED)
        yield chore(name=f"pruning {name}", work=work, every=PRUNE_EVERY)
    history = history_of(spec.table.metadata)
    if history is not None and history.options.retention is not None:
        old = partial(operations.prune_history, entity=entity, limit=PRUNED)
        yield chore(name=f"pruning the history of {name}", work=old, every=PRUNE_EVERY)
    figures = partial(_report_overview, spec=spec, reports=reports)
    yield chore(name=f"measuring {name}", work=figures, every=MEASURE_EVERY)
    if "task" in spec.columns:
        yield chore(
            name=f"looking for unserved functions of {name}", work=UnservedFunctions(spec, context), every=REPORT_EVERY
        )
    if reports.wants_depth:
        depth = partial(_report_depth, spec=spec, reports=reports)
        yield chore(name=f"counting {name}", work=depth, every=REPORT_EVERY)


def _rescue(session: Session, spec: QueueSpec, reports: Reports) -> int:
    """Call :func:`.rescue` if any task is exhausted, and report it after the commit.  Returns the number of rows."""
    # with schedules, the outcome of a task depends on its row
    some = exhausted(session, spec.entity, limit=PRUNED if spec.recurs else reports.named)
    number = operations.rescue(session, spec.entity, limit=PRUNED) if some else 0
    if number:
        event.listen(session, "after_commit", lambda _: reports.crashed(spec, number, some), once=True)
    return number


def _report_depth(session: Session, spec: QueueSpec, reports: Reports) -> int:
    reports.depth(spec, operations.stats(session, spec.entity, cap=None))  # a gauge cannot express a lower bound
    return 0


def _report_overview(session: Session, spec: QueueSpec, reports: Reports) -> int:
    if reports.wants_overview:
        reports.overview(spec, operations.overview(session, spec.entity))
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
    backoff = Backoff(f"finish {chore.name}", context.reports, adapter)
    run, may_pass = partial(context.database.run, chore.work, chore.within), partial(passes, adapter=adapter)
    while True:
        await asyncio.sleep(chore.every.total_seconds() * random.uniform(0.75, 1.25))
        try:
            while await until_success(run, backoff, may_pass) >= PRUNED:
                pass
        except Exception as error:  # the other chores go on
            context.reports.chore_failed(chore.name, error)
