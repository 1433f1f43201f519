"""The parts of scenarios: rows, and the operations that all of them use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.locking.interleaving import Script, Step

PAST = datetime.now(UTC) - timedelta(hours=1)


@dataclass(frozen=True)
class Scenario:
    """The rows of a queue, and transactions that begin at the same time."""

    model: Any
    rows: Sequence[Mapping[str, Any]]
    scripts: Callable[[], Sequence[Script]]
    """The scripts, created for each run."""
    beside: Mapping[Any, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Rows of other models."""
    line: str | None = None
    """The column that groups ordered messages."""

    @property
    def all_rows(self) -> Mapping[Any, Sequence[Mapping[str, Any]]]:
        return {self.model: self.rows, **self.beside}


def claim(model: Any, *where: Any, lease: Any = "default", limit: int = 1, **matches: Any) -> Step:
    name = f"{'lock' if lease is None else 'claim'}({', '.join(map(str, matches.items()))})"
    return Step(
        name,
        lambda session, _: session.claim_many(model, *where, limit=limit, lease=lease),
        claims=True,
        limit=limit,
        matches=lambda row: all(row[column] == value for column, value in matches.items()),
    )


COMPLETE = Step("complete", lambda session, mine: session.complete(mine), settles=True)
FAIL = Step("fail", lambda session, mine: session.fail(mine, "no"), settles=True)
RELEASE = Step("release", lambda session, mine: session.release(mine), settles=True)


def rows_of(number: int, **values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return ready rows in the order of their keys; the values of other columns alternate."""
    turns = [{name: each[n % len(each)] for name, each in values.items()} for n in range(number)]
    return [{"id": n + 1, "available_at": PAST + timedelta(seconds=n), **turn} for n, turn in enumerate(turns)]


def changed(rows: Sequence[Mapping[str, Any]], *changes: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return ``rows`` with the first ones changed."""
    return [{**row, **change} for row, change in zip(rows, [*changes, *[{}] * len(rows)], strict=False)]


HUNG = {"status": "running", "attempt": 1, "claim_token": 7, "claimed_at": PAST, "claimed_by": "before"}
"""A row that was claimed and whose lease expired."""
CRASHED = {**HUNG, "attempt": 3, "max_attempts": 3}
"""A row whose claimer crashed in the last attempt."""
