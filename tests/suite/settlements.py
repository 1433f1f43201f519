"""The calls that settle a claim, and the changes that each makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from tests.support.harness import Database
from tests.support.models import Base

M = TypeVar("M", bound=Base)
PAST = datetime(2020, 1, 1, tzinfo=UTC)
SOON = timedelta(minutes=2)


@dataclass(frozen=True)
class Settling:
    """A call, its changes, and the delay after which the row is available or becomes final."""

    name: str
    arguments: tuple[Any, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    after: timedelta = timedelta(0)
    final: bool = False

    def __str__(self) -> str:
        return "-".join([self.name, *(type(argument).__name__ for argument in self.arguments)])


BACK = {"claimed_by": None, "claimed_at": None, "max_attempts": 4}
SETTLINGS = [
    Settling("complete", (), {"status": "completed"}, final=True),
    Settling("fail", ("no",), {"status": "retryable", "error": "no"}, after=timedelta(seconds=10)),
    Settling(
        "fail", (ValueError("no"),), {"status": "retryable", "error": "ValueError: no"}, after=timedelta(seconds=10)
    ),
    Settling("fail", ("no", SOON), {"status": "retryable", "error": "no"}, after=SOON),
    Settling("discard", ("no",), {"status": "discarded", "error": "no"}, final=True),
    Settling("cancel", (), {"status": "cancelled"}, final=True),
    Settling("release", (), {"status": "available", **BACK}),
    Settling("snooze", (SOON,), {"status": "scheduled", **BACK}, after=SOON),
    Settling("heartbeat", (), {}, after=timedelta(minutes=5)),
    Settling("heartbeat", (SOON,), {}, after=SOON),
]


def claim(db: Database, model: type[M], *where: Any, **arguments: Any) -> M:
    """Claim and commit, as a worker does."""
    with db.begin() as session:
        task: M = session.claim(model, *where, **arguments)
        return task
