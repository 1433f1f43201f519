"""The results of a proof: promises, and what was observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A promise of the queue, and how often it was put to the test."""

    promise: str
    observed: int
    """The number of observations."""
    broken: int
    """The number of observations that contradict the promise."""
    observation: str
    """A description of what was counted."""

    @property
    def is_kept(self) -> bool:
        """Whether it was observed, and never broken."""
        return self.observed > 0 and self.broken == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The results of a run."""

    engine: str
    version: str
    seconds: float
    promises: Sequence[Promise]
    faults: Mapping[str, int]
    """Faults by kind."""
    recovery: Mapping[str, float]
    """By kind of fault, the longest time in seconds until the worker's tasks were held by others or done."""

    @property
    def is_ok(self) -> bool:
        """Whether all promises were observed and kept."""
        return all(promise.is_kept for promise in self.promises)

    def plain(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {
            "engine": self.engine,
            "version": self.version,
            "ok": self.is_ok,
            "seconds": round(self.seconds, 1),
            "promises": [{**asdict(promise), "kept": promise.is_kept} for promise in self.promises],
            "faults": dict(self.faults),
            "recovery_seconds": {kind: round(seconds, 1) for kind, seconds in self.recovery.items()},
        }
