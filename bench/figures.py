"""Figures: the results of all rounds of a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

ContenderKind: TypeAlias = Literal["sqlqueue", "driver", "orm"]
BASELINE_KINDS: tuple[ContenderKind, ...] = ("driver", "orm")
"""The kinds of contenders that others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median, minimum and maximum of some values."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of ``values``."""
        return cls(median=round(median(values), 3), least=round(min(values), 3), most=round(max(values), 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The result of one contender in one round."""

    jobs: int
    seconds: float
    jobs_per_second: float
    cpu_ms_per_1000: float
    """CPU time of the client processes, without the server's."""
    statements_per_job: float
    commits_per_job: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The result of one contender in all rounds."""

    form: str
    name: str
    kind: ContenderKind
    processes: int
    jobs_per_second: Spread
    cpu_ms_per_1000: float
    statements_per_job: float
    commits_per_job: float
    ratios: dict[ContenderKind, Spread]
    """Ratios of its jobs per second to those of each baseline in the same round."""
    rounds: list[Round]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A contender and its rounds."""

    form: str
    name: str
    kind: ContenderKind
    processes: int
    rounds: list[Round]

    def rivals(self, entries: Iterable[Entry]) -> dict[ContenderKind, Entry]:
        """Return the baselines of the same work, by kind."""
        same = [each for each in entries if (each.form, each.processes) == (self.form, self.processes)]
        return {each.kind: each for each in same if each.kind in BASELINE_KINDS and each.kind != self.kind}

    def figure(self, entries: Iterable[Entry]) -> Figure:
        """Return the figure of this contender, compared with the baselines among ``entries``."""
        return Figure(
            form=self.form,
            name=self.name,
            kind=self.kind,
            processes=self.processes,
            jobs_per_second=Spread.of([each.jobs_per_second for each in self.rounds]),
            cpu_ms_per_1000=round(median(each.cpu_ms_per_1000 for each in self.rounds), 1),
            statements_per_job=median(each.statements_per_job for each in self.rounds),
            commits_per_job=median(each.commits_per_job for each in self.rounds),
            ratios={kind: _ratios(self, rival) for kind, rival in self.rivals(entries).items()},
            rounds=self.rounds,
        )


def _ratios(mine: Entry, theirs: Entry) -> Spread:
    pairs = zip(mine.rounds, theirs.rounds, strict=True)
    return Spread.of([one.jobs_per_second / other.jobs_per_second for one, other in pairs])
