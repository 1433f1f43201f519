"""When a failed task is tried again."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from .checks import duration
from .exc import ArgumentError


class RetryPolicy(Protocol):
    """Anything that says how long to wait after the given attempt (1 for the first) has failed."""

    def __call__(self, attempt: int, /) -> timedelta: ...


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """``base * factor ** (attempt - 1)``, at most ``cap``, give or take the share ``jitter`` of it."""

    base: timedelta = timedelta(seconds=15)
    factor: float = 4
    cap: timedelta = timedelta(hours=1)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        duration("base", self.base, zero=True)
        duration("cap", self.cap, zero=True)
        if self.factor < 1 or not 0 <= self.jitter <= 1:
            raise ArgumentError(f"{self!r}: factor is at least 1, jitter from 0 to 1")

    def __call__(self, attempt: int, /) -> timedelta:
        seconds = self.cap.total_seconds()
        with suppress(OverflowError):  # the cap it is, then
            seconds = min(seconds, self.base.total_seconds() * self.factor ** (attempt - 1))
        return timedelta(seconds=seconds * random.uniform(1 - self.jitter, 1 + self.jitter))
