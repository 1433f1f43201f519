"""The operations of sessions, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement

import sqlqueue
from sqlqueue import Claim, QueueSession, Status, promote
from sqlqueue.dialects import adapter_for
from sqlqueue.operations.conflicts import Conflicts
from sqlqueue.operations.control import not_paused
from sqlqueue.operations.paging import Sorting, page
from sqlqueue.operations.reactivating import set_priority, set_time
from sqlqueue.operations.upkeep import extend, postpone
from tests.dialects.recorder import KEY
from tests.support import history as past
from tests.support.models import (
    CreditNote,
    Document,
    Film,
    Leaflet,
    Listing,
    Mail,
    Order,
    Outgoing,
    Parcel,
    Seat,
    Spool,
    Task,
    Ticket,
    Visit,
)
from tests.support.polling import next_due

Call = Callable[[QueueSession], Any]
MINUTE = timedelta(minutes=1)


def claims(model: type[sqlqueue.QueueMixin], count: int) -> list[Claim]:
    """Return claims of `count` rows in two different attempts."""
    keys: dict[type, Callable[[int], tuple[Any, ...]]] = {
        Seat: lambda n: ("x", n),
        Parcel: lambda n: (KEY,),
        past.Flare: lambda n: ("x", n),
    }
    key = keys.get(model, lambda n: (n,))
    return [Claim(model, key(n + 1), 1 + n % 2, 7) for n in range(count)]


def locked(session: QueueSession, model: type[Any] = Task) -> Any:
    task = session.claim(model, lease=None)
    assert task is not None
    return task


def claiming() -> Iterator[tuple[str, Call]]:
    yield "Task.claim_many", lambda s: s.claim_many(Task, limit=10)
    yield "Task.claim_many(300)", lambda s: s.claim_many(Task, limit=300)
    yield "Task.claim(where)", lambda s: s.claim(Task, Task.number > 7, Task.name.in_(["a", "b"]))
    yield "Task.claim(key)", lambda s: s.claim(Task, Task.id == 7)
    yield "Task.fail(locked)", lambda s: s.fail(locked(s), "no")
    yield "Task.complete(locked)", lambda s: s.complete(locked(s))
    yield "Task.snooze(locked)", lambda s: s.snooze(locked(s), MINUTE)
    yield "Mail.claim(topic)", lambda s: s.claim(Mail, Mail.topic == "t")
    topics = Mail.topic.in_(["a", "b"])
    yield "Mail.claim(topics)", lambda s: s.claim(Mail, topics)
    yield "Mail.claim_many(topics, locked)", lambda s: s.claim_many(Mail, topics, limit=300, lease=None)
    yield "Mail.consume(topics)", lambda s: s.consume(Mail, topics)
    yield "Mail.claim(related)", lambda s: s.claim(Mail, Mail.account.has(name="x"))
    yield "CreditNote.claim(where)", lambda s: s.claim(CreditNote, CreditNote.amount > 7)
    yield "Task.consume", lambda s: s.consume(Task)
    yield "Spool.consume", lambda s: s.consume(Spool)


def settling() -> Iterator[tuple[str, Call]]:
    yield "Task.complete(many)", lambda s: s.complete(claims(Task, 3))
    yield "Seat.complete(many)", lambda s: s.complete(claims(Seat, 3))
    yield "Task.fail(many)", lambda s: s.fail(claims(Task, 3), "no")
    yield "Task.fail(retry_in)", lambda s: s.fail(claims(Task, 1), "no", retry_in=MINUTE)
    yield "Task.discard", lambda s: s.discard(claims(Task, 1), "no")
    yield "Task.cancel", lambda s: s.cancel(claims(Task, 1))
    yield "Task.release", lambda s: s.release(claims(Task, 1))
    yield "Task.snooze", lambda s: s.snooze(claims(Task, 1), MINUTE)
    yield "Task.heartbeat", lambda s: s.heartbeat(claims(Task, 3))


def enqueueing() -> Iterator[tuple[str, Call]]:
    yield "Task.enqueue(rows)", lambda s: s.enqueue(Task, [{"name": "x"}, {"name": "y"}])
    for on_conflict in ("ignore", "replace", "rerun"):
        row = {"id": "x", "version": 7}
        yield (
            f"Document.enqueue({on_conflict})",
            lambda s, c=on_conflict, r=row: s.enqueue(Document, [r], on_conflict=c),
        )


def keyed() -> Iterator[tuple[str, Call]]:
    version: dict[str, Any] = {"on_conflict": "rerun", "version": Listing.version}
    for key in ({"unique_key": "a"}, {"id": 7, "unique_key": "a"}):
        name = f"Listing.enqueue({' and '.join(key)}"
        for on_conflict in ("ignore", "replace", "rerun"):
            yield (
                f"{name}, {on_conflict})",
                lambda s, c=on_conflict, k=key: s.enqueue(Listing, [{**k, "version": 7}], on_conflict=c),
            )
        newer = {**key, "version": 7, "description": "x"}
        yield f"{name}, version)", lambda s, r=newer: s.enqueue(Listing, [r], **version)
        yield (
            f"{name}, delay)",
            lambda s, k=key: s.enqueue(Listing, [{**k, "version": 7}], on_conflict="replace", delay=MINUTE),
        )
    key, most = {"unique_key": "a"}, {"delay": MINUTE, "max_delay": 5 * MINUTE}
    yield "Listing.enqueue(max_delay)", lambda s: s.enqueue(Listing, [key], on_conflict="replace", **most)
    yield "Listing.enqueue(late)", _enqueue_late
    yield "Film.enqueue(rerun)", lambda s: s.enqueue(Film, [{"unique_key": "a"}], on_conflict="rerun")
    yield "Film.enqueue(replace)", lambda s: s.enqueue(Film, [{"unique_key": "a"}], on_conflict="replace")
    yield "Listing.claim", lambda s: s.claim(Listing)
    yield "Listing.consume", lambda s: s.consume(Listing)
    yield "Listing.complete", lambda s: s.complete(claims(Listing, 1))
    yield "Listing.fail", lambda s: s.fail(claims(Listing, 1), "no")
    yield "Listing.retry", lambda s: s.retry(Listing)
    yield "Listing.rerun(limit)", lambda s: s.rerun(Listing, limit=9)
    yield "Listing.rescue", lambda s: s.rescue(Listing)
    yield "Listing.cancel(where)", lambda s: s.cancel(Listing, Listing.unique_key == "a")


def _enqueue_late(session: QueueSession) -> None:
    """Send the query that follows an update which has changed no row."""
    spec, adapter = Listing.__queue_spec__, adapter_for(session.get_bind().dialect)
    conflicts = Conflicts(adapter, session, spec, on_conflict="replace", version=spec.table.c.version, scope=())
    conflicts._is_late(Listing.id == 7, Listing.version < 7)


def staged() -> Iterator[tuple[str, Call]]:
    yield "Film.claim(stage)", lambda s: s.claim(Film, Film.stage == "dub")
    yield "Film.complete", lambda s: s.complete(claims(Film, 3), {"scenes": 7})
    yield "Film.complete(stage)", lambda s: s.complete(claims(Film, 1), stage="print")
    yield "Film.complete(locked)", lambda s: s.complete(locked(s, Film))
    yield "Film.fail", lambda s: s.fail(claims(Film, 3), "no")
    yield "Film.discard", lambda s: s.discard(claims(Film, 1), "no")
    yield "Film.retry", lambda s: s.retry(Film)
    yield "Film.rerun", lambda s: s.rerun(Film)
    yield "Film.rescue", lambda s: s.rescue(Film)
    yield "Leaflet.complete", lambda s: s.complete(claims(Leaflet, 1))


def newest(model: Any) -> Any:
    return Sorting.CREATED.order(model.__queue_spec__, descending=True)


def sets() -> Iterator[tuple[str, Call]]:
    yield "Task.retry", lambda s: s.retry(Task, Task.error.like("x%"))
    yield "Task.rerun", lambda s: s.rerun(Task, Task.number == 7)
    yield "Task.cancel(where)", lambda s: s.cancel(Task, Task.number == 7)
    yield "Task.discard(where)", lambda s: s.discard(Task, Task.number == 7, error="no")
    yield "Task.find", lambda s: s.find(Task, Task.number == 7, limit=10)
    yield "Task.rescue", lambda s: s.rescue(Task)
    yield "Task.run_now", lambda s: s.run_now(Task, Task.id == 7)
    yield "Task.set_priority", lambda s: set_priority(s, Task, Task.id == 7, priority=1)
    yield "Task.set_time", lambda s: set_time(s, Task, Task.id == 7, time=datetime(2020, 1, 1, tzinfo=UTC))
    yield "Task.page", lambda s: page(s, Task, status=Status.AVAILABLE, after=(0, datetime(2020, 1, 1, tzinfo=UTC), 7))
    yield "Task.prune", lambda s: s.prune(Task, MINUTE)
    yield "CreditNote.prune", lambda s: s.prune(CreditNote, MINUTE)
    yield "Task.prune(limit)", lambda s: s.prune(Task, MINUTE, limit=1_000)
    yield "Task.errors", lambda s: s.errors(Task)
    yield "Seat.errors", lambda s: s.errors(Seat)
    yield "Task.errors(None)", lambda s: s.errors(Task, cap=None)
    yield "Task.page(state)", lambda s: page(s, Task, status=Status.RUNNING)
    yield "Task.page(where)", lambda s: page(s, Task, Task.number == 7, before=(7,))
    yield "Task.page(sorted)", lambda s: page(s, Task, status=Status.AVAILABLE, order=newest(Task), after=(7,))
    yield "Mail.page(sorted)", lambda s: page(s, Mail, order=Sorting.TIME.order(Mail.__queue_spec__, descending=False))
    yield "Mail.pause", lambda s: s.pause(Mail, "news", reason="x")
    yield "Mail.paused", lambda s: s.paused(Mail)
    yield "Mail.resume", lambda s: s.resume(Mail, "news")
    yield "Mail.claim(paused)", lambda s: s.claim(Mail, *_unpaused(s, {"mail:news"}))


def _unpaused(session: QueueSession, keys: set[str]) -> Sequence[ColumnElement[bool]]:
    return not_paused(adapter_for(session.get_bind().dialect), Mail.__queue_spec__, keys) or ()


def statistics() -> Iterator[tuple[str, Call]]:
    yield "Task.stats", lambda s: s.stats(Task)
    yield "Mail.stats(scan)", lambda s: s.stats(Mail, Mail.topic == "news", Mail.subject == "x", scan=100)
    yield "Task.overview(scan)", lambda s: s.overview(Task, scan=100)
    yield "Visit.overview", lambda s: s.overview(Visit)
    yield "Mail.stats_by", lambda s: s.stats_by(Mail, Mail.topic)
    yield "Task.stats_by(expression)", lambda s: s.stats_by(Task, Task.number % 7, Task.name == "x")
    yield "CreditNote.stats_by", lambda s: s.stats_by(CreditNote, CreditNote.amount)
    for model in (Task, Order, CreditNote):
        yield f"{model.__name__}.overview", lambda s, m=model: s.overview(m)
        yield f"{model.__name__}.timeline", lambda s, m=model: s.timeline(m)
    for model in (Task, Mail, Order, Seat, Visit, Outgoing):
        yield f"{model.__name__}.why", lambda s, m=model: why(s, m)
    yield "Task.timeline(where)", lambda s: s.timeline(Task, Task.number > 7, bucket=MINUTE, since=10 * MINUTE)


def why(session: QueueSession, model: type[sqlqueue.QueueMixin]) -> None:
    """Call why() on a single connection: others would not be recorded."""
    with session.get_bind().connect() as connection, QueueSession(connection) as own:
        own.why(claims(model, 1)[0])


def upkeep() -> Iterator[tuple[str, Call]]:
    for model in (Task, Ticket, Seat, CreditNote):
        yield f"{model.__name__}.next_due", lambda s, m=model: next_due(s, m)
        yield f"{model.__name__}.promote", lambda s, m=model: promote(s, m, limit=100)
        yield f"{model.__name__}.postpone", lambda s, m=model: postpone(s, m, limit=100)
        yield f"{model.__name__}.extend", lambda s, m=model: extend(s, claims(m, 3), MINUTE)
    yield "Mail.next_due(topic)", lambda s: next_due(s, Mail, Mail.topic == "t")
    yield "Mail.next_due(topics)", lambda s: next_due(s, Mail, Mail.topic.in_(["a", "b"]))
