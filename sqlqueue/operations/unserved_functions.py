"""Finds functions whose calls wait because no worker claims them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import func, literal_column, select
from sqlalchemy.orm import Session

from ..dialects.base import Adapter
from ..model.mixins import QueueMixin
from ..queue.spec import Criterion, QueueSpec, Where, spec_of
from ..queue.status import Status
from ..sql.clock import utcnow
from ..sql.criteria import only
from ..sql.selection import Pick, picks
from ..sql.states import has_come, is_available, is_due, present_status, state
from ..transaction.connection import AnySession, open_, session_of
from .session_criteria import within

UNSERVED = timedelta(minutes=5)
"""The waiting time after which calls count as unserved."""
MAX_FUNCTIONS = 1_000
"""The maximum number of functions of one model that are examined."""
_FIRST = 1_000
"""The number of calls, in claim order, that are searched for the oldest."""


def unserved_functions(
    session: AnySession, entity: type[QueueMixin], *where: Where, after: timedelta = UNSERVED
) -> dict[str, timedelta]:
    """Return the functions that no worker seems to have registered, and how long the oldest claimable call of each has
    waited.

    These are the functions with a call that has been claimable for longer than ``after``, and none that is running
    under a lease: a worker that is merely behind has some running.  Empty for models that do not derive from
    ``JobMixin``.

    Runs a few short statements for each function (at most 1,000), whose cost does not depend on the number of rows.
    Locks nothing.
    """
    spec = spec_of(entity)
    if "task" not in spec.columns:
        return {}
    session = session_of(session)
    adapter, criteria = open_(session, spec), within(session, spec, where)
    found = ((name, _waiting(session, adapter, spec, name, criteria)) for name in _functions(session, adapter, spec))
    return {name: age for name, age in found if age is not None and age > after}


def _functions(session: Session, adapter: Adapter, spec: QueueSpec) -> Iterable[str]:
    """Return the functions that unfinished rows call, or where indexes hold all rows, those that any row calls."""
    parts = [()] if adapter.schema.indexes_all else [(is_available(spec),), (is_due(spec),)]
    return dict.fromkeys(name for part in parts for name in _names(session, adapter, spec, part))


def _names(session: Session, adapter: Adapter, spec: QueueSpec, part: Sequence[Criterion]) -> Iterator[str]:
    """Yield the names, with one index search for each, however many rows have it."""
    column, last = spec["task"], None
    for _ in range(MAX_FUNCTIONS):
        beyond = () if last is None else (column > last,)
        least = select(func.min(column)).where(only(spec, *part, *beyond))
        last = adapter.rows.execute(session, spec, least).scalar_one()
        if last is None:
            return
        yield last


def _waiting(
    session: Session, adapter: Adapter, spec: QueueSpec, name: str, where: Sequence[Where]
) -> timedelta | None:
    """Return how long the oldest claimable call has waited; ``None`` if there is none, or one is running."""
    ready, due = (step(_FIRST) for step in picks(spec, [spec["task"] == name, *where]))
    moment = spec["available_at"]
    overdue = replace(due, state=(*due.state, present_status(spec) != state(Status.RUNNING)))
    oldest = (_oldest(adapter, each) for each in (ready, overdue))
    running = replace(due, state=(spec["finished_at"].is_(None), is_due(spec), ~has_come(spec)), limit=_FIRST)
    seen = adapter.locking.looking(running, spec["status"].label("status"), moment.label("moment")).subquery("seen")
    count = select(func.count()).where(seen.c.status == literal_column(f"'{Status.RUNNING.value}'"))
    asked = select(*oldest, count.scalar_subquery(), utcnow())
    row: Any = adapter.rows.execute(session, spec, asked).one()
    *moments, held, now = row
    waits = [now - each for each in moments if each is not None]
    return max(waits) if waits and not held else None


def _oldest(adapter: Adapter, pick: Pick) -> Any:
    first = adapter.locking.looking(pick, pick.spec["available_at"].label("moment")).subquery("first")
    return select(func.min(first.c.moment)).scalar_subquery()
