"""The report of errors: failures with the same text, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import CTE, ColumnElement, Executable, Select, Table, func, literal_column, select, union_all

from .._support import checks
from ..model.companions import History
from ..model.declaration import QueueMixin
from ..queue.options import FAILED, Status
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..sql import ended, only, state
from ..transaction import AnySession, open_, session_of, within
from .history import attempts_of, identity_of
from .paging import Window, Windows
from .unreadable import Shown, moments_read

LAST = 20_000
"""The number of failures that :func:`errors` reads by default."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failures with the same text: failed attempts if the application keeps a history, otherwise tasks."""

    message: str
    """The text of the error."""
    count: int
    """How many attempts, or tasks, failed with it."""
    first_seen: datetime | None
    """When the first of the attempts ended, or the first of the tasks was claimed; ``None`` if no task was claimed, or
    another program has stored a time that cannot be read."""
    last_seen: datetime | None
    """When the last of the attempts ended, or the last of the tasks was claimed; ``None`` likewise."""
    example: Identity | None
    """The primary key of the last task that failed with it, whose row may have been deleted.  ``None`` if the history
    stores only a hash, as it does for keys of more than 255 characters."""
    capped: bool = False
    """Whether there are more failures than were examined, so that ``count`` is a lower bound."""
    attempts: bool = False
    """Whether these are attempts, from the history; otherwise tasks, by the last error of each."""


def errors(
    session: AnySession, entity: type[QueueMixin], *where: Where, cap: int | None = LAST, scan: int | None = None
) -> list[ErrorGroup]:
    """Return failures grouped by their text, the most frequent first.

    If the application has a :class:`.HistoryMixin`, each failed attempt in the history counts: one that failed, was
    discarded or crashed, whether or not its task was completed or deleted since.  If there are more than ``cap``, the
    ones that ended last are read.

    Otherwise each task that is not completed counts once, by its last error.  The same applies with ``where``, criteria
    of the session or row-level security, and to a subclass that shares its table, because the history does not store
    the columns of tasks.  If there are more than ``cap``, the last ones by primary key are read.

    The counts are exact if there are fewer than ``cap`` failures, as :attr:`ErrorGroup.capped` shows.  ``cap=None``
    reads all.  Runs one query, which locks nothing.

    No index finds failed tasks, so this reads the table until ``cap`` are found.  With ``scan``, a few queries examine
    no more than that many available tasks, other unfinished tasks, and final tasks, starting with the last.
    """
    spec = spec_of(entity)
    session = session_of(session)
    for name, number in (("cap", cap), ("scan", scan)):
        if number is not None:
            checks.count(name, number)
    adapter, scoped = open_(session, spec), within(session, spec, where)
    history, is_cut = attempts_of(session, adapter, spec, scoped), False
    if history is not None:
        failures = _attempts(spec, history.table, cap)
    elif scan is None:
        failures = _last_tasks(spec, scoped, cap)
    else:
        windows = _windows(Windows(adapter=adapter, session=session, spec=spec, scan=scan), scoped)
        failures = _tasks_among(spec, windows, cap)
        is_cut = any(window.is_cut(session) for window in windows)
    rows: Any = moments_read(adapter, session, spec, partial(_grouped, failures))
    is_capped = is_cut or (cap is not None and sum(row.failures for row in rows) >= cap)
    return [
        ErrorGroup(text, number, first, last, _example(spec, history, key), is_capped, history is not None)
        for text, number, first, last, *key in rows
    ]


class _Failures(NamedTuple):
    """The failures to group: a message and a time, the key, and the order that puts the last one first."""

    rows: CTE
    key: Sequence[ColumnElement[Any]]
    newest: Sequence[ColumnElement[Any]]


def _example(spec: QueueSpec, history: History | None, key: Sequence[Any]) -> Identity | None:
    return tuple(key) if history is None else identity_of(spec, key[0])


def _last_tasks(spec: QueueSpec, where: Sequence[Where], cap: int | None) -> _Failures:
    found = select(*_facts(spec)).where(only(spec, *_failed(spec), *where))
    if cap is not None:
        found = found.order_by(*(column.desc() for column in spec.primary_key)).limit(cap)
    return _tasks(found)


def _windows(windows: Windows, where: Sequence[Where]) -> list[Window]:
    found = windows.all((*_failed(windows.spec), *where))
    return [window for states, window in found if states != (Status.COMPLETED,)]


def _tasks_among(spec: QueueSpec, windows: Sequence[Window], cap: int | None) -> _Failures:
    parts = (window.select(*_facts(spec), limit=cap).subquery("failures") for window in windows)
    found = union_all(*(select(*part.c) for part in parts)).subquery("all_failures")
    return _tasks(select(*found.c).limit(cap))


def _tasks(found: Select[Any]) -> _Failures:
    last = found.cte("last_failures")
    keys = [column for column in last.c if column.name.startswith("key_")]
    return _Failures(last, keys, [column.desc() for column in keys])


def _failed(spec: QueueSpec) -> Sequence[Criterion]:
    return (spec["error"].is_not(None), spec["status"] != state(Status.COMPLETED))


def _facts(spec: QueueSpec) -> Sequence[ColumnElement[Any]]:
    key = (column.label(f"key_{n}") for n, column in enumerate(spec.primary_key))
    return [spec["error"].label("message"), spec["claimed_at"].label("seen_at"), *key]


def _attempts(spec: QueueSpec, table: Table, cap: int | None) -> _Failures:
    columns = {
        "message": table.c.error,
        "seen_at": table.c.finished_at,
        "task": table.c.task,
        "attempt_id": table.c.id,
    }
    failed = table.c.error.is_not(None)
    last = ended(table, spec.table.fullname, FAILED, columns, failed, cap=cap).cte("last_failures")
    return _Failures(last, [last.c.task], [last.c.attempt_id.desc()])


def _grouped(failures: _Failures, shown: Shown) -> Executable:
    last = failures.rows
    # the example is a row's whole key, of any number of columns; min() and max() are not window functions here, because
    # MariaDB evaluates those in time quadratic in the number of rows
    position = func.row_number().over(partition_by=last.c.message, order_by=failures.newest).label("position")
    examples = select(last.c.message, *failures.key, position).subquery("examples")
    number, first, last_seen = func.count(), func.min(last.c.seen_at), func.max(last.c.seen_at)
    groups = (
        select(last.c.message, number.label("failures"), first.label("first_seen"), last_seen.label("last_seen"))
        .group_by(last.c.message)
        .subquery("message_groups")
    )
    return (
        select(
            groups.c.message,
            groups.c.failures,
            *(shown(each).label(each.name) for each in (groups.c.first_seen, groups.c.last_seen)),
            *(examples.c[column.name] for column in failures.key),
        )
        .join_from(groups, examples, examples.c.message == groups.c.message)
        .where(examples.c.position == literal_column("1"))
        .order_by(groups.c.failures.desc(), groups.c.message)
    )
