"""What people are told of an attempt: which it was of how many, and what comes after its failure."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy.orm.attributes import instance_state

from .._support.claim import Claim
from .._support.error_text import key_text
from ..queue.retries import RetryPolicy, policy_for
from ..queue.spec import QueueSpec


class Prospect(NamedTuple):
    """What comes after a failure."""

    kind: Literal["completed", "failed", "discarded"]
    """``"failed"`` if it is tried again, or has a next run, and ``"discarded"`` if it is a dead letter."""
    level: int
    """Of the log line: a retry is a warning, whatever is given up is an error."""
    text: str
    retry_in: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A claim as its row told it: the handler's session may expire the row, or change it."""

    claim: Claim
    spec: QueueSpec
    number: int
    """In the present stage or run."""
    most: int
    """How many attempts there are to be."""
    recurs: bool
    """Whether another run comes after the last attempt."""

    @classmethod
    def of(cls, spec: QueueSpec, claim: Claim, task: object) -> Attempt:
        """Of a task that has just been claimed."""
        loaded, names = instance_state(task).dict, spec.attributes

        def value(role: str) -> Any:
            return loaded.get(names[role]) if role in names else None

        before = value("attempts_before") or 0
        most = (value("max_attempts") or claim.attempt) - before
        return cls(claim, spec, claim.attempt - before, most, value("schedule") is not None)

    def __str__(self) -> str:
        return f"{task_name(self.claim)}: attempt {self.number}/{self.most}"

    def failing(self, cause: type[BaseException] | None, retry_in: timedelta | None) -> Prospect:
        """What comes after a failure that is settled with these.

        The row alone knows whether the task was meanwhile enqueued to run again.  Policies have jitter: the delay that
        is written differs by as much.
        """
        policy = policy_for(self.spec.options.retry, cause)
        if self.number >= self.most or (policy is None and retry_in is None):
            return given_up(recurs=self.recurs)
        delay = _delay(policy, self.number) if retry_in is None and policy is not None else retry_in
        return Prospect("failed", logging.WARNING, retry_text(delay), delay)


def given_up(*, recurs: bool) -> Prospect:
    if recurs:
        return Prospect("failed", logging.ERROR, "no retry before its next run")
    return Prospect("discarded", logging.ERROR, "discarded")


def task_name(claim: Claim) -> str:
    return f"{claim.entity.__name__} {key_text(claim.identity)}"


def retry_text(delay: timedelta | None) -> str:
    return "to be retried" if delay is None else f"retry in {spoken(delay)}"


def spoken(time: timedelta) -> str:
    """``0.5 s``, ``15 s``, ``4 min``, ``1.5 h``."""
    seconds = time.total_seconds()
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), (1, "s"))
    number = seconds / size
    return f"{number:.1f}".removesuffix(".0") + f" {unit}"


_UNITS = ((3600, "h"), (60, "min"))
_LONGEST = 300
"""Characters of a reason within a log line."""


def brief(text: str) -> str:
    """What a line has room for: the row's ``error`` and the traceback have it all."""
    line = text.partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _delay(policy: RetryPolicy, attempt: int) -> timedelta | None:
    try:
        return policy(attempt)
    except Exception:  # the settlement will meet it too, and tell
        return None
