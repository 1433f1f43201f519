"""Checks whether a live database can run the queues: for deployments, starting workers and operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from sqlalchemy import Connection, MetaData, Select, Subquery, and_, func, literal, literal_column, select
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError

from .._support.errors import SchemaMismatchError, UnsupportedDialectError
from .._support.texts import UNREADABLE, key_text
from ..dialects import adapter_for
from ..dialects.base import Adapter
from ..dialects.connections import AUTOCOMMIT, READ_COMMITTED
from ..model.companions import WorkerState, worker_state, worker_table
from ..model.declaration import Target, specs_of
from ..queue.options import FINAL, Status
from ..queue.schedules import is_known_here, unknown_here
from ..queue.spec import MIGRATE, Criterion, Finding, QueueSpec, Severity, spec_of
from ..sql import is_due, state, utcnow
from .drift import (
    Difference,
    MissingColumn,
    WrongDefault,
    WrongIndex,
    columns_of,
    drift,
    fix_of_index,
    helpful_indexes,
    inexact_keys,
    inexact_primary_keys,
    lost_indexes,
    lost_triggers,
    misfits,
    of_companions,
    unindexed_references,
    unserved_claims,
)
from .functions import unregistered_functions

# -- checks whether live workers serve the queues, if workers are registered ------------------------------------------


def live_handlers(connection: Connection, metadata: MetaData) -> Sequence[Mapping[str, Any]] | None:
    """Return the handlers of live workers; ``None`` if workers are not registered.

    See :func:`.of_companions` for their table itself.
    """
    table = worker_table(metadata)
    if table is None or not columns_of(connection, table):
        return None
    seen = select(utcnow().label("now"), table.c.seen_at, table.c.stalled_at, table.c.handlers)
    return [
        handler
        for now, seen_at, stalled_at, handlers in connection.execute(seen).all()
        if worker_state(now - seen_at, is_stalled=stalled_at is not None) is WorkerState.LIVE
        for handler in handlers
    ]


def of_workers(connection: Connection, specs: Sequence[QueueSpec]) -> Iterator[Finding]:
    """Yield a note for each queue that no live worker serves, and a warning if unfinished rows call functions that none
    has registered.  Yields nothing if workers are not registered."""
    live = live_handlers(connection, specs[0].table.metadata)
    if live is None:
        return
    for spec in specs:
        mine = [handler["functions"] for handler in live if handler["queue"] == spec.name]
        if spec.holds_tasks and not mine:
            message = f"no live worker serves {spec.name}"
            fix = "start one, unless something other than a registered Worker claims its tasks"
            yield Finding.of(spec, Severity.NOTE, "unserved-queue", message, fix)
        elif "task" in spec.columns and None not in mine:
            known, adapter = {name for names in mine for name in names}, adapter_for(connection.dialect)
            yield from unregistered_functions(connection, adapter, spec, known, "no live worker has")


# -- checks of the schedules of recurring tasks -----------------------------------------------------------------------

SCHEDULES_READ = 10_000
"""The number of rows read, the lowest keys first: recurring tasks are usually declared before others are enqueued."""


def of_schedules(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about schedules that this host does not know, and about tasks that have lost their next run."""
    if not spec.recurs:
        return
    columns = (spec["schedule"].label("schedule"), spec["status"].label("status"))
    first = select(*columns).order_by(*spec.primary_key).limit(SCHEDULES_READ).subquery("first_rows")
    seen = select(first.c.schedule, first.c.status).where(first.c.schedule.is_not(None)).distinct()
    rows = connection.execute(seen).all()
    table = spec.table.fullname
    waiting = {schedule for schedule, status in rows if status not in FINAL}
    for schedule in sorted(each for each in waiting if not is_known_here(each)):
        message = f"{table} has tasks with the schedule {schedule!r}, which a worker on this host leaves to others"
        yield Finding.of(spec, Severity.WARNING, "unknown-schedule", message, unknown_here[schedule])
    lost = sorted({schedule for schedule, status in rows if status == Status.COMPLETED})
    if lost:
        message = f"{table} has completed tasks that still have a schedule, but no next run: {', '.join(lost)}"
        fix = f"restart them: session.reschedule({spec.entity.__name__}, ...), with a valid schedule; or set it to NULL"
        yield Finding.of(spec, Severity.WARNING, "stopped-schedule", message, fix)


