"""Reads and prunes the history of finished attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, Table, delete, func, select
from sqlalchemy.orm import Session

from .._support.checks import count, duration
from .._support.errors import ArgumentError, Claim
from ..dialects.base import Adapter
from ..model.companions import History, HistoryMixin, history_of, missing_companion
from ..model.declaration import QueueMixin
from ..queue.options import AttemptOutcome
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..sql import only, utcnow
from ..transaction import Access, AnySession, is_restricted, open_, refuse_if_restricted, row_of, session_of, within
from .filtering import identity
from .recording import HASHED, task_key
from .unreadable import Shown, moments_read

DEFAULT_LIMIT = 100
"""The number of attempts that :func:`history` returns by default."""
_OUTCOMES = {outcome.value: outcome for outcome in AttemptOutcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """A finished attempt at a task."""

    attempt: int
    """Its number, starting at 1."""
    outcome: AttemptOutcome | str
    """How it ended; the stored text if it is none of these outcomes, as a newer release may have stored it."""
    claimed_by: str | None
    """The name of the claimer; ``None`` if the settled claim did not contain it."""
    started_at: datetime | None
    """When it was claimed; ``None`` if the claim only locked the row, which records no time."""
    finished_at: datetime
    """When it ended, or was found to have crashed, by the database's clock."""
    error: str | None
    """The text of its error."""
    traceback: str | None
    """The application's frames of its exception, and its causes; never local variables."""

    @property
    def took(self) -> timedelta | None:
        """The duration of the attempt, from its claim to its end."""
        return None if self.started_at is None else self.finished_at - self.started_at


def history(session: AnySession, task: QueueMixin | Claim, *, limit: int = DEFAULT_LIMIT) -> list[PastAttempt]:
    """Return the finished attempts at a task, the latest first, at most ``limit``.

    ``task``: a task, which need not be claimed, or its :class:`.Claim`, whose row may be deleted.  Runs one query,
    which uses an index and locks nothing.  Raises :class:`.ConfigurationError` if the application has no model for
    them, see :class:`.HistoryMixin`.

    A session that sees only some tasks, because of its criteria or row-level security, sees the attempts at these,
    which takes another query, and none at tasks that were deleted.

    A primary key that is used again after its row was deleted has the attempts of both rows.
    """
    spec, key = row_of(task)
    count("limit", limit)
    table = _history_of(spec).table
    session = session_of(session)
    adapter = open_(session, spec)
    if is_restricted(session, adapter, spec):
        mine = only(spec, *within(session, spec, (spec.key(key),)))
        if not adapter.rows.exists(session, spec, mine):
            return []
    names = ("attempt", "outcome", "claimed_by", "started_at", "finished_at", "error", "traceback")
    of_task = (table.c.queue == spec.table.fullname, table.c.task == task_key(key))
    moments = ("started_at", "finished_at")

    def asked(shown: Shown) -> Select[Any]:
        columns = (shown(table.c[name]) if name in moments else table.c[name] for name in names)
        return select(*columns).where(*of_task).order_by(table.c.id.desc()).limit(limit)

    rows = moments_read(adapter, session, spec, asked)
    found = (dict(zip(names, row, strict=True)) for row in rows)
    return [
        PastAttempt(**{**values, "outcome": _OUTCOMES.get(values["outcome"], values["outcome"])}) for values in found
    ]


def prune_history(
    session: AnySession,
    entity: type[QueueMixin],
    older_than: timedelta | None = None,
    *,
    limit: int | None = None,
) -> int:
    """Delete attempts at tasks of this queue that ended longer than ``older_than`` ago; return how many.

    Without ``older_than`` the history's ``retention`` applies.  Deletes at most ``limit`` rows, to keep transactions
    short: the call runs in the session's transaction, and without a ``limit`` deletes all of them in that one.  Raises
    :class:`.ConfigurationError` if the application has no model for them, and :class:`.ArgumentError` for an
    ``older_than`` in a session that sees only some of the tasks, because of its criteria or row-level security: the
    history does not store whose attempts these are.
    """
    spec = spec_of(entity)
    table, old = _old(spec, older_than)
    if limit is not None:
        count("limit", limit)
    session = session_of(session)
    adapter = open_(session, spec, Access.CHANGE)
    if older_than is not None:
        refuse_if_restricted(session, adapter, spec, "prune_history(older_than=...)")
    attempts = replace(spec, table=table, primary_key=(table.c.id,))
    if limit is None and not adapter.rows.sweeps_by_key:
        return adapter.rows.count(session, attempts, delete(table).where(*old))
    deleted, most = 0, adapter.rows.most(attempts)
    while size := most if limit is None else min(most, limit - deleted):
        some = adapter.rows.keys(session, attempts, select(table.c.id).where(*old).limit(size))
        named = delete(table).where(adapter.rows.key_in(attempts, some))
        gone = adapter.rows.count(session, attempts, adapter.rows.by_key(attempts, named)) if some else 0
        deleted += gone
        if len(some) < size or not gone:
            break
    return deleted


def count_old_attempts(session: Session, entity: type[QueueMixin], older_than: timedelta | None, *, cap: int) -> int:
    """Return how many attempts :func:`prune_history` deletes, at most ``cap``.  Runs one statement, without locks."""
    spec = spec_of(entity)
    table, old = _old(spec, older_than)
    rows = select(table.c.id).where(*old).limit(cap).subquery("old_attempts")
    found: int = open_(session, spec).rows.execute(session, spec, select(func.count()).select_from(rows)).scalar_one()
    return found


def _old(spec: QueueSpec, older_than: timedelta | None) -> tuple[Table, list[Criterion]]:
    """Return the history, and the criteria of attempts older than ``older_than``, or than its retention."""
    kept = _history_of(spec)
    age = kept.options.retention if older_than is None else duration("older_than", older_than, zero=True)
    if age is None:
        raise ArgumentError("the history has no retention: give older_than=timedelta(...), or HistoryOptions(...)")
    table = kept.table
    ways = table.c.outcome.in_([each.value for each in AttemptOutcome])  # all of them, so that the index is used
    return table, [table.c.queue == spec.table.fullname, ways, table.c.finished_at <= utcnow(-age)]


def attempts_of(session: Session, adapter: Adapter, spec: QueueSpec, where: Sequence[Where]) -> History | None:
    """Return the history whose attempts of a queue are those of the tasks that satisfy ``where``.

    ``None`` if the application has no history, or if only some of the queue's tasks are meant or seen: the history does
    not store their columns.
    """
    found = history_of(spec.table.metadata)
    if found is None or where or spec.inherited is not None:
        return None
    return None if adapter.inspection.hides_rows(session.connection(spec.bind_arguments), spec) else found


def identity_of(spec: QueueSpec, key: str) -> Identity | None:
    """Return the primary key that the history stores as ``key``; ``None`` if it cannot be recovered from the text."""
    try:
        return None if key.startswith(HASHED) else identity(spec, key)
    except ArgumentError:
        return None


def _history_of(spec: QueueSpec) -> History:
    found = history_of(spec.table.metadata)
    if found is None:
        raise missing_companion(HistoryMixin, spec, f"{spec.entity.__name__} has no history")
    return found
