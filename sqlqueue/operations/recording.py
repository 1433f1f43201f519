"""What is told about attempts, in log lines and in the history; and rows that cannot be read, which are set aside."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, Executable, and_, cast, null, select
from sqlalchemy.orm import Session

from .._support.errors import Claim
from .._support.texts import UNREADABLE, error_group, error_text, key_text, logger_of, storable, traceback_text
from ..dialects.base import Adapter
from ..dialects.statements import Unreadable
from ..lifecycle.transitions import end_assignments, error_assignments, planned_run, reactivated, takeover_assignments
from ..model.companions import history_of
from ..model.declaration import LONGEST_KEY
from ..queue.options import FINAL, AttemptOutcome, HistoryOptions, Status
from ..queue.retries import RetryPolicy, checked_delay, delay_after, policy_for
from ..queue.spec import Criterion, Identity, QueueSpec, spec_of
from ..sql import REACH, Assignment, is_held, raised, representable, state, uncounted, utcnow, write
from ..transaction import ledger_of

R = TypeVar("R")

# -- describes attempts: the number of each, how many are left, and what follows a failure ----------------------------


def attempt_text(attempt: object, most: object, status: object = None) -> object:
    """Return the number of an attempt and, unless its task is final, how many are left: ``3 (1 left)``.

    What is in the row's ``max_attempts`` is not what the model allows, since attempts that do not count raise it.
    """
    if status in FINAL or not isinstance(attempt, int) or not isinstance(most, int):
        return attempt
    return f"{attempt} ({max(most - attempt, 0)} left)"


class Consequence(NamedTuple):
    """What follows a failure: a retry, another run, or nothing."""

    kind: Literal["completed", "failed", "discarded"]
    """``"failed"`` if the task is retried or has a next run, ``"discarded"`` if it becomes a dead letter."""
    level: int
    """The log level: a warning for a retry, an error for a task that is given up."""
    text: str
    retry_in: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A claim and its row's values at the time of the claim: the handler's session may expire or change the row."""

    claim: Claim
    spec: QueueSpec
    number: int
    """Counted from 1 within the current stage or run, unlike the number in the row."""
    most: int
    """The row's ``max_attempts``."""
    recurs: bool
    """Whether another run follows the last attempt."""
    function: str | None
    """The function that the task calls (``JobMixin``)."""

    @classmethod
    def of(cls, spec: QueueSpec, claim: Claim, loaded: Mapping[str, Any]) -> Attempt:
        """Return the attempt of a task, with the attributes that were loaded when it was claimed."""
        names = spec.attributes

        def value(role: str) -> Any:
            return loaded.get(names[role]) if role in names else None

        before = value("attempts_before") or 0
        most = value("max_attempts") or claim.attempt
        return cls(claim, spec, claim.attempt - before, most, value("schedule") is not None, value("task"))

    def __str__(self) -> str:
        return f"{task_name(self.claim, self.function)}: attempt {attempt_text(self.claim.attempt, self.most)}"

    @property
    def is_last(self) -> bool:
        """Whether no attempt is left after this one."""
        return self.claim.attempt >= self.most

    def failing(self, cause: type[BaseException] | None, retry_in: timedelta | None) -> Consequence:
        """Predict what follows a failure with this cause and delay.

        The prediction can be wrong: another process may have enqueued the task to run again, which only its row shows,
        and the delay that is stored differs by the policy's jitter.
        """
        policy = policy_for(self.spec.options.retry, cause)
        if self.is_last or (policy is None and retry_in is None):
            return given_up(recurs=self.recurs)
        delay = _delay(policy, self.number) if retry_in is None and policy is not None else retry_in
        return Consequence("failed", logging.WARNING, retry_text(delay), delay)


def given_up(*, recurs: bool) -> Consequence:
    """Return what follows when no attempt is left: the next run of a recurring task, otherwise a dead letter."""
    if recurs:
        return Consequence("failed", logging.ERROR, "no retry before its next run")
    return Consequence("discarded", logging.ERROR, "discarded")


def task_name(claim: Claim, function: str | None = None) -> str:
    """Return the name of a claimed task for logs: its queue, its primary key, and the function that it calls."""
    return f"{spec_of(claim.entity).name} {key_text(claim.identity)}" + (f" ({function})" if function else "")


