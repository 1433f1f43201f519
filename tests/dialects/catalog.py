"""Every operation once on every kind of model: what there is for an engine to compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Engine, Uuid, inspect
from sqlalchemy.exc import ResourceClosedError
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.exc import FlushError
from sqlalchemy.schema import CreateIndex, CreateTable

import sqlqueue
from sqlqueue import Claim, ClaimLostError, QueueSession, Status
from sqlqueue.dialects import adapter_for
from sqlqueue.kinds.limited_claims import LimitedClaim
from sqlqueue.kinds.new_slots import introduce
from sqlqueue.model.registry import worker_table
from sqlqueue.operations.claiming import Claimer, _claim_due
from sqlqueue.operations.history import count_old_attempts
from sqlqueue.operations.paging import page
from sqlqueue.operations.pausing import not_paused
from sqlqueue.operations.upkeep import extend, next_due, postpone, promote
from sqlqueue.operations.wanted import Wanted
from sqlqueue.outbox import claim_messages
from sqlqueue.outbox.order import first_of, is_first
from sqlqueue.sql.clock import utcnow
from sqlqueue.sql.selection import picks
from sqlqueue.worker.process import registration
from tests.dialects.recorder import KEY, LANES
from tests.support import history as past
from tests.support.fleet import Errand, Fleet, FleetWorker
from tests.support.models import (
    Base,
    Chore,
    CreditNote,
    DataBase,
    Dispatch,
    Document,
    Film,
    Leaflet,
    Listing,
    Mail,
    Message,
    Order,
    Outgoing,
    Parcel,
    Ping,
    Report,
    Seat,
    Spool,
    Task,
    Ticket,
    Visit,
)

BASES = (Base, DataBase, past.Base, Fleet)
"""The specs of the models whose statements are pinned."""
Call = Callable[[QueueSession], Any]
MINUTE = timedelta(minutes=1)


def calls() -> Iterator[tuple[str, Call]]:
    """The operations by name."""
    for model in (Task, Mail, Seat, Parcel, Order, Spool, CreditNote, Ticket):
        name = model.__name__
        yield f"{name}.claim", lambda s, m=model: s.claim(m)
        yield f"{name}.complete", lambda s, m=model: s.complete(_claims(m, 1))
        yield f"{name}.fail", lambda s, m=model: s.fail(_claims(m, 1), "no")
    yield from _claiming()
    yield from _settling()
    yield from _enqueueing()
    yield from _keyed()
    yield from _staged()
    yield from _recurring()
    yield from _limited()
    yield from _sets()
    yield from _statistics()
    yield from _upkeep()
    yield from _outbox()
    yield from _history()
    yield from _registry()


def _claiming() -> Iterator[tuple[str, Call]]:
    yield "Task.claim_many", lambda s: s.claim_many(Task, limit=10)
    yield "Task.claim_many(300)", lambda s: s.claim_many(Task, limit=300)
    yield "Task.claim(where)", lambda s: s.claim(Task, Task.number > 7, Task.name.in_(["a", "b"]))
    yield "Task.claim(key)", lambda s: s.claim(Task, Task.id == 7)
    yield "Task.fail(locked)", lambda s: s.fail(_locked(s), "no")
    yield "Task.complete(locked)", lambda s: s.complete(_locked(s))
    yield "Task.snooze(locked)", lambda s: s.snooze(_locked(s), MINUTE)
    yield "Mail.claim(topic)", lambda s: s.claim(Mail, Mail.topic == "t")
    topics = Mail.topic.in_(["a", "b"])
    yield "Mail.claim(topics)", lambda s: s.claim(Mail, topics)
    yield "Mail.claim_many(topics, locked)", lambda s: s.claim_many(Mail, topics, limit=300, lease=None)
    yield "Mail.consume(topics)", lambda s: s.consume(Mail, topics)
    yield "Mail.claim(related)", lambda s: s.claim(Mail, Mail.account.has(name="x"))
    yield "CreditNote.claim(where)", lambda s: s.claim(CreditNote, CreditNote.amount > 7)
    yield "Task.consume", lambda s: s.consume(Task)
    yield "Spool.consume", lambda s: s.consume(Spool)


def _locked(session: QueueSession, model: type[Any] = Task) -> Any:
    task = session.claim(model, lease=None)
    assert task is not None
    return task


def _settling() -> Iterator[tuple[str, Call]]:
    yield "Task.complete(many)", lambda s: s.complete(_claims(Task, 3))
    yield "Seat.complete(many)", lambda s: s.complete(_claims(Seat, 3))
    yield "Task.fail(many)", lambda s: s.fail(_claims(Task, 3), "no")
    yield "Task.fail(retry_in)", lambda s: s.fail(_claims(Task, 1), "no", retry_in=MINUTE)
    yield "Task.discard", lambda s: s.discard(_claims(Task, 1), "no")
    yield "Task.cancel", lambda s: s.cancel(_claims(Task, 1))
    yield "Task.release", lambda s: s.release(_claims(Task, 1))
    yield "Task.snooze", lambda s: s.snooze(_claims(Task, 1), MINUTE)
    yield "Task.heartbeat", lambda s: s.heartbeat(_claims(Task, 3))


def _enqueueing() -> Iterator[tuple[str, Call]]:
    yield "Task.enqueue(rows)", lambda s: s.enqueue(Task, [{"name": "x"}, {"name": "y"}])
    for on_conflict in ("ignore", "replace", "rerun"):
        row = {"id": "x", "version": 7}
        yield (
            f"Document.enqueue({on_conflict})",
            lambda s, c=on_conflict, r=row: s.enqueue(Document, [r], on_conflict=c),
        )


def _keyed() -> Iterator[tuple[str, Call]]:
    version: dict[str, Any] = {"on_conflict": "rerun", "version": Listing.version}
    for key in ({"unique_key": "a"}, {"id": 7, "unique_key": "a"}):
        name = f"Listing.enqueue({' and '.join(key)}"
        for on_conflict in ("ignore", "replace", "rerun"):
            yield (
                f"{name}, {on_conflict})",
                lambda s, c=on_conflict, k=key: s.enqueue(Listing, [{**k, "version": 7}], on_conflict=c),
            )
        yield f"{name}, version)", lambda s, k=key: s.enqueue(Listing, [{**k, "version": 7}], **version)
        yield (
            f"{name}, delay)",
            lambda s, k=key: s.enqueue(Listing, [{**k, "version": 7}], on_conflict="replace", delay=MINUTE),
        )
    yield "Film.enqueue(rerun)", lambda s: s.enqueue(Film, [{"unique_key": "a"}], on_conflict="rerun")
    yield "Film.enqueue(replace)", lambda s: s.enqueue(Film, [{"unique_key": "a"}], on_conflict="replace")
    yield "Listing.claim", lambda s: s.claim(Listing)
    yield "Listing.consume", lambda s: s.consume(Listing)
    yield "Listing.complete", lambda s: s.complete(_claims(Listing, 1))
    yield "Listing.fail", lambda s: s.fail(_claims(Listing, 1), "no")
    yield "Listing.retry", lambda s: s.retry(Listing)
    yield "Listing.rescue", lambda s: s.rescue(Listing)
    yield "Listing.cancel(where)", lambda s: s.cancel(Listing, Listing.unique_key == "a")


def _staged() -> Iterator[tuple[str, Call]]:
    yield "Film.claim(stage)", lambda s: s.claim(Film, Film.stage == "dub")
    yield "Film.complete", lambda s: s.complete(_claims(Film, 3), {"scenes": 7})
    yield "Film.complete(stage)", lambda s: s.complete(_claims(Film, 1), stage="print")
    yield "Film.complete(locked)", lambda s: s.complete(_locked(s, Film))
    yield "Film.fail", lambda s: s.fail(_claims(Film, 3), "no")
    yield "Film.discard", lambda s: s.discard(_claims(Film, 1), "no")
    yield "Film.retry", lambda s: s.retry(Film)
    yield "Film.rescue", lambda s: s.rescue(Film)
    yield "Leaflet.complete", lambda s: s.complete(_claims(Leaflet, 1))


def _sets() -> Iterator[tuple[str, Call]]:
    yield "Task.retry", lambda s: s.retry(Task, Task.error.like("x%"))
    yield "Task.cancel(where)", lambda s: s.cancel(Task, Task.number == 7)
    yield "Task.discard(where)", lambda s: s.discard(Task, Task.number == 7, error="no")
    yield "Task.find", lambda s: s.find(Task, Task.number == 7, limit=10)
    yield "Task.rescue", lambda s: s.rescue(Task)
    yield "Task.run_now", lambda s: s.run_now(Task, Task.id == 7)
    yield "Task.page", lambda s: page(s, Task, status=Status.AVAILABLE, after=(0, datetime(2020, 1, 1, tzinfo=UTC), 7))
    yield "Task.prune", lambda s: s.prune(Task, MINUTE)
    yield "CreditNote.prune", lambda s: s.prune(CreditNote, MINUTE)
    yield "Task.prune(limit)", lambda s: s.prune(Task, MINUTE, limit=1_000)
    yield "Task.errors", lambda s: s.errors(Task)
    yield "Seat.errors", lambda s: s.errors(Seat)
    yield "Task.errors(scan)", lambda s: s.errors(Task, scan=100)
    yield "Task.page(state)", lambda s: page(s, Task, status=Status.RUNNING)
    yield "Task.page(where)", lambda s: page(s, Task, Task.number == 7, before=(7,))
    yield "Mail.pause", lambda s: s.pause(Mail, "news", reason="x")
    yield "Mail.paused", lambda s: s.paused(Mail)
    yield "Mail.resume", lambda s: s.resume(Mail, "news")
    yield "Mail.claim(paused)", lambda s: s.claim(Mail, *_unpaused(s, {"mail:news"}))


def _unpaused(session: QueueSession, keys: set[str]) -> Sequence[ColumnElement[bool]]:
    return not_paused(adapter_for(session.get_bind().dialect), Mail.__queue_spec__, keys) or ()


def _statistics() -> Iterator[tuple[str, Call]]:
    yield "Task.stats", lambda s: s.stats(Task)
    yield "Mail.stats(scan)", lambda s: s.stats(Mail, Mail.topic == "news", Mail.subject == "x", scan=100)
    yield "Task.overview(scan)", lambda s: s.overview(Task, scan=100)
    yield "Mail.stats_by", lambda s: s.stats_by(Mail, Mail.topic)
    yield "Task.stats_by(expression)", lambda s: s.stats_by(Task, Task.number % 7, Task.name == "x")
    yield "CreditNote.stats_by", lambda s: s.stats_by(CreditNote, CreditNote.amount)
    for model in (Task, Order, CreditNote):
        yield f"{model.__name__}.overview", lambda s, m=model: s.overview(m)
        yield f"{model.__name__}.timeline", lambda s, m=model: s.timeline(m)
    for model in (Task, Mail, Order, Seat, Visit, Outgoing):
        yield f"{model.__name__}.why", lambda s, m=model: _why(s, m)
    yield "Task.timeline(where)", lambda s: s.timeline(Task, Task.number > 7, bucket=MINUTE, since=10 * MINUTE)


def _why(session: QueueSession, model: type[sqlqueue.QueueMixin]) -> None:
    """Call it on a single connection: another one would not be recorded."""
    with session.get_bind().connect() as connection, QueueSession(connection) as own:
        own.why(_claims(model, 1)[0])


def _upkeep() -> Iterator[tuple[str, Call]]:
    for model in (Task, Ticket, Seat, CreditNote):
        yield f"{model.__name__}.next_due", lambda s, m=model: next_due(s, m)
        yield f"{model.__name__}.promote", lambda s, m=model: promote(s, m, limit=100)
        yield f"{model.__name__}.postpone", lambda s, m=model: postpone(s, m, limit=100)
        yield f"{model.__name__}.extend", lambda s, m=model: extend(s, _claims(m, 3), MINUTE)
    yield "Mail.next_due(topic)", lambda s: next_due(s, Mail, Mail.topic == "t")
    yield "Mail.next_due(topics)", lambda s: next_due(s, Mail, Mail.topic.in_(["a", "b"]))


def _recurring() -> Iterator[tuple[str, Call]]:
    yield "Report.enqueue(rows)", lambda s: s.enqueue(Report, [{"schedule": "PT60S"}])
    yield "Report.enqueue(rerun)", lambda s: s.enqueue(Report, [{"id": 7, "schedule": "PT60S"}], on_conflict="rerun")
    yield "Report.claim", lambda s: s.claim(Report)
    yield "Ping.claim", lambda s: s.claim(Ping)
    yield "Report.complete", lambda s: s.complete(_claims(Report, 3))
    yield "Ping.complete", lambda s: s.complete(_claims(Ping, 1))
    yield "Report.complete(locked)", lambda s: s.complete(_locked(s, Report))
    yield "Report.fail", lambda s: s.fail(_claims(Report, 3), "no")
    yield "Report.release(locked)", lambda s: s.release(_locked(s, Report))
    yield "Report.rescue", lambda s: s.rescue(Report)
    yield "Report.reschedule", lambda s: s.reschedule(Report, Report.id == 7, schedule="PT60S", drift=True)
    yield "Report.reschedule(own)", lambda s: s.reschedule(Report)
    yield "Report.unschedule", lambda s: s.unschedule(Report, Report.id == 7)
    yield "Report.unschedule(locked)", lambda s: (_locked(s, Report), s.unschedule(Report))
    report, chore = {"id": 1, "schedule": "PT90S"}, {"unique_key": "a", "task": "b", "schedule": "PT60S"}
    yield "Report.declare", lambda s: s.declare_schedules(Report, [report, report | {"id": 7}])
    yield "Report.declare(removing)", lambda s: s.declare_schedules(Report, [], remove_missing=True)
    yield "Chore.declare", lambda s: s.declare_schedules(Chore, [chore], Chore.note == "c", remove_missing=True)


def _limited() -> Iterator[tuple[str, Call]]:
    yield "Visit.claim", lambda s: s.claim(Visit)
    yield "Visit.consume", lambda s: s.consume(Visit)
    yield "Visit.complete", lambda s: s.complete(_claims(Visit, 3))
    yield "Visit.heartbeat", lambda s: s.heartbeat(_claims(Visit, 3))
    yield "Visit.cancel(where)", lambda s: s.cancel(Visit, Visit.limit_key == "a")
    yield "Visit.discard(where)", lambda s: s.discard(Visit, Visit.limit_key == "a", error="no")
    yield "Visit.set_limit", lambda s: s.set_limit(Visit, "a", 3)
    yield "Visit.limits", lambda s: s.limits(Visit)
    yield "Visit.claim(candidates)", _claim_candidates
    yield "Visit.introduce", lambda s: introduce(s, adapter_for(s.get_bind().dialect), Visit.__queue_spec__, ["a", "b"])
    yield "Message.claim_in_turns", lambda s: s.claim_in_turns(Message, Message.kind, ["a", "b"], limit=2)
    yield "Message.prune", lambda s: s.prune(Message)


def _claim_candidates(session: QueueSession) -> None:
    """The later statements of a claim that has found tasks, with a key and without one."""
    spec, adapter = Visit.__queue_spec__, adapter_for(session.get_bind().dialect)

    def take(where: Any, limit: int, *, named: bool = False) -> list[tuple[Any, Claim]]:
        tasks = _claim_due(session, Wanted(spec).narrowed(where, named=named), limit, Claimer("claimer", MINUTE))
        return [(task, sqlqueue.claim_of(task)) for task in tasks]

    LimitedClaim(session, adapter, spec, take, MINUTE)._claim({(1,): "x", (2,): None}, ())


def _outbox() -> Iterator[tuple[str, Call]]:
    for model in (Outgoing, Dispatch):
        yield f"{model.__name__}.claim_messages", lambda s, m=model: claim_messages(s, m, limit=10)
    spec = Outgoing.__queue_spec__
    yield "Outgoing.next_due", lambda s: next_due(s, Outgoing, is_first(spec))
    for number, pick in enumerate(picks(spec, (), ()), 1):
        yield f"Outgoing.first {number}", lambda s, p=pick: s.execute(first_of(p(10), None))
    yield "Outgoing.complete", lambda s: s.complete(_claims(Outgoing, 3))


def _history() -> Iterator[tuple[str, Call]]:
    parcel, flare, boat, rota = past.Parcel, past.Flare, past.Boat, past.Rota
    yield "Past.claim", lambda s: s.claim(parcel)
    yield "Past.claim(locked)", lambda s: s.claim(parcel, lease=None)
    taking_over = Wanted(parcel.__queue_spec__)
    yield "Past.claim(due)", lambda s: _claim_due(s, taking_over, 10, Claimer("claimer", MINUTE))
    yield "Past.consume", lambda s: s.consume(parcel)
    yield "Past.complete(many)", lambda s: s.complete(_claims(parcel, 3))
    yield "Past.complete(deletes)", lambda s: s.complete(_claims(flare, 3))
    yield "Past.fail", lambda s: s.fail(_claims(parcel, 1), "no")
    yield "Past.release", lambda s: s.release(_claims(parcel, 1))
    for model in (parcel, boat):
        yield f"Past.cancel({model.__name__})", lambda s, m=model: s.cancel(m, m.priority == 7)
    yield "Past.retry", lambda s: s.retry(parcel)
    for model in (parcel, rota):
        yield f"Past.rescue({model.__name__})", lambda s, m=model: s.rescue(m)
    yield "Past.history", lambda s: s.history(_claims(parcel, 1)[0])
    yield "Past.prune_history", lambda s: s.prune_history(parcel)
    yield "Past.prune_history(limit)", lambda s: s.prune_history(parcel, MINUTE, limit=1_000)
    yield "Past.count_old_attempts", lambda s: count_old_attempts(s, parcel, None, cap=1_000)
    for cap in (None, 1_000):
        yield f"Past.errors({cap})", lambda s, c=cap: s.errors(parcel, cap=c)
        yield f"Past.timeline({cap})", lambda s, c=cap: s.timeline(parcel, cap=c)


def _registry() -> Iterator[tuple[str, Call]]:
    spec, table = Errand.__queue_spec__, worker_table(Fleet.metadata)
    facts = {"id": "x", "name": "a", "host": "b", "process": 7, "version": "1", "last_claim_at": None, "memory": 9}
    row = {**facts, "started_at": utcnow(-MINUTE), "seen_at": utcnow(), "lanes": LANES}
    yield "Fleet.report", lambda s: registration._report(s, spec, table, row)
    yield "Fleet.read", lambda s: registration._read(s, spec, table, "x")
    yield "Fleet.leave", lambda s: registration._leave(s, spec, table, "x")
    yield "Fleet.forget", lambda s: registration._forget(s, spec, table)
    yield "Fleet.workers", lambda s: s.workers(Fleet)
    yield "Fleet.unserved", lambda s: s.unserved(Fleet)
    yield "Fleet.drain_workers", lambda s: s.drain_workers(Fleet)
    yield "Fleet.set_concurrency", lambda s: s.set_concurrency(Fleet, 3)
    yield "Fleet.why", lambda s: _why(s, Errand)


def _looking(engine: Engine, log: list[str]) -> dict[str, str]:
    """The queries about a server and an account, without SQLAlchemy's own about a schema."""
    log.clear()
    adapter, spec = adapter_for(engine.dialect), Task.__queue_spec__
    live: Any = [{"name": column.name, "default": None} for column in spec.table.columns]
    with engine.connect() as connection:
        # there is no server, and so no rows for statements that are text
        with suppress(ResourceClosedError):
            list(adapter.server.findings(connection))
        with suppress(ResourceClosedError):
            list(adapter.server.table_findings(connection, spec))
        adapter.server.missing_privileges(connection, spec, live)
        adapter.schema.descending(connection, spec.table, [])
        adapter.schema.unusable(connection, spec.table)
    return {f"check {number}": statement for number, statement in enumerate(log, 1)}


