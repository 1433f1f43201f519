"""Transactions that meet: the library's operations in the combinations in which queues are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlqueue import Claim, claim_of
from sqlqueue.kinds.new_slots import ENDLESS
from sqlqueue.operations.upkeep import extend
from tests.locking.play import COMMIT, Script, Step
from tests.models import Film, Mail, Slot, Task, Visit

_PAST = datetime.now(UTC) - timedelta(hours=1)
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Scene:
    """Rows of one queue, and transactions that begin at the same time."""

    model: Any
    rows: Sequence[Mapping[str, Any]]
    scripts: Callable[[], Sequence[Script]]
    """Made anew for each play."""
    beside: Mapping[Any, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Rows of other models."""

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


def _rows(number: int, **values: Sequence[Any]) -> list[dict[str, Any]]:
    """Ready, in the order of their keys; the values of other columns take turns."""
    turns = [{name: each[n % len(each)] for name, each in values.items()} for n in range(number)]
    return [{"id": n + 1, "available_at": _PAST + timedelta(seconds=n), **turn} for n, turn in enumerate(turns)]


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
    """By each index, and by none."""
    return lambda: [
        (claim(Mail, lease=lease), COMPLETE, COMMIT),
        (claim(Mail, Mail.topic == "x", lease=lease, topic="x"), COMPLETE, COMMIT),
        (claim(Mail, Mail.id == 1, lease=lease, id=1), COMPLETE, COMMIT),
    ]


def _again(lease: Any) -> Callable[[], Sequence[Script]]:
    """Two claims in one transaction, by two indexes."""
    return lambda: [
        (claim(Mail, lease=lease), claim(Mail, lease=lease), COMPLETE, COMMIT),
        (*[claim(Mail, Mail.topic == "x", lease=lease, topic="x")] * 2, COMPLETE, COMMIT),
    ]


def _criteria() -> Sequence[Script]:
    """What no index serves."""
    return [
        (claim(Task, Task.name == "b", name="b"), COMPLETE, COMMIT),
        (claim(Task, Task.name == "a", lease=None, name="a"), COMPLETE, COMMIT),
        (claim(Task, limit=2), COMPLETE, COMMIT),
    ]


def _heartbeat() -> Sequence[Script]:
    """Leases are extended by a connection of their own while a handler has its row."""
    claims: list[Any] = []

    tell = Step("tell", lambda _, mine: claims.extend(map(claim_of, mine)))

    def beat(session: Any, _: Any) -> None:
        extend(session, claims or [Claim(Task, (99,), 1, 7)], _MINUTE)

    return [
        (claim(Task, limit=2), COMMIT, tell, COMPLETE, COMMIT),
        (Step("beat", beat, waits_for_nobody=True), COMMIT) * 4,
        (claim(Task), COMPLETE, COMMIT),
    ]


def _sets() -> Sequence[Script]:
    """What is claimed meets what is cancelled."""
    cancel = Step(
        "cancel", lambda session, _: session.cancel(Task, Task.name == "b"), matches=lambda row: row["name"] == "b"
    )
    return [
        (claim(Task, limit=2), COMPLETE, COMMIT),
        (cancel, COMMIT),
        (claim(Task, lease=None), FAIL, COMMIT),
    ]


def _stages() -> Sequence[Script]:
    """A task moves on while another claim looks for its stage."""
    return [
        (claim(Film, Film.stage == "cut", stage="cut"), COMPLETE, COMMIT),
        (claim(Film, Film.stage == "cut", lease=None, stage="cut"), COMPLETE, COMMIT),
        (claim(Film, Film.stage == "dub", lease=None, stage="dub"), COMPLETE, COMMIT),
    ]


def _enqueueing() -> Sequence[Script]:
    enqueue = Step(
        "enqueue", lambda session, _: session.enqueue(Task, [{"id": 99, "name": "new"}]), waits_for_nobody=True
    )
    return [
        (enqueue, COMMIT),
        (claim(Task, limit=9), COMPLETE, COMMIT),
        (claim(Task, lease=None), COMPLETE, COMMIT),
    ]


def _limits() -> Sequence[Script]:
    """Two slots, and two that want one each."""
    return [(claim(Visit), COMPLETE, COMMIT)] * 2


_SLOTS = [{"slot_key": "k", "slot_number": n, "max_attempts": ENDLESS if n else 0} for n in range(3)]
SCENES = {
    "leases": Scene(Task, _rows(5), _leases),
    "locks": Scene(Task, _rows(5), _locks),
    "ways in": Scene(Mail, _rows(4, topic=["x", "y"]), _ways("default")),
    "ways in, locks": Scene(Mail, _rows(4, topic=["x", "y"]), _ways(None)),
    "twice": Scene(Mail, _rows(5, topic=["x"]), _again("default")),
    "twice, locks": Scene(Mail, _rows(5, topic=["x"]), _again(None)),
    "criteria": Scene(Task, _rows(5, name=["a", "b"]), _criteria),
    "heartbeat": Scene(Task, _rows(4), _heartbeat),
    "sets": Scene(Task, _rows(4, name=["a", "b"]), _sets),
    "stages": Scene(Film, _rows(2, stage=["cut"]), _stages),
    "limits": Scene(Visit, _rows(4, limit_key=["k"]), _limits, {Slot: _SLOTS}),
    "enqueueing": Scene(Task, _rows(2), _enqueueing),
}
