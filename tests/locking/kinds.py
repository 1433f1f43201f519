"""Queues of other kinds: keys of two columns, claims in turns, recurring runs, ordered messages."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from sqlqueue import claim_in_turns, reschedule, rescue
from sqlqueue.outbox import claim_messages
from tests.locking.interleaving import COMMIT, Script, Step
from tests.locking.steps import COMPLETE, CRASHED, FAIL, PAST, RELEASE, Scenario, changed, claim, rows_of
from tests.support.models import Dispatch, Message, Outgoing, Report, Seat


def _seats() -> Sequence[Script]:
    return [
        (claim(Seat, limit=2), COMPLETE, COMMIT),
        (claim(Seat, limit=2), COMMIT, FAIL, COMMIT),
        (claim(Seat, lease=None), RELEASE, COMMIT),
    ]


def _turns(limit: int, *, lease: Any = "default") -> Step:
    """Claim in turns, with a fixed first turn, so that all servers do the same."""

    def do(session: Any, _: Any) -> Any:
        random.seed(limit)
        return claim_in_turns(session, Message, Message.kind, ["x", "y", "z"], limit=limit, lease=lease)

    return Step(f"turns({limit})", do, claims=True, limit=limit)


def _taking_turns() -> Sequence[Script]:
    return [
        (_turns(3), COMPLETE, COMMIT),
        (_turns(4, lease=None), FAIL, COMMIT),
        (claim(Message, Message.kind == "y", kind="y", limit=2), COMMIT, COMPLETE, COMMIT),
    ]


def _recurring() -> Sequence[Script]:
    """End runs and plan the next ones; one run has crashed, and the schedule of another changes."""
    crashed = Step("rescue", lambda session, _: rescue(session, Report), never_waits=True, keeps_to_its_rows=True)
    later = Step(
        "reschedule",
        lambda session, _: reschedule(session, Report, Report.id == 2, schedule="PT2H"),
        matches=lambda row: row["id"] == 2,
        keeps_to_its_rows=True,
    )
    return [
        (claim(Report, limit=2), COMPLETE, COMMIT),
        (claim(Report, limit=2), COMMIT, FAIL, COMMIT, crashed, COMMIT),
        (crashed, COMMIT, later, COMMIT),
    ]


def _messages(model: Any, limit: int) -> Step:
    return Step(
        f"messages({limit})", lambda session, _: claim_messages(session, model, limit=limit), claims=True, limit=limit
    )


def _relays(model: Any) -> Any:
    """Relays that claim, commit, publish and settle; one has published, and the others are stopped before."""
    return lambda: [
        (_messages(model, 2), COMMIT, COMPLETE, COMMIT, _messages(model, 2), COMMIT),
        (_messages(model, 4), COMMIT, RELEASE, COMMIT),
        (_messages(model, 1), COMMIT, RELEASE, COMMIT),
    ]


def _named(rows: Sequence[Mapping[str, Any]], **names: str) -> list[dict[str, Any]]:
    """Select by a key of two columns, a text and a number."""
    return [{**{names.get(key, key): value for key, value in row.items()}} for row in rows]


_REPORTS = [{**row, "schedule": "PT1H", "created_at": PAST} for row in rows_of(5)]
_MESSAGES: list[dict[str, Any]] = rows_of(5, message_key=["k", "k", "l", None])
SCENARIOS = {
    "two columns": Scenario(Seat, [{"line": "a", **row} for row in _named(rows_of(5), id="number")], _seats),
    "turns": Scenario(Message, rows_of(7, kind=["x", "y", "y"]), _taking_turns),
    "recurring": Scenario(Report, changed(_REPORTS, CRASHED, {}, CRASHED), _recurring),
    "messages": Scenario(Outgoing, _MESSAGES, _relays(Outgoing), line="message_key"),
    "messages, kept": Scenario(
        Dispatch, [{"year": 1, **row} for row in _named(_MESSAGES, id="number")], _relays(Dispatch), line="message_key"
    ),
}
