"""The figures of other libraries, from what their processes report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from ..figures import Spread
from .contenders import PeerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """A drain: jobs per second of all processes, and their CPU milliseconds per 1,000 jobs."""

    jobs_per_second: float
    cpu_ms_per_1000: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds until the handler is called."""

    p50: float
    p99: float
    from_call_p50: float
    """Measured from the call that enqueues; the other values are measured from the call of the commit."""


@dataclass(slots=True, kw_only=True)
class ContenderResults:
    """The results of a contender, a value for each round."""

    name: str
    version: str = ""
    drains: dict[int, list[Drained]] = field(default_factory=dict)
    """By number of processes."""
    enqueue_p50: list[float] = field(default_factory=list)
    pickups: list[Latency] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFigure:
    """The medians of a contender; ``None`` or empty for values that are not measured for it."""

    name: str
    version: str
    jobs_per_second: dict[int, Spread]
    """By number of processes."""
    ratios: dict[int, Spread]
    """Ratios of the rates to those of psycopg by hand in the same round, if it was measured."""
    cpu_ms_per_1000: float | None
    """Of one process."""
    enqueue_p50: float | None
    """Milliseconds to enqueue one job and commit."""
    pickup: Latency | None
    rounds: ContenderResults


def drained(reports: Sequence[dict[str, Any]], jobs: int, *, is_done: bool) -> Drained:
    """Return the rate of a drain, from the time when all processes work and a tenth of the jobs is done until the last
    call. Raises :class:`.PeerError` if a job was done twice, or if ``is_done`` and one was not done.
    """
    marks = sorted((moment, number) for each in reports for number, moment in each["marks"])
    numbers = {number for _, number in marks}
    if len(numbers) < len(marks) or (is_done and len(marks) != jobs):
        raise PeerError(f"{len(marks)} calls for {len(numbers)} of {jobs} jobs")
    all_work = max((each["marks"][0][1] for each in reports if each["marks"]), default=0.0)
    counted = [moment for moment, _ in marks[len(marks) // 10 :] if moment >= all_work]
    if len(counted) < 2 or counted[-1] <= counted[0]:  # noqa: PLR2004
        raise PeerError(f"{len(marks)} of {jobs} jobs were started: too few to measure a rate")
    return Drained(
        jobs_per_second=round((len(counted) - 1) / (counted[-1] - counted[0]), 1),
        cpu_ms_per_1000=round(sum(each["cpu"] for each in reports) * 1_000_000 / len(marks), 1),
    )


def latency(sent: Sequence[tuple[int, float, float]], marks: Sequence[tuple[int, float]]) -> Latency:
    """Return the delays from the calls and commits in ``sent`` to the calls of the handlers."""
    started = dict(marks)
    from_commit = [(started[number] - commit) * 1_000 for number, _, commit in sent]
    from_call = [(started[number] - call) * 1_000 for number, call, _ in sent]
    return Latency(
        p50=round(median(from_commit), 2),
        p99=round(quantiles(from_commit, n=100, method="inclusive")[98], 2),
        from_call_p50=round(median(from_call), 2),
    )


def _ratios(mine: ContenderResults, baseline: ContenderResults) -> dict[int, Spread]:
    return {
        processes: Spread.of(
            [
                one.jobs_per_second / other.jobs_per_second
                for one, other in zip(drains, baseline.drains[processes], strict=True)
            ]
        )
        for processes, drains in mine.drains.items()
    }


def figure_of(results: ContenderResults, baseline: ContenderResults | None) -> PeerFigure:
    """Return the medians of ``results``, compared with ``baseline`` in each round."""
    first, *_ = results.drains.values()
    pickups = results.pickups
    return PeerFigure(
        name=results.name,
        version=results.version,
        jobs_per_second={
            processes: Spread.of([each.jobs_per_second for each in drains])
            for processes, drains in results.drains.items()
        },
        ratios=_ratios(results, baseline) if baseline else {},
        cpu_ms_per_1000=round(median(each.cpu_ms_per_1000 for each in first), 1),
        enqueue_p50=round(median(results.enqueue_p50), 2) if results.enqueue_p50 else None,
        pickup=Latency(
            p50=median(each.p50 for each in pickups),
            p99=median(each.p99 for each in pickups),
            from_call_p50=median(each.from_call_p50 for each in pickups),
        )
        if pickups
        else None,
        rounds=results,
    )
