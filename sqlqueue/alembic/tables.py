"""The operations on one table that becomes a queue, is one, or ceases to be one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from alembic.operations.ops import (
    AddColumnOp,
    AlterColumnOp,
    CreateIndexOp,
    DropColumnOp,
    DropIndexOp,
    MigrateOperation,
    ModifyTableOps,
)

from ..diagnostics.schema_drift import queue_indexes
from ..lifecycle.kind import Kind
from ..queue.spec import QUEUE_ROLES, QueueSpec, index_name
from ..queue.status import Status
from .adoption import Adoption
from .defaults import is_ours
from .operations import AddQueueColumnsOp, ConcurrentIndexesOps, MomentDefaultsOps, RenameColumnsOp, SetDefaultsOp
from .options import MigrationOptions

_KINDS = ("claim", "due")


def with_new_names(op: ModifyTableOps, names: Mapping[str, str]) -> Iterator[MigrateOperation]:
    """Yield the operations that rename columns to the new ``names``; the later ones stay in ``op``."""
    if not names:
        return
    dropped = [each for each in op.ops if isinstance(each, DropIndexOp)]
    if dropped:
        yield ModifyTableOps(op.table_name, dropped, schema=op.schema)
    old = {each.column_name: each.to_column() for each in op.ops if isinstance(each, DropColumnOp)}
    yield RenameColumnsOp(op.table_name, {new: old[name] for name, new in names.items()}, schema=op.schema)
    op.ops[:] = [each for each in op.ops if each not in dropped and not _is_renaming(each, names)]


def _is_renaming(op: MigrateOperation, names: Mapping[str, str]) -> bool:
    if isinstance(op, AddColumnOp):
        return op.column.name in names.values()
    return isinstance(op, DropColumnOp) and op.column_name in names


def of_queue(
    op: ModifyTableOps, spec: QueueSpec, options: MigrationOptions, *, is_new: bool
) -> Iterator[MigrateOperation]:
    """Yield the operations on the queue's columns, and then the rest, such as its indexes."""
    names = {column.name for column in spec.columns.values()}
    added = [each for each in op.ops if isinstance(each, AddColumnOp) and each.column.name in names]
    dropped = [each for each in op.ops if isinstance(each, DropColumnOp) and each.column_name in _roles()]
    altered = [each for each in op.ops if isinstance(each, AlterColumnOp) and each.column_name in names]
    mended = [each for each in altered if is_ours(each.modify_server_default)]
    changed = [each for each in altered if each not in mended and _changes_default(each)]
    if added:
        columns, status = [each.column for each in added], spec["status"].name
        adoption = _adoption(status, spec["available_at"].name, options)
        is_adopted = any(column.name == status for column in columns)
        yield AddQueueColumnsOp(op.table_name, columns, adoption if is_adopted else None, schema=op.schema)
    if mended:
        yield MomentDefaultsOps(op.table_name, mended, schema=op.schema)
    if changed:
        yield SetDefaultsOp(op.table_name, changed, schema=op.schema)
    rest = [each for each in op.ops if each not in (*added, *dropped, *mended, *changed)]
    # nothing can be writing to a table that the same revision creates
    concurrently = options.concurrently and not is_new
    yield from _rest(op, rest, {str(index.name) for index in queue_indexes(spec)} if concurrently else ())
    if dropped:
        columns = [each.to_column() for each in reversed(dropped)]
        yield AddQueueColumnsOp(op.table_name, columns, None, schema=op.schema).reverse()


def _roles() -> set[str]:
    """Return the columns that a queue of some kind has, by the names that they have unless the model renames them."""
    return {*QUEUE_ROLES, *(role for kind in Kind.known for role in kind.columns)}


def _changes_default(op: AlterColumnOp) -> bool:
    """Return whether ``op`` replaces one default by another and changes nothing else."""
    others = (op.modify_type, op.modify_nullable, op.modify_name, op.modify_comment or None)
    return bool(op.modify_server_default and op.existing_server_default) and others == (None,) * len(others)


def was_queue(op: ModifyTableOps) -> bool:
    """Return whether ``op`` drops the indexes of a queue, and at least as many columns as every queue has."""
    dropped = {each.column_name for each in op.ops if isinstance(each, DropColumnOp)}
    leading = [names[0] for names in _index_columns(op)]
    return len(leading) == len(_KINDS) and dropped.issuperset(leading) and len(dropped) >= len(QUEUE_ROLES)


def of_former_queue(op: ModifyTableOps, options: MigrationOptions) -> Iterator[MigrateOperation]:
    """Yield the operations that turn a queue into an ordinary table; their downgrade makes it a queue and adopts its
    rows."""
    dropped = [each for each in op.ops if isinstance(each, DropColumnOp)]
    rest = [each for each in op.ops if each not in dropped]
    yield from _rest(op, rest, _index_names(op) if options.concurrently else ())
    (status, *_), (_, available_at, *_) = _index_columns(op)
    columns = [each.to_column() for each in reversed(dropped)]
    adoption = _adoption(status, available_at, options)
    yield AddQueueColumnsOp(op.table_name, columns, adoption, schema=op.schema).reverse()


def _adoption(status: str, available_at: str, options: MigrationOptions) -> Adoption:
    return Adoption(status=status, available_at=available_at, becomes=Status(options.existing_rows))


def _index_names(op: ModifyTableOps) -> list[str]:
    return [index_name(op.table_name, kind) for kind in _KINDS]


def _index_columns(op: ModifyTableOps) -> list[list[str]]:
    """Return the columns of the queue's dropped indexes: the claim index first, which begins with the status."""
    dropped = {str(each.index_name): each.to_index() for each in op.ops if isinstance(each, DropIndexOp)}
    return [[column.name for column in dropped[name].columns] for name in _index_names(op) if name in dropped]


def _rest(
    op: ModifyTableOps, rest: Sequence[MigrateOperation], concurrently: Collection[str]
) -> Iterator[MigrateOperation]:
    indexes = [
        each for each in rest if isinstance(each, CreateIndexOp | DropIndexOp) and str(each.index_name) in concurrently
    ]
    others = [each for each in rest if each not in indexes]
    if others:
        yield ModifyTableOps(op.table_name, others, schema=op.schema)
    if indexes:
        yield ConcurrentIndexesOps(op.table_name, [_concurrent(each) for each in indexes], schema=op.schema)


def _concurrent(op: CreateIndexOp | DropIndexOp) -> MigrateOperation:
    index = op.to_index()
    index.dialect_kwargs["postgresql_concurrently"] = True
    return type(op).from_index(index)
