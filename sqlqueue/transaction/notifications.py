"""Notifications of new work: to workers of this process on commit, to other processes through the database.

They are only hints: workers without notifications poll.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from ..dialects import adapter_for
from ..model.declaration import QueueMixin
from ..queue.spec import QueueSpec, spec_of
from .ledger import innermost, lineage

_KEY = "sqlqueue.news"
Callback = Callable[[], None]
_callbacks: defaultdict[str, set[Callback]] = defaultdict(set)


@dataclass(slots=True, eq=False)
class _News:
    """The notifications of a session's transaction."""

    names: set[str] = field(default_factory=set)
    sent: defaultdict[SessionTransaction | None, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Names sent to the database, by savepoint: a rollback to a savepoint drops what was sent within it."""


def announce(session: Session, spec: QueueSpec, name: str | None = None) -> None:
    """Notify workers of this queue when this transaction commits: once, regardless of the number of rows.

    ``name``: the channel, if the notification is not about work and not for the queue's fetchers.
    """
    news: _News = session.info.setdefault(_KEY, _News())
    name = name or channel_of(spec)
    news.names.add(name)
    transaction = innermost(session)
    is_sent = any(name in news.sent[each] for each in lineage(transaction))
    # PostgreSQL prepares no transaction that has notified
    if spec.options.notify and not is_sent and not session.twophase:
        connection = session.connection(spec.bind_arguments)
        adapter_for(connection.dialect).connections.notify(connection, name)
        news.sent[innermost(session)].add(name)


def channel_of(spec: QueueSpec) -> str:
    """Return the name of a queue's notifications, which is its table's."""
    return spec.table.fullname


def subscribe(names: Iterable[str], callback: Callback) -> Callable[[], None]:
    """Call ``callback``, on any thread, on notifications with these names.  Returns a function that unsubscribes."""
    names = tuple(names)
    for name in names:
        _callbacks[name].add(callback)

    def unsubscribe() -> None:
        for name in names:
            _callbacks[name].discard(callback)

    return unsubscribe


def spread(names: Iterable[str]) -> None:
    """Call the listeners of ``names`` in this process."""
    for name in names:
        for callback in tuple(_callbacks.get(name, ())):
            callback()


def _announce_new(session: Session, *_: object) -> None:
    for model in {type(task) for task in session.new if isinstance(task, QueueMixin)}:
        announce(session, spec_of(model))


event.listen(
    Session, "before_flush", _announce_new
)  # at the start of a transaction, a notification costs no round trip
event.listen(Session, "after_flush", _announce_new)  # other listeners may add tasks before the flush


@event.listens_for(Session, "after_commit")
def _after_commit(session: Session) -> None:
    news: _News | None = session.info.get(_KEY)
    if news is not None and news.names and not session.in_nested_transaction():
        names, news.names = news.names, set()
        spread(names)


@event.listens_for(Session, "after_transaction_end")
def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    news: Any = session.info.get(_KEY)
    if news is not None:
        news.sent.pop(transaction, None)
        if transaction.parent is None:
            news.names.clear()
            news.sent.clear()
