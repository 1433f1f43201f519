"""Finished attempts of a queue, read from the history with an index, up to a cap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, select, union_all

from ..queue.history import AttemptOutcome
from ..queue.spec import Criterion


def ended(
    table: Table,
    queue: str,
    outcomes: Sequence[AttemptOutcome],
    columns: Mapping[str, ColumnElement[Any]],
    *criteria: Criterion,
    cap: int | None,
) -> Select[Any]:
    """Return ``columns`` of the attempts at tasks of ``queue`` with one of ``outcomes``: all, or the last ``cap``.

    With a cap, each outcome is read separately, from the end of its range in the index; a single range for all of them
    would have to be sorted.
    """
    named = [column.label(name) for name, column in columns.items()]
    mine = (table.c.queue == queue, *criteria)
    if cap is None:
        return select(*named).where(*mine, table.c.outcome.in_([each.value for each in outcomes]))
    moment = table.c.finished_at
    parts = [
        select(*named, moment.label("ended_at"))
        .where(*mine, table.c.outcome == each.value)
        .order_by(moment.desc())
        .limit(cap)
        .subquery(f"ended_{each.value}")
        for each in outcomes
    ]
    found = union_all(*(select(*part.c) for part in parts)).subquery("ended")
    return select(*(found.c[name] for name in columns)).order_by(found.c.ended_at.desc()).limit(cap)
