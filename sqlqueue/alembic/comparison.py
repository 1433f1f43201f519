"""Additions to the operations that Alembic's own comparison finds: renamed columns, tables that become queues."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from alembic.autogenerate.api import AutogenContext
from alembic.operations import ops
from alembic.util import PriorityDispatchResult
from sqlalchemy import Column, Connection, DefaultClause, Index, Integer, MetaData, Table, desc, text
from sqlalchemy.sql.elements import conv

from .._support.errors import ConfigurationError
from .._support.private import affinity
from ..diagnostics.drift import WrongDefault, WrongIndex, constant, drift, queue_indexes
from ..dialects import adapter_for
from ..dialects.inspection import Inspection, LiveIndex
from ..lifecycle.kind import Kind
from ..model.declaration import COLUMNS, kind_indexes, queues
from ..queue.options import Status
from ..queue.spec import QueueSpec, index_name
from ..sql import WrappedType
from .operations import (
    AddQueueColumnsOp,
    Adoption,
    BoundaryOp,
    ConcurrentIndexesOps,
    CreateQueueTableOp,
    DropQueueColumnsOp,
    QueueOp,
    QueueTableOps,
    RenameColumnsOp,
    SetDefaultsOp,
    StorageOp,
    alter_default,
)
from .plugin import MigrationOptions, listed, options_in, verify
from .rendering import CONCURRENTLY

# -- columns of a queue that were renamed in the model: revisions rename them too, so that their data is kept ---------


def renamed(
    op: ops.ModifyTableOps, spec: QueueSpec, live: Mapping[str, LiveIndex], inspection: Inspection
) -> dict[str, str]:
    """Return the new name of each renamed column, by its old name; empty if the table's indexes show no queue.

    Raises :class:`.ConfigurationError` if a column that every queue has is new, and its old name cannot be determined.
    """
    claim, due = (live.get(index_name(op.table_name, kind)) for kind in ("claim", "due"))
    if claim is None or due is None:
        return {}
    known = {"status": claim.terms[0].name, "available_at": due.terms[1].name}
    known = {spec[role].name: name for role, name in known.items()}
    for index in kind_indexes(spec):
        if (former := live.get(spec.index_name(index.name))) is not None:
            known |= {str(c.key): term.name for c, term in zip(index.columns, former.terms, strict=False)}
    dropped = {each.column_name: each.to_column() for each in op.ops if isinstance(each, ops.DropColumnOp)}
    added = {each.column.name for each in op.ops if isinstance(each, ops.AddColumnOp)}
    new = {role: column for role, column in spec.columns.items() if column.name in added}
    found: dict[str, str] = {}

    def told(role: str, column: Column[Any]) -> str | None:
        return next((name for name in (known.get(column.name), role) if name in dropped), None)

    def alone(role: str, column: Column[Any]) -> str | None:
        return _only(column, dropped, inspection)

    for way in (told, alone):
        # each that is found may leave only one for another
        while match := next(((role, old) for role, column in new.items() if (old := way(role, column))), None):
            role, old = match
            found[old] = new.pop(role).name
            del dropped[old]
    for role in new:
        if role in COLUMNS:
            raise _unknown(op, spec, role)
    return found


def _only(column: Column[Any], dropped: Mapping[str, Column[Any]], inspection: Inspection) -> str | None:
    """Return the name of the ``dropped`` column that can only have been ``column``; ``None`` if there is none or
    several."""
    alike = [
        name
        for name, each in dropped.items()
        if affinity(inspection.type_of(each, column)) is affinity(column.type) and each.nullable == column.nullable
    ]
    return alike[0] if len(alike) == 1 else None


def _unknown(op: ops.ModifyTableOps, spec: QueueSpec, role: str) -> ConfigurationError:
    table, name = op.table_name, spec[role].name
    return ConfigurationError(
        f"{spec.entity.__name__}: {table} is already a queue but has no column {name} ({role}). Write the migration"
        f" that renames it: op.alter_column({table!r}, '<current name>', new_column_name={name!r}, existing_type=...)",
        model=spec.entity,
    )


# -- the operations on one table that becomes a queue, is one, or ceases to be one ------------------------------------

_KINDS = ("claim", "due")


def with_new_names(
    op: ops.ModifyTableOps, names: Mapping[str, str], inspection: Inspection
) -> Iterator[ops.MigrateOperation]:
    """Yield the operations that rename columns to the new ``names``; the later ones stay in ``op``."""
    if not names:
        return
    dropped = [each for each in op.ops if isinstance(each, ops.DropIndexOp)]
    if dropped:
        yield QueueTableOps(op.table_name, dropped, schema=op.schema)
    old = {each.column_name: each.to_column() for each in op.ops if isinstance(each, ops.DropColumnOp)}
    added = {each.column.name: each.column for each in op.ops if isinstance(each, ops.AddColumnOp)}
    for name, new in names.items():
        old[name].type = inspection.type_of(old[name], added[new])
    yield RenameColumnsOp(op.table_name, {new: old[name] for name, new in names.items()}, schema=op.schema)
    op.ops[:] = [each for each in op.ops if each not in dropped and not _is_renaming(each, names)]


def _is_renaming(op: ops.MigrateOperation, names: Mapping[str, str]) -> bool:
    if isinstance(op, ops.AddColumnOp):
        return op.column.name in names.values()
    return isinstance(op, ops.DropColumnOp) and op.column_name in names


def of_queue(
    op: ops.ModifyTableOps, spec: QueueSpec, options: MigrationOptions, *, is_new: bool
) -> Iterator[ops.MigrateOperation]:
    """Yield the operations on the queue's columns, and then the rest, such as its indexes."""
    names = {column.name for column in spec.columns.values()}
    added = [each for each in op.ops if isinstance(each, ops.AddColumnOp) and each.column.name in names]
    dropped = [each for each in op.ops if isinstance(each, ops.DropColumnOp) and each.column_name in _roles()]
    altered = [each for each in op.ops if isinstance(each, ops.AlterColumnOp) and each.column_name in names]
    changed = [each for each in altered if _changes_default(each)]
    if added:
        columns, status = [each.column for each in added], spec["status"].name
        adoption = _adoption(status, spec["available_at"].name, options)
        is_adopted = any(column.name == status for column in columns)
        waiting = None if is_adopted else _ending(spec, columns)
        yield AddQueueColumnsOp(
            op.table_name, columns, adoption if is_adopted else None, waiting=waiting, schema=op.schema
        )
    if changed:
        yield SetDefaultsOp(op.table_name, changed, schema=op.schema)
    rest = [each for each in op.ops if each not in (*added, *dropped, *changed)]
    # nothing can be writing to a table that the same revision creates
    concurrently = options.concurrently and not is_new
    yield from _rest(op, rest, {str(index.name) for index in queue_indexes(spec)} if concurrently else ())
    if dropped:
        columns = [each.to_column() for each in reversed(dropped)]
        waiting = _ending(spec, columns)
        yield AddQueueColumnsOp(op.table_name, columns, None, waiting=waiting, schema=op.schema).reverse()


