"""Additions to the operations that Alembic's own comparison finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import (
    AlterColumnOp,
    CreateIndexOp,
    CreateTableOp,
    DropColumnOp,
    DropIndexOp,
    MigrateOperation,
    ModifyTableOps,
    UpgradeOps,
)
from alembic.util import PriorityDispatchResult
from sqlalchemy import Column, Connection, DefaultClause, Index, Integer, MetaData, Table, desc, text
from sqlalchemy.sql.elements import conv

from ..diagnostics.schema_drift import WrongDefault, WrongIndex, constant, drift
from ..dialects import adapter_for
from ..dialects.parts.schema import LiveIndex
from ..model.mixins import queues
from ..queue.spec import QueueSpec
from .defaults import render_item
from .operations import (
    AddQueueColumnsOp,
    DropQueueColumnsOp,
    RenameColumnsOp,
    SavepointOp,
    SetDefaultsOp,
    StorageOp,
    alter_default,
)
from .options import options_in
from .renaming import renamed
from .tables import of_former_queue, of_queue, was_queue, with_new_names
from .verification import listed, verify

Key: TypeAlias = tuple[str | None, str]
"""The key of a table: its schema (``None`` for the default schema) and its name."""


def verify_first(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
    """Raise :class:`.UnsupportedDialectError` before the comparison if the server does not support queues."""
    if context.connection is not None:
        verify(context.connection, context.metadata or ())
    return PriorityDispatchResult.CONTINUE


def complete(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
    """Add what queues need to the operations that Alembic has found."""
    context.opts = {**context.opts, "render_item": render_item(context)}
    if context.connection is not None:
        Revision(context, context.connection, upgrade_ops.ops).complete()
    return PriorityDispatchResult.CONTINUE


class Revision:
    """The operations of a revision that is being generated, and the project's queues."""

    def __init__(self, context: AutogenContext, connection: Connection, operations: list[MigrateOperation]) -> None:
        self.context = context
        self.connection = connection
        self.operations = operations
        self.adapter = adapter_for(connection.dialect)
        self.options = options_in(context.opts)
        self.queues = {self._key(spec.table.schema, spec.table.name): spec for spec in self._visible_queues()}
        self.created = {self._key(op.schema, op.table_name) for op in operations if isinstance(op, CreateTableOp)}

    def complete(self) -> None:
        """Complete the list of operations in place."""
        for mending in list(self._mending()):
            self._add(mending)
        self.operations[:] = [piece for op in self.operations for piece in self._pieces(op)]
        if any(map(self._alters_queue, self.operations)):
            self.operations[:] = [SavepointOp(begins=True), *self.operations, SavepointOp(begins=False)]
        if self.options.postgresql_storage:
            self.operations += self._storage()

    def _alters_queue(self, op: MigrateOperation) -> bool:
        """Return whether ``op`` alters an existing table that is, becomes or was a queue."""
        if isinstance(op, AddQueueColumnsOp | DropQueueColumnsOp | RenameColumnsOp):
            return True
        key = self._key(op.schema, op.table_name) if isinstance(op, ModifyTableOps) else None
        return key in self.queues and key not in self.created

    def _add(self, mending: ModifyTableOps) -> None:
        """Append to the table's existing operations, if any: indexes are dropped before columns, created after."""
        key = self._key(mending.schema, mending.table_name)
        for op in self.operations:
            if not isinstance(op, ModifyTableOps) or isinstance(mending, SetDefaultsOp):
                continue
            if self._key(op.schema, op.table_name) == key and not isinstance(op, SetDefaultsOp):
                op.ops = [*op.ops, *mending.ops]
                return
        self.operations.append(mending)

    def _visible_queues(self) -> Iterator[QueueSpec]:
        """Yield the queues that pass the project's filters; of several queues on one table, the first."""
        tables = {spec.table: spec for metadata in listed(self.context.metadata) for spec in reversed(queues(metadata))}
        for table, spec in tables.items():
            if self.context.run_object_filters(table, table.name, "table", False, None):
                yield spec

    def _key(self, schema: str | None, name: str) -> Key:
        return (None if schema == self.connection.dialect.default_schema_name else schema), name

    def _mending(self) -> Iterator[ModifyTableOps]:
        """Yield fixes for indexes and defaults that differ from the model and that Alembic has not noticed."""
        noticed = {index for op in self.operations if isinstance(op, ModifyTableOps) for index in self._indexes(op)}
        for wrong in drift(self.connection, self.queues.values()):
            if isinstance(wrong, WrongDefault):
                yield from self._mending_default(wrong)
            if not isinstance(wrong, WrongIndex):
                continue  # Alembic notices missing indexes, unless a filter excludes them
            index, table = wrong.index, wrong.spec.table
            is_visible = self.context.run_object_filters(index, index.name, "index", False, None)
            key, old = self._key(table.schema, table.name), self._as_it_is(table, str(index.name), wrong.live)
            if (key, index.name) in noticed:
                self._drop_unseen(key, old)
            elif is_visible:
                replacing = [DropIndexOp.from_index(old), CreateIndexOp.from_index(index)]
                yield ModifyTableOps(table.name, replacing, schema=table.schema)

    def _drop_unseen(self, key: Key, old: Index) -> None:
        """Drop ``old`` before an index with its name is created: SQLAlchemy does not see MariaDB's IGNORED indexes."""
        for op in self.operations:
            if isinstance(op, ModifyTableOps) and self._key(op.schema, op.table_name) == key:
                names = [each.index_name for each in op.ops if isinstance(each, CreateIndexOp | DropIndexOp)]
                if names.count(str(old.name)) == 1:
                    op.ops[:] = [DropIndexOp.from_index(old), *op.ops]

    def _mending_default(self, wrong: WrongDefault) -> Iterator[ModifyTableOps]:
        """Yield the fix, unless Alembic already changes this default or the project's filters exclude the column."""
        column, table = wrong.column, wrong.spec.table
        key = self._key(table.schema, table.name)
        tables = [op for op in self.operations if isinstance(op, ModifyTableOps)]
        altered = [each for op in tables if self._key(op.schema, op.table_name) == key for each in op.ops]
        if any(isinstance(each, AlterColumnOp) and each.column_name == column.name for each in altered):
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
        option = self.adapter.schema.predicate_option
        options: dict[str, Any] = {option: text(live.predicate)} if option and live.predicate else {}
        return Index(conv(name), *terms, unique=live.unique, **options)

    def _indexes(self, op: ModifyTableOps) -> Iterator[tuple[Key, str | None]]:
        for each in op.ops:
            if isinstance(each, CreateIndexOp | DropIndexOp):
                yield self._key(op.schema, op.table_name), each.index_name

    def _pieces(self, op: MigrateOperation) -> Iterator[MigrateOperation]:
        """Yield the operations that replace ``op``."""
        if not isinstance(op, ModifyTableOps) or isinstance(op, SetDefaultsOp):
            yield op
            return
        key = self._key(op.schema, op.table_name)
        if key in self.queues:
            self._keep_order(op)
            yield from with_new_names(op, self._new_names(op, self.queues[key]))
            yield from of_queue(op, self.queues[key], self.options, is_new=key in self.created)
        elif was_queue(op):
            self._keep_order(op)
            yield from of_former_queue(op, self.options)
        else:
            yield op

    def _new_names(self, op: ModifyTableOps, spec: QueueSpec) -> dict[str, str]:
        if not any(isinstance(each, DropColumnOp) for each in op.ops):
            return {}
        table = Table(op.table_name, MetaData(), schema=op.schema)
        return renamed(op, spec, self.adapter.schema.live_indexes(self.connection, table))

    def _keep_order(self, op: ModifyTableOps) -> None:
        """Restore descending terms of dropped indexes, which SQLAlchemy does not reflect on every engine."""
        if not any(isinstance(each, DropIndexOp) for each in op.ops):
            return
        table = Table(op.table_name, MetaData(), schema=op.schema)
        live = self.adapter.schema.live_indexes(self.connection, table)
        downward = {name: index for name, index in live.items() if any(term.descending for term in index.terms)}
        for number, each in enumerate(op.ops):
            if isinstance(each, DropIndexOp) and (name := str(each.index_name)) in downward:
                op.ops[number] = DropIndexOp.from_index(self._as_it_is(table, name, downward[name]))

    def _storage(self) -> list[MigrateOperation]:
        """Return storage operations for tables that become queues, and for others that lack the parameters."""
        adopted = {
            self._key(op.schema, op.table_name)
            for op in self.operations
            if isinstance(op, AddQueueColumnsOp) and op.adoption is not None
        }
        return [
            StorageOp(spec.table)
            for key, spec in self.queues.items()
            if key in self.created | adopted or self.adapter.schema.lacks_storage(self.connection, spec.table)
        ]
