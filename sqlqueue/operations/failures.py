"""The report of errors: failures grouped by their text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Executable, Select, func, literal_column, select, union_all

from .._support import checks
from ..model.mixins import QueueMixin
from ..queue.spec import Criterion, Identity, QueueSpec, Where, spec_of
from ..queue.status import Status
from ..sql.selection import only, state
from ..transaction.connection import AnySession, open_, session_of
from .session_criteria import within
from .windows import Window, Windows

LAST = 20_000
"""The number of failures that :func:`errors` reads by default."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failures with the same text: the number of tasks, and when the first and the last of them was claimed."""

    message: str
    """The text of the error."""
    count: int
    """How many tasks failed with it."""
    first_seen: datetime | None
    """When the first of them was claimed."""
    last_seen: datetime | None
    """When the last of them was claimed."""
    example: Identity
    """The primary key of one of them, the last by key."""
    capped: bool = False
    """Whether there may be more failures than were looked at, so that ``count`` is a lower bound."""


def errors(
    session: AnySession, entity: type[QueueMixin], *where: Where, cap: int | None = LAST, scan: int | None = None
) -> list[ErrorGroup]:
    """Return the failures of tasks that are not completed, grouped by their text, the most frequent first.

    Exact while there are fewer than ``cap`` failures.  Of more, the last ``cap`` by primary key are read, and
    :attr:`ErrorGroup.capped` says so.  ``cap=None`` reads all.  One query, which locks nothing.

    No index finds failures, so this reads the table until ``cap`` are found.  With ``scan``, it looks at that many rows
    at the most among available tasks, among other unfinished ones and among final ones, the last of these, by a few
    queries.
    """
    spec = spec_of(entity)
    session = session_of(session)
    for name, number in (("cap", cap), ("scan", scan)):
        if number is not None:
            checks.count(name, number)
    adapter = open_(session, spec)
    criteria = (*_failed(spec), *within(session, spec, where))
    if scan is None:
        found, is_cut = _last(spec, only(spec, *criteria), cap), False
    else:
        read = Windows(adapter=adapter, session=session, spec=spec, scan=scan).all(criteria)
        windows = [window for states, window in read if states != (Status.COMPLETED,)]
        found = _among(spec, windows, cap)
        is_cut = any(window.end(adapter, session) is not None for window in windows)
    rows: Any = adapter.rows.execute(session, spec, _grouped(found)).all()
    is_capped = is_cut or (cap is not None and sum(row.tasks for row in rows) >= cap)
    return [ErrorGroup(text, tasks, first, last, tuple(key), is_capped) for text, tasks, first, last, *key in rows]


def _failed(spec: QueueSpec) -> Iterator[Criterion]:
    yield spec["error"].is_not(None)
    yield spec["status"] != state(Status.COMPLETED)


def _facts(spec: QueueSpec) -> Sequence[ColumnElement[Any]]:
    key = (column.label(f"key_{n}") for n, column in enumerate(spec.primary_key))
    return [spec["error"].label("message"), spec["claimed_at"].label("claimed_at"), *key]


def _last(spec: QueueSpec, criterion: Criterion, cap: int | None) -> Select[Any]:
    found = select(*_facts(spec)).where(criterion)
    return found if cap is None else found.order_by(*(column.desc() for column in spec.primary_key)).limit(cap)


def _among(spec: QueueSpec, windows: Sequence[Window], cap: int | None) -> Select[Any]:
    parts = (window.select(*_facts(spec), limit=cap).subquery("failures") for window in windows)
    found = union_all(*(select(*part.c) for part in parts)).subquery("all_failures")
    return select(*found.c).limit(cap)


def _grouped(found: Select[Any]) -> Executable:
    last = found.cte("last_failures")
    key = [column for column in last.c if column.name.startswith("key_")]
    # the example is a row's whole key, of any number of columns; min() and max() are not window functions here, because
    # MariaDB evaluates those in time quadratic in the number of rows
    position = func.row_number().over(partition_by=last.c.message, order_by=[each.desc() for each in key])
    examples = select(last, position.label("position")).subquery("examples")
    tasks, first, last_seen = func.count(), func.min(last.c.claimed_at), func.max(last.c.claimed_at)
    groups = (
        select(last.c.message, tasks.label("tasks"), first.label("first_seen"), last_seen.label("last_seen"))
        .group_by(last.c.message)
        .subquery("message_groups")
    )
    return (
        select(*groups.c, *(examples.c[column.name] for column in key))
        .join_from(groups, examples, examples.c.message == groups.c.message)
        .where(examples.c.position == literal_column("1"))
        .order_by(groups.c.tasks.desc(), groups.c.message)
    )
