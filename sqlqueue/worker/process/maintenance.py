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
from ...lifecycle.kind import recurs
from ...operations.upkeep import exhausted
from ...queue.spec import QueueSpec
from ..database.backoff import insist, passes
from ..fetching.context import WorkerContext
from ..reporting.reports import Reports

RESCUE_EVERY = timedelta(seconds=30)
PRUNE_EVERY = timedelta(minutes=5)
REPORT_EVERY = timedelta(minutes=1)
PRUNED = 1_000
"""The most rows that one transaction deletes or discards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """A periodic operation on one queue."""

    name: str
    """As in the log line "pruning Order failed"."""
    work: Callable[[Session], int]
    every: timedelta


async def maintain(specs: Iterable[QueueSpec], context: WorkerContext) -> None:
    """Run the chores of all queues until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for spec in specs:
            for chore in _chores(spec, context.reports):
                tasks.create_task(_repeat(chore, context, partial(passes, adapter=context.adapter(spec))))


def _chores(spec: QueueSpec, reports: Reports) -> Iterator[Chore]:
    name, entity = spec.entity.__name__, spec.entity
    yield Chore(name=f"rescuing {name}", work=partial(_rescue, spec=spec, reports=reports), every=RESCUE_EVERY)
    if spec.options.prunes:
        work = partial(operations.prune, entity=entity, limit=PRUNED)
        yield Chore(name=f"pruning {name}", work=work, every=PRUNE_EVERY)
    if reports.wants_depth:
        depth = partial(_report_depth, spec=spec, reports=reports)
        yield Chore(name=f"counting {name}", work=depth, every=REPORT_EVERY)


def _rescue(session: Session, spec: QueueSpec, reports: Reports) -> int:
    """Call :func:`.rescue` if any task is exhausted, and report it after the commit.  Returns the number of rows."""
    # with schedules, what becomes of a task depends on its row
    some = exhausted(session, spec.entity, limit=PRUNED if recurs(spec) else reports.named)
    number = operations.rescue(session, spec.entity, limit=PRUNED) if some else 0
    if number:
        event.listen(session, "after_commit", lambda _: reports.crashed(spec, number, some), once=True)
    return number


def _report_depth(session: Session, spec: QueueSpec, reports: Reports) -> int:
    reports.depth(spec, operations.stats(session, spec.entity, cap=None))  # a gauge cannot express a lower bound
    return 0


async def _repeat(chore: Chore, context: WorkerContext, passes: Callable[[BaseException], bool]) -> None:
    what = f"finish {chore.name}"
    while True:
        await asyncio.sleep(chore.every.total_seconds() * random.uniform(0.75, 1.25))
        try:
            while await insist(lambda: context.database.run(chore.work), what, context.reports, passes) >= PRUNED:
                pass
        except Exception as error:  # the other chores go on
            context.reports.chore_failed(chore.name, error)
