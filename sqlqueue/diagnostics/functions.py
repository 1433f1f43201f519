"""Finds functions that calls in a queue name, and those that nobody has registered (``JobMixin``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, func, select

from ..dialects.base import Adapter
from ..queue.spec import Criterion, Finding, QueueSpec, Severity
from ..sql import due_states, is_available, is_due, is_due_in, only, picks

Run = Callable[[Select[Any]], Any]
"""Executes a statement and returns its result."""

MAX_FUNCTIONS = 1_000
"""The maximum number of functions of one model that are examined."""
NAMED = 10
"""The maximum number of functions that a finding names; of any more, only the number is told."""


def called_functions(run: Run, spec: QueueSpec) -> Iterable[str]:
    """Return the functions that unfinished rows call."""
    parts = [(is_available(spec),), *((is_due_in(spec, each),) for each in due_states(spec))]
    return dict.fromkeys(name for part in parts for name in _names(run, spec, part))


def _names(run: Run, spec: QueueSpec, part: Sequence[Criterion]) -> Iterator[str]:
    """Yield the names, with one index search for each, however many rows have it."""
    column, last = spec["task"], None
    for _ in range(MAX_FUNCTIONS):
        beyond = () if last is None else (column > last,)
        last = run(select(func.min(column)).where(only(spec, *part, *beyond))).scalar_one()
        if last is None:
            return
        yield last


def unregistered_functions(
    connection: Connection, adapter: Adapter, spec: QueueSpec, known: Collection[str], whose: str
) -> Iterator[Finding]:
    """Yield a finding if unfinished rows, due or not, call functions that are not among the ``known`` ones, which are
    ``whose``.

    Runs one or two index searches for each function (at most 1,000).
    """
    called = called_functions(connection.execute, spec)
    missing = [name for name in called if name not in known and _is_unfinished(connection, adapter, spec, name)]
    if missing:
        more = [f"{len(missing) - NAMED} more"] if len(missing) > NAMED else []
        named = ", ".join([*missing[:NAMED], *more])
        message = f"{spec.name} has unfinished calls of functions that {whose} registered: {named}"
        fix = "register what replaces each of them under the old name too, unless another worker serves it"
        yield Finding.of(spec, Severity.WARNING, "unregistered-function", message, fix)


def _is_unfinished(connection: Connection, adapter: Adapter, spec: QueueSpec, name: str) -> bool:
    """Return whether a row that calls this function is unfinished."""
    ready, due = (step(1) for step in picks(spec, [spec["task"] == name]))
    waiting = replace(due, state=(is_due(spec),))
    searches = (adapter.rows.select_candidates(each, *spec.primary_key) for each in (ready, waiting))
    return any(connection.execute(each).first() is not None for each in searches)
