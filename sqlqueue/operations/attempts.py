"""Describes attempts for logs: the attempt's number, the number allowed, and what follows a failure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from .._support.claim import Claim
from .._support.error_text import key_text
from ..queue.retries import RetryPolicy, checked_delay, policy_for
from ..queue.spec import QueueSpec


class Consequence(NamedTuple):
    """What follows a failure: a retry, another run, or nothing."""

    kind: Literal["completed", "failed", "discarded"]
    """``"failed"`` if the task is retried or has a next run, ``"discarded"`` if it becomes a dead letter."""
    level: int
    """The log level: a warning for a retry, an error for a task that is given up."""
    text: str
    retry_in: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A claim and its row's values at the time of the claim: the handler's session may expire or change the row."""

    claim: Claim
    spec: QueueSpec
    number: int
    """Counted from 1 within the current stage or run."""
    most: int
    """The number of attempts allowed."""
    recurs: bool
    """Whether another run follows the last attempt."""

    @classmethod
    def of(cls, spec: QueueSpec, claim: Claim, loaded: Mapping[str, Any]) -> Attempt:
        """Return the attempt of a task, with the attributes that were loaded when it was claimed."""
        names = spec.attributes

        def value(role: str) -> Any:
            return loaded.get(names[role]) if role in names else None

        before = value("attempts_before") or 0
        most = (value("max_attempts") or claim.attempt) - before
        return cls(claim, spec, claim.attempt - before, most, value("schedule") is not None)

    def __str__(self) -> str:
        return f"{task_name(self.claim)}: attempt {self.number}/{self.most}"

    @property
    def is_last(self) -> bool:
        """Whether no attempt is left after this one."""
        return self.number >= self.most

    def failing(self, cause: type[BaseException] | None, retry_in: timedelta | None) -> Consequence:
        """Predict what follows a failure with this cause and delay.

        The prediction can be wrong: another process may have enqueued the task to run again, which only its row shows,
        and the delay that is stored differs by the policy's jitter.
        """
        policy = policy_for(self.spec.options.retry, cause)
        if self.is_last or (policy is None and retry_in is None):
            return given_up(recurs=self.recurs)
        delay = _delay(policy, self.number) if retry_in is None and policy is not None else retry_in
        return Consequence("failed", logging.WARNING, retry_text(delay), delay)


def given_up(*, recurs: bool) -> Consequence:
    """Return what follows when no attempt is left: the next run of a recurring task, otherwise a dead letter."""
    if recurs:
        return Consequence("failed", logging.ERROR, "no retry before its next run")
    return Consequence("discarded", logging.ERROR, "discarded")


def task_name(claim: Claim) -> str:
    """Return the name of a claimed task for logs: its model and primary key."""
    return f"{claim.entity.__name__} {key_text(claim.identity)}"


def retry_text(delay: timedelta | None) -> str:
    """Return the text about the next attempt for logs; ``delay`` is ``None`` if it is not known."""
    return "to be retried" if delay is None else f"retry in {spoken(delay)}"


def spoken(time: timedelta) -> str:
    """Format a duration for people: ``0.5 s``, ``15 s``, ``4 min``, ``1.5 h``."""
    seconds = time.total_seconds()
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), (1, "s"))
    number = seconds / size
    return f"{number:.1f}".removesuffix(".0") + f" {unit}"


_UNITS = ((3600, "h"), (60, "min"))
_LONGEST = 300
"""The maximum length of a reason in a log line, in characters."""


def brief(text: str) -> str:
    """Shorten an error text to one log line; the row's ``error`` and the traceback contain all of it."""
    line = text.partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _delay(policy: RetryPolicy, attempt: int) -> timedelta | None:
    try:
        return checked_delay(policy, attempt)
    except Exception:  # the settlement calls the policy as well, and reports the error
        return None
