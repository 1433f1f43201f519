"""Writes finished attempts to the history, in the transaction that settles them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, cast, null, select
from sqlalchemy.orm import Session

from .._support.claim import Claim
from .._support.error_text import key_text, storable
from .._support.logs import traceback_text
from ..dialects.base import Adapter
from ..model.columns import LONGEST_KEY
from ..model.history import History, history_of
from ..queue.history import AttemptOutcome, HistoryOptions
from ..queue.spec import Criterion, Identity, QueueSpec, spec_of

Traced: TypeAlias = BaseException | str | None
"""A traceback, or the exception that has it: it is formatted only where there is a history."""
HUNG = "crashed: its lease expired without a settlement"
"""The error of an attempt that its claimer never settled."""
HASHED = "sha256:"
"""The prefix of a key of which only the hash is stored."""
_LEFT_OUT = "\n[...]\n"
"""Replaces the middle of a traceback that is too long."""


class Told(NamedTuple):
    """The end of an attempt as the history records it: the outcome, the error and the traceback."""

    outcome: AttemptOutcome
    error: str | None = None
    traceback: str | None = None


ABANDONED = Told(AttemptOutcome.CRASHED, HUNG)


def stored_traceback(traced: Traced, options: HistoryOptions) -> str | None:
    """Return the traceback as it is stored: the application's frames, without the middle if it is too long."""
    if traced is None or not options.traceback:
        return None
    if isinstance(traced, BaseException):
        if traced.__traceback__ is None:
            return None
        traced = traceback_text(traced)
    text, most = storable(traced), options.traceback
    if len(text) <= most:
        return text
    # the end has the innermost frames and the message, and the beginning the first cause
    last = max(most * 2 // 3, 1)
    first = max(most - last - len(_LEFT_OUT), 0)
    return (text[:first] + _LEFT_OUT + text[-last:])[-most:]


def task_key(identity: Identity) -> str:
    """Return a primary key as the history stores it: a hash, after ``sha256:``, of one that is too long."""
    parts = [part if type(part) in (int, str) else _plain(part) for part in identity]
    text = storable(key_text(parts))
    return text if len(text) <= LONGEST_KEY else HASHED + hashlib.sha256(text.encode()).hexdigest()


def _plain(part: object) -> str:
    match part:
        case datetime(tzinfo=None):
            return part.isoformat()
        case datetime():
            return part.astimezone(UTC).isoformat()  # drivers give it in the session's zone
        case bytes():
            return part.hex()
    return str(part)


def record(adapter: Adapter, session: Session, claims: Sequence[Claim], told: Told) -> None:
    """Write the end of these attempts at tasks of one queue, in one statement, if the application has a history."""
    history = history_at(claims)
    if history is None:
        return
    spec = spec_of(claims[0].entity)
    same = {
        "queue": spec.table.fullname,
        "outcome": told.outcome.value,
        "error": told.error,
        "traceback": told.traceback,
    }
    different: dict[str, Sequence[Any]] = {
        "task": [task_key(claim.identity) for claim in claims],
        "attempt": [claim.attempt for claim in claims],
        "claimed_by": [claim.claimed_by for claim in claims],
        "started_at": [claim.claimed_at for claim in claims],
    }
    make = partial(adapter.inserts.alike, history.table, tuple(same), tuple(different), "finished_at")
    statement = spec.made.get((adapter.inserts, "alike"), make)
    adapter.rows.execute(session, spec, statement, adapter.inserts.alike_values(same, different))


def last_claims(adapter: Adapter, session: Session, spec: QueueSpec, named: Criterion) -> list[Claim]:
    """Return the latest claims of tasks that this transaction has locked, which are ``named`` by primary key.

    If one of their times cannot be read, all are unknown.
    """

    def read(claimed_at: ColumnElement[Any]) -> Any:
        values = (*(spec[role] for role in ("attempt", "claim_token", "claimed_by")), claimed_at)
        statement = select(*spec.primary_key, *values).where(named)
        return adapter.rows.execute(session, spec, adapter.keys.by_key(spec, statement)).all()

    try:
        rows = read(spec["claimed_at"])
    except Exception as error:
        if not adapter.errors.is_of_row(error):
            raise
        rows = read(cast(null(), spec["claimed_at"].type))
    width = len(spec.primary_key)
    return [Claim(spec.entity, tuple(row[:width]), *row[width:]) for row in rows]


def history_at(claims: Sequence[Claim]) -> History | None:
    """Return the history that the end of these claims is written to, if there are any and the application has one."""
    return history_of(spec_of(claims[0].entity).table.metadata) if claims else None
