"""What becomes of the operations on one table that becomes a queue, is one, or is one no longer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from alembic.operations.ops import (
    AddColumnOp,
    CreateIndexOp,
    DropColumnOp,
    DropIndexOp,
    MigrateOperation,
    ModifyTableOps,
)

from ..drift import needed_indexes
from ..spec import QUEUE_ROLES, QueueSpec, index_name
from ..states import Status
from .operations import AdoptRowsOp, ConcurrentIndexesOps, QueueColumnsOps
from .options import MigrationOptions

_KINDS = ("claim", "due")


def of_queue(
    op: ModifyTableOps, spec: QueueSpec, options: MigrationOptions, *, is_new: bool
) -> Iterator[MigrateOperation]:
    """The columns of the queue, what its old rows become, and then the rest: its indexes."""
    names = {column.name for column in spec.columns.values()}
    added = [each for each in op.ops if isinstance(each, AddColumnOp) and each.column.name in names]
    if added:
        yield QueueColumnsOps(op.table_name, added, schema=op.schema)
    status, finished_at = spec["status"].name, spec["finished_at"].name
    if any(each.column.name == status for each in added):
        yield AdoptRowsOp(op.table_name, status, finished_at, Status(options.existing_rows), schema=op.schema)
    rest = [each for each in op.ops if each not in added]
    # in a table that is made by the same revision there is nobody to wait for
    concurrently = options.concurrently and not is_new
    yield from _rest(op, rest, {str(index.name) for index in needed_indexes(spec)} if concurrently else ())


def was_queue(op: ModifyTableOps) -> bool:
    """A table that has been a queue is known by the indexes that it loses, with as many columns as a queue has."""
    dropped = {each.column_name for each in op.ops if isinstance(each, DropColumnOp)}
    leading = _leading_columns(op)
    return len(leading) == len(_KINDS) and dropped.issuperset(leading) and len(dropped) >= len(QUEUE_ROLES)


def of_former_queue(op: ModifyTableOps, options: MigrationOptions) -> Iterator[MigrateOperation]:
    """The same the other way round; a downgrade that makes it a queue again adopts its rows as well."""
    columns = [each for each in op.ops if isinstance(each, DropColumnOp)]
    rest = [each for each in op.ops if each not in columns]
    yield from _rest(op, rest, _index_names(op) if options.concurrently else ())
    status, finished_at = _leading_columns(op)
    yield AdoptRowsOp(op.table_name, status, finished_at, Status(options.existing_rows), schema=op.schema).reverse()
    yield QueueColumnsOps(op.table_name, columns, schema=op.schema)


def _index_names(op: ModifyTableOps) -> list[str]:
    return [index_name(op.table_name, kind) for kind in _KINDS]


def _leading_columns(op: ModifyTableOps) -> list[str]:
    """The first columns of the queue's indexes, of those that are dropped: its status, and when it was finished."""
    dropped = {str(each.index_name): each.to_index() for each in op.ops if isinstance(each, DropIndexOp)}
    return [next(iter(dropped[name].columns)).name for name in _index_names(op) if name in dropped]


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
