"""Charts of what ended over time, computed here and drawn as SVG by a template."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, count, pairwise
from typing import NamedTuple, TypeAlias

from sqlalchemy.orm import Session
from starlette.requests import Request

from .. import operations
from ..operations import Bucket, Durations
from ..queue.spec import QueueSpec
from .rendering import span

# -- how far back charts go, and what ended since then ----------------------------------------------------------------


class Period(NamedTuple):
    """How far back a chart goes."""

    name: str
    since: timedelta
    bucket: timedelta
    tick: timedelta
    """The time between two ticks."""
    format: str
    """How ticks are labelled."""
    moment: str
    """How the beginning of a bucket is named."""
    rows: int
    """The maximum number of finished tasks, and of attempts, that a chart reads of each queue, starting with the
    last."""
    lifetime: float
    """Seconds for which viewers share the chart."""


PERIODS = (
    Period("hour", timedelta(hours=1), timedelta(minutes=2), timedelta(minutes=15), "%H:%M", "%H:%M", 5_000, 15),
    Period("day", timedelta(days=1), timedelta(hours=1), timedelta(hours=6), "%H:%M", "%a %H:%M", 10_000, 60),
    Period("week", timedelta(days=7), timedelta(hours=6), timedelta(days=1), "%a", "%a %d %b %H:%M", 20_000, 300),
)


def period_of(request: Request) -> Period:
    """Return the period that the URL names; an hour by default."""
    named = request.query_params.get("period")
    return next((each for each in PERIODS if each.name == named), PERIODS[0])


def read_buckets(session: Session, spec: QueueSpec, period: Period) -> list[Bucket] | None:
    """Read what ended in a period, by buckets of time; ``None`` if no index finds it."""
    return operations.indexed_timeline(session, spec.entity, bucket=period.bucket, since=period.since, cap=period.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How much ended in a period."""

    completed: int
    failed: int
    cancelled: int
    unit: str
    """What is counted: attempts, tasks, or both, of different queues."""
    is_capped: bool
    """Whether there is more than was read."""

    @classmethod
    def of(cls, buckets: Iterable[Bucket]) -> Ended:
        """Add up buckets, of one queue or several."""
        every = list(buckets)
        return cls(
            completed=sum(each.completed for each in every),
            failed=sum(each.failed for each in every),
            cancelled=sum(each.cancelled for each in every),
            unit=" and ".join(sorted({"attempts" if each.attempts else "tasks" for each in every})),
            is_capped=any(each.capped for each in every),
        )

    def number(self, *kinds: str) -> str:
        """Return how many of these kinds, by default of all, ended, with a + if it is a lower bound."""
        return f"{sum(getattr(self, kind) for kind in kinds or COUNTED):,}{'+' if self.is_capped else ''}"

    def told(self, kinds: Sequence[str]) -> str:
        """Return the numbers of these kinds in words."""
        return ", ".join(f"{self.number(kind)} {kind}" for kind in kinds)


# -- a chart: columns of time with what ended then, and the ticks of its axes. All positions are percentages ----------


class Tick(NamedTuple):
    """A labelled position on an axis."""

    at: float
    text: str


class Mark(NamedTuple):
    """A bar of a column, or a dot in the middle of one; ``kind`` names what it shows."""

    kind: str
    y: float
    height: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A bucket of time."""

    x: float
    width: float
    time: str
    text: str
    """Its values in words; empty if there are none."""
    bars: Sequence[Mark]
    dots: Sequence[Mark]
    is_partial: bool
    """Whether more may have ended then than was read."""

    @property
    def middle(self) -> float:
        """The position of its dots."""
        return self.x + self.width / 2


class Line(NamedTuple):
    """A line between two dots of adjacent columns."""

    kind: str
    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Numbers or durations over a period."""

    title: str
    period: Period
    columns: Sequence[Column]
    times: Sequence[Tick]
    values: Sequence[Tick]
    kinds: Sequence[str]
    """What the legend explains."""
    summary: str
    unknown: Sequence[str] = ()
    """The queues in which something was completed, but no waiting times could be read."""

    @property
    def lines(self) -> Iterator[Line]:
        """The lines between dots of the same kind."""
        for left, right in pairwise(self.columns):
            ends = {dot.kind: dot.y for dot in right.dots}
            for dot in left.dots:
                if dot.kind in ends:
                    yield Line(dot.kind, left.middle, dot.y, right.middle, ends[dot.kind])

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not any(column.text for column in self.columns)

    @property
    def is_partial(self) -> bool:
        """Whether some columns show less than what ended then."""
        return any(column.is_partial for column in self.columns)


COUNTED = ("completed", "failed", "cancelled")
Queues: TypeAlias = Mapping[str, Sequence[Bucket]]
"""The buckets of queues, by name."""
_LEAST = 1.5
"""The height of the lowest bar, so that it can be seen."""


