"""Concurrent transactions: the library's operations in the combinations in which queues are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import select

from sqlqueue import Claim, claim_of
from sqlqueue.kinds.limits import ENDLESS
from sqlqueue.operations.upkeep import extend
from tests.locking import keyed, kinds, upkeep
from tests.locking.interleaving import COMMIT, Script, Step
from tests.locking.steps import COMPLETE, FAIL, PAST, RELEASE, Scenario, claim, rows_of
from tests.support.models import Film, Ledger, Mail, Slot, Task, Visit

_MINUTE = timedelta(minutes=1)
_WORK = Step("work", lambda session, _: session.scalars(select(Ledger.id)).all())


def _leases() -> Sequence[Script]:
    return [
        (claim(Task, limit=2), COMPLETE, COMMIT),
        (claim(Task, limit=2), COMMIT, FAIL, COMMIT),
        (claim(Task, limit=2), RELEASE, COMMIT),
    ]


def _locks() -> Sequence[Script]:
    return [
        (claim(Task, lease=None, limit=2), COMPLETE, COMMIT),
        (claim(Task, lease=None), FAIL, COMMIT, claim(Task), COMPLETE, COMMIT),
        (claim(Task, limit=2), COMMIT, COMPLETE, COMMIT),
    ]


def _ways(lease: Any) -> Callable[[], Sequence[Script]]:
    """Claim through each index, and without one."""
    return lambda: [
        (claim(Mail, lease=lease), COMPLETE, COMMIT),
        (claim(Mail, Mail.topic == "x", lease=lease, topic="x"), COMPLETE, COMMIT),
        (*[claim(Mail, Mail.id == number, lease=lease, id=number) for number in (1, 5)], COMPLETE, COMMIT),
    ]


def _again(lease: Any) -> Callable[[], Sequence[Script]]:
    """Claim twice in one transaction, through two indexes."""
    return lambda: [
        (claim(Mail, lease=lease), claim(Mail, lease=lease), COMPLETE, COMMIT),
        (*[claim(Mail, Mail.topic == "x", lease=lease, topic="x")] * 2, COMPLETE, COMMIT),
    ]


def _criteria() -> Sequence[Script]:
    """Claim by criteria that no index serves."""
    return [
        (claim(Task, Task.name == "b", name="b"), COMPLETE, COMMIT),
        (claim(Task, Task.name == "a", lease=None, name="a"), COMPLETE, COMMIT),
        (claim(Task, limit=2), COMPLETE, COMMIT),
    ]


def _heartbeat(*others: Step) -> Callable[[], Sequence[Script]]:
    """Extend leases on a separate connection while a handler holds its row."""

    def scripts() -> Sequence[Script]:
        claims: list[Any] = []

        def take(session: Any, _: Any) -> Any:
            taken = session.claim_many(Task, limit=2)
            claims.extend(map(claim_of, taken))
            return taken

        def beat(session: Any, _: Any) -> None:
            extend(session, claims or [Claim(Task, (99,), 1, 7)], _MINUTE)

        return [
            (Step("claim", take, claims=True, limit=2), COMMIT, _WORK, COMMIT, COMPLETE, COMMIT),
            (Step("beat", beat, never_waits=True, extends=True), COMMIT) * 4,
            (*others, _WORK, COMPLETE, COMMIT),
        ]

    return scripts


def _sets() -> Sequence[Script]:
    """Cancel tasks while they are claimed."""
    cancel = Step(
        "cancel", lambda session, _: session.cancel(Task, Task.name == "b"), matches=lambda row: row["name"] == "b"
    )
    return [
        (claim(Task, limit=2), COMPLETE, COMMIT),
        (cancel, COMMIT),
        (claim(Task, lease=None), FAIL, COMMIT),
    ]


def _stages() -> Sequence[Script]:
    """Move a task to its next stage while another claim searches for that stage."""
    return [
        (claim(Film, Film.stage == "cut", stage="cut"), COMPLETE, COMMIT),
        (claim(Film, Film.stage == "cut", lease=None, stage="cut"), COMPLETE, COMMIT),
        (claim(Film, Film.stage == "dub", lease=None, stage="dub"), COMPLETE, COMMIT),
    ]


def _enqueueing() -> Sequence[Script]:
    enqueue = Step("enqueue", lambda session, _: session.enqueue(Task, [{"id": 99, "name": "new"}]), never_waits=True)
    return [
        (enqueue, COMMIT),
        (claim(Task, limit=9), COMPLETE, COMMIT),
        (claim(Task, lease=None), COMPLETE, COMMIT),
    ]


def _limits() -> Sequence[Script]:
    """Claim with two slots and two claimers that need one each."""
    return [(claim(Visit), COMPLETE, COMMIT)] * 2


_MAILS = [*rows_of(4, topic=["x", "y"]), {"id": 5, "topic": "x", "status": "completed", "finished_at": PAST}]
_SLOTS = [{"slot_key": "k", "slot_number": n, "max_attempts": ENDLESS if n else 0} for n in range(3)]
SCENARIOS = {
    "leases": Scenario(Task, rows_of(5), _leases),
    "locks": Scenario(Task, rows_of(5), _locks),
    "ways in": Scenario(Mail, _MAILS, _ways("default")),
    "ways in, locks": Scenario(Mail, _MAILS, _ways(None)),
    "twice": Scenario(Mail, rows_of(5, topic=["x"]), _again("default")),
    "twice, locks": Scenario(Mail, rows_of(5, topic=["x"]), _again(None)),
    "criteria": Scenario(Task, rows_of(5, name=["a", "b"]), _criteria),
    "heartbeat": Scenario(Task, rows_of(4), _heartbeat(claim(Task))),
    "heartbeat, locks": Scenario(Task, rows_of(4), _heartbeat(claim(Task, lease=None, limit=3))),
    "sets": Scenario(Task, rows_of(4, name=["a", "b"]), _sets),
    "stages": Scenario(Film, rows_of(2, stage=["cut"]), _stages),
    "limits": Scenario(Visit, rows_of(4, limit_key=["k"]), _limits, {Slot: _SLOTS}),
    "enqueueing": Scenario(Task, rows_of(2), _enqueueing),
    **upkeep.SCENARIOS,
    **kinds.SCENARIOS,
    **keyed.SCENARIOS,
}
