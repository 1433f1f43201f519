"""Pauses queues and topics for all workers at once: pauses are rows in the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Select, Table, delete, insert, select, update
from sqlalchemy.orm import Session

from .._support import checks
from .._support.errors import ArgumentError
from .._support.texts import error_text
from ..dialects.base import Adapter
from ..kinds.columns import LONGEST_TOPIC
from ..model.companions import PauseMixin, missing_companion, pause_table
from ..model.declaration import LONGEST_NAME, QueueMixin
from ..queue.spec import Criterion, QueueSpec, spec_of
from ..sql import utcnow
from ..transaction import Access, AnySession, announce, default_claimer, open_, refuse_if_restricted, session_of
from .conflicts import insert_unless_duplicate
from .unreadable import Shown, moments_read


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a queue, or of one ``topic``."""

    topic: str | None
    paused_at: datetime
    """When it was paused, by the database's clock."""
    paused_by: str
    """The name given to :func:`pause`; ``host:pid`` by default."""
    reason: str | None
    """The reason given to :func:`pause`."""


def pause(
    session: AnySession,
    entity: type[QueueMixin],
    topic: str | None = None,
    *,
    reason: str | None = None,
    paused_by: str | None = None,
) -> bool:
    """Stop all workers from claiming tasks of this queue, or of one ``topic``, until :func:`resume`.

    Runs in the session's transaction, best as its first statement, like a claim.  Workers notice within their ``poll``
    interval, or at once where they are notified; running tasks continue.  Classes that share a table are paused
    together.  Claims outside of workers are not affected: see :func:`paused`.

    Returns false, and changes nothing, if it is paused already; of several concurrent calls, one returns true.  Raises
    :class:`.ConfigurationError` if the application has no model for pauses, see :class:`.PauseMixin`, and
    :class:`.ArgumentError` in a session that sees only some of the tasks, because of its criteria or row-level
    security.
    """
    spec = spec_of(entity)
    table, key = _table_of(spec), _key(spec, topic)
    who = default_claimer() if paused_by is None else paused_by
    checks.name("paused_by", who, LONGEST_NAME)
    session = session_of(session)
    adapter = open_(session, spec, Access.SKIP)
    refuse_if_restricted(session, adapter, spec, "pause()")
    # UPDATE instead of SELECT, to wait for an uncommitted resume()
    unchanged = update(table).where(table.c.queue == key).values(queue=table.c.queue)
    if adapter.rows.count(session, spec, unchanged):
        return False
    why = None if reason is None else error_text(reason)
    values = {"queue": key, "paused_at": utcnow(), "paused_by": who, "reason": why}
    if not insert_unless_duplicate(session, adapter, spec, insert(table).values(values)):
        return False  # a concurrent call was faster
    announce(session, spec, table.fullname)
    return True


def resume(session: AnySession, entity: type[QueueMixin], topic: str | None = None) -> bool:
    """Undo :func:`pause` in the session's transaction.  Returns false if it was not paused.

    A topic and the whole queue are paused separately: workers claim only when both are resumed.  Raises the errors of
    :func:`pause`.
    """
    spec = spec_of(entity)
    table, key = _table_of(spec), _key(spec, topic)
    session = session_of(session)
    adapter = open_(session, spec)
    refuse_if_restricted(session, adapter, spec, "resume()")
    resumed = adapter.rows.count(session, spec, delete(table).where(table.c.queue == key)) > 0
    if resumed:
        announce(session, spec, table.fullname)
    return resumed


def paused(session: AnySession, entity: type[QueueMixin]) -> list[Pause]:
    """Return the pauses of this queue: that of the whole queue, whose ``topic`` is ``None``, then those of topics,
    sorted by name.

    Empty if nothing is paused or the application has no model for pauses.
    """
    spec = spec_of(entity)
    session = session_of(session)
    table = pause_table(spec.table.metadata)
    if table is None:
        return []
    adapter = open_(session, spec)
    found = {key: facts for key, *facts in moments_read(adapter, session, spec, partial(_facts, table))}
    topics: list[str | None] = [None, *paused_topics(spec, found)]
    return [Pause(topic, *found[key]) for topic in topics if (key := _key(spec, topic)) in found]


def pauses_of(session: Session, spec: QueueSpec, topic: str | None) -> list[Pause]:
    """Return the pauses that keep a task of ``topic`` waiting, two at most.  Reads no others."""
    table = pause_table(spec.table.metadata)
    if table is None:
        return []
    topics = {spec.table.fullname: None, **({} if topic is None else {_key(spec, topic): topic})}
    named = table.c.queue.in_(topics)
    rows = moments_read(open_(session, spec), session, spec, lambda shown: _facts(table, shown).where(named))
    found = {key: facts for key, *facts in rows}
    return [Pause(name, *found[key]) for key, name in topics.items() if key in found]


def _facts(table: Table, shown: Shown) -> Select[*tuple[Any, ...]]:
    """Return the SELECT of the pauses of all queues."""
    return select(table.c.queue, shown(table.c.paused_at), table.c.paused_by, table.c.reason)


def paused_topics(spec: QueueSpec, keys: Collection[str]) -> Sequence[str]:
    """Return the topics of this queue among ``keys``, as ``pause`` stored them."""
    prefix = f"{spec.table.fullname}:"
    found = sorted(key.removeprefix(prefix) for key in keys if key.startswith(prefix))
    return found if spec.has_topics else []


def not_paused(adapter: Adapter, spec: QueueSpec, keys: Collection[str]) -> tuple[Criterion, ...] | None:
    """Return criteria that exclude paused topics, or ``None`` if the whole queue is among ``keys``."""
    if spec.table.fullname in keys:
        return None
    topics = paused_topics(spec, keys)
    return (~adapter.rows.one_of(spec, spec["topic"], topics),) if topics else ()


def _key(spec: QueueSpec, topic: str | None) -> str:
    if topic is None:
        return spec.table.fullname
    if not spec.has_topics:
        raise ArgumentError(
            f"{spec.entity.__name__} has no topics: derive it from TopicMixin, or pause the whole queue"
        )
    checks.key("topic", topic, LONGEST_TOPIC)
    return f"{spec.table.fullname}:{topic}"


def _table_of(spec: QueueSpec) -> Table:
    table = pause_table(spec.table.metadata)
    if table is None:
        raise missing_companion(PauseMixin, spec, f"{spec.entity.__name__} cannot be paused")
    return table