def task_facts(claim: Claim, function: str | None = None) -> dict[str, Any]:
    """Return what log records say of a claimed task, as attributes: ``queue``, ``key``, ``function``, ``attempt`` (as
    in its row) and ``worker``, its claimer."""
    return {
        "queue": spec_of(claim.entity).name,
        "key": key_text(claim.identity),
        "function": function,
        "attempt": claim.attempt,
        "worker": claim.claimed_by,
    }


def retry_text(delay: timedelta | None) -> str:
    """Return the text about the next attempt for logs; ``delay`` is ``None`` if it is not known."""
    return "to be retried" if delay is None else f"retry in {spoken(delay)}"


def spoken(time: timedelta) -> str:
    """Format a duration for people: ``0.5 s``, ``15 s``, ``4 min``, ``1.5 h``."""
    seconds = time.total_seconds()
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), (1, "s"))
    number = seconds / size
    return f"{number:.1f}".removesuffix(".0") + f" {unit}"


_UNITS = ((3600, "h"), (60, "min"))
_LONGEST = 300
"""The maximum length of a reason in a log line, in characters."""


def brief(text: str) -> str:
    """Shorten an error text to one log line; the row's ``error`` and the traceback contain all of it."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _delay(policy: RetryPolicy, attempt: int) -> timedelta | None:
    try:
        return checked_delay(policy, attempt)
    except Exception:  # the settlement calls the policy as well, and reports the error
        return None


# -- describes what handlers have reported about their tasks (``ProgressMixin``) ---------------------------------------


class Reported(NamedTuple):
    """The ``progress`` of a task, as operators see it."""

    text: str
    """How far it is, such as ``"40 %: page 4 of 10"``; empty if that is not known."""
    share: float | None
    """From 0 to 1."""
    attempt: int | None
    """The attempt that has reported it."""
    notes: tuple[tuple[datetime, str], ...]
    """The newest notes and their times, the oldest first."""
    dropped: int
    """How many older notes are not kept."""


def reported(stored: object) -> Reported | None:
    """Return what the ``progress`` of a task says; ``None`` if nothing, or if it was not written by a worker."""
    try:
        found: Any = stored
        share, notes = (
            found["value"],
            tuple((datetime.fromisoformat(note["at"]), str(note["text"])) for note in found["notes"]),
        )
        percent = "" if share is None else f"{math.floor(share * 100 + 1e-6)} %"
        text = ": ".join(filter(None, (percent, found["text"])))
        return Reported(text, share, found["attempt"], notes, found["dropped"])
    except (KeyError, TypeError, ValueError):
        return None


# -- writes finished attempts to the history, in the transaction that settles them ------------------------------------

Traceback: TypeAlias = BaseException | str | None
"""A traceback, or the exception that has it: it is formatted only where there is a history."""
HASHED = "sha256:"
"""The prefix of a key of which only the hash is stored."""
_LEFT_OUT = "\n[...]\n"
"""Replaces the middle of a traceback that is too long."""


class AttemptRecord(NamedTuple):
    """The end of an attempt as the history records it."""

    outcome: AttemptOutcome
    error: str | None = None
    traceback: Traceback = None


ABANDONED = AttemptRecord(AttemptOutcome.CRASHED, "crashed: its lease expired without a settlement")
"""The end of an attempt that its claimer never settled."""


def stored_traceback(traceback: Traceback, options: HistoryOptions) -> str | None:
    """Return the traceback as it is stored: the application's frames, without the middle if it is too long."""
    if traceback is None or not options.traceback:
        return None
    if isinstance(traceback, BaseException):
        if traceback.__traceback__ is None:
            return None
        traceback = traceback_text(traceback)
    text, most = storable(traceback), options.traceback
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


