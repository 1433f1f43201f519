"""Operations that Alembic does not have; they are rendered into revisions as standard operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any, Self

from alembic.autogenerate import renderers
from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import render_op
from alembic.operations.ops import AddColumnOp, AlterColumnOp, DropColumnOp, MigrateOperation, ModifyTableOps
from sqlalchemy import Column, MetaData, Table

from ..dialects import adapters
from ..dialects.postgresql.catalog import STORAGE_DIALECT, storage_statement
from ..dialects.sqlite.definition import DEFINITION_DIALECT, setting_defaults
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


class SavepointOp(MigrateOperation):
    """Begins or ends a revision that SQLite executes completely or not at all, together with the change of version."""

    def __init__(self, *, begins: bool) -> None:
        self.begins = begins

    def reverse(self) -> SavepointOp:
        """Return the other end."""
        return SavepointOp(begins=not self.begins)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return which end it is, for ``alembic check``."""
        return ("savepoint", "begins" if self.begins else "ends")


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


@renderers.dispatch_for(SavepointOp)
def _render_savepoint(context: AutogenContext, op: SavepointOp) -> list[str]:
    prefix, here = _op(context), f"{_op(context)}get_context()"
    on_sqlite = f"{here}.dialect.name == {DEFINITION_DIALECT!r}"
    if not op.begins:  # otherwise Alembic commits the changes together with the new version
        return [f"if {on_sqlite} and {here}.as_sql:", f"{prefix}execute('RELEASE SAVEPOINT migration')", ""]
    comment = [
        "# All or nothing on SQLite, too, whose driver begins no transaction for DDL. PRAGMA foreign_keys has no",
        "# effect in one: to add operations in batch mode, which copy tables, execute it before.",
    ]
    return [*comment, f"if {on_sqlite}:", f"{prefix}execute('SAVEPOINT migration')", ""]


@renderers.dispatch_for(AddQueueColumnsOp)
def _render_addition(context: AutogenContext, op: AddQueueColumnsOp) -> list[str]:
    first = added(op.columns, op.adoption)
    adding = [AddColumnOp(op.table_name, column, schema=op.schema) for column in first]
    lines = [*_comment_on_rows(op), *_render_natively(context, adding)]
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
    altering = [each for each in op.ops if isinstance(each, AlterColumnOp)]
    existing = (render_default(context, each.existing_server_default) for each in altering)
    # Alembic does not render it, but needs it on SQL Server, where a default is a constraint that it has to drop
    complete = (
        f"{line[:-1]},\n           existing_server_default={each})"
        for line, each in zip(_render_natively(context, altering), existing, strict=True)
    )
    context.imports.add("import re")
    table = Table(op.table_name, MetaData(), schema=op.schema)
    columns: list[Column[Any]] = [
        Column(each.column_name, server_default=each.modify_server_default or None) for each in altering
    ]
    return [
        f"if {_op(context)}get_context().dialect.name != {DEFINITION_DIALECT!r}:",
        *complete,
        "else:",
        indent(setting_defaults(_op(context), table, columns), "    ").lstrip(),
        "",
    ]


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
    return _render_natively(context, renaming)


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
    # names of the live database: as literals, since a line break would end the comment
    if becomes == Status.AVAILABLE:
        return [f"# The existing rows of {op.table_name!r} become {becomes}: workers will claim all of them."]
    return [
        f"# The existing rows of {op.table_name!r} become {becomes}: no worker will claim them. finished_at is NULL,",
        "# so prune() does not delete them, whatever the model's retention. To have workers claim some of them, add",
        f"# an UPDATE below that sets {status!r} to 'available' and {moment!r} to a time in the past.",
    ]


@renderers.dispatch_for(DropQueueColumnsOp)
def _render_drop(context: AutogenContext, op: DropQueueColumnsOp) -> list[str]:
    columns, table = list(reversed(op.addition.columns)), op.addition.table_name
    lines = _render_natively(
        context, [DropColumnOp.from_column_and_tablename(op.addition.schema, table, column) for column in columns]
    )
    # SQL Server cannot drop a column that has a default
    return [
        line if column.server_default is None else f"{line[:-1]}, mssql_drop_default=True)"
        for column, line in zip(columns, lines, strict=True)
    ]


def _render_natively(context: AutogenContext, ops: Sequence[MigrateOperation]) -> list[str]:
    """Render one ALTER TABLE for each operation, even if the project uses batch mode.

    In batch mode, Alembic would recreate the table on SQLite, which deletes rows that refer to it.
    """
    opts = context.opts
    context.opts = {**opts, "render_as_batch": False, "render_item": render_item(context)}
    try:
        return [line for op in ops for line in render_op(context, op)]
    finally:
        context.opts = opts


@renderers.dispatch_for(MomentDefaultsOps)
def _render_moment_defaults(context: AutogenContext, op: MomentDefaultsOps) -> list[str]:
    others = tuple(name for name, adapter in adapters().items() if not adapter.schema.alters_defaults)
    block = f"if {_op(context)}get_context().dialect.name not in {others!r}:"
    return [block, *(line for each in op.ops for line in render_op(context, each)), ""]


@renderers.dispatch_for(ConcurrentIndexesOps)
def _render_concurrently(context: AutogenContext, op: ConcurrentIndexesOps) -> list[str]:
    context.imports.add("import contextlib")
    here = f"{_op(context)}get_context()"
    block = f"{here}.autocommit_block() if {here}.dialect.name == {STORAGE_DIALECT!r} else contextlib.nullcontext()"
    return [f"with {block}:", *(line for index in op.ops for line in render_op(context, index)), ""]


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