def counts_chart(title: str, queues: Queues, period: Period, kinds: Sequence[str] = COUNTED) -> Chart:
    """Draw how much of these ``kinds`` ended in each bucket, in all queues together, as bars."""
    ended = {start: Ended.of(each.values()) for start, each in _by_start(queues).items()}
    numbers = {start: [(kind, getattr(each, kind)) for kind in kinds] for start, each in ended.items()}
    most = max((sum(number for _, number in each) for each in numbers.values()), default=0)
    top, values = _scale(most, (exact * 10**power for power in count() for exact in (1, 2, 5)), "{:,}".format)

    def bars(start: datetime) -> Iterator[Mark]:
        level = _WHOLE
        for kind, number in numbers[start]:
            if number:
                height = max(_WHOLE * number / top, _LEAST)
                level -= height
                yield Mark(kind, round(level, 2), round(height, 2))

    def text(start: datetime) -> str:
        more = "+" if ended[start].is_capped else ""
        return ", ".join(f"{number:,}{more} {kind}" for kind, number in numbers[start] if number)

    total = Ended.of(chain.from_iterable(queues.values()))
    summary = f"{title}, last {period.name}: {total.told(kinds)}; at most {most:,} in {span(period.bucket)}."
    capped = {start: each.is_capped for start, each in ended.items()}
    columns, times = _columns(capped, period, text, bars=bars), list(_times(list(ended), period))
    return Chart(title, period, columns, times, values, kinds, summary)


def durations_chart(
    title: str, kinds: Mapping[str, Callable[[Bucket], Durations]], queues: Queues, period: Period
) -> Chart:
    """Draw the 95th percentiles of durations in each bucket, of the queue where they are longest, as lines."""
    by_start = _by_start(queues)
    longest: dict[datetime, dict[str, tuple[timedelta, str]]] = {
        start: {
            kind: max(took)
            for kind, durations in kinds.items()
            if (took := [(p95, name) for name, each in found.items() if (p95 := durations(each).p95) is not None])
        }
        for start, found in by_start.items()
    }
    most = max((took for each in longest.values() for took, _ in each.values()), default=timedelta(0))
    top, values = _scale(most.total_seconds(), _steps_of_time(), _short)

    def dots(start: datetime) -> Iterator[Mark]:
        for kind, (took, _) in longest[start].items():
            yield Mark(kind, round(_WHOLE - _WHOLE * took.total_seconds() / top, 2))

    def text(start: datetime) -> str:
        of = {kind: f" ({name})" if len(queues) > 1 else "" for kind, (_, name) in longest[start].items()}
        return ", ".join(f"{kind} {span(took)}{of[kind]}" for kind, (took, _) in longest[start].items())

    capped = {start: any(each.capped for each in found.values()) for start, found in by_start.items()}
    columns, times = _columns(capped, period, text, dots=dots), list(_times(list(by_start), period))
    unknown = [
        name
        for name, buckets in queues.items()
        if any(each.completed for each in buckets) and all(each.waiting_time.p95 is None for each in buckets)
    ]
    summary = f"{title}, last {period.name}: at most {span(most)}."
    return Chart(title, period, columns, times, values, list(kinds), summary, unknown)


_WHOLE = 100.0
_SPARSE = 4
"""The maximum number of steps on the axis of values."""


def _by_start(queues: Queues) -> dict[datetime, dict[str, Bucket]]:
    """Return the buckets of all queues by their start; queues that were read earlier may lack the last."""
    starts = sorted({each.start for buckets in queues.values() for each in buckets})
    found: dict[datetime, dict[str, Bucket]] = {start: {} for start in starts}
    for name, buckets in queues.items():
        for each in buckets:
            found[each.start][name] = each
    return found


def _columns(
    starts: Mapping[datetime, bool],
    period: Period,
    text: Callable[[datetime], str],
    bars: Callable[[datetime], Iterable[Mark]] = lambda _: (),
    dots: Callable[[datetime], Iterable[Mark]] = lambda _: (),
) -> list[Column]:
    """Return a column for each start of a bucket; ``starts``: whether it is partial."""
    width = _WHOLE / max(len(starts), 1)
    return [
        Column(
            x=round(number * width, 3),
            width=round(width, 3),
            time=f"{start:{period.moment}} to {start + period.bucket:%H:%M}",
            text=text(start),
            bars=list(bars(start)),
            dots=list(dots(start)),
            is_partial=is_partial,
        )
        for number, (start, is_partial) in enumerate(starts.items())
    ]


def _times(starts: Sequence[datetime], period: Period) -> Iterator[Tick]:
    """Yield the ticks of the axis of time, the first of which may be later than its beginning."""
    length = len(starts) * period.bucket
    for begin in starts[:1]:
        at = begin + -(begin - begin.replace(hour=0, minute=0)) % period.tick
        while at <= begin + length:
            yield Tick(round(_WHOLE * ((at - begin) / length), 2), f"{at:{period.format}}")
            at += period.tick


def _scale(most: float, steps: Iterable[float], text: Callable[[float], str]) -> tuple[float, list[Tick]]:
    """Return the value at the top of an axis, and its ticks."""
    step = next(step for step in steps if step * _SPARSE >= most)
    number = max(math.ceil(most / step), 1)
    return step * number, [Tick(round(_WHOLE - _WHOLE * n / number, 2), text(n * step)) for n in range(number + 1)]


def _short(seconds: float) -> str:
    return span(seconds).replace(".0 ", " ") if seconds else "0"


def _steps_of_time() -> Iterator[float]:
    """Yield steps in seconds that people count in, and whose multiples :func:`span` tells exactly."""
    yield from (exact / 1000 for exact in (1, 2, 5, 10, 20, 50, 100, 200, 500))
    yield from (1, 2, 5, 10, 15)
    yield from (minutes * 60 for minutes in (1, 2, 5, 10, 15, 30))
    yield from (hours * 3_600 for hours in (1, 2, 3, 6, 12))
    yield from (days * 86_400 for power in count() for days in (10**power, 2 * 10**power, 5 * 10**power))
