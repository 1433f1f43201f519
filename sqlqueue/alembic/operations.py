"""Operations that Alembic does not have; they are rendered into revisions as standard operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from alembic.autogenerate import renderers
from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import render_op
from alembic.operations.ops import AddColumnOp, AlterColumnOp, DropColumnOp, MigrateOperation, ModifyTableOps
from sqlalchemy import Column, MetaData, Table

from ..dialects import adapters
from ..dialects.postgresql.catalog import STORAGE_DIALECT, storage_statement
from ..queue.status import Status
from .adoption import Adoption, added, render_default
from .defaults import render_item


class AddQueueColumnsOp(MigrateOperation):
    """Adds columns of a queue; with an ``adoption``, the columns that turn the table into a queue."""

    def __init__(
        self, table_name: str, columns: Sequence[Column[Any]], adoption: Adoption | None, *, schema: str | None
    ) -> None:
        self.table_name = table_name
        self.columns = columns
        self.adoption = adoption
        self.schema = schema

    def reverse(self) -> DropQueueColumnsOp:
        """Return the operation that drops the columns."""
        return DropQueueColumnsOp(self)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return the name, schema, table and columns, for ``alembic check``."""
        return ("add_queue_columns", self.schema, self.table_name, [column.name for column in self.columns])


class DropQueueColumnsOp(MigrateOperation):
    """Drops the columns of an addition, and with them the state of the tasks."""

    def __init__(self, addition: AddQueueColumnsOp) -> None:
        self.addition = addition

    def reverse(self) -> AddQueueColumnsOp:
        """Return the operation that adds the columns."""
        return self.addition

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return the name, schema, table and columns, for ``alembic check``."""
        return ("drop_queue_columns", *self.addition.to_diff_tuple()[1:])


class _OpsOfOneKind(ModifyTableOps):
    """Operations on a table that are rendered together, and whose reverses are as well."""

    def reverse(self) -> Self:
        """Return the operations that undo these, in reverse order."""
        return type(self)(self.table_name, [op.reverse() for op in reversed(self.ops)], schema=self.schema)


class MomentDefaultsOps(_OpsOfOneKind):
    """Sets the defaults of time columns to the current time in UTC, on engines that can change a default."""


class ConcurrentIndexesOps(_OpsOfOneKind):
    """Creates or drops indexes concurrently, without blocking writers."""


class SetDefaultsOp(_OpsOfOneKind):
    """Changes the defaults of columns of a queue."""


class RenameColumnsOp(MigrateOperation):
    """Renames columns of a queue, which keep their data."""

    def __init__(self, table_name: str, columns: Mapping[str, Column[Any]], *, schema: str | None) -> None:
        self.table_name = table_name
        self.columns = columns
        """The existing columns, by their new names."""
        self.schema = schema

    def reverse(self) -> RenameColumnsOp:
        """Return the operation that restores the previous names."""
        columns = {column.name: _named(name, column) for name, column in self.columns.items()}
        return RenameColumnsOp(self.table_name, columns, schema=self.schema)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return the name, schema, table and pairs of names, for ``alembic check``."""
        names = [(column.name, name) for name, column in self.columns.items()]
        return ("rename_queue_columns", self.schema, self.table_name, names)


def _named(name: str, column: Column[Any]) -> Column[Any]:
    return Column(name, column.type, server_default=column.server_default, nullable=column.nullable)


