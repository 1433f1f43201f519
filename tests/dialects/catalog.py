"""The statements that each operation sends for each kind of model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from sqlalchemy import Boolean, Engine, Uuid, inspect
from sqlalchemy.exc import ResourceClosedError
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.exc import FlushError
from sqlalchemy.schema import CreateIndex, CreateTable

from sqlqueue import ClaimLostError, QueueSession
from sqlqueue.dialects import adapter_for
from tests.dialects.kinds_calls import (
    expiry,
    fair,
    flows,
    history,
    limited,
    outbox,
    progress,
    recurring,
    registry,
    sequential,
    steps,
)
from tests.dialects.session_calls import (
    Call,
    claiming,
    claims,
    enqueueing,
    keyed,
    sets,
    settling,
    staged,
    statistics,
    upkeep,
)
from tests.support import history as past
from tests.support.fleet import Fleet, FleetWorker
from tests.support.flows import Flow, Page
from tests.support.models import (
    Base,
    CreditNote,
    DataBase,
    Document,
    Mail,
    Order,
    Outgoing,
    Parcel,
    Report,
    Seat,
    Spool,
    Task,
    Ticket,
)

BASES = (Base, DataBase, past.Base, Fleet, Flow)
"""The declarative bases of the models whose statements are pinned."""


def calls() -> Iterator[tuple[str, Call]]:
    """Return the operations by name."""
    for model in (Task, Mail, Seat, Parcel, Order, Spool, CreditNote, Ticket):
        name = model.__name__
        yield f"{name}.claim", lambda s, m=model: s.claim(m)
        yield f"{name}.complete", lambda s, m=model: s.complete(claims(m, 1))
        yield f"{name}.fail", lambda s, m=model: s.fail(claims(m, 1), "no")
    yield from claiming()
    yield from settling()
    yield from enqueueing()
    yield from keyed()
    yield from staged()
    yield from recurring()
    yield from limited()
    yield from progress()
    yield from expiry()
    yield from steps()
    yield from fair()
    yield from sequential()
    yield from sets()
    yield from statistics()
    yield from upkeep()
    yield from outbox()
    yield from history()
    yield from registry()
    yield from flows()


def _looking(engine: Engine, log: list[str]) -> dict[str, str]:
    """Yield the queries about a server and an account, without SQLAlchemy's own queries about the schema."""
    log.clear()
    adapter, spec = adapter_for(engine.dialect), Task.__queue_spec__
    live: Any = [{"name": column.name, "default": None} for column in spec.table.columns]
    with engine.connect() as connection:
        # without a server there are no rows for textual statements
        with suppress(ResourceClosedError):
            list(adapter.inspection.server_findings(connection))
        for model in (Task, Document, Outgoing, Report):
            with suppress(ResourceClosedError):
                list(adapter.inspection.table_findings(connection, model.__queue_spec__))
                list(adapter.inspection.key_findings(connection, model.__queue_spec__))
        adapter.inspection.missing_privileges(connection, spec, live)
        adapter.inspection.descending(connection, spec.table, [])
        adapter.inspection.unusable(connection, spec.table)
        adapter.inspection.trigger_names(connection, spec.table)
    return {f"check {number}": statement for number, statement in enumerate(dict.fromkeys(log), 1)}


def mappers() -> list[Mapper[Any]]:
    """Return the queue models of the tests; a test may add its own to the same registry."""
    mine = [
        mapper
        for base in (Base, DataBase)
        for mapper in base.registry.mappers
        if mapper.class_.__module__ in ("tests.support.models", "tests.support.task")
    ]
    return [*mine, inspect(past.Past), inspect(FleetWorker), inspect(Page)]


def schema(engine: Engine) -> list[str]:
    """Return the DDL of all tables that are used, in an order in which it can be executed."""
    tables = {table: None for base in BASES for table in base.metadata.sorted_tables}
    ddl = [element for table in tables for element in (CreateTable(table), *map(CreateIndex, table.indexes))]
    return [str(element.compile(engine)).strip() for element in ddl]


def statements(engine: Engine, log: list[str]) -> dict[str, str]:
    """Return all statements of the operations by name, followed by all DDL."""
    found: dict[str, str] = {}
    for name, call in calls():
        log.clear()
        # the rows are fabricated, so most claims appear to be lost; by then all statements have been sent
        with QueueSession(engine) as session, suppress(ClaimLostError, FlushError):
            call(session)
        found |= {f"{name} {number}": statement for number, statement in enumerate(log, 1)}
    found |= _looking(engine, log)
    for table in sorted({table for mapper in mappers() for table in mapper.tables}, key=str):
        # the DDL of these types depends on SQLAlchemy's version
        if not any(isinstance(column.type, (Uuid, Boolean)) for column in table.columns):
            found[f"create table {table.name}"] = str(CreateTable(table).compile(engine)).strip()
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            found[f"create index {index.name}"] = str(CreateIndex(index).compile(engine))
    return found
