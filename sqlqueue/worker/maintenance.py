"""What has to be done to queues now and then, by any number of workers at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial

from sqlalchemy.orm import Session

from .. import operations
from ..spec import QueueSpec
from .crew import Crew
from .patience import insist
from .reports import Reports

RESCUE_EVERY = timedelta(seconds=30)
PRUNE_EVERY = timedelta(minutes=5)
REPORT_EVERY = timedelta(minutes=1)
PRUNED = 1_000
"""Rows that one transaction deletes at the most."""


async def maintain(specs: Iterable[QueueSpec], crew: Crew) -> None:
    """Until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for spec in specs:
            for chore, every in _chores(spec, crew.reports):
                tasks.create_task(_repeat(chore, every, crew))


def _chores(spec: QueueSpec, reports: Reports) -> Iterable[tuple[Callable[[Session], int], timedelta]]:
    yield partial(operations.rescue, entity=spec.entity), RESCUE_EVERY
    if spec.options.prunes:
        yield partial(operations.prune, entity=spec.entity, limit=PRUNED), PRUNE_EVERY
    if reports.wants_depth:
        yield partial(_report_depth, spec=spec, reports=reports), REPORT_EVERY


def _report_depth(session: Session, spec: QueueSpec, reports: Reports) -> int:
    reports.depth(spec, operations.stats(session, spec.entity))
    return 0


async def _repeat(chore: Callable[[Session], int], every: timedelta, crew: Crew) -> None:
    while True:
        await asyncio.sleep(every.total_seconds() * random.uniform(0.75, 1.25))
        try:
            while await insist(lambda: crew.database.run(chore), "maintain a queue", crew.reports) >= PRUNED:
                pass
        except Exception as error:  # such as for rows that others refer to
            crew.reports.broken("maintain a queue", error)
