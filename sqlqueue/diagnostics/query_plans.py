"""Checks whether claims use their indexes, by explaining the library's own statements at the tables' current size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Connection, bindparam, func, literal, select

from ..dialects.base import Adapter
from ..dialects.parts.plans import QueryPlan
from ..queue.findings import Finding, Severity
from ..queue.spec import QueueSpec
from ..sql.selection import Pick, picks
from .schema_drift import needed_indexes

LARGE = 10_000
"""A number of rows that no planner would read to find one, unless it lacks an index or good statistics."""

FEW = 100
"""A number of rows that is cheap to sort: engines that lock after the sort may choose to sort them."""


def unserved_claims(connection: Connection, adapter: Adapter, spec: QueueSpec) -> Iterator[Finding]:
    """Yield findings about claims that do not, or cannot, use the indexes of a queue whose schema is correct."""
    for pick in _claims(spec):
        statement = adapter.locking.finding(pick, *spec.primary_key)
        plan = adapter.plans.of(connection, statement)
        if plan is None:
            message = f"whether claims from {spec.table.fullname} use their indexes is not checked on this engine"
            yield Finding.of(spec, Severity.NOTE, "plan-not-asked", message, "nothing: the indexes exist as declared")
            return
        best = adapter.plans.of(connection, statement, forced=True)
        unused = f"a claim from {spec.table.fullname} does not use the index {pick.index}"
        if not _serves(best or plan, spec, 0):
            certain = best is not None or not adapter.locking.orders_freely or _is_large(connection, spec)
            yield _useless(spec, unused, Severity.ERROR if certain else Severity.NOTE)
        elif not _serves(plan, spec, FEW) and _is_large(connection, spec):
            fix = f"update the planner's statistics: ANALYZE {spec.table.fullname}"
            yield Finding.of(spec, Severity.ERROR, "index-not-used", f"{unused}, though it could", fix)


def _useless(spec: QueueSpec, unused: str, severity: Severity) -> Finding:
    if severity is Severity.NOTE:
        message = f"{unused}; with so few rows, that may be the best plan"
        return Finding.of(spec, severity, "index-not-used", message, "check again when the table has grown")
    message = f"{unused}: it reads all ready tasks, and blocks other claims on engines that lock what they read"
    fix = "compare that index and its columns with what the model declares: collations, prefixes, types"
    return Finding.of(spec, severity, "index-not-used", message, fix)


def _claims(spec: QueueSpec) -> Iterator[Pick]:
    """Yield both steps of a claim of one row, from the whole queue and from each kind of partition."""
    for partition in ((), *((column,) for column in spec.partitions)):
        for step in picks(spec, [column == bindparam(None, _example(column), column.type) for column in partition], ()):
            yield step(1)


def _example(column: Column[Any]) -> Any:
    try:
        example = column.type.python_type()
    except (NotImplementedError, TypeError):  # e.g. datetime: any value will do
        return None
    return "any" if example == "" else example  # which some servers take for NULL, so that their plan reads nothing


def _serves(plan: QueryPlan, spec: QueueSpec, sortable: int) -> bool:
    used = not plan.indexes.isdisjoint(str(index.name) for index in needed_indexes(spec))
    return used and plan.sorted <= sortable


def _is_large(connection: Connection, spec: QueueSpec) -> bool:
    some = select(literal(1).label("one")).select_from(spec.table).limit(LARGE).subquery()
    return connection.scalar(select(func.count()).select_from(some)) == LARGE
