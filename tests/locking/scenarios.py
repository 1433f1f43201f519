"""Concurrent transactions: the library's operations in the combinations in which queues are used."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select

from sqlqueue import Claim, claim_many, claim_of, promote, prune, reschedule, rescue
from sqlqueue.kinds.limits import ENDLESS, UNLIMITED
from sqlqueue.operations import turns
from sqlqueue.operations.upkeep import extend, postpone
from sqlqueue.outbox import claim_messages
from tests.locking.guarantees import can_be_claimed
from tests.locking.interleaving import COMMIT, Do, Script, Step
from tests.support.models import (
    Crawl,
    Dispatch,
    Document,
    Film,
    Ledger,
    Listing,
    Mail,
    Outgoing,
    Report,
    Seat,
    Slot,
    Task,
    Visit,
)

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


def _from_the_first_turn(do: Do) -> Do:
    """Claim by keys with the same first turn and the same slots each time, so that all servers do the same."""

    def claim_by_keys(session: Any, claimed: Any) -> Any:
        random.seed(1)
        turns._rotations.clear()
        return do(session, claimed)

    return claim_by_keys


def claim(model: Any, *where: Any, lease: Any = "default", limit: int = 1, **matches: Any) -> Step:
    name = f"{'lock' if lease is None else 'claim'}({', '.join(map(str, matches.items()))})"
    return Step(
        name,
        _from_the_first_turn(lambda session, _: session.claim_many(model, *where, limit=limit, lease=lease)),
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


ABANDONED = {"status": "running", "attempt": 1, "claim_token": 7, "claimed_at": PAST, "claimed_by": "before"}
"""A row that was claimed and whose lease expired."""
CRASHED = {**ABANDONED, "attempt": 3, "max_attempts": 3}
"""A row whose claimer crashed in the last attempt."""


# -- claims by leases and locks, and what happens beside them ----------------------------------------------------------

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
    """Claim with two slots, or two places, and two claimers that need one each."""
    return [(claim(Visit), COMPLETE, COMMIT)] * 2


_MAILS = [*rows_of(4, topic=["x", "y"]), {"id": 5, "topic": "x", "status": "completed", "finished_at": PAST}]
_SLOTS = [{"slot_key": "k", "slot_number": n, "max_attempts": ENDLESS if n else 0} for n in range(3)]
_PLACES = [{"slot_key": "k", "slot_number": -n, "max_attempts": 2 if n else UNLIMITED} for n in range(3)]


# -- maintenance concurrent with claims: due and early tasks, old ones, and sets of tasks ------------------------------

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
_DUE, _HELD = {"status": "scheduled"}, {**ABANDONED, "available_at": _FUTURE}
_DONE, _DEAD = ({"status": status, "finished_at": PAST} for status in ("completed", "discarded"))
_LAST = {**CRASHED, "name": "c"}


# -- queues of other kinds: keys of two columns, claims in turns, recurring runs, ordered messages ---------------------


def _seats() -> Sequence[Script]:
    return [
        (claim(Seat, limit=2), COMPLETE, COMMIT),
        (claim(Seat, limit=2), COMMIT, FAIL, COMMIT),
        (claim(Seat, lease=None), RELEASE, COMMIT),
    ]


def _turns(limit: int, *, lease: Any = "default") -> Step:
    do = _from_the_first_turn(lambda session, _: claim_many(session, Crawl, limit=limit, lease=lease))
    return Step(f"turns({limit})", do, claims=True, limit=limit)


def _taking_turns() -> Sequence[Script]:
    return [
        (_turns(3), COMPLETE, COMMIT),
        (_turns(4, lease=None), FAIL, COMMIT),
        (claim(Crawl, Crawl.site == "y", site="y", limit=2), COMMIT, COMPLETE, COMMIT),
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
        f"messages({limit})",
        _from_the_first_turn(lambda session, _: claim_messages(session, model, limit=limit)),
        claims=True,
        limit=limit,
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


# -- tasks enqueued with a key that another task may have, concurrently with its claim and settlement ------------------


def _enqueue(how: Any, model: Any, *rows: dict[str, Any]) -> Step:
    """Enqueue tasks; an insert may wait for rows with its keys, but for no others."""
    name = next(iter(rows[0]))
    keys = {row[name] for row in rows}
    return Step(
        how,
        lambda session, _: session.enqueue(model, [dict(row) for row in rows], on_conflict=how),
        matches=lambda row: row[name] in keys or row.get("former_key") in keys,
        keeps_to_its_rows=True,
    )


def _by_primary_key(how: Any) -> Callable[[], Sequence[Script]]:
    documents = [{"id": "b", "version": 7}, {"id": "new", "version": 7}]
    return lambda: [
        (_enqueue(how, Document, *documents), COMMIT),
        (claim(Document, limit=2), COMPLETE, COMMIT),
        (_enqueue(how, Document, *documents), COMMIT, claim(Document, lease=None), FAIL, COMMIT),
    ]


def _by_unique_key(how: Any) -> Callable[[], Sequence[Script]]:
    """Enqueue by unique key while the task with that key is claimed and completed, which releases the key."""
    listings = [{"unique_key": "b", "version": 7}, {"unique_key": "new", "version": 7}]
    return lambda: [
        (_enqueue(how, Listing, *listings), COMMIT),
        (claim(Listing, limit=2), COMMIT, COMPLETE, COMMIT),
        (_enqueue(how, Listing, *listings), COMMIT, claim(Listing, lease=None), COMPLETE, COMMIT),
    ]


def _by_both(how: Any) -> Callable[[], Sequence[Script]]:
    """Enqueue rows with both keys; an engine's upsert handles only one of them."""
    listing = {"id": 2, "unique_key": "b", "version": 7}
    return lambda: [
        (_enqueue(how, Listing, listing), COMMIT),
        (claim(Listing, limit=2), COMPLETE, COMMIT),
        (_enqueue(how, Listing, listing), COMMIT),
    ]


