"""Retry policies: the delay before a failed task is retried."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from .._support.checks import duration
from .._support.errors import ArgumentError
from .._support.texts import logger_of

logger = logger_of("sqlqueue")


class RetryPolicy(Protocol):
    """A callable that takes the number of the failed attempt (1 for the first) and returns the delay before the next
    one."""

    def __call__(self, attempt: int, /) -> timedelta: ...


@dataclass(frozen=True, slots=True)
class ConstantBackoff:
    """A retry policy with a constant ``delay``, varied by up to ``jitter``, a fraction of it.

    Raises :class:`.ArgumentError` for values out of range.
    """

    delay: timedelta = timedelta(minutes=1)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        duration("delay", self.delay, zero=True)
        _share(self, self.jitter)

    def __call__(self, attempt: int, /) -> timedelta:
        return _about(self.delay.total_seconds(), self.jitter)


@dataclass(frozen=True, slots=True)
class LinearBackoff:
    """A retry policy with the delay ``step * attempt``, at most ``cap``, varied by up to ``jitter``, a fraction of it.

    Raises :class:`.ArgumentError` for values out of range.
    """

    step: timedelta = timedelta(minutes=5)
    """The delay after the first attempt, and the increase for each further attempt."""
    cap: timedelta = timedelta(hours=1)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        duration("step", self.step, zero=True)
        duration("cap", self.cap, zero=True)
        _share(self, self.jitter)

    def __call__(self, attempt: int, /) -> timedelta:
        return _about(min(self.cap.total_seconds(), self.step.total_seconds() * attempt), self.jitter)


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """A retry policy with the delay ``base * factor ** (attempt - 1)``, at most ``cap``.

    It is varied by up to ``jitter``, a fraction of it.  Raises :class:`.ArgumentError` for values out of range.
    """

    base: timedelta = timedelta(seconds=15)
    """The delay after the first attempt."""
    factor: float = 4
    """The factor between one delay and the next; at least 1."""
    cap: timedelta = timedelta(hours=1)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        duration("base", self.base, zero=True)
        duration("cap", self.cap, zero=True)
        _share(self, self.jitter)
        if not 1 <= self.factor < math.inf:
            raise ArgumentError(f"{self!r}: give a finite factor of at least 1")

    def __call__(self, attempt: int, /) -> timedelta:
        seconds = self.cap.total_seconds()
        with suppress(OverflowError):  # then the cap applies
            seconds = min(seconds, self.base.total_seconds() * float(self.factor) ** (attempt - 1))
        return _about(seconds, self.jitter)


@dataclass(frozen=True, slots=True)
class RetryByError:
    """A retry policy by class of exception; the most specific class applies, and ``None`` discards at once.

    ::

        retry=RetryByError({RateLimited: LinearBackoff(), ValueError: None})

    ``otherwise`` applies to other errors, and to failures recorded as text.  Raises :class:`.ArgumentError` for keys
    that are not exception classes and values that are not policies.
    """

    policies: Mapping[type[BaseException], RetryPolicy | None]
    """A policy for each class of exceptions; ``None`` discards the task at once."""
    otherwise: RetryPolicy = field(default_factory=ExponentialBackoff)

    def __post_init__(self) -> None:
        if not isinstance(self.policies, Mapping):
            raise ArgumentError(f"{self.policies!r}: give a mapping, as in {{ValueError: None}}")
        if not callable(self.otherwise):
            raise ArgumentError(f"otherwise={self.otherwise!r}: give a retry policy")
        for error, policy in self.policies.items():
            if not (isinstance(error, type) and issubclass(error, BaseException)):
                raise ArgumentError(f"{error!r} is not an exception class")
            if policy is not None and not callable(policy):
                raise ArgumentError(f"{error.__name__}: {policy!r} is neither a retry policy nor None")

    def __call__(self, attempt: int, /) -> timedelta:
        return self.otherwise(attempt)

    def of(self, cause: type[BaseException]) -> RetryPolicy | None:
        """Return the policy for errors of class ``cause``; ``None`` to discard."""
        nearest = (each for each in cause.__mro__ if each in self.policies)
        return next((self.policies[each] for each in nearest), self.otherwise)


def policy_for(policy: RetryPolicy, cause: type[BaseException] | None) -> RetryPolicy | None:
    """Return the part of ``policy`` for errors of class ``cause``, or for failures without one; ``None`` to discard."""
    return policy.of(cause) if cause is not None and isinstance(policy, RetryByError) else policy


def _about(seconds: float, jitter: float) -> timedelta:
    return timedelta(seconds=seconds * random.uniform(1 - jitter, 1 + jitter))


def _share(policy: RetryPolicy, jitter: float) -> None:
    if not 0 <= jitter <= 1:
        raise ArgumentError(f"{policy!r}: give a jitter from 0 to 1")


DEFAULT_RETRY = ExponentialBackoff()
"""The policy of queues that have none, and for failures whose policy fails."""


def checked_delay(policy: RetryPolicy, attempt: int) -> timedelta:
    """Return the delay of ``policy``.  Raises :class:`.ArgumentError` if what it returns is none."""
    return duration("the delay of the retry policy", policy(attempt), zero=True)


def delay_after(policy: RetryPolicy, attempt: int, queue: str) -> timedelta:
    """Return the delay of the policy of ``queue``.

    If there is none, because the policy raises or returns something else, log that and return the default policy's:
    the failure of the task must be recorded.
    """
    try:
        return checked_delay(policy, attempt)
    except Exception as error:
        text = "the retry policy of %s has no delay after attempt %d, so the default backoff applies"
        logger.error(text, queue, attempt, exc_info=error)
        return DEFAULT_RETRY(attempt)