def _mappers() -> list[Mapper[Any]]:
    """The queue models of the tests; a test may add its own to the same registry."""
    mine = [
        mapper
        for base in (Base, DataBase)
        for mapper in base.registry.mappers
        if mapper.class_.__module__ == Base.__module__
    ]
    return [*mine, inspect(past.Past), inspect(FleetWorker)]


def _claims(model: type[sqlqueue.QueueMixin], count: int) -> list[Claim]:
    """Claims of `count` rows in two different attempts."""
    keys: dict[type, Callable[[int], tuple[Any, ...]]] = {
        Seat: lambda n: ("x", n),
        Parcel: lambda n: (KEY,),
        past.Flare: lambda n: ("x", n),
    }
    key = keys.get(model, lambda n: (n,))
    return [Claim(model, key(n + 1), 1 + n % 2, 7) for n in range(count)]


def statements(engine: Engine, log: list[str]) -> dict[str, str]:
    """name -> statement, of all that the operations send; then all DDL."""
    found: dict[str, str] = {}
    for name, call in calls():
        log.clear()
        # the rows are made up, so that most claims seem lost; by then all has been sent
        with QueueSession(engine) as session, suppress(ClaimLostError, FlushError):
            call(session)
        found |= {f"{name} {number}": statement for number, statement in enumerate(log, 1)}
    found |= _looking(engine, log)
    for table in sorted({table for mapper in _mappers() for table in mapper.tables}, key=str):
        # what becomes of these types is SQLAlchemy's affair, and changes with its version
        if not any(isinstance(column.type, (Uuid, Boolean)) for column in table.columns):
            found[f"create table {table.name}"] = str(CreateTable(table).compile(engine)).strip()
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            found[f"create index {index.name}"] = str(CreateIndex(index).compile(engine))
    return found
