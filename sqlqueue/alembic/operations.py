"""Operations that Alembic does not have: they are rendered into revisions as standard operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from textwrap import fill, indent
from typing import Any, Self

from alembic.autogenerate import renderers
from alembic.autogenerate.api import AutogenContext
from alembic.autogenerate.render import render_op
from alembic.operations import ops
from alembic.util import PriorityDispatchResult
from sqlalchemy import Column, DateTime, Identity, MetaData, Table
from sqlalchemy import literal as bound

from ..dialects import adapter_for, adapters, in_words_of
from ..dialects.postgresql import STORAGE_DIALECT, storage_statement
from ..dialects.sqlite import DEFINITION_DIALECT, defaults_function, setting_defaults
from ..queue.options import FINAL, Status
from ..sql import NEVER
from .rendering import (
    WIDTH,
    Definition,
    SourceDefault,
    chosen,
    chosen_text,
    current_time,
    dialect_in,
    engines_of,
    folded,
    for_queues,
    is_ours,
    literal,
    looped,
    of_engines,
    only_on,
    op_prefix,
    render_default,
    sa_prefix,
)

# -- adoption of existing rows when a table becomes a queue: the values of the new columns in these rows --------------
#
# A column is added with a constant default, whose value existing rows keep, and gets the model's default in a second
# step.  On PostgreSQL, MySQL and MariaDB both steps change only the catalog: they write no rows and hold locks only
# briefly.  With an expression as the default, MySQL would copy the table; PostgreSQL evaluates it once.

_PLACEHOLDER = "-"
"""The value of text columns that have no default and are not nullable.  Oracle would treat an empty string as NULL."""


def _zoneless(context: AutogenContext) -> list[str]:
    """Return the engines that store times without a zone; others would read these as local to the session."""
    return [name for name in engines_of(context) if adapters()[name].types.timestamp is not None]


def _never(context: AutogenContext) -> str:
    zoneless = _zoneless(context)
    moments = {name: NEVER.replace(tzinfo=None) if name in zoneless else NEVER for name in engines_of(context)}
    return chosen_text(context, "never", {name: in_words_of(name, bound(each)) for name, each in moments.items()})


def _now(context: AutogenContext) -> str:
    return f"{sa_prefix(context)}literal(now)"


def _defining_now(context: AutogenContext) -> str:
    context.imports.add("import datetime")
    utc, zoneless = "datetime.timezone.utc", _zoneless(context)
    zones = {name: "None" if name in zoneless else utc for name in engines_of(context)}
    zone = zones.popitem()[1] if len({*zones.values()}) == 1 else chosen(context, "zone", zones)
    return f"now = datetime.datetime.now({utc})" + (f".replace(tzinfo={zone})" if zoneless else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The conversion of a table's existing rows to tasks."""

    status: str
    """The name of the status column."""
    available_at: str
    """The name of the ``available_at`` column."""
    becomes: Status
    """The status of the existing rows."""

    def default(self, column: Column[Any], engines: Sequence[str]) -> Any:
        """Return the value of ``column`` in existing rows."""
        if column.name == self.status:
            return self.becomes.value
        if column.name == self.available_at and self.becomes in FINAL:
            return SourceDefault(_never)
        if isinstance(getattr(column.type, "impl", column.type), DateTime) and not column.nullable:
            dated = is_ours(column.server_default) and all(
                adapters()[name].inspection.dates_old_rows for name in engines
            )
            return column.server_default if dated else SourceDefault(_now)
        return initial_default(column)


def initial_default(column: Column[Any]) -> Any:
    """Return the value of ``column`` in existing rows of a table that is already a queue."""
    is_open = column.server_default is None and not column.nullable
    return _PLACEHOLDER if is_open and column.type.python_type is str else column.server_default


