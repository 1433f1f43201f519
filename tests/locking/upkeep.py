"""Maintenance concurrent with claims: due and early tasks, old ones, and sets of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlqueue import promote, prune, rescue
from sqlqueue.operations.upkeep import postpone
from tests.locking.guarantees import can_be_claimed
from tests.locking.interleaving import COMMIT, Do, Script, Step
from tests.locking.steps import COMPLETE, CRASHED, FAIL, HUNG, PAST, Scenario, changed, claim, rows_of
from tests.support.models import Task

_LONG = timedelta(days=1)


def _sweep(name: str, do: Do, /, *, waits: bool = True, **matches: Sequence[Any]) -> Step:
    """Change the rows that have one of these values in each column."""
    return Step(
        name,
        do,
        matches=lambda row: all(row[column] in values for column, values in matches.items()),
        never_waits=not waits,
        keeps_to_its_rows=True,
    )


def _promoting() -> Sequence[Script]:
    """Promote due and crashed tasks while others claim them or work on claimed tasks."""
    come = Step(
        "promote",
        lambda session, _: promote(session, Task),
        matches=lambda row: row["status"] != "available" and can_be_claimed(row),
        never_waits=True,
        keeps_to_its_rows=True,
    )
    return [
        (come, COMMIT, come, COMMIT),
        (claim(Task, limit=2), COMMIT, FAIL, COMMIT),
        (claim(Task, lease=None, limit=3), COMPLETE, COMMIT),
    ]


def _postponing() -> Sequence[Script]:
    """Postpone tasks that are available too early, while claims reach the tasks behind them."""
    early = Step(
        "postpone",
        lambda session, _: postpone(session, Task),
        matches=lambda row: row["status"] in ("available", "scheduled") and not can_be_claimed(row),
        never_waits=True,
        keeps_to_its_rows=True,
    )
    return [
        (early, COMMIT, early, COMMIT),
        (claim(Task, limit=3), COMPLETE, COMMIT),
        (claim(Task, lease=None, limit=2), FAIL, COMMIT),
    ]


def _pruning() -> Sequence[Script]:
    """Delete old rows while some of them are retried and others are claimed."""
    final = ("completed", "discarded")
    old = _sweep("prune", lambda session, _: prune(session, Task, timedelta(minutes=1)), status=final)
    back = _sweep("retry", lambda session, _: session.retry(Task, Task.name == "b"), name=("b",))
    return [
        (old, COMMIT),
        (back, COMMIT),
        (claim(Task, limit=2), COMPLETE, COMMIT),
    ]


def _redriving() -> Sequence[Script]:
    """Discard and retry sets of tasks while they are claimed and settled."""
    up = _sweep("discard", lambda session, _: session.discard(Task, Task.name == "b", error="no"), name=("b",))
    back = _sweep("retry", lambda session, _: session.retry(Task, Task.name == "b", limit=1), name=("b",))
    return [
        (claim(Task, limit=2), COMMIT, COMPLETE, COMMIT),
        (up, COMMIT, back, COMMIT),
        (claim(Task, lease=None), FAIL, COMMIT),
    ]


def _rescuing() -> Sequence[Script]:
    """Rescue tasks that crashed in their last attempt while other crashed tasks are claimed."""
    crashed = _sweep("rescue", lambda session, _: rescue(session, Task), name=("c",))
    few = _sweep("cancel", lambda session, _: session.cancel(Task, Task.name == "c", limit=1), name=("c",))
    return [
        (crashed, COMMIT),
        (few, COMMIT, few, COMMIT),
        (claim(Task, limit=2), COMPLETE, COMMIT),
    ]


_FUTURE = PAST + _LONG
_DUE, _HELD = {"status": "scheduled"}, {**HUNG, "available_at": _FUTURE}
_DONE, _DEAD = ({"status": status, "finished_at": PAST} for status in ("completed", "discarded"))
_LAST = {**CRASHED, "name": "c"}
SCENARIOS = {
    "promoting": Scenario(Task, changed(rows_of(6), _HELD, _DUE, HUNG, _DUE), _promoting),
    "postponing": Scenario(
        Task, changed(rows_of(5), {"available_at": _FUTURE}, {"available_at": _FUTURE}), _postponing
    ),
    "pruning": Scenario(Task, changed(rows_of(6), _DONE, {**_DEAD, "name": "b"}, _DONE, _DEAD), _pruning),
    "redriving": Scenario(Task, rows_of(4, name=["a", "b"]), _redriving),
    "rescuing": Scenario(Task, changed(rows_of(5), _LAST, HUNG, _LAST), _rescuing),
}