class StorageOp(MigrateOperation):
    """Sets or resets the storage parameters of a queue's table."""

    def __init__(self, table: Table, *, give: bool = True) -> None:
        self.table = table
        self.give = give

    def reverse(self) -> StorageOp:
        """Return the operation that undoes this one: resets the parameters, or sets them."""
        return StorageOp(self.table, give=not self.give)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return the name, schema and table, for ``alembic check``."""
        return ("storage_parameters", self.table.schema, self.table.name)


@renderers.dispatch_for(AddQueueColumnsOp)
def _render_addition(context: AutogenContext, op: AddQueueColumnsOp) -> list[str]:
    first = added(op.columns, op.adoption)
    adding = [AddColumnOp(op.table_name, column, schema=op.schema) for column in first]
    lines = [*_comment_on_rows(op), *_render_in_batch(context, op, adding)]
    target = Table(op.table_name, MetaData(), schema=op.schema)
    changed = [
        alter_default(target, column, each.server_default)
        for column, each in zip(op.columns, first, strict=True)
        if column.server_default is not each.server_default
    ]
    if not changed:
        return lines
    setting = SetDefaultsOp(op.table_name, changed, schema=op.schema)
    return [*lines, "# The defaults of new rows.", *_render_defaults(context, setting)]


@renderers.dispatch_for(SetDefaultsOp)
def _render_defaults(context: AutogenContext, op: SetDefaultsOp) -> list[str]:
    header, *altering = _render_in_batch(context, op, op.ops)
    existing = (render_default(context, each.existing_server_default) for each in op.ops)  # type: ignore[attr-defined]
    # Alembic does not render it, but needs it on SQL Server, where a default is a constraint that it has to drop
    complete = (
        f"{line[:-1]},\n           existing_server_default={each})"
        for line, each in zip(altering, existing, strict=False)
    )
    return [header, *complete, ""]


@renderers.dispatch_for(RenameColumnsOp)
def _render_renaming(context: AutogenContext, op: RenameColumnsOp) -> list[str]:
    renaming = [
        AlterColumnOp(
            op.table_name,
            column.name,
            schema=op.schema,
            existing_type=column.type,
            existing_nullable=column.nullable,
            existing_server_default=column.server_default,
            modify_name=name,
        )
        for name, column in op.columns.items()
    ]
    return _render_in_batch(context, op, renaming)


def alter_default(table: Table, column: Column[Any], existing: Any) -> AlterColumnOp:
    """Return the operation that replaces the ``existing`` default of ``column`` with the model's."""
    return AlterColumnOp(
        table.name,
        column.name,
        schema=table.schema,
        existing_type=column.type,
        existing_nullable=column.nullable,
        existing_server_default=existing,
        modify_server_default=column.server_default,
    )


def _comment_on_rows(op: AddQueueColumnsOp) -> list[str]:
    if op.adoption is None:
        return []
    status, becomes, moment = op.adoption.status, op.adoption.becomes, op.adoption.available_at
    if becomes == Status.AVAILABLE:
        return [f"# The existing rows of {op.table_name} become {becomes}: workers will claim all of them."]
    return [
        f"# The existing rows of {op.table_name} become {becomes}: no worker will claim them. finished_at is NULL, so",
        "# prune() does not delete them, whatever the model's retention. To have workers claim some of them, add",
        f"# an UPDATE below that sets {status} to 'available' and {moment} to a time in the past.",
    ]


@renderers.dispatch_for(DropQueueColumnsOp)
def _render_drop(context: AutogenContext, op: DropQueueColumnsOp) -> list[str]:
    columns = list(reversed(op.addition.columns))
    dropping = [DropColumnOp.from_column_and_tablename(op.addition.schema, op.addition.table_name, c) for c in columns]
    lines = _render_in_batch(context, op.addition, dropping)
    with_default = {f"batch_op.drop_column({c.name!r})" for c in columns if c.server_default is not None}
    # SQL Server cannot drop a column that has a default
    return [f"{line[:-1]}, mssql_drop_default=True)" if line in with_default else line for line in lines]


def _render_in_batch(
    context: AutogenContext, op: AddQueueColumnsOp | RenameColumnsOp | ModifyTableOps, ops: Sequence[MigrateOperation]
) -> list[str]:
    """Render in batch mode: SQLite cannot alter a column's default, and other engines run plain ALTERs."""
    opts = context.opts
    context.opts = {**opts, "render_as_batch": True, "render_item": render_item(context)}
    try:
        return render_op(context, ModifyTableOps(op.table_name, ops, schema=op.schema))
    finally:
        context.opts = opts


@renderers.dispatch_for(MomentDefaultsOps)
def _render_moment_defaults(context: AutogenContext, op: MomentDefaultsOps) -> list[str]:
    others = tuple(name for name, adapter in adapters().items() if not adapter.schema.alters_defaults)
    block = f"if {_op(context)}get_context().dialect.name not in {others!r}:"
    return [block, *(line for each in op.ops for line in render_op(context, each)), ""]


@renderers.dispatch_for(ConcurrentIndexesOps)
def _render_concurrently(context: AutogenContext, op: ConcurrentIndexesOps) -> list[str]:
    block = f"with {_op(context)}get_context().autocommit_block():"
    return [block, *(line for index in op.ops for line in render_op(context, index)), ""]


@renderers.dispatch_for(StorageOp)
def _render_storage(context: AutogenContext, op: StorageOp) -> list[str]:
    prefix = _op(context)
    return [
        f"if {prefix}get_context().dialect.name == {STORAGE_DIALECT!r}:",
        f"{prefix}execute({storage_statement(op.table, give=op.give)!r})",
        "",
    ]


def _op(context: AutogenContext) -> str:
    prefix: str = context.opts["alembic_module_prefix"] or ""
    return prefix
