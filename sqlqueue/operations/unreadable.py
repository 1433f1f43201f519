"""Sets rows aside that cannot be read, so that they stop nobody: a newer release may be able to read them."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Executable, and_, cast, null, select
from sqlalchemy.orm import Session

from .._support.errors import Claim
from .._support.texts import UNREADABLE, error_text, logger_of
from ..dialects.base import Adapter
from ..dialects.statements import Unreadable
from ..lifecycle.transitions import end_assignments, planned_run, restored_key, takeover_assignments
from ..model.companions import history_of
from ..queue.options import AttemptOutcome, Status
from ..queue.retries import delay_after
from ..queue.spec import Identity, QueueSpec
from ..sql import REACH, Assignment, is_held, raised, representable, state, uncounted, utcnow, write
from ..transaction import ledger_of
from .recording import ABANDONED, AttemptRecord, brief, last_claims, record, spoken, task_name

logger = logger_of("sqlqueue")

MOST = 10
"""How often a row is postponed before it becomes a dead letter."""
_COUNTED = re.compile(rf"{UNREADABLE}.* \((\d+) of {MOST}\)", re.DOTALL)
_SAY_AGAIN = 3600.0
"""Seconds until another line is logged for the same row."""
_MOST_SAID = 10_000
_said: dict[tuple[str, Identity], float] = {}
"""When each row was logged, by ``time.monotonic``."""


Shown: TypeAlias = Callable[[ColumnElement[Any]], ColumnElement[Any]]
"""What is read instead of a time."""


class _Aside(NamedTuple):
    """What is written to a row: the error, and the delay; ``None`` makes it a dead letter."""

    error: str
    delay: timedelta | None


def set_aside(
    adapter: Adapter, session: Session, spec: QueueSpec, rows: Sequence[Unreadable], *, claimed: bool
) -> None:
    """Postpone rows that the session's transaction has locked, by the model's backoff; no attempt is counted.

    A row that was postponed 10 times becomes a dead letter, unless it has a next run.  ``claimed``: the transaction has
    written a claim to the rows; otherwise, the attempts of claimers that have crashed end here.  The statements read
    nothing of the rows but the queue's own columns.
    """
    ledger_of(session).unreadable += rows
    for some in adapter.rows.batches(spec, rows):
        alike = defaultdict[_Aside, list[Identity]](list)
        errors = _errors(adapter, session, spec, [each.identity for each in some])
        for identity, error in some:
            aside = _aside(spec, error, errors.get(identity))
            alike[aside].append(identity)
            then = "discarded" if aside.delay is None else f"postponed by {spoken(aside.delay)}"
            say(spec, identity, f"{aside.error}, {then}")
        for aside, identities in alike.items():
            _write(adapter, session, spec, identities, aside, claimed=claimed)


def was_set_aside(error: str | None) -> bool:
    """Return whether the ``error`` of a row says that it could not be read."""
    return error is not None and error.startswith(UNREADABLE)


def unreadable_rows(session: Session) -> int:
    """Return how many rows the session's transaction has set aside."""
    return len(ledger_of(session).unreadable)


def moments_read(
    adapter: Adapter, session: Session, spec: QueueSpec, asked: Callable[[Shown], Executable]
) -> Sequence[Any]:
    """Return the rows of the statement ``asked(shown)``, which selects ``shown(moment)`` for each time.

    That is the nearest time which Python has.  If one of them cannot be read even so, such as text or February 30, all
    are NULL, or 65 years ago if they cannot be.
    """
    try:
        return adapter.rows.execute(session, spec, asked(representable)).all()
    except Exception as error:
        if not adapter.connections.is_of_row(error):
            raise
        return adapter.rows.execute(session, spec, asked(_unknown)).all()


def _unknown(moment: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(null(), moment.type) if getattr(moment, "nullable", True) else utcnow(-REACH)


def _errors(
    adapter: Adapter, session: Session, spec: QueueSpec, identities: Sequence[Identity]
) -> dict[Identity, str | None]:
    """Return the errors of rows, as far as these can be read."""
    read = select(*spec.primary_key, spec["error"]).where(adapter.rows.key_in(spec, identities))
    try:
        rows = adapter.rows.execute(session, spec, adapter.rows.by_key(spec, read)).all()
        return {tuple(row[:-1]): row[-1] for row in rows}
    except Exception as error:
        if not adapter.connections.is_of_row(error):
            raise
    parts = ([identity] for identity in identities if len(identities) > 1)
    return {key: text for part in parts for key, text in _errors(adapter, session, spec, part).items()}


def _aside(spec: QueueSpec, error: Exception, before: str | None) -> _Aside:
    found = _COUNTED.fullmatch(before or "")
    times = int(found[1]) + 1 if found else 1
    reason = UNREADABLE + brief(error_text(error))
    if times <= MOST:
        return _Aside(f"{reason} ({times} of {MOST})", delay_after(spec.options.retry, times, spec.entity.__name__))
    if spec.recurs:  # another run follows
        return _Aside(f"{reason} ({MOST} of {MOST})", delay_after(spec.options.retry, MOST, spec.entity.__name__))
    return _Aside(f"{reason} (given up after {MOST} times)", None)


def _write(
    adapter: Adapter, session: Session, spec: QueueSpec, identities: Sequence[Identity], aside: _Aside, *, claimed: bool
) -> None:
    named = adapter.rows.key_in(spec, identities)
    if history_of(spec.table.metadata) is not None:
        outcome = AttemptOutcome.SNOOZED if aside.delay is not None else AttemptOutcome.DISCARDED
        ended = last_claims(adapter, session, spec, named if claimed else and_(named, is_held(spec)))
        record(adapter, session, ended, AttemptRecord(outcome, aside.error) if claimed else ABANDONED)
    values: list[Assignment] = [
        (spec["error"], aside.error),
        (spec["claimed_by"], null()),
        (spec["claimed_at"], null()),
    ]
    if claimed:
        values.append((spec["max_attempts"], uncounted(spec)))
        before = spec.columns.get("attempts_before")
        if before is not None:
            values.append((before, raised(before)))
    else:
        values += [*planned_run(spec), *takeover_assignments(spec)]
    if aside.delay is None:
        values += end_assignments(spec, Status.DISCARDED)
    else:
        values += [
            *restored_key(spec),  # consuming has made it final
            (spec["status"], state(Status.SCHEDULED)),
            (spec["available_at"], utcnow(aside.delay)),
            (spec["finished_at"], null()),
        ]
    adapter.rows.execute(session, spec, adapter.rows.by_key(spec, write(spec, named, values)))


def say(spec: QueueSpec, identity: Identity, text: str) -> None:
    """Log what is wrong with a row, once an hour."""
    key, now = (spec.table.fullname, identity), time.monotonic()
    if now - _said.get(key, -math.inf) < _SAY_AGAIN:
        return
    if len(_said) >= _MOST_SAID:
        _said.clear()
    _said[key] = now
    facts = {"queue": spec.entity.__name__, "identity": identity}
    logger.error("%s %s", task_name(Claim(spec.entity, identity, attempt=0)), text, extra=facts)
