"""What a handler raises to steer its task.  Signals, not errors: they are logged without a traceback."""

from __future__ import annotations

from datetime import timedelta

from ..._support.checks import duration


class Signal(Exception):
    """What a handler raises to say what is to become of its task.  Its writes through its session are rolled back."""


class Retry(Signal):
    """Try again ``in_`` so long, after the model's backoff if not given.

    It counts as a failed attempt, and is logged as one.
    """

    def __init__(self, in_: timedelta | None = None, reason: str = "") -> None:
        if in_ is not None:
            duration("in_", in_, zero=True)
        super().__init__(reason or "to be retried")
        self.in_ = in_


class Snooze(Signal):
    """Not now, but ``in_`` so long.  The attempt does not count."""

    def __init__(self, in_: timedelta) -> None:
        super().__init__(in_)
        self.in_ = duration("in_", in_, zero=True)


class Discard(Signal):
    """Give up: a dead letter with ``reason`` as its error, which is logged as an error."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Cancel(Signal):
    """No longer wanted."""
