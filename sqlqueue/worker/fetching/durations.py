"""How long calls of a handler take, which decides how many tasks are claimed at a time."""

from __future__ import annotations

_SHORTEST = 1e-6


class CallDurations:
    """The mean duration of a handler's calls, in which recent calls weigh more."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def add(self, seconds: float | None) -> None:
        """Take the duration of a call into account; ``None`` if it was never started.  Thread-safe."""
        if seconds is not None:
            self._mean = seconds if self._mean is None else 0.9 * self._mean + 0.1 * seconds

    def calls_within(self, seconds: float) -> int:
        """Return how many calls, one after another, end within ``seconds``; 0 as long as none has ended."""
        return 0 if self._mean is None else int(seconds / max(self._mean, _SHORTEST))
