"""Operations that Alembic does not have: they are rendered into revisions as standard operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any, Self

from alembic.autogenerate import renderers
from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import render_op
from alembic.operations.ops import AddColumnOp, AlterColumnOp, DropColumnOp, MigrateOperation, ModifyTableOps
from alembic.util import PriorityDispatchResult
from sqlalchemy import Column, DateTime, DefaultClause, Identity, MetaData, Table, TextClause

from ..dialects import adapter_for, adapters, moment_defaults
from ..dialects.postgresql import STORAGE_DIALECT, storage_statement
from ..dialects.sqlite import DEFINITION_DIALECT, setting_defaults
from ..queue.options import FINAL, Status
from ..sql import NEVER, utcdefault

# -- adoption of existing rows when a table becomes a queue: the values of the new columns in these rows --------------
#
# A column is added with a constant default, whose value existing rows keep, and gets the model's default in a second
# step.  On PostgreSQL, MySQL and MariaDB both steps change only the catalog: they write no rows and hold locks only
# briefly.  With an expression as the default, MySQL would copy the table.

_PLACEHOLDER = "-"
"""The value of text columns that have no default and are not nullable.  Oracle would treat an empty string as NULL."""


class MomentDefault(DefaultClause):
    """A default written into a revision as a Python expression, so that SQLAlchemy renders it for each engine."""

    def __init__(self, python: str) -> None:
        super().__init__(python)
        self.python = python


_NEVER = f"datetime.datetime({NEVER.year}, {NEVER.month}, {NEVER.day})"
_NOW = "datetime.datetime.now(datetime.timezone.utc)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The conversion of a table's existing rows to tasks."""

    status: str
    """The name of the status column."""
    available_at: str
    """The name of the ``available_at`` column."""
    becomes: Status
    """The status of the existing rows."""

    def default(self, column: Column[Any]) -> Any:
        """Return the value of ``column`` in existing rows."""
        if column.name == self.status:
            return self.becomes.value
        if column.name == self.available_at and self.becomes in FINAL:
            return MomentDefault(_NEVER)
        if isinstance(getattr(column.type, "impl", column.type), DateTime) and not column.nullable:
            return MomentDefault(_NOW)
        return initial_default(column)


def initial_default(column: Column[Any]) -> Any:
    """Return the value of ``column`` in existing rows of a table that is already a queue."""
    is_open = column.server_default is None and not column.nullable
    return _PLACEHOLDER if is_open and column.type.python_type is str else column.server_default


def added(columns: Sequence[Column[Any]], adoption: Adoption | None) -> list[Column[Any]]:
    """Return copies of ``columns`` with the defaults for existing rows."""
    default = initial_default if adoption is None else adoption.default
    return [Column(each.name, each.type, server_default=default(each), nullable=each.nullable) for each in columns]


def render_default(context: AutogenContext, default: Any) -> str:
    """Return the Python source of a constant default: a string, SQL, or a time."""
    prefix = context.opts["sqlalchemy_module_prefix"] or ""
    if isinstance(default, MomentDefault):
        context.imports.add("import datetime")
        # a column with a time zone would read a naive time as local to the session
        zoneless = tuple(sorted(name for name, adapter in adapters().items() if adapter.types.timestamp is not None))
        here = f"{context.opts['alembic_module_prefix'] or ''}get_context().dialect.name"
        zone = f"None if {here} in {zoneless!r} else datetime.timezone.utc"
        return f"{prefix}literal({default.python}.replace(tzinfo={zone}))"
    value = getattr(default, "arg", default)
    return f"{prefix}text({str(value)!r})" if isinstance(value, TextClause) else repr(value)


# -- the server defaults of time columns: each engine has its own expression for the current time in UTC --------------


def is_ours(default: object) -> bool:
    """Return whether ``default`` is the queue's own default for time columns."""
    return isinstance(default, DefaultClause) and isinstance(default.arg, utcdefault)


def compare_default(
    context: AutogenContext,
    op: AlterColumnOp,
    _schema: str | None,
    _table: str,
    _column: str,
    live: Column[Any],
    wanted: Column[Any],
) -> PriorityDispatchResult:
    """Compare the defaults of time columns, whether or not Alembic compares defaults, which it does by text alone."""
    if isinstance(wanted.server_default, Identity) and not context.dialect.supports_identity_columns:
        op.modify_server_default = False  # the engine generates keys in another way, and SQLAlchemy omits Identity
    if is_ours(wanted.server_default):
        text = getattr(getattr(live.server_default, "arg", None), "text", None)
        if text is not None and adapter_for(context.dialect).inspection.same_default(context.dialect, text):
            op.modify_server_default = False
        else:
            op.modify_server_default = wanted.server_default
            op.existing_server_default = live.server_default or False
            op.existing_type = wanted.type  # the reflected type may be specific to this engine
    return PriorityDispatchResult.CONTINUE


def render_item(context: AutogenContext) -> Callable[[str, Any, AutogenContext], Any]:
    """Return a ``render_item`` that renders the defaults of queues, and leaves the rest to the project's own.

    Revisions choose the default of a time column by the engine that they are run on, not the one that generated them.
    """
    given = context.opts.get("render_item")

    def render(kind: str, item: Any, rendering: AutogenContext) -> Any:
        if isinstance(item, MomentDefault):
            return render_default(rendering, item)
        rendered = given(kind, item, rendering) if given else False
        return _chosen(rendering) if rendered is False and kind == "server_default" and is_ours(item) else rendered

    return render


def _chosen(context: AutogenContext) -> str:
    sa, op = (context.opts[f"{module}_module_prefix"] or "" for module in ("sqlalchemy", "alembic"))
    words = moment_defaults()
    portable = max(words.values(), key=list(words.values()).count)
    others = {name: text for name, text in sorted(words.items()) if text != portable}
    return f"{sa}text({others!r}.get({op}get_context().dialect.name, {portable!r}))"


# -- operations that Alembic does not have; they are rendered into revisions as standard operations -------------------


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
    others = tuple(name for name, adapter in adapters().items() if not adapter.inspection.alters_defaults)
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
