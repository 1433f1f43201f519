"""The outcomes of attempts, and the options of the history that keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from .._support.checks import count, duration
from .._support.exc import ArgumentError

LONGEST_TRACEBACK = 16_000
"""The maximum number of characters: MySQL's TEXT holds 65,535 bytes at most, and a character can take four."""


class AttemptOutcome(StrEnum):
    """How an attempt ended, stored as this short string."""

    COMPLETED = "completed"
    """The task was completed, or went on to its next stage or run."""
    FAILED = "failed"
    """It failed; the task was retried unless this was its last attempt."""
    DISCARDED = "discarded"
    """The task was given up, by :func:`.discard` or by its handler."""
    CANCELLED = "cancelled"
    """The task was cancelled, by :func:`.cancel` or by its handler."""
    RELEASED = "released"
    """The task was returned unfinished."""
    SNOOZED = "snoozed"
    """The task was postponed."""
    CRASHED = "crashed"
    """Its process died, or its lease expired without a settlement."""


FAILED = (AttemptOutcome.FAILED, AttemptOutcome.DISCARDED, AttemptOutcome.CRASHED)
"""The outcomes that count as failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """The options of a history: ``__history__ = HistoryOptions(...)``.

    - ``retention``: the age at which workers, and :func:`.prune_history`, delete attempts; 30 days by default. With
      ``None``, workers delete none.
    - ``traceback``: the maximum number of characters of a traceback to store, up to 16,000, the default; the middle of
      longer ones is left out. With 0, none is stored.

    Raises :class:`.ArgumentError` for values of the wrong type or range.
    """

    retention: timedelta | None = timedelta(days=30)
    traceback: int = LONGEST_TRACEBACK

    def __post_init__(self) -> None:
        if self.retention is not None:
            duration("retention", self.retention, zero=True)
        if self.traceback != 0 and count("traceback", self.traceback) > LONGEST_TRACEBACK:
            raise ArgumentError(f"traceback={self.traceback}: at most {LONGEST_TRACEBACK:,} characters are stored")
