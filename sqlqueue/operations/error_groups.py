"""Failures in groups: those whose texts differ only in numbers, addresses, quoted text and the like."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import CTE, ColumnElement, Executable, Table, case, func, literal_column, select, union_all
from sqlalchemy.orm import Session

from .._support.checks import count, text
from .._support.texts import error_pattern
from ..dialects.base import Adapter
from ..model.declaration import QueueMixin
from ..queue.options import FAILED, Status
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..sql import ended, is_failing, is_final, is_in_error_group, only
from ..transaction import AnySession, open_, session_of, within
from .history import attempts_of, identity_of
from .latches import culprit_in
from .paging import Window, Windows
from .reactivating import RETRY
from .recording import Shown, moments_read

LAST = 20_000
"""The number of failures that :func:`errors` reads by default."""
_ONE: ColumnElement[int] = literal_column("1")
_COUNTS = ("unfinished", "retriable")
"""Those of the tasks of a group that are counted as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroup:
    """Failures whose errors differ only in what varies: numbers, identifiers, dates, addresses and quoted text."""

    key: str
    """The fingerprint that the tasks have in ``error_group``, for :func:`.in_error_group`; or, if another program has
    stored the error, its text."""
    pattern: str
    """The text that the errors have in common: ``"Refused: smtp-<n> refused <email>"``, at most 300 characters."""
    message: str
    """The whole text of the newest error."""
    tasks: int
    """How many tasks that are not completed have such an error as their last one: those that
    :func:`.in_error_group` selects."""
    unfinished: int
    """How many of these are not final yet, such as those that will be retried."""
    retriable: int
    """How many of these :func:`retry` makes available: not those that were cancelled."""
    attempts: int | None
    """How many attempts have failed with such an error, whatever became of their tasks; ``None`` if these are not
    known, because the application keeps no history."""
    functions: Sequence[str]
    """The functions of the tasks, if they are function jobs."""
    first_seen: datetime | None
    """When the first of the attempts ended, or the first of the tasks was claimed; ``None`` if no task was claimed, or
    another program has stored a time that cannot be read."""
    last_seen: datetime | None
    """The same of the last one."""
    example: Identity | None
    """The primary key of the last task that failed with such an error, whose row may have been deleted.  ``None`` if
    the history stores only a hash, as it does for keys of more than 255 characters."""
    capped: frozenset[str] = frozenset()
    """Those of ``tasks``, ``unfinished``, ``retriable`` and ``attempts`` that are lower bounds, because there are more
    failures than were read."""

    @property
    def because_of(self) -> tuple[str, str] | None:
        """The name of the model and the key of the task because of whose failure the newest of these was not run, but
        cancelled: if that task is retried, it waits again.  ``None`` if it failed itself."""
        return culprit_in(self.message)


def errors(session: AnySession, entity: type[QueueMixin], *where: Where, cap: int | None = LAST) -> list[ErrorGroup]:
    """Return failures grouped by their errors, the most frequent first.

    Each task that is not completed counts in the group of its last error.  If the application has a
    :class:`.HistoryMixin`, the attempts that failed, were discarded or crashed are counted as well, whether or not
    their task was completed or deleted since.  They are not with ``where``, criteria of the session or row-level
    security, nor for a subclass that shares its table, because the history does not store the columns of tasks.

    Of the attempts, the last ``cap`` to end are read.  No index finds failed tasks, so that at most ``cap`` tasks of
    each state that is not final, and of final tasks, are read, of final ones the last.  :attr:`ErrorGroup.capped` shows
    whether there are more.  ``cap=None`` reads all, which reads the table.  Runs a few queries, which lock nothing.
    """
    spec = spec_of(entity)
    session = session_of(session)
    if cap is not None:
        count("cap", cap)
    adapter, scoped = open_(session, spec), within(session, spec, where)
    reading = _Reading(adapter, session, spec)
    failing, windows = _failing_tasks(reading, scoped, cap)
    tasks, capped = reading.groups(failing), set[str]()
    if any(window.is_cut(session) for window in windows):
        capped |= {"tasks", *_COUNTS}
    history = attempts_of(session, adapter, spec, scoped)
    attempts = {} if history is None else reading.groups(_failed_attempts(spec, history.table, cap))
    if cap is not None and sum(group.number for group in attempts.values()) >= cap:
        capped.add("attempts")
    examples = {key: identity_of(spec, group.example[0]) for key, group in attempts.items()}
    examples |= {key: tuple(group.example) for key, group in tasks.items()}
    functions = reading.functions(failing, examples) if "task" in spec.columns else {}
    found = [
        ErrorGroup(
            key=key,
            pattern=error_pattern(newest.message),
            message=newest.message,
            tasks=tasks[key].number if key in tasks else 0,
            unfinished=tasks[key].unfinished if key in tasks else 0,
            retriable=tasks[key].retriable if key in tasks else 0,
            attempts=None if history is None else attempts[key].number if key in attempts else 0,
            functions=sorted(functions.get(key, ())),
            first_seen=newest.first_seen,
            last_seen=newest.last_seen,
            example=examples[key],
            capped=frozenset(capped),
        )
        for key, newest in (tasks | attempts).items()
    ]
    return sorted(found, key=lambda group: (-max(group.attempts or 0, group.tasks), group.pattern, group.key))


def in_error_group(entity: type[QueueMixin], key: str) -> Criterion:
    """Return the criterion of the tasks of an :class:`.ErrorGroup`: those that are not completed, and whose last error
    is in the group with this ``key``: ``session.retry(Email, in_error_group(Email, group.key))``.
    """
    return is_in_error_group(spec_of(entity), text("key", key))


