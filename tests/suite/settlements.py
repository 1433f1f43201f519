"""The calls that settle or extend a claim, and the changes that each makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue._support.texts import error_group

SOON = timedelta(minutes=2)


@dataclass(frozen=True)
class Settling:
    """A call, its changes, and the delay after which the row is available or becomes final."""

    name: str
    arguments: tuple[Any, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    after: timedelta = timedelta(0)
    final: bool = False

    def __call__(self, session: Any, task: Any, **options: Any) -> None:
        """Settle a task, a claim or several, with a session of any kind."""
        getattr(session, self.name)(task, *self.arguments, **options)

    def __str__(self) -> str:
        return "-".join([self.name, *(type(argument).__name__ for argument in self.arguments)])


def told(error: str) -> dict[str, Any]:
    """Return the columns that show an error."""
    return {"error": error, "error_group": error_group(error)}


BACK = {"claimed_by": None, "claimed_at": None, "max_attempts": 4}
SETTLINGS = {
    "complete": Settling("complete", (), {"status": "completed"}, final=True),
    "fail": Settling(
        "fail",
        ("no",),
        {"status": "retryable", **told("no")},
        after=timedelta(seconds=10),
    ),
    "discard": Settling("discard", ("no",), {"status": "discarded", **told("no")}, final=True),
    "cancel": Settling("cancel", (), {"status": "cancelled"}, final=True),
    "release": Settling("release", (), {"status": "available", **BACK}),
    "snooze": Settling("snooze", (SOON,), {"status": "scheduled", **BACK}, after=SOON),
    "heartbeat": Settling("heartbeat", (), {}, after=timedelta(minutes=5)),
}
"""Every call; the changes are those of a new `Task`."""
ENDINGS = [name for name in SETTLINGS if name != "heartbeat"]
FAILED = {"status": "retryable", **told("ValueError: no")}
VARIANTS = [
    *SETTLINGS.values(),
    Settling("fail", (ValueError("no"),), FAILED, after=timedelta(seconds=10)),
    Settling("fail", ("no", SOON), {"status": "retryable", **told("no")}, after=SOON),
    Settling("heartbeat", (SOON,), {}, after=SOON),
]
every_call = pytest.mark.parametrize("call", SETTLINGS)
