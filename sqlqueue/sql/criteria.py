"""Turns the criteria that applications give into criteria on the queue's table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, exists
from sqlalchemy.orm import QueryableAttribute

from .._support.exc import ArgumentError
from ..queue.spec import Criterion, QueueSpec, Where, conjuncts


def terms_of(spec: QueueSpec, where: Sequence[Where]) -> Sequence[Criterion]:
    """Return ``where`` as criteria on the queue's table, without nested ANDs, and restricted to the spec's class."""
    terms = conjuncts(_own_criteria(spec, criterion) for criterion in where)
    return terms if spec.inherited is None else [*terms, spec.inherited]


def only(spec: QueueSpec, *criteria: Where) -> Criterion:
    """Return the conjunction of ``criteria``, restricted to rows of the spec's class."""
    terms = [_own_criteria(spec, criterion) for criterion in criteria]
    if spec.inherited is not None:
        terms.append(spec.inherited)
    # not true(), which SQLAlchemy 2.1 renders as a condition that Oracle before 23ai does not support
    return and_(*terms) if terms else spec.primary_key[0].is_not(None)


def _own_criteria(spec: QueueSpec, given: Where) -> Criterion:
    """Return the criterion on the queue's table alone; columns of joined subclasses are read by primary key."""
    criterion = given.__clause_element__() if isinstance(given, QueryableAttribute) else given
    if not isinstance(criterion, ColumnElement):
        example = f"{spec.entity.__name__}.id == 7"
        raise ArgumentError(f"{given!r} is not a criterion: give SQL expressions, as in {example}")
    froms = set(criterion._from_objects) - {spec.table}
    if not froms:
        return criterion
    inherited = {table for mapper in spec.mapper.self_and_descendants for table in mapper.tables}
    if not froms <= inherited:
        raise ArgumentError(
            f"the criterion {criterion} uses tables other than {spec.table.name}: use .has(), .any() or exists()"
        )
    joins = [same_key(spec, table) for table in sorted(froms, key=str)]
    return exists().select_from(*froms).where(*joins, criterion).correlate(spec.table)


def same_key(spec: QueueSpec, table: Any) -> Criterion:
    """Return whether a row of ``table``, a table of a joined subclass, belongs to the queue's row."""
    return and_(*(a == b for a, b in zip(spec.primary_key, table.primary_key, strict=True)))