class _Failures(NamedTuple):
    """The failures to group: each with the key of its group, a message, a time, and the primary key of its task."""

    rows: CTE
    key: Sequence[ColumnElement[Any]]
    newest: Sequence[ColumnElement[Any]]
    """The order that puts the last one first."""


class _Counted(NamedTuple):
    """The failures of a group."""

    message: str
    number: int
    unfinished: int
    retriable: int
    first_seen: datetime | None
    last_seen: datetime | None
    example: Sequence[Any]


class _Reading(NamedTuple):
    """Reads failures of a queue."""

    adapter: Adapter
    session: Session
    spec: QueueSpec

    def groups(self, failures: _Failures) -> dict[str, _Counted]:
        """Return the groups of these failures, by their keys."""
        rows = moments_read(self.adapter, self.session, self.spec, partial(_grouped, failures))
        return {row[0]: _Counted(row[1], row[2], row[3], row[4], row[5], row[6], tuple(row[7:])) for row in rows}

    def functions(self, failing: _Failures, examples: Mapping[str, Identity | None]) -> Mapping[str, set[str]]:
        """Return the functions of the failing tasks, and those of the ``examples``, by the keys of their groups."""
        adapter, session, spec = self
        found, columns = defaultdict[str, set[str]](set), failing.rows.c
        rows: Any = adapter.rows.execute(session, spec, select(columns.group_key, columns.function).distinct())
        for key, function in rows:
            found[key].add(function)
        functions: dict[Identity | None, str] = {}
        for some in adapter.rows.batches(spec, list({each for each in examples.values() if each is not None})):
            rows = adapter.rows.execute(
                session, spec, select(*spec.primary_key, spec["task"]).where(adapter.rows.key_in(spec, some))
            )
            functions |= {tuple(row[:-1]): row[-1] for row in rows}
        for key, example in examples.items():
            if example in functions:
                found[key].add(functions[example])
        return found


def _failing_tasks(reading: _Reading, where: Sequence[Where], cap: int | None) -> tuple[_Failures, list[Window]]:
    """Return the tasks that are not completed and have an error, and the windows through which they are read."""
    adapter, session, spec = reading
    facts = [
        _group_key(spec["error_group"], spec["error"]),
        spec["error"].label("message"),
        spec["claimed_at"].label("seen_at"),
        case((~is_final(spec), _ONE)).label("unfinished"),
        case((RETRY.affected(spec), _ONE)).label("retriable"),
        *([spec["task"].label("function")] if "task" in spec.columns else []),
        *(column.label(f"key_{number}") for number, column in enumerate(spec.primary_key)),
    ]
    wanted, windows = [is_failing(spec), *where], list[Window]()
    if cap is None:
        found = select(*facts).where(only(spec, *wanted))
    else:
        every = Windows(adapter=adapter, session=session, spec=spec, scan=cap).all(wanted)
        windows = [window for states, window in every if states != (Status.COMPLETED,)]
        parts = [window.select(*facts, limit=cap).subquery("failures") for window in windows]
        found = select(*union_all(*(select(*part.c) for part in parts)).subquery("all_failures").c)
    rows = found.cte("failing_tasks")
    keys = [column for column in rows.c if column.name.startswith("key_")]
    never = case((rows.c.seen_at.is_(None), _ONE), else_=literal_column("0"))  # engines sort NULL first or last
    return _Failures(rows, keys, [never, rows.c.seen_at.desc(), *(column.desc() for column in keys)]), windows


def _failed_attempts(spec: QueueSpec, table: Table, cap: int | None) -> _Failures:
    columns = {
        "group_key": _group_key(table.c.error_group, table.c.error),
        "message": table.c.error,
        "seen_at": table.c.finished_at,
        "task": table.c.task,
        "attempt_id": table.c.id,
    }
    failed = table.c.error.is_not(None)
    rows = ended(table, spec.table.fullname, FAILED, columns, failed, cap=cap).cte("failed_attempts")
    return _Failures(rows, [rows.c.task], [rows.c.attempt_id.desc()])


def _group_key(group: ColumnElement[Any], error: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.coalesce(group, error).label("group_key")


def _grouped(failures: _Failures, shown: Shown) -> Executable:
    last = failures.rows
    # the newest is a whole row, with a key of any number of columns; min() and max() are not window functions here,
    # because MariaDB evaluates those in time quadratic in the number of rows
    position = func.row_number().over(partition_by=last.c.group_key, order_by=failures.newest).label("position")
    examples = select(last.c.group_key, last.c.message, *failures.key, position).subquery("examples")
    number, first, last_seen = func.count(), func.min(last.c.seen_at), func.max(last.c.seen_at)
    counts = [(func.count(last.c[each]) if each in last.c else literal_column("0")).label(each) for each in _COUNTS]
    groups = (
        select(
            *(last.c.group_key, number.label("failures"), *counts),
            *(first.label("first_seen"), last_seen.label("last_seen")),
        )
        .group_by(last.c.group_key)
        .subquery("error_groups")
    )
    return (
        select(
            groups.c.group_key,
            examples.c.message,
            groups.c.failures,
            *(groups.c[each] for each in _COUNTS),
            *(shown(each).label(each.name) for each in (groups.c.first_seen, groups.c.last_seen)),
            *(examples.c[column.name] for column in failures.key),
        )
        .join_from(groups, examples, examples.c.group_key == groups.c.group_key)
        .where(examples.c.position == _ONE)
    )
