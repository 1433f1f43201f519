"""Charts, computed here and drawn as SVG by a template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy.orm import Session

from .. import operations
from ..operations import Bucket
from ..operations.paging import finds_finished
from ..queue.spec import QueueSpec
from ..transaction import open_
from .rendering import span

WIDTH, HEIGHT = 480, 96
_FOOT = 2
ROWS = 5_000
"""The maximum number of finished tasks that a chart reads, starting with the last."""


class Period(NamedTuple):
    """How far back a chart goes."""

    name: str
    since: timedelta
    bucket: timedelta
    lifetime: float
    """Seconds for which viewers share the chart."""


HOUR = Period("hour", timedelta(hours=1), timedelta(minutes=2), 15)
DAY = Period("day", timedelta(days=1), timedelta(hours=1), 30)


class Bar(NamedTuple):
    """A rectangle; ``kind`` names what it counts."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Throughput and durations over a period."""

    period: str
    bars: Sequence[Bar]
    most: int
    """The number of tasks in the highest bar."""
    lines: Sequence[tuple[str, str]]
    """What each line shows, and its points: the buckets that have a value."""
    longest: timedelta
    """The duration at the top of the lines' chart."""
    summary: str
    """A description of the chart."""
    is_partial: bool
    """Whether there are more finished tasks than were read, so that the chart begins with a gap."""


def chart_of(session: Session, spec: QueueSpec, period: Period) -> Chart | None:
    """Read the tasks that finished in a period, and draw them; ``None`` if no index finds them."""
    if not finds_finished(open_(session, spec), spec):
        return None
    buckets = operations.timeline(session, spec.entity, bucket=period.bucket, since=period.since, cap=ROWS)
    return draw(buckets, period.name)


def draw(buckets: Sequence[Bucket], period: str) -> Chart:
    """Draw buckets of time."""
    most = max((each.completed + each.failed + each.cancelled for each in buckets), default=0)
    ran = [each.run_time.p95 for each in buckets]
    waited = [each.waiting_time.p95 for each in buckets]
    longest = max((each for each in (*ran, *waited) if each is not None), default=timedelta(0))
    lines = (("ran", ran), ("waited", waited)) if longest else ()
    return Chart(
        period=period,
        bars=list(_bars(buckets, most)),
        most=most,
        lines=[(kind, _points(durations, longest)) for kind, durations in lines],
        longest=longest,
        summary=_summary(buckets, period),
        is_partial=any(each.capped for each in buckets),
    )


def _bars(buckets: Sequence[Bucket], most: int) -> Iterator[Bar]:
    width = WIDTH / max(len(buckets), 1)
    for number, bucket in enumerate(buckets):
        top = float(HEIGHT)
        for kind in ("completed", "failed", "cancelled"):
            count = getattr(bucket, kind)
            if count:
                height = max((HEIGHT - _FOOT) * count / most, 1.5)
                top -= height
                text = f"{bucket.start:%H:%M}Z: {count:,} {kind}"
                left = round(number * width + 0.5, 2)
                yield Bar(kind, left, round(top, 2), round(width - 1, 2), round(height, 2), text)


def _points(durations: Sequence[timedelta | None], longest: timedelta) -> str:
    width = WIDTH / max(len(durations), 1)
    return " ".join(
        f"{(number + 0.5) * width:.1f},{HEIGHT - 1 - (HEIGHT - _FOOT) * (took / longest):.1f}"
        for number, took in enumerate(durations)
        if took is not None
    )


def _summary(buckets: Sequence[Bucket], period: str) -> str:
    parts = [
        f"{sum(getattr(each, kind) for each in buckets):,} {kind}" for kind in ("completed", "failed", "cancelled")
    ]
    ran = [each.run_time.p95 for each in buckets if each.run_time.p95 is not None]
    took = f"; the highest 95th-percentile run time is {span(max(ran))}" if ran else ""
    return f"Last {period}: {', '.join(parts)}{took}."