def record(adapter: Adapter, session: Session, claims: Sequence[Claim], end: AttemptRecord) -> None:
    """Write the end of these attempts at tasks of one queue, in one statement, if the application has a history."""
    if not claims:
        return
    spec = spec_of(claims[0].entity)
    history = history_of(spec.table.metadata)
    if history is None:
        return
    same = {
        "queue": spec.name,
        "outcome": end.outcome.value,
        "error": end.error,
        "error_group": None if end.error is None else error_group(end.error),
        "traceback": stored_traceback(end.traceback, history.options),
    }
    different: dict[str, Sequence[Any]] = {
        "task": [task_key(claim.identity) for claim in claims],
        "attempt": [claim.attempt for claim in claims],
        "claimed_by": [claim.claimed_by for claim in claims],
        "started_at": [claim.claimed_at for claim in claims],
    }
    make = partial(adapter.rows.insert_alike, history.table, tuple(same), tuple(different), "finished_at")
    statement = spec.made.get((adapter.rows, "alike"), make)
    adapter.rows.execute(session, spec, statement, adapter.rows.alike_values(same, different))


def last_claims(adapter: Adapter, session: Session, spec: QueueSpec, named: Criterion) -> list[Claim]:
    """Return the latest claims of tasks that this transaction has locked, which are ``named`` by primary key.

    If one of their times cannot be read, all are unknown.
    """

    def read(claimed_at: ColumnElement[Any]) -> Any:
        values = (*(spec[role] for role in ("attempt", "claim_token", "claimed_by")), claimed_at)
        statement = select(*spec.primary_key, *values).where(named)
        return adapter.rows.execute(session, spec, adapter.rows.by_key(spec, statement)).all()

    unknown = cast(null(), spec["claimed_at"].type)
    rows = read_or(adapter, lambda: read(spec["claimed_at"]), lambda: read(unknown))
    width = len(spec.primary_key)
    return [Claim(spec.entity, tuple(row[:width]), *row[width:]) for row in rows]


# -- sets rows aside that cannot be read, so that they stop nobody: a newer release may be able to read them ----------

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
    adapter: Adapter,
    session: Session,
    spec: QueueSpec,
    asked: Callable[[Shown], Executable],
    asked_of: Callable[[Shown, Sequence[Any]], Executable] | None = None,
) -> Sequence[Any]:
    """Return the rows of the statement ``asked(shown)``, which selects ``shown(moment)`` for each time.

    That is the nearest time which Python has.  If one of them cannot be read even so, such as text or February 30, all
    are NULL, or 65 years ago if they cannot be.  With ``asked_of(shown, rows)``, which selects only the same rows
    again, those of other rows are read.
    """

    def read(statement: Executable) -> Sequence[Any]:
        return adapter.rows.execute(session, spec, statement).all()

    def apart(rows: Sequence[Any]) -> Sequence[Any]:
        half = len(rows) // 2
        return rows if half == 0 or asked_of is None else [*again(rows[:half]), *again(rows[half:])]

    def again(rows: Sequence[Any]) -> Sequence[Any]:
        if asked_of is None or len(rows) > adapter.rows.most(spec):
            return apart(rows)
        statement = asked_of(representable, rows)
        return read_or(adapter, lambda: read(statement), lambda: apart(rows))

    return read_or(adapter, lambda: read(asked(representable)), lambda: apart(read(asked(_unknown))))


def read_or(adapter: Adapter, read: Callable[[], R], otherwise: Callable[[], R]) -> R:
    """Return what ``read`` returns; if a row cannot be turned into Python objects, what ``otherwise`` returns."""
    try:
        return read()
    except Exception as error:
        if not adapter.connections.is_of_row(error):
            raise
        return otherwise()


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
        *error_assignments(spec, aside.error),
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
            *reactivated(spec),  # consuming has made it final
            (spec["status"], state(Status.SCHEDULED)),
            (spec["available_at"], utcnow(aside.delay)),
            (spec["finished_at"], null()),
        ]
    adapter.rows.execute(session, spec, adapter.rows.by_key(spec, write(spec, named, values)))


def say(spec: QueueSpec, identity: Identity, text: str) -> None:
    """Log what is wrong with a row, once an hour."""
    key, now = (spec.name, identity), time.monotonic()
    if now - _said.get(key, -math.inf) < _SAY_AGAIN:
        return
    if len(_said) >= _MOST_SAID:
        _said.clear()
    _said[key] = now
    facts = {"queue": spec.name, "key": key_text(identity)}
    logger.error("%s %s", task_name(Claim(spec.entity, identity, attempt=0)), text, extra=facts)
