"""The page of all queues: what they hold now, and what ended over a period."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from .. import operations
from ..operations import Bucket, Pause, QueueOverview
from ..operations.paging import SCAN
from ..queue.options import Status
from ..queue.spec import QueueSpec
from .charts import PERIODS, Chart, Ended, Period, Queues, counts_chart, durations_chart, period_of, read_buckets
from .site import CAP, respond, site_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue as shown in the table."""

    spec: QueueSpec
    figures: QueueOverview
    pauses: Sequence[Pause]
    ended: Ended | None
    """What ended in the period; ``None`` if nothing says it."""
    chart: Chart | None


async def show_overview(request: Request) -> Response:
    """Show all queues, and what ended in them over the period that the URL names."""
    site, period = site_of(request), period_of(request)
    specs = list(site.queues.values())
    found = await site.read_each("figures", figures_of, specs)
    read = partial(read_buckets, period=period)
    buckets = await site.read_each(period.name, read, specs, lifetime=period.lifetime)
    rows = [
        _row(spec, *figures, of_queue, period) for spec, figures, of_queue in zip(specs, found, buckets, strict=True)
    ]
    known = {spec.name: of_queue for spec, of_queue in zip(specs, buckets, strict=True) if of_queue is not None}
    return respond(
        request,
        "overview.html",
        queues=rows,
        total=_sum(figures for figures, _ in found),
        ended=Ended.of(chain.from_iterable(known.values())) if known else None,
        charts=_charts(known, period),
        period=period,
        periods=PERIODS,
    )


def figures_of(session: Session, spec: QueueSpec) -> tuple[QueueOverview, list[Pause]]:
    """Read the figures of a queue and its pauses, which the page of the queue shares."""
    return operations.overview(session, spec.entity, cap=CAP, scan=SCAN), operations.paused(session, spec.entity)


def _row(
    spec: QueueSpec, figures: QueueOverview, pauses: Sequence[Pause], ended: Sequence[Bucket] | None, period: Period
) -> QueueRow:
    return QueueRow(
        spec=spec,
        figures=figures,
        pauses=pauses,
        ended=None if ended is None else Ended.of(ended),
        chart=None if ended is None else counts_chart(spec.name, {"": ended}, period),
    )


def _charts(queues: Queues, period: Period) -> list[Chart]:
    """Draw what ended, what failed, and how late tasks began, in all queues together."""
    if not queues:
        return []
    unit = Ended.of(chain.from_iterable(queues.values())).unit
    return [
        counts_chart(f"Ended {unit}", queues, period),
        counts_chart(f"Failed {unit}", queues, period, ["failed"]),
        durations_chart("Waiting time (95th percentile)", {"waiting": lambda each: each.waiting_time}, queues, period),
    ]


def _sum(queues: Iterable[QueueOverview]) -> QueueOverview:
    """Add up the figures of queues; ages are those of the oldest."""
    every = list(queues)
    waits = [each.oldest_claimable for each in every if each.oldest_claimable is not None]
    runs = [each.oldest_running for each in every if each.oldest_running is not None]
    return QueueOverview(
        {status: sum(each[status] for each in every) for status in Status},
        sum(each.abandoned for each in every),
        frozenset().union(*(each.capped for each in every)),
        claimable=sum(each.claimable for each in every),
        limited=sum(each.limited for each in every),
        oldest_claimable=max(waits, default=None),
        oldest_running=max(runs, default=None),
    )