def _ending(spec: QueueSpec, columns: Sequence[Column[Any]]) -> Mapping[str, str] | None:
    """Return the columns that end the tasks that wait for others, by role, if ``columns`` say what for."""
    waits_for = spec["waits_for"].name if spec.has_latches else "waits_for"
    if waits_for not in {column.name for column in columns}:
        return None
    roles = ["status", "finished_at", *(["former_key", "unique_key"] if spec.has_unique_keys else [])]
    return {role: spec[role].name for role in roles}


def _roles() -> set[str]:
    """Return the columns that a queue of some kind has, by the names that they have unless the model renames them."""
    return {*COLUMNS, *(role for kind in Kind.known for role in kind.columns)}


def _changes_default(op: ops.AlterColumnOp) -> bool:
    """Return whether ``op`` replaces one default by another and changes nothing else."""
    others = (op.modify_type, op.modify_nullable, op.modify_name, op.modify_comment or None)
    return bool(op.modify_server_default and op.existing_server_default) and others == (None,) * len(others)


def was_queue(op: ops.ModifyTableOps) -> bool:
    """Return whether ``op`` drops the indexes of a queue, and at least as many columns as every queue has."""
    dropped = {each.column_name for each in op.ops if isinstance(each, ops.DropColumnOp)}
    leading = [names[0] for names in _index_columns(op)]
    return len(leading) == len(_KINDS) and dropped.issuperset(leading) and len(dropped) >= len(COLUMNS)


