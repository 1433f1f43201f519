"""Operations that Alembic does not have, and how they are written into a revision: as standard ones."""

from __future__ import annotations

from typing import Any

from alembic.autogenerate import renderers
from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import render_op
from alembic.operations.ops import DropColumnOp, MigrateOperation, ModifyTableOps
from sqlalchemy import Table

from ..dialects.catalog import STORAGE_DIALECT, storage_statement
from ..states import Status


class QueueColumnsOps(ModifyTableOps):
    """Columns of a queue that come or go."""

    def reverse(self) -> QueueColumnsOps:
        return QueueColumnsOps(self.table_name, [op.reverse() for op in reversed(self.ops)], schema=self.schema)


class ConcurrentIndexesOps(ModifyTableOps):
    """Indexes that come or go while others write."""

    def reverse(self) -> ConcurrentIndexesOps:
        return ConcurrentIndexesOps(self.table_name, [op.reverse() for op in reversed(self.ops)], schema=self.schema)


class AdoptRowsOp(MigrateOperation):
    """The rows that a table has when it becomes a queue are given a status."""

    def __init__(self, table_name: str, status: str, finished_at: str, becomes: Status, *, schema: str | None) -> None:
        self.table_name = table_name
        self.values = {status: f"'{becomes}'", finished_at: "CURRENT_TIMESTAMP"}
        """SQL by column."""
        self.becomes = becomes
        self.schema = schema

    def reverse(self) -> ForgetRowsOp:
        return ForgetRowsOp(self)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("adopt_rows", self.schema, self.table_name, self.becomes)


class ForgetRowsOp(MigrateOperation):
    """The rows of a queue that is one no longer lose their status, with its column: nothing to write."""

    def __init__(self, adoption: AdoptRowsOp) -> None:
        self.adoption = adoption

    def reverse(self) -> AdoptRowsOp:
        return self.adoption

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("forget_rows", self.adoption.schema, self.adoption.table_name)


class StorageOp(MigrateOperation):
    """Storage parameters of a queue's table, given or taken back."""

    def __init__(self, table: Table, *, give: bool = True) -> None:
        self.table = table
        self.give = give

    def reverse(self) -> StorageOp:
        return StorageOp(self.table, give=not self.give)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("storage_parameters", self.table.schema, self.table.name)


@renderers.dispatch_for(QueueColumnsOps)
def _render_columns(context: AutogenContext, op: QueueColumnsOps) -> list[str]:
    # In batch form, which other engines run as plain ALTERs: SQLite adds no column whose default is not constant to a
    # table with rows.  And SQL Server drops no column that has a default.
    opts = context.opts
    context.opts = {**opts, "render_as_batch": True}
    try:
        lines = render_op(context, ModifyTableOps(op.table_name, op.ops, schema=op.schema))
    finally:
        context.opts = opts
    with_default = {
        f"batch_op.drop_column({column.column_name!r})"
        for column in op.ops
        if isinstance(column, DropColumnOp) and column.to_column().server_default is not None
    }
    return [f"{line[:-1]}, mssql_drop_default=True)" if line in with_default else line for line in lines]


@renderers.dispatch_for(ConcurrentIndexesOps)
def _render_concurrently(context: AutogenContext, op: ConcurrentIndexesOps) -> list[str]:
    block = f"with {_op(context)}get_context().autocommit_block():"
    return [block, *(line for index in op.ops for line in render_op(context, index)), ""]


@renderers.dispatch_for(AdoptRowsOp)
def _render_adoption(context: AutogenContext, op: AdoptRowsOp) -> list[str]:
    if op.becomes == Status.AVAILABLE:
        return [f"# Rows from before {op.table_name} was a queue become available: workers take them all."]
    sa = context.opts["sqlalchemy_module_prefix"] or ""
    columns = ", ".join(f"{sa}column({name!r})" for name in op.values)
    schema = f", schema={op.schema!r}" if op.schema else ""
    values = ", ".join(f"{name!r}: {sa}text({value!r})" for name, value in op.values.items())
    return [
        f"# Rows from before {op.table_name} was a queue become {op.becomes}: no worker takes them.",
        "# Where some of them shall be worked on, add .where(...): those that it leaves out are available.",
        f"{_op(context)}execute({sa}table({op.table_name!r}, {columns}{schema}).update().values({{{values}}}))",
    ]


@renderers.dispatch_for(ForgetRowsOp)
def _render_nothing(context: AutogenContext, op: ForgetRowsOp) -> list[str]:
    return []


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
