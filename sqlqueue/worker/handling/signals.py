"""Exceptions that a handler raises to choose the outcome of its task.  They are logged without a traceback."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ..._support.checks import duration


class Signal(Exception):
    """Base of the exceptions that choose the outcome of a task.  The handler's writes are rolled back."""


class Retry(Signal):
    """Retry the task after ``in_``, or after the model's backoff if it is not given.

    It counts as a failed attempt and is logged as one.
    """

    def __init__(self, in_: timedelta | None = None, reason: str = "") -> None:
        if in_ is not None:
            duration("in_", in_, zero=True)
        super().__init__(reason or "to be retried")
        self.in_ = in_

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.in_, str(self)), self.__dict__


class Snooze(Signal):
    """Run the task again after ``in_``.  The attempt does not count."""

    def __init__(self, in_: timedelta) -> None:
        super().__init__(in_)
        self.in_ = duration("in_", in_, zero=True)


class Discard(Signal):
    """Make the task a dead letter with ``reason`` as its error, logged at level ERROR."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Cancel(Signal):
    """Cancel the task, because its work is no longer needed."""