# -- finds rows that claims have set aside because they cannot be read ------------------------------------------------

SCAN = 20_000
"""The number of waiting tasks, and of the last tasks by primary key, that are examined: no index finds these rows."""
NAMED = 10


def set_aside(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield a finding if rows wait, or have become dead letters, because they cannot be read.  It names some keys."""
    table, model = spec.table.fullname, spec.entity.__name__
    waiting = select(*_row_columns(spec)).where(is_due(spec), spec["status"] == state(Status.SCHEDULED))
    last = select(*_row_columns(spec)).order_by(*(column.desc() for column in spec.primary_key))
    for rows, status, then in (
        (waiting.order_by(*(term.expression for term in spec.due_order)), Status.SCHEDULED, "are postponed"),
        (last, Status.DISCARDED, "are dead letters"),
    ):
        keys = [tuple(row) for row in connection.execute(_found(rows, status))]
        if keys:
            named = "; ".join(key_text(key) for key in keys[:NAMED]) + ("; ..." if len(keys) > NAMED else "")
            message = f"{table} has rows that cannot be read and {then}, with these keys: {named}"
            retry = f"; then run: sqlqueue retry {model} --id KEY" if status is Status.DISCARDED else ""
            fix = f"read the column {spec['error'].name}, deploy a release that can read the rows or repair them{retry}"
            yield Finding.of(spec, Severity.WARNING, "unreadable-rows", message, fix)


def _row_columns(spec: QueueSpec) -> list[Any]:
    key = (column.label(f"key_{n}") for n, column in enumerate(spec.primary_key))
    return [spec["status"].label("status"), spec["error"].label("error"), *key]


def _found(rows: Any, status: Status) -> Any:
    seen = rows.limit(SCAN).subquery("seen")
    _, error, *key = seen.c
    return select(*key).where(and_(seen.c.status == state(status), error.like(f"{UNREADABLE}%"))).limit(NAMED + 1)


# -- checks of the rows that did not come from the queue: from before the table was one, or with an unknown status ----

RECENT = 10_000
"""The number of rows whose status is checked, the highest keys first: if keys ascend, these are the newest."""
ROWS_READ = 100
"""The number of rows read, the lowest keys first: if keys ascend, these are from before the table became a queue."""


def of_contents(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about rows that were in the table before it became a queue, and about unknown statuses.

    Reads at most 10,000 rows.
    """
    yield from _of_statuses(connection, spec)
    yield from unintended_tasks(connection, spec)
    rows = _sample(spec)
    final = rows.c.status.in_([state(status) for status in FINAL])
    if spec.options.prunes and _has(connection, rows, and_(final, rows.c.finished_at.is_(None))):
        table = spec.table.fullname
        message = f"{table} has rows from before it became a queue: prune() keeps them, whatever the retention"
        fix = "nothing; to delete them as well: sqlqueue prune --adopted --older-than ..."
        yield Finding.of(spec, Severity.NOTE, "adopted-rows", message, fix)


def _of_statuses(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    newest = select(spec["status"].label("status")).order_by(*(key.desc() for key in spec.primary_key)).limit(RECENT)
    recent = newest.subquery("recent")
    unknown = select(recent.c.status).where(recent.c.status.not_in([state(status) for status in Status]))
    found = connection.scalars(unknown.distinct().order_by(recent.c.status)).all()
    if found:
        table, several = spec.table.fullname, ", ".join(map(repr, found))
        message = f"{table} has rows with a status that sqlqueue does not know ({several}): no claim finds them"
        fix = f"UPDATE {table} SET {spec['status'].name} = 'available' for these rows, or any of {', '.join(FINAL)}"
        yield Finding.of(spec, Severity.WARNING, "unknown-status", message, fix)


def unintended_tasks(connection: Connection, spec: QueueSpec) -> list[Finding]:
    """Return a finding if workers would run rows from before the table became a queue.  Reads at most 100 rows.

    These are available rows whose timestamps come from an ALTER TABLE instead of an INSERT.
    """
    rows = _sample(spec)
    waiting = and_(rows.c.status == state(Status.AVAILABLE), rows.c.attempt == literal_column("0"))
    if not _has(connection, rows, waiting) or not _were_filled(connection, spec, rows, waiting):
        return []
    table = spec.table.fullname
    message = f"{table} has rows from before it became a queue that are available: workers run them as tasks"
    fix = (
        f"if they are not tasks: UPDATE {table} SET {spec['status'].name} = 'completed' for the rows from before it"
        " became a queue, before a worker starts"
    )
    return [Finding.of(spec, Severity.WARNING, "unadopted-rows", message, fix)]


def _were_filled(connection: Connection, spec: QueueSpec, rows: Subquery, waiting: Criterion) -> bool:
    added_at = adapter_for(connection.dialect).inspection.added_at(connection, spec["created_at"])
    created_at, available_at = rows.c.created_at, rows.c.available_at
    if added_at is not None and _has(connection, rows, and_(waiting, created_at == literal(added_at, created_at.type))):
        return True
    # on other engines a separate statement fills each column, available_at first
    alike: Select[Any] = (
        select(literal_column("1")).where(waiting, available_at < created_at).group_by(available_at, created_at)
    )
    return connection.execute(alike.having(func.count() > literal_column("1")).limit(1)).first() is not None


def _sample(spec: QueueSpec) -> Subquery:
    """Return the first rows, which are only compared: other programs may have inserted times that cannot be read."""
    roles = ("status", "attempt", "available_at", "created_at", "finished_at")
    columns = (spec[role].label(role) for role in roles)
    return select(*columns).order_by(*spec.primary_key).limit(ROWS_READ).subquery("first_rows")


def _has(connection: Connection, rows: Subquery, criterion: Criterion) -> bool:
    found: Select[Any] = select(literal_column("1")).select_from(rows).where(criterion).limit(1)
    return connection.execute(found).first() is not None


# -- checks whether a live database can run the queues, for deployments, starting workers and operators ---------------


def check(connection: Connection, target: Target) -> Sequence[Finding]:
    """Return the problems of the queues of ``target`` in this database, with this account; empty if there are none.

    ``target`` is a declarative base or its ``MetaData``, for all its queues, or a single queue model, for its queue and
    its slots.  Findings about the server come first, then those of each table: missing or different parts of the
    schema, foreign keys without an index that refer to a queue whose rows are deleted, privileges, whether claims use
    their indexes, whether there are rows that prune() keeps, rows that cannot be read or have an unknown status, and
    recurring tasks without a next run; then those of the tables of the history, of the workers and of the pauses, and
    queues that no live worker serves.

    Writes nothing and locks no rows.  An open transaction is used and left open; otherwise none is left open.
    With an asyncio connection: ``await connection.run_sync(sqlqueue.check, target)``.
    Raises :class:`.ArgumentError` if there is no queue in ``target``, and :class:`.UnsupportedDialectError` for an
    engine without an adapter (a server that is too old is a finding).
    """
    specs = _with_slots(specs_of(target))
    with _left_as_found(connection):
        return list(_findings(connection, specs))


def verify_schema(connection: Connection, target: Target) -> None:
    """Raise :class:`.SchemaMismatchError` if the live schema lacks a table, column or index that the queues need, or
    has a primary key by which their statements fail.

    That includes the tables of slots, of the history, of the workers and of the pauses, if there are models for them.

    The error's ``differences`` list all of them.  Reads only the catalog, so it is fast enough for the start of a
    program; :func:`check` checks more.  Transactions and other errors are as for :func:`check`, except that a server
    which is too old raises :class:`.UnsupportedDialectError`.
    """
    specs = specs_of(target)
    verify_queues(connection, specs)
    verify_companions(connection, specs[0].table.metadata)


def verify_queues(connection: Connection, specs: Sequence[QueueSpec]) -> None:
    """Raise :class:`.SchemaMismatchError` like :func:`verify_schema`, for the tables of these queues and slots."""
    with _left_as_found(connection):
        adapter_for(connection.dialect).inspection.verify(connection)
        every = _with_slots(specs)
        found = [
            finding for spec in every for finding in _of_schema(connection, spec, columns_of(connection, spec.table))
        ]
    _refuse(found)


def verify_companions(connection: Connection, metadata: MetaData) -> None:
    """Raise :class:`.SchemaMismatchError` like :func:`verify_schema`, for the tables that accompany queues: those of
    the history, of the workers and of the pauses."""
    with _left_as_found(connection):
        found = list(of_companions(connection, metadata))
    _refuse(found)


def _refuse(found: Sequence[Finding]) -> None:
    differences = [finding.message for finding in found if finding.severity is Severity.ERROR]
    if differences:
        raise SchemaMismatchError(
            f"the schema does not match the models: {'; '.join(differences)}. To fix it, {MIGRATE}",
            differences=differences,
        )


def _with_slots(specs: Sequence[QueueSpec]) -> list[QueueSpec]:
    """Return ``specs`` and those of their slots, each table once."""
    slots = [spec_of(spec.options.slots) for spec in specs if spec.options.slots is not None]
    return list({spec.table: spec for spec in (*specs, *slots)}.values())


@contextmanager
def _left_as_found(connection: Connection) -> Iterator[None]:
    was_open = connection.in_transaction()
    try:
        yield
    finally:
        if not was_open:
            connection.rollback()


def _findings(connection: Connection, specs: Sequence[QueueSpec]) -> Iterator[Finding]:
    adapter = adapter_for(connection.dialect)
    try:
        adapter.inspection.verify(connection)
    except UnsupportedDialectError as error:
        yield Finding.of(None, Severity.ERROR, "unsupported-version", str(error), f"use {error.needed}")
        return
    of_server = [*_of_isolation(connection, adapter)]
    parts = {"state": adapter.inspection.server_findings, "limits": adapter.connections.network_findings}
    for subject, find in parts.items():
        of_server += _if_allowed(connection, None, f"the {subject} of the server", partial(find, connection))
    of_server += _of_driver(connection, adapter)
    yield from of_server
    for spec in specs:
        found = list(_of_queue(connection, adapter, spec))
        yield from found
        if not any(finding.severity is Severity.ERROR for finding in (*of_server, *found)):
            yield from unserved_claims(connection, adapter, spec)
            yield from of_contents(connection, spec)
            yield from set_aside(connection, spec)
            yield from of_schedules(connection, spec)
    beside = list(of_companions(connection, specs[0].table.metadata))
    yield from beside
    if not any(finding.severity is Severity.ERROR for finding in beside):
        yield from _if_allowed(connection, None, "the live workers", lambda: of_workers(connection, specs))


def _if_allowed(
    connection: Connection, spec: QueueSpec | None, subject: str, find: Callable[[], Iterable[Finding]]
) -> Iterator[Finding]:
    """Yield what ``find`` finds about ``subject``; a note if this account may not ask the server for it."""
    adapter = adapter_for(connection.dialect)
    fragile = adapter.connections.ends_with_error and adapter.connections.present_level(connection) != AUTOCOMMIT
    try:
        with connection.begin_nested() if fragile else nullcontext():
            found = list(find())
    except DBAPIError as error:
        if not adapter.connections.is_denied(error):
            raise
        of = "" if spec is None else f" of {spec.table.fullname}"
        message = f"{subject}{of} could not be checked: this account may not ask for it ({error.orig})"
        fix = "nothing, or run the check with an account that may"
        yield Finding.of(spec, Severity.NOTE, "not-checked", message, fix)
    else:
        yield from found


def _of_isolation(connection: Connection, adapter: Adapter) -> Iterator[Finding]:
    level = adapter.connections.present_level(connection)
    if level is None or level in adapter.connections.harmless_levels:
        return
    severity, outcome = Severity.WARNING, "can fail, be rejected or block others"
    if adapter.connections.chosen_level(connection) is None:
        severity = Severity.NOTE  # the server's default, which the application's engine may override
    if level == AUTOCOMMIT:
        severity, outcome = Severity.ERROR, "is rejected, and every other statement is committed separately"
    message = f"sessions use {level}: a claim that is not the first statement of its transaction {outcome}"
    yield Finding.of(
        None, severity, "isolation-level", message, f"create_engine(..., isolation_level={READ_COMMITTED!r})"
    )


def _of_driver(connection: Connection, adapter: Adapter) -> Iterator[Finding]:
    able, driver = adapter.connections.listeners, connection.dialect.driver
    if able and driver not in able:
        message = f"the driver {driver} cannot listen for notifications: a worker with it finds new tasks by polling"
        fix = f"use one of these drivers for workers: {', '.join(sorted(able))}, or give the worker a shorter poll"
        yield Finding.of(None, Severity.NOTE, "no-notifications", message, fix)


def _of_queue(connection: Connection, adapter: Adapter, spec: QueueSpec) -> Iterator[Finding]:
    try:
        live = columns_of(connection, spec.table)
        yield from _of_schema(connection, spec, live)
        of_queue = {column.name for column in spec.columns.values()}
        if live:
            yield from _if_allowed(connection, spec, "the indexes and triggers", lambda: _of_declared(connection, spec))
        if any(column["name"] in of_queue for column in live):
            inspection = adapter.inspection
            parts: dict[str, Callable[[], Iterable[Finding]]] = {
                "the settings": lambda: inspection.table_findings(connection, spec),
                "the references": lambda: unindexed_references(connection, adapter, spec),
                "the collations": lambda: _of_collations(connection, adapter, spec),
                "the privileges": lambda: _of_privileges(spec, inspection.missing_privileges(connection, spec, live)),
            }
            for subject, find in parts.items():
                yield from _if_allowed(connection, spec, subject, find)
    except DBAPIError as error:
        if not adapter.connections.is_denied(error):
            raise
        yield from _of_privileges(spec, ["all privileges"])


def _of_declared(connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
    for name in lost_indexes(connection, spec):
        message = f"{spec.table.fullname} has no index {name}, which the model declares"
        yield Finding.of(spec, Severity.WARNING, "missing-index", message, "create it in a migration")
    for name in lost_triggers(connection, spec):
        message = f"{spec.table.fullname} has no trigger {name}, which the model declares"
        fix = "create it in a migration, with op.execute(): autogenerate does not see triggers"
        yield Finding.of(spec, Severity.WARNING, "missing-trigger", message, fix)


def _of_collations(connection: Connection, adapter: Adapter, spec: QueueSpec) -> Iterator[Finding]:
    collations = adapter.inspection.collations(connection, spec.table)
    yield from inexact_keys(spec, collations)
    yield from inexact_primary_keys(spec, collations, adapter.inspection.exact_collations)


def _of_schema(connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]) -> Iterator[Finding]:
    differences = drift(connection, [spec])
    missing = [each for each in differences if isinstance(each, MissingColumn)]
    if len(missing) > 1:  # the table is not migrated: one cause, and one fix
        unindexed = [each for each in differences if isinstance(each, WrongIndex) and each.live is None]
        differences = [each for each in differences if each not in missing and each not in unindexed]
        indexes = ", ".join(str(each.index.name) for each in unindexed)
        names = ", ".join(each.column.name for each in missing)
        message = f"{spec.table.fullname} has no columns {names}{indexes and f', nor the indexes {indexes}'}"
        yield Finding.of(spec, Severity.ERROR, "missing-column", message, MIGRATE)
    for difference in differences:
        fix = MIGRATE
        if isinstance(difference, WrongIndex):
            fix = fix_of_index(connection, difference.index, difference.live)
        yield Finding.of(spec, _severity(difference), difference.code, difference.message, fix)
    if live:
        yield from misfits(connection.dialect, spec, live)
        yield from adapter_for(connection.dialect).inspection.key_findings(connection, spec)
    further: set[Any] = {table for mapper in spec.mapper.self_and_descendants for table in mapper.tables} - {spec.table}
    for table in sorted(further, key=str):
        if not columns_of(connection, table):
            message = f"there is no table {table.fullname}, which stores part of {spec.entity.__name__}"
            yield Finding.of(spec, Severity.ERROR, "missing-table", message, MIGRATE)


def _severity(difference: Difference) -> Severity:
    """Return how serious ``difference`` is: claims do not need some indexes, nor does enqueueing need defaults."""
    spec = difference.spec
    match difference:
        case WrongIndex() if difference.index in helpful_indexes(spec):
            return Severity.WARNING
        case WrongDefault() if difference.column is not spec["status"]:
            return Severity.WARNING
    return Severity.ERROR


def _of_privileges(spec: QueueSpec, missing: Sequence[str]) -> Iterator[Finding]:
    table, deletes = spec.table.fullname, spec.options.on_complete == "delete"
    needed = [privilege for privilege in missing if deletes or privilege != "DELETE"]
    fix = f"ask the owner of {table} to grant it"
    if needed:
        message = f"this account lacks {', '.join(needed)} on {table}"
        yield Finding.of(spec, Severity.ERROR, "missing-privilege", message, fix)
    if len(needed) < len(missing):
        message = f"this account lacks DELETE on {table}, which prune() needs"
        yield Finding.of(spec, Severity.WARNING, "missing-privilege", message, fix)
