"""Checks the tables that refer to queues: whoever deletes a task makes the server look for its children."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, Table, inspect

from ..dialects.base import Adapter
from ..queue.findings import Finding, Severity
from ..queue.spec import QueueSpec


def unindexed_references(connection: Connection, adapter: Adapter, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about foreign keys without an index that refer to a queue whose tasks are deleted.

    Only tables of the same ``MetaData`` are considered.
    """
    options = spec.options
    cost = adapter.server.unindexed_reference(connection)
    if cost is None or (options.on_complete != "delete" and not options.prunes):
        return
    for child in _referring(spec.table):
        inspector, schema = inspect(connection), connection.schema_for_object(child)
        if not inspector.has_table(child.name, schema=schema):
            continue
        indexed = list(_indexed(connection, adapter, child))
        for key in inspector.get_foreign_keys(child.name, schema=schema):
            columns = key["constrained_columns"]
            if key["referred_table"] != spec.table.name or any(
                {*some[: len(columns)]} == {*columns} for some in indexed
            ):
                continue
            listed = ", ".join(columns)
            message = (
                f"{child.fullname} refers to {spec.table.fullname} by {listed}, which has no index: each task that is"
                f" deleted {cost}"
            )
            fix = f"declare an index whose first columns are {listed}, such as index=True, and migrate"
            yield Finding.of(spec, Severity.WARNING, "unindexed-reference", message, fix)


def _referring(table: Table) -> Iterator[Table]:
    for child in sorted(table.metadata.tables.values(), key=lambda each: each.fullname):
        targets = {key.target_fullname.rpartition(".")[0] for key in child.foreign_keys}
        if table.fullname in targets:
            yield child


def _indexed(connection: Connection, adapter: Adapter, table: Table) -> Iterator[Sequence[str]]:
    """Yield the columns of each live index, of a primary key or otherwise, that finds rows by any value."""
    inspector, schema = inspect(connection), connection.schema_for_object(table)
    yield inspector.get_pk_constraint(table.name, schema=schema)["constrained_columns"]
    for constraint in inspector.get_unique_constraints(table.name, schema=schema):
        yield constraint["column_names"]
    for index in adapter.schema.live_indexes(connection, table).values():
        names = [term.name for term in index.terms]
        partial = index.predicate and _NOT_NULL.fullmatch(index.predicate)
        if index.usable and (index.predicate is None or (partial and partial[1] in names)):
            yield names


_NOT_NULL = re.compile(r"\W*(\w+)\W+IS NOT NULL\W*", re.IGNORECASE)
"""The condition of an index that still finds all rows that refer to others."""
