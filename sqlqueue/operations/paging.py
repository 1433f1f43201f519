"""Reads tasks page by page, where pages have positions instead of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption

from .._support.checks import count
from .._support.error_text import UNREADABLE
from ..dialects.base import Adapter
from ..model.mixins import T
from ..queue.spec import Identity, Where, spec_of
from ..queue.status import Status
from ..transaction.connection import AnySession, open_, session_of
from .finding import Damaged, find_all, key_of
from .session_criteria import within
from .windows import SCAN, Position, Window, Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A page of tasks, and the positions of the previous and next page."""

    tasks: Sequence[T | Damaged]
    """The tasks, in order, with stand-ins for those that cannot be read."""
    next: Position | None
    """The ``after`` of the next page; ``None`` on the last one."""
    previous: Position | None
    """The ``before`` of the previous page; ``None`` on the first one."""
    is_cut: bool
    """Whether ``scan`` rows were examined without filling the page; the next page continues there."""


def page(
    session: AnySession,
    entity: type[T],
    *where: Where,
    status: Status | None = None,
    after: Position | None = None,
    before: Position | None = None,
    limit: int = 50,
    scan: int = SCAN,
    options: Sequence[ExecutableOption] = (),
) -> Page[T]:
    """Return up to ``limit`` tasks that satisfy ``where``, in the state ``status`` if given.  ``after``: the position
    of the last task of the previous page; ``before``: that of the first task of the next page.  Runs a few queries,
    which lock nothing.  The cost of a page does not depend on its position, because rows before it are not read, nor on
    ``where``: if no index covers it, it is evaluated for at most about ``scan`` rows, so that a page can have fewer
    tasks than ``limit``, or none, although there are more.  For the order see :meth:`.Windows.of`. Tasks that change
    their position in the meantime can be missing, or appear on two pages.  ``options``: any loader options.
    """
    spec = spec_of(entity)
    count("limit", limit)
    session = session_of(session)
    adapter = open_(session, spec)
    among = Windows(adapter=adapter, session=session, spec=spec, scan=scan)
    window = among.of(status, within(session, spec, where))
    ahead, end, keys = window if before is None else window.backwards(), None, list[Identity]()
    for part in ahead.beyond(after if before is None else before):
        keys += adapter.rows.keys(session, spec, part.select(*spec.primary_key, limit=limit + 1 - len(keys)))
        if len(keys) > limit or (end := part.end(session)) is not None:
            break
    shown = _loaded(adapter, session, entity, keys[:limit] if before is None else keys[:limit][::-1], options)
    first, last = (_position(window, shown[index]) if shown else None for index in (0, -1))
    more = len(keys) > limit
    if before is not None:
        return Page(tasks=shown, next=last, previous=end or (first if more else None), is_cut=end is not None)
    following = end or (last if more else None)
    return Page(tasks=shown, next=following, previous=None if after is None else first, is_cut=end is not None)


def _loaded(
    adapter: Adapter,
    session: Session,
    entity: type[T],
    keys: Sequence[Identity],
    options: Sequence[ExecutableOption],
) -> Sequence[T | Damaged]:
    """Return the tasks with these keys that still exist, in the order of the keys."""
    if not keys:
        return []
    spec = spec_of(entity)
    # without other criteria or an order, for which SQLite might scan another index
    criterion = adapter.keys.key_in(spec, keys)
    found = {key_of(spec, task): task for task in find_all(session, entity, criterion, options=options)}
    return [found[key] for key in keys if key in found]


def _position(window: Window, task: object) -> Position:
    names: Mapping[Any, str] = {each: prop.key for prop in window.spec.mapper.column_attrs for each in prop.columns}
    position = tuple(getattr(task, names[term.column]) for term in window.places)
    if isinstance(task, Damaged) and any(str(each).startswith(f"({UNREADABLE}") for each in position):
        return window.position_of(task.identity)
    return position