def compare_default(
    context: AutogenContext,
    op: ops.AlterColumnOp,
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


# -- operations that Alembic does not have; they are rendered into revisions as standard operations -------------------


class QueueOp(ops.MigrateOperation):
    """An operation on the tables of queues."""


@dataclass(eq=False)
class AddQueueColumnsOp(QueueOp):
    """Adds columns of a queue; with an ``adoption``, the columns that turn the table into a queue."""

    table_name: str
    columns: Sequence[Column[Any]]
    adoption: Adoption | None
    waiting: Mapping[str, str] | None = field(default=None, kw_only=True)
    """The columns that end the tasks that wait for others before these columns are dropped, by role."""
    schema: str | None = field(kw_only=True)

    def reverse(self) -> DropQueueColumnsOp:
        """Return the operation that drops the columns."""
        return DropQueueColumnsOp(self)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return the name, schema, table and columns, for ``alembic check``."""
        return ("add_queue_columns", self.schema, self.table_name, [column.name for column in self.columns])


@dataclass(eq=False)
class DropQueueColumnsOp(QueueOp):
    """Drops the columns of an addition, and with them the state of the tasks."""

    addition: AddQueueColumnsOp

    def reverse(self) -> AddQueueColumnsOp:
        """Return the operation that adds the columns."""
        return self.addition

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return the name, schema, table and columns, for ``alembic check``."""
        return ("drop_queue_columns", *self.addition.to_diff_tuple()[1:])


class _OpsOfOneKind(QueueOp, ops.ModifyTableOps):
    """Operations on a table that are rendered together, and whose reverses are as well."""

    def reverse(self) -> Self:
        """Return the operations that undo these, in reverse order."""
        return type(self)(self.table_name, [op.reverse() for op in reversed(self.ops)], schema=self.schema)


class QueueTableOps(_OpsOfOneKind):
    """Alembic's own operations on the existing table of a queue."""


class ConcurrentIndexesOps(_OpsOfOneKind):
    """Creates or drops indexes concurrently, without blocking writers."""


class SetDefaultsOp(_OpsOfOneKind):
    """Changes the defaults of columns of a queue."""


@dataclass(eq=False)
class RenameColumnsOp(QueueOp):
    """Renames columns of a queue, which keep their data."""

    table_name: str
    columns: Mapping[str, Column[Any]]
    """The existing columns, by their new names."""
    schema: str | None = field(kw_only=True)

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


class CreateQueueTableOp(QueueOp, ops.CreateTableOp):
    """Creates the table of a queue, or a table beside the queues."""


@dataclass(eq=False)
class BoundaryOp(ops.MigrateOperation):
    """Begins or ends a revision: says what becomes of existing rows, rejects other engines than those that the revision
    is for, and, if it is ``atomic``, makes SQLite execute it completely or not at all, with the change of version."""

    operations: Sequence[ops.MigrateOperation]
    """The operations on queues."""
    begins: bool = field(kw_only=True)
    atomic: bool = field(kw_only=True)

    def reverse(self) -> BoundaryOp:
        """Return the other end."""
        return replace(self, operations=[op.reverse() for op in self.operations], begins=not self.begins)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return which end it is, for ``alembic check``."""
        return ("queues", "begins" if self.begins else "ends")


@dataclass(eq=False)
class StorageOp(QueueOp):
    """Sets or resets the storage parameters of a queue's table."""

    table: Table
    give: bool = field(default=True, kw_only=True)

    def reverse(self) -> StorageOp:
        """Return the operation that undoes this one: resets the parameters, or sets them."""
        return replace(self, give=not self.give)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return the name, schema and table, for ``alembic check``."""
        return ("storage_parameters", self.table.schema, self.table.name)


# -- rendering ---------------------------------------------------------------------------------------------------------

_DROPS = (DropQueueColumnsOp, ops.DropColumnOp, ops.DropIndexOp, ops.DropTableOp)


def _is_portable(op: ops.MigrateOperation) -> bool:
    """Return whether ``op`` is rendered alike for all engines: it only drops something."""
    if isinstance(op, DropQueueColumnsOp) and op.addition.waiting:
        return False
    return isinstance(op, _DROPS) or (isinstance(op, ops.ModifyTableOps) and all(map(_is_portable, op.ops)))


@renderers.dispatch_for(BoundaryOp)
def _render_boundary(context: AutogenContext, op: BoundaryOp) -> list[str]:
    prefix = op_prefix(context)
    release = [f"if {prefix}get_context().as_sql:", f"    {prefix}execute('RELEASE SAVEPOINT migration')"]
    savepoint = [
        "# All or nothing on SQLite, too, whose driver begins no transaction for DDL. PRAGMA foreign_keys has no",
        "# effect in one: to add operations in batch mode, which copy tables, execute it before.",
        f"{prefix}execute('SAVEPOINT migration')",
    ]
    # otherwise Alembic commits the changes together with the new version
    lines = only_on(context, [DEFINITION_DIALECT], savepoint if op.begins else release) if op.atomic else []
    if not op.begins:
        return ["\n".join(lines)] if lines else []
    comments = [line for each in op.operations if isinstance(each, AddQueueColumnsOp) for line in _on_rows(each)]
    if lines or not all(map(_is_portable, op.operations)):
        comments += _rejecting_others(context)
    return [*comments, *lines]


def _rejecting_others(context: AutogenContext) -> list[str]:
    engines = engines_of(context)
    other = dialect_in(context, engines).replace(" == ", " != ").replace(" in ", " not in ")
    what = f"for {', '.join(engines)} only: set MigrationOptions(engines=...) and generate it anew"
    return [folded(f"if {other}:\n    raise NotImplementedError({literal(what)})")]


def _on_rows(op: AddQueueColumnsOp) -> list[str]:
    if op.adoption is None:
        return []
    becomes = op.adoption.becomes
    what = (
        "workers will claim all of them" if becomes == Status.AVAILABLE else "no worker claims them, prune() keeps them"
    )
    # the name of the live database as a literal, since a line break would end the comment
    told = f"The existing rows of {op.table_name!r} become {becomes}: {what}."
    return [fill(told, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)]


@renderers.dispatch_for(AddQueueColumnsOp)
def _render_addition(context: AutogenContext, op: AddQueueColumnsOp) -> list[str]:
    engines = engines_of(context)
    default = initial_default if op.adoption is None else partial(op.adoption.default, engines=engines)
    first = [Column(each.name, each.type, server_default=default(each), nullable=each.nullable) for each in op.columns]
    adding = {
        each.name: _rendered(context, [ops.AddColumnOp(op.table_name, each, schema=op.schema)])[0] for each in first
    }
    target = Table(op.table_name, MetaData(), schema=op.schema)
    changed = [
        alter_default(target, column, each.server_default)
        for column, each in zip(op.columns, first, strict=True)
        if column.server_default is not each.server_default
    ]
    setting = SetDefaultsOp(op.table_name, changed, schema=op.schema)
    is_dated = any(
        isinstance(each.server_default, SourceDefault) and each.server_default.source is _now for each in first
    )
    now = [_defining_now(context)] if is_dated else []
    return [*now, *looped(adding), *_render_defaults(context, setting)]


def _in_schema(schema: str | None) -> str:
    return f", schema={schema!r}" if schema else ""


@renderers.dispatch_for(SetDefaultsOp)
def _render_defaults(context: AutogenContext, op: SetDefaultsOp) -> list[str]:
    altering = [each for each in op.ops if isinstance(each, ops.AlterColumnOp)]
    engines = engines_of(context)
    lines = []
    for each in altering:
        default = render_default(context, each.modify_server_default)
        line = f"{op_prefix(context)}alter_column({op.table_name!r}, {each.column_name!r}, server_default={default}"
        if any(adapters()[name].inspection.dropping_defaults for name in engines):
            line += ", existing_server_default=None"  # anything but False makes Alembic drop the former one
        lines.append(f"{line}{_in_schema(op.schema)})")
    others = only_on(context, [name for name in engines if name != DEFINITION_DIALECT], lines)
    on_sqlite: list[str] = []
    if altering and DEFINITION_DIALECT in engines:
        context.imports.update({"import re", Definition(defaults_function(op_prefix(context)))})
        columns: list[Column[Any]] = [
            Column(each.column_name, server_default=each.modify_server_default or None) for each in altering
        ]
        call = setting_defaults(Table(op.table_name, MetaData(), schema=op.schema), columns)
        on_sqlite = only_on(context, [DEFINITION_DIALECT], [call])
    return list(map(folded, [*others, *on_sqlite]))


@renderers.dispatch_for(RenameColumnsOp)
def _render_renaming(context: AutogenContext, op: RenameColumnsOp) -> list[str]:
    renaming = [
        ops.AlterColumnOp(
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
    return list(map(folded, _rendered(context, renaming)))


def alter_default(table: Table, column: Column[Any], existing: Any) -> ops.AlterColumnOp:
    """Return the operation that replaces the ``existing`` default of ``column`` with the model's."""
    return ops.AlterColumnOp(
        table.name,
        column.name,
        schema=table.schema,
        existing_type=column.type,
        existing_nullable=column.nullable,
        existing_server_default=existing,
        modify_server_default=column.server_default,
    )


def _ending(context: AutogenContext, op: AddQueueColumnsOp) -> list[str]:
    """Return the statement that cancels the tasks that wait for others, which nothing would ever start."""
    if op.waiting is None:
        return []
    sa, names = sa_prefix(context), op.waiting
    columns = ", ".join(f"{sa}column({name!r})" for name in names.values())
    values = {"status": f"{Status.CANCELLED.value!r}", "finished_at": current_time(context)}
    if "unique_key" in names:
        values |= {"former_key": f"{sa}column({names['unique_key']!r})", "unique_key": f"{sa}null()"}
    assigned = ", ".join(f"{names[role]!r}: {value}" for role, value in values.items())
    return [
        "# tasks that wait for others are cancelled: nothing would start them",
        f"{op_prefix(context)}execute(\n"
        f"    {sa}table({op.table_name!r}, {columns}{_in_schema(op.schema)})\n"
        "    .update()\n"
        f"    .where({sa}column({names['status']!r}) == {Status.WAITING.value!r})\n"
        f"    .values({{{assigned}}})\n"
        ")",
    ]


@renderers.dispatch_for(DropQueueColumnsOp)
def _render_drop(context: AutogenContext, op: DropQueueColumnsOp) -> list[str]:
    options = {
        option: value
        for name in engines_of(context)
        for option, value in adapters()[name].inspection.dropping_defaults.items()
    }
    dropping = "".join(f", {option}={value!r}" for option, value in options.items())
    calls = {
        column.name: f"{op_prefix(context)}drop_column({op.addition.table_name!r}, {column.name!r}"
        f"{_in_schema(op.addition.schema)}{'' if column.server_default is None else dropping})"
        for column in reversed(op.addition.columns)
    }
    return [*_ending(context, op.addition), *looped(calls)]


def _rendered(context: AutogenContext, operations: Sequence[ops.MigrateOperation]) -> list[str]:
    """Render one ALTER TABLE for each operation, even if the project uses batch mode.

    In batch mode, Alembic would recreate the table on SQLite, which deletes rows that refer to it.
    """
    with for_queues(context, render_as_batch=False):
        return [line for op in operations for line in render_op(context, op)]


@renderers.dispatch_for(CreateQueueTableOp)
def _render_creation(context: AutogenContext, op: CreateQueueTableOp) -> list[str]:
    options = {option for each in adapters().values() for option in each.inspection.lasting_keys}
    kept = {option for name in engines_of(context) for option in adapters()[name].inspection.lasting_keys}
    creating = copy(op)
    creating.kw = {option: value for option, value in op.kw.items() if option not in options - kept}
    with for_queues(context):
        return [folded(renderers.dispatch(ops.CreateTableOp)(context, creating))]


@renderers.dispatch_for(QueueTableOps)
def _render_table(context: AutogenContext, op: ops.ModifyTableOps) -> list[str]:
    pieces = [of_engines(context, each) for each in op.ops]
    with for_queues(context):
        if context.opts.get("render_as_batch"):
            lines = render_op(context, ops.ModifyTableOps(op.table_name, pieces, schema=op.schema))
            return [folded(line, WIDTH - 4) for line in lines]
        lines = []
        for drops, some in groupby(pieces, key=lambda each: isinstance(each, ops.DropIndexOp)):
            calls = [(str(getattr(each, "index_name", "")), line) for each in some for line in render_op(context, each)]
            lines += looped(dict(calls)) if drops else [folded(line) for _, line in calls]
        return lines


@renderers.dispatch_for(ConcurrentIndexesOps)
def _render_concurrently(context: AutogenContext, op: ConcurrentIndexesOps) -> list[str]:
    engines, here = engines_of(context), f"{op_prefix(context)}get_context()"
    with for_queues(context):
        lines = [line for each in op.ops for line in render_op(context, of_engines(context, each))]
    if STORAGE_DIALECT not in engines:
        return list(map(folded, lines))
    block = f"{here}.autocommit_block()"
    if len(engines) > 1:
        context.imports.add("import contextlib")
        block = f"({block} if {dialect_in(context, [STORAGE_DIALECT])} else contextlib.nullcontext())"
    return [folded(f"with {block}:\n" + indent("\n".join(lines), "    "))]


@renderers.dispatch_for(StorageOp)
def _render_storage(context: AutogenContext, op: StorageOp) -> list[str]:
    statement = storage_statement(op.table, give=op.give)
    lines = [f"{op_prefix(context)}execute({literal(statement)})"]
    return list(map(folded, only_on(context, [STORAGE_DIALECT], lines)))