_DOCUMENTS = [{**row, "id": key} for row, key in zip(rows_of(3), "abc", strict=True)]
_LISTINGS = [
    {"id": 1_000 + n, "unique_key": key, "available_at": row["available_at"]}
    for n, (row, key) in enumerate(zip(rows_of(3), "abc", strict=True))
]
_KINDS = ("ignore", "replace", "rerun")


# -- all scenarios -----------------------------------------------------------------------------------------------------

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
    "rates": Scenario(
        Visit, rows_of(4, limit_key=["k"]), _limits, {Slot: [{**place, "period": 60_000} for place in _PLACES]}
    ),
    "enqueueing": Scenario(Task, rows_of(2), _enqueueing),
    "promoting": Scenario(Task, changed(rows_of(6), _HELD, _DUE, ABANDONED, _DUE), _promoting),
    "postponing": Scenario(
        Task, changed(rows_of(5), {"available_at": _FUTURE}, {"available_at": _FUTURE}), _postponing
    ),
    "pruning": Scenario(Task, changed(rows_of(6), _DONE, {**_DEAD, "name": "b"}, _DONE, _DEAD), _pruning),
    "redriving": Scenario(Task, rows_of(4, name=["a", "b"]), _redriving),
    "rescuing": Scenario(Task, changed(rows_of(5), _LAST, ABANDONED, _LAST), _rescuing),
    "two columns": Scenario(Seat, [{"line": "a", **row} for row in _named(rows_of(5), id="number")], _seats),
    "turns": Scenario(Crawl, rows_of(7, site=["x", "y", "y"]), _taking_turns),
    "recurring": Scenario(Report, changed(_REPORTS, CRASHED, {}, CRASHED), _recurring),
    "messages": Scenario(Outgoing, _MESSAGES, _relays(Outgoing), line="message_key"),
    "messages, kept": Scenario(
        Dispatch, [{"year": 1, **row} for row in _named(_MESSAGES, id="number")], _relays(Dispatch), line="message_key"
    ),
    **{f"{how} by primary key": Scenario(Document, _DOCUMENTS, _by_primary_key(how)) for how in _KINDS},
    **{f"{how} by unique key": Scenario(Listing, _LISTINGS, _by_unique_key(how)) for how in _KINDS},
    **{f"{how} by both keys": Scenario(Listing, rows_of(3, unique_key="abc"), _by_both(how)) for how in _KINDS},
}