def of_former_queue(op: ops.ModifyTableOps, options: MigrationOptions) -> Iterator[ops.MigrateOperation]:
    """Yield the operations that turn a queue into an ordinary table; their downgrade makes it a queue and adopts its
    rows."""
    dropped = [each for each in op.ops if isinstance(each, ops.DropColumnOp)]
    rest = [each for each in op.ops if each not in dropped]
    ours = [*_index_names(op), index_name(op.table_name, "errors")]
    yield from _rest(op, rest, ours if options.concurrently else ())
    (status, *_), (_, available_at, *_) = _index_columns(op)
    columns = [each.to_column() for each in reversed(dropped)]
    adoption = _adoption(status, available_at, options)
    yield AddQueueColumnsOp(op.table_name, columns, adoption, schema=op.schema).reverse()


def _adoption(status: str, available_at: str, options: MigrationOptions) -> Adoption:
    return Adoption(status=status, available_at=available_at, becomes=Status(options.existing_rows))


def _index_names(op: ops.ModifyTableOps) -> list[str]:
    return [index_name(op.table_name, kind) for kind in _KINDS]


def _index_columns(op: ops.ModifyTableOps) -> list[list[str]]:
    """Return the columns of the queue's dropped indexes: the claim index first, which begins with the status."""
    dropped = {str(each.index_name): each.to_index() for each in op.ops if isinstance(each, ops.DropIndexOp)}
    return [[column.name for column in dropped[name].columns] for name in _index_names(op) if name in dropped]


def _rest(
    op: ops.ModifyTableOps, rest: Sequence[ops.MigrateOperation], concurrently: Collection[str]
) -> Iterator[ops.MigrateOperation]:
    indexes = [
        each
        for each in rest
        if isinstance(each, ops.CreateIndexOp | ops.DropIndexOp) and str(each.index_name) in concurrently
    ]
    others = [each for each in rest if each not in indexes]
    if others:
        yield QueueTableOps(op.table_name, others, schema=op.schema)
    if indexes:
        yield ConcurrentIndexesOps(op.table_name, [_concurrent(each) for each in indexes], schema=op.schema)


def _concurrent(op: ops.CreateIndexOp | ops.DropIndexOp) -> ops.MigrateOperation:
    index = op.to_index()
    index.dialect_kwargs[CONCURRENTLY] = True
    return type(op).from_index(index)


# -- additions to the operations that Alembic's own comparison finds --------------------------------------------------

Key: TypeAlias = tuple[str | None, str]
"""The key of a table: its schema (``None`` for the default schema) and its name."""


def verify_first(context: AutogenContext, upgrade_ops: ops.UpgradeOps) -> PriorityDispatchResult:
    """Raise :class:`.UnsupportedDialectError` before the comparison if the server does not support queues."""
    if context.connection is not None:
        verify(context.connection, context.metadata or ())
    return PriorityDispatchResult.CONTINUE


def complete(context: AutogenContext, upgrade_ops: ops.UpgradeOps) -> PriorityDispatchResult:
    """Add what queues need to the operations that Alembic has found."""
    if context.connection is not None:
        Revision(context, context.connection, upgrade_ops.ops).complete()
    return PriorityDispatchResult.CONTINUE


