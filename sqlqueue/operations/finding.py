"""Reads tasks without claiming or locking them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.base import ExecutableOption

from .._support.checks import count
from .._support.error_text import UNREADABLE, error_text
from ..dialects.base import Adapter
from ..dialects.parts.rows import Unreadable, forget_unfinished
from ..model.mixins import T
from ..queue.spec import Identity, QueueSpec, Where, spec_of
from ..sql.criteria import only
from ..transaction.connection import AnySession, open_, session_of
from .attempts import brief
from .claim_query import OrderBy
from .session_criteria import within
from .unreadable import say


@dataclass(frozen=True, slots=True)
class Damaged:
    """Stands for a task that cannot be loaded.  It has the same attributes; for a value that cannot be read, a text
    says why."""

    identity: Identity
    """The primary key."""
    values: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def find(
    session: AnySession,
    entity: type[T],
    *where: Where,
    limit: int | None = None,
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
) -> Sequence[T]:
    """Return tasks that satisfy ``where``, in any state, as they are in the database now, without claiming them.

    ``order_by``: any columns; by default the primary key, the one order that never needs a sort.  ``limit``: the
    maximum number to return; all by default.  ``options``: any loader options.  To find tasks older than an hour by the
    database's clock, give ``Task.created_at <= utcnow(-timedelta(hours=1))``.

    Rows that cannot be read are logged, and left out.
    """
    found = find_all(session, entity, *where, limit=limit, order_by=order_by, options=options)
    return [task for task in found if not isinstance(task, Damaged)]


def find_all(
    session: AnySession,
    entity: type[T],
    *where: Where,
    limit: int | None = None,
    order_by: OrderBy = (),
    options: Sequence[ExecutableOption] = (),
) -> Sequence[T | Damaged]:
    """Return tasks as :func:`find` does, with a stand-in for each that cannot be read."""
    spec = spec_of(entity)
    session = session_of(session)
    if limit is not None:
        count("limit", limit)
    adapter = open_(session, spec)
    order = order_by if isinstance(order_by, Sequence) else (order_by,)

    def choosing(statement: Select[Any], criteria: Sequence[Where]) -> Select[Any]:
        return statement.where(only(spec, *criteria)).order_by(*(order or spec.primary_key)).limit(limit)

    try:
        rows = session.scalars(
            choosing(select(entity), where).options(*options),
            execution_options={"populate_existing": True},
            bind_arguments=spec.bind_arguments,
        )
        return rows.unique().all()
    except Exception as error:
        if not adapter.errors.is_of_row(error):
            raise
        wanted = select(*spec.primary_key).select_from(spec.mapper.persist_selectable)
        keys = adapter.rows.keys(session, spec, choosing(wanted, within(session, spec, where)))
        forget_unfinished(session, spec, keys, error)
        return _separately(adapter, session, spec, keys, options)


def _separately(
    adapter: Adapter, session: Session, spec: QueueSpec, keys: Sequence[Identity], options: Sequence[ExecutableOption]
) -> list[Any]:
    """Load the tasks with these keys, in their order."""
    unreadable: list[Unreadable] = []
    tasks = adapter.rows.load(session, spec, keys, options, unreadable=unreadable)
    found: dict[Identity, Any] = {spec.identity_of(task): task for task in tasks}
    for identity, error in unreadable:
        say(spec, identity, UNREADABLE + brief(error_text(error)))
        if (stand_in := _damaged(adapter, session, spec, identity)) is not None:
            found[identity] = stand_in
    return [found[key] for key in keys if key in found]


def _damaged(adapter: Adapter, session: Session, spec: QueueSpec, identity: Identity) -> Damaged | None:
    columns = {prop.key: prop.columns[0] for prop in spec.mapper.column_attrs}
    values = adapter.rows.values(session, spec, [spec.key(identity)], list(columns.values()))
    if values is None:
        return None
    shown = (f"({UNREADABLE}{brief(error_text(each))})" if isinstance(each, Exception) else each for each in values)
    return Damaged(identity, dict(zip(columns, shown, strict=True)))


def key_of(spec: QueueSpec, task: object) -> Identity:
    """Return the primary key of a task or its stand-in."""
    return task.identity if isinstance(task, Damaged) else spec.identity_of(task)
