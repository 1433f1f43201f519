"""Every operation once on every kind of model: what there is for an engine to compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import ResourceClosedError
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.exc import FlushError
from sqlalchemy.schema import CreateIndex, CreateTable

import sqlqueue
from sqlqueue import Claim, ClaimLostError, QueueSession
from sqlqueue.dialects import adapter_for
from sqlqueue.operations.upkeep import extend, next_due, promote
from sqlqueue.pausing import not_paused
from tests.dialects.recorder import KEY
from tests.models import Base, CreditNote, DataBase, Document, Mail, Order, Parcel, Seat, Spool, Task, Ticket

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
    yield from _sets()
    yield from _statistics()
    yield from _upkeep()


def _claiming() -> Iterator[tuple[str, Call]]:
    yield "Task.claim_many", lambda s: s.claim_many(Task, limit=10)
    yield "Task.claim_many(300)", lambda s: s.claim_many(Task, limit=300)
    yield "Task.claim(where)", lambda s: s.claim(Task, Task.number > 7, Task.name.in_(["a", "b"]))
    yield "Task.claim(key)", lambda s: s.claim(Task, Task.id == 7)
    yield "Task.fail(locked)", lambda s: s.fail(_locked(s), "no")
    yield "Task.complete(locked)", lambda s: s.complete(_locked(s))
    yield "Task.snooze(locked)", lambda s: s.snooze(_locked(s), MINUTE)
    yield "Mail.claim(topic)", lambda s: s.claim(Mail, Mail.topic == "t")
    yield "Mail.claim(related)", lambda s: s.claim(Mail, Mail.account.has(name="x"))
    yield "CreditNote.claim(where)", lambda s: s.claim(CreditNote, CreditNote.amount > 7)
    yield "Task.consume", lambda s: s.consume(Task)
    yield "Spool.consume", lambda s: s.consume(Spool)


def _locked(session: QueueSession) -> Task:
    task = session.claim(Task, lease=None)
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


def _sets() -> Iterator[tuple[str, Call]]:
    yield "Task.retry", lambda s: s.retry(Task, Task.error.like("x%"))
    yield "Task.cancel(where)", lambda s: s.cancel(Task, Task.number == 7)
    yield "Task.discard(where)", lambda s: s.discard(Task, Task.number == 7, error="no")
    yield "Task.find", lambda s: s.find(Task, Task.number == 7, limit=10)
    yield "Task.rescue", lambda s: s.rescue(Task)
    yield "Task.prune", lambda s: s.prune(Task, MINUTE)
    yield "CreditNote.prune", lambda s: s.prune(CreditNote, MINUTE)
    yield "Task.prune(limit)", lambda s: s.prune(Task, MINUTE, limit=1_000)
    yield "Task.errors", lambda s: s.errors(Task)
    yield "Seat.errors", lambda s: s.errors(Seat)
    yield "Mail.pause", lambda s: s.pause(Mail, "news", reason="x")
    yield "Mail.paused", lambda s: s.paused(Mail)
    yield "Mail.resume", lambda s: s.resume(Mail, "news")
    yield "Mail.claim(paused)", lambda s: s.claim(Mail, *(not_paused(Mail.__queue_spec__, {"mail:news"}) or ()))


def _statistics() -> Iterator[tuple[str, Call]]:
    yield "Task.stats", lambda s: s.stats(Task)
    yield "Mail.stats_by", lambda s: s.stats_by(Mail, Mail.topic)
    yield "Task.stats_by(expression)", lambda s: s.stats_by(Task, Task.number % 7, Task.name == "x")
    yield "CreditNote.stats_by", lambda s: s.stats_by(CreditNote, CreditNote.amount)
    for model in (Task, Order, CreditNote):
        yield f"{model.__name__}.overview", lambda s, m=model: s.overview(m)
        yield f"{model.__name__}.timeline", lambda s, m=model: s.timeline(m)
    yield "Task.timeline(where)", lambda s: s.timeline(Task, Task.number > 7, bucket=MINUTE, since=10 * MINUTE)


def _upkeep() -> Iterator[tuple[str, Call]]:
    for model in (Task, Ticket, Seat, CreditNote):
        yield f"{model.__name__}.next_due", lambda s, m=model: next_due(s, m)
        yield f"{model.__name__}.promote", lambda s, m=model: promote(s, m, limit=100)
        yield f"{model.__name__}.extend", lambda s, m=model: extend(s, _claims(m, 3), MINUTE)
    yield "Mail.next_due(topic)", lambda s: next_due(s, Mail, Mail.topic == "t")


def _looking(engine: Engine, log: list[str]) -> dict[str, str]:
    """What is asked of a server and of an account; not what SQLAlchemy asks of a schema."""
    log.clear()
    adapter, spec = adapter_for(engine.dialect), Task.__queue_spec__
    live: Any = [{"name": column.name, "default": None} for column in spec.table.columns]
    with engine.connect() as connection:
        # there is no server, and so no rows for statements that are text
        with suppress(ResourceClosedError):
            list(adapter.server_findings(connection))
        with suppress(ResourceClosedError):
            list(adapter.table_findings(connection, spec))
        adapter.missing_privileges(connection, spec, live)
        adapter.descending(connection, spec.table, [])
        adapter.unusable(connection, spec.table)
    return {f"check {number}": statement for number, statement in enumerate(log, 1)}


def _mappers() -> list[Mapper[Any]]:
    """Those of the tests' models; a test may add its own to the same registry."""
    return [
        mapper
        for base in (Base, DataBase)
        for mapper in base.registry.mappers
        if mapper.class_.__module__ == Base.__module__
    ]


def _claims(model: type[sqlqueue.QueueMixin], count: int) -> list[Claim]:
    """Claims of `count` rows in two different attempts."""
    keys: dict[type, Callable[[int], tuple[Any, ...]]] = {Seat: lambda n: ("x", n), Parcel: lambda n: (KEY,)}
    key = keys.get(model, lambda n: (n,))
    return [Claim(model, key(n + 1), 1 + n % 2) for n in range(count)]


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
    ours = {table for mapper in _mappers() for table in mapper.tables}
    ours.remove(Parcel.__table__)  # what becomes of a Uuid is SQLAlchemy's affair, and changes with its version
    for table in sorted(ours, key=str):
        found[f"create table {table.name}"] = str(CreateTable(table).compile(engine)).strip()
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            found[f"create index {index.name}"] = str(CreateIndex(index).compile(engine))
    return found