class Revision:
    """The operations of a revision that is being generated, and the project's queues."""

    def __init__(self, context: AutogenContext, connection: Connection, operations: list[ops.MigrateOperation]) -> None:
        self.context = context
        self.connection = connection
        self.operations = operations
        self.adapter = adapter_for(connection.dialect)
        self.options = options_in(context.opts)
        self.queues = {self._key(spec.table.schema, spec.table.name): spec for spec in self._visible_queues()}
        self.ours = {
            self._key(table.schema, table.name): table
            for metadata in listed(context.metadata)
            for table in metadata.tables.values()
            if any(isinstance(column.type, WrappedType) for column in table.columns)
        }
        """The tables of queues and those beside them."""
        self.created = {self._key(op.schema, op.table_name) for op in operations if isinstance(op, ops.CreateTableOp)}

    def complete(self) -> None:
        """Complete the list of operations in place."""
        for mending in list(self._mending()):
            self._add(mending)
        self.operations[:] = [piece for op in self.operations for piece in self._pieces(op)]
        if self.options.postgresql_storage:
            self.operations += self._storage()
        if ours := [op for op in self.operations if isinstance(op, QueueOp)]:
            atomic = any(map(self._alters_queue, ours))
            begin, end = (BoundaryOp(ours, begins=begins, atomic=atomic) for begins in (True, False))
            self.operations[:] = [begin, *self.operations, end]

    def _alters_queue(self, op: ops.MigrateOperation) -> bool:
        """Return whether ``op`` alters an existing table that is, becomes or was a queue."""
        if isinstance(op, AddQueueColumnsOp | DropQueueColumnsOp | RenameColumnsOp):
            return True
        key = self._key(op.schema, op.table_name) if isinstance(op, ops.ModifyTableOps) else None
        return key in self.queues and key not in self.created

    def _add(self, mending: ops.ModifyTableOps) -> None:
        """Append to the table's existing operations, if any: indexes are dropped before columns, created after."""
        if not isinstance(mending, SetDefaultsOp):
            for op in self._changes(self._key(mending.schema, mending.table_name)):
                if not isinstance(op, SetDefaultsOp):
                    op.ops = [*op.ops, *mending.ops]
                    return
        self.operations.append(mending)

    def _changes(self, key: Key) -> Iterator[ops.ModifyTableOps]:
        """Yield the operations on a table that have been found so far."""
        for op in self.operations:
            if isinstance(op, ops.ModifyTableOps) and self._key(op.schema, op.table_name) == key:
                yield op

    def _visible_queues(self) -> Iterator[QueueSpec]:
        """Yield the queues that pass the project's filters; of several queues on one table, the first."""
        tables = {spec.table: spec for metadata in listed(self.context.metadata) for spec in reversed(queues(metadata))}
        for table, spec in tables.items():
            if self.context.run_object_filters(table, table.name, "table", False, None):
                yield spec

    def _key(self, schema: str | None, name: str) -> Key:
        return (None if schema == self.connection.dialect.default_schema_name else schema), name

    def _mending(self) -> Iterator[ops.ModifyTableOps]:
        """Yield fixes for indexes and defaults that differ from the model and that Alembic has not noticed."""
        for wrong in drift(self.connection, self.queues.values()):
            if isinstance(wrong, WrongDefault):
                yield from self._mending_default(wrong)
            if not isinstance(wrong, WrongIndex) or wrong.live is None:
                continue  # Alembic notices missing indexes, unless a filter excludes them
            index, table = wrong.index, wrong.spec.table
            is_visible = self.context.run_object_filters(index, index.name, "index", False, None)
            key, old = self._key(table.schema, table.name), self._as_it_is(table, str(index.name), wrong.live)
            noticed = [(op, number) for op in self._changes(key) if (number := _mentions(op, index))]
            for op, number in noticed:
                if number == 1:  # it is only created: SQLAlchemy does not see MariaDB's IGNORED indexes
                    op.ops[:] = [ops.DropIndexOp.from_index(old), *op.ops]
            if is_visible and not noticed:
                replacing = [ops.DropIndexOp.from_index(old), ops.CreateIndexOp.from_index(index)]
                yield ops.ModifyTableOps(table.name, replacing, schema=table.schema)

    def _mending_default(self, wrong: WrongDefault) -> Iterator[ops.ModifyTableOps]:
        """Yield the fix, unless Alembic already changes this default or the project's filters exclude the column."""
        column, table = wrong.column, wrong.spec.table
        key = self._key(table.schema, table.name)
        altered = [each for op in self._changes(key) for each in op.ops]
        if any(isinstance(each, ops.AlterColumnOp) and each.column_name == column.name for each in altered):
            return
        if self.context.run_object_filters(column, column.name, "column", False, None):
            value = constant(wrong.live) or ""
            existing = DefaultClause(text(value) if isinstance(column.type, Integer) else value)
            yield SetDefaultsOp(table.name, [alter_default(table, column, existing)], schema=table.schema)

    def _as_it_is(self, table: Table, name: str, live: LiveIndex) -> Index:
        """Return the index as it exists on the server."""
        columns: dict[str, Column[Any]] = {term.name: Column(term.name) for term in live.terms}
        Table(table.name, MetaData(), *columns.values(), schema=table.schema)
        terms = [desc(columns[term.name]) if term.descending else columns[term.name] for term in live.terms]
        option = self.adapter.inspection.predicate_option
        options: dict[str, Any] = {option: text(live.predicate)} if option and live.predicate else {}
        return Index(conv(name), *terms, unique=live.unique, **options)

    def _pieces(self, op: ops.MigrateOperation) -> Iterator[ops.MigrateOperation]:
        """Yield the operations that replace ``op``."""
        if not isinstance(op, ops.CreateTableOp | ops.ModifyTableOps) or isinstance(op, SetDefaultsOp):
            yield op
            return
        key = self._key(op.schema, op.table_name)
        if isinstance(op, ops.CreateTableOp):
            yield CreateQueueTableOp.from_table(self.ours[key]) if key in self.ours else op
            return
        if key in self.queues:
            self._keep_order(op)
            yield from with_new_names(op, self._new_names(op, self.queues[key]), self.adapter.inspection)
            yield from of_queue(op, self.queues[key], self.options, is_new=key in self.created)
        elif was_queue(op):
            self._keep_order(op)
            yield from of_former_queue(op, self.options)
        else:
            yield QueueTableOps(op.table_name, op.ops, schema=op.schema) if key in self.ours else op

    def _new_names(self, op: ops.ModifyTableOps, spec: QueueSpec) -> dict[str, str]:
        if not any(isinstance(each, ops.DropColumnOp) for each in op.ops):
            return {}
        table = Table(op.table_name, MetaData(), schema=op.schema)
        inspection = self.adapter.inspection
        return renamed(op, spec, inspection.live_indexes(self.connection, table), inspection)

    def _keep_order(self, op: ops.ModifyTableOps) -> None:
        """Restore descending terms of dropped indexes, which SQLAlchemy does not reflect on every engine."""
        if not any(isinstance(each, ops.DropIndexOp) for each in op.ops):
            return
        table = Table(op.table_name, MetaData(), schema=op.schema)
        live = self.adapter.inspection.live_indexes(self.connection, table)
        downward = {name: index for name, index in live.items() if any(term.descending for term in index.terms)}
        for number, each in enumerate(op.ops):
            if isinstance(each, ops.DropIndexOp) and (name := str(each.index_name)) in downward:
                op.ops[number] = ops.DropIndexOp.from_index(self._as_it_is(table, name, downward[name]))

    def _storage(self) -> list[ops.MigrateOperation]:
        """Return storage operations for tables that become queues, and for others that lack the parameters."""
        adopted = {
            self._key(op.schema, op.table_name)
            for op in self.operations
            if isinstance(op, AddQueueColumnsOp) and op.adoption is not None
        }
        return [
            StorageOp(spec.table)
            for key, spec in self.queues.items()
            if key in self.created | adopted or self.adapter.inspection.lacks_storage(self.connection, spec.table)
        ]


def _mentions(op: ops.ModifyTableOps, index: Index) -> int:
    """Return how many of the operations drop or create ``index``."""
    return sum(
        isinstance(each, ops.CreateIndexOp | ops.DropIndexOp) and each.index_name == index.name for each in op.ops
    )
