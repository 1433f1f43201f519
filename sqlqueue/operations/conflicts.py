"""Inserts that may meet a row with the same key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Column, ColumnElement, and_, insert, literal, null, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ..dialects.base import Adapter, Replacement
from ..lives import replacing
from ..spec import Criterion, Identity, QueueSpec
from ..statements import UniqueBy, unique_by, write

Row = dict[str, Any]


class Conflicts:
    """What becomes of a row that is there already."""

    def __init__(self, adapter: Adapter, spec: QueueSpec, on_conflict: str, version: Column[Any] | None) -> None:
        self.adapter = adapter
        self.spec = spec
        self.on_conflict = on_conflict
        self.version = version

    def enqueue(self, session: Session, rows: Sequence[Row], fixed: Row) -> None:
        """Insert ``rows``, by names of attributes, each with the expressions of ``fixed``."""
        names = {prop.key: prop.columns[0].name for prop in self.spec.mapper.column_attrs}
        common = {names[key]: value for key, value in fixed.items()}
        values = [{names[key]: value for key, value in row.items()} for row in rows]
        for (given, by), group in groupby(values, key=lambda row: (sorted(row), unique_by(self.spec, row))):
            self._group(session, list(group), [*given, *common], by, common)

    def _group(self, session: Session, rows: list[Row], names: list[str], by: UniqueBy | None, common: Row) -> None:
        spec, adapter = self.spec, self.adapter
        if by is None:  # a key of NULL meets nobody
            adapter.execute(session, spec, insert(spec.table).values(common), rows)
            return
        replace = None if self.on_conflict == "ignore" else self._replacement(names, by)
        statement = None if self._goes_by_two(names, by) else adapter.upsert(spec, by, replace)
        if statement is not None:
            adapter.execute(session, spec, statement.values(common), rows)
            return
        for row in rows:
            self._update_or_insert(session, {**row, **common}, by, replace)

    def _goes_by_two(self, names: Sequence[str], by: UniqueBy) -> bool:
        """Whether rows have both keys: of two inserted at once, an upsert by the one could fail for the other."""
        return self.spec.has("unique_key") and self.spec["unique_key"].name in {*names} - {
            each.name for each in by.columns
        }

    def _replacement(self, names: Sequence[str], by: UniqueBy) -> Replacement:
        given = [name for name in names if name not in {column.name for column in by.columns}]
        rerun = self.on_conflict == "rerun"
        return lambda proposed: replacing(self.spec, given, proposed, rerun=rerun, version=self.version)

    def _update_or_insert(self, session: Session, row: Row, by: UniqueBy, replace: Replacement | None) -> None:
        """Where there is no upsert that would do.  Whoever loses the race to insert finds the row at the next try.

        A row is found without a lock, and locked by its primary key as by all others: who completes it has locked it
        by that, and takes away its unique key then.
        """
        adapter, spec = self.adapter, self.spec
        mine = by.is_row(row)
        keys = self._find(session, mine)
        while True:
            if keys and (replace is None or self._update(session, row, keys, mine, replace)):
                return
            try:
                with adapter.tentative(session):
                    adapter.execute(session, spec, insert(spec.table).values(row))
            except IntegrityError as error:
                keys = self._find(session, mine, latest=True) if adapter.is_duplicate(error) else []
                if not keys:
                    raise  # another unique key stands in the way
            else:
                return

    def _find(self, session: Session, mine: Criterion, *, latest: bool = False) -> list[Identity]:
        """The key of the row; ``latest``: as it is now, whatever this transaction may see."""
        found = select(*self.spec.primary_key).where(mine)
        rows = self.adapter.execute(session, self.spec, found.with_for_update() if latest else found)
        return [tuple(row) for row in rows]

    def _update(
        self, session: Session, row: Row, keys: Sequence[Identity], mine: Criterion, replace: Replacement
    ) -> bool:
        adapter, spec = self.adapter, self.spec
        same = and_(adapter.key_in(spec, keys), mine)
        update = write(spec, same, replace(_literals(spec, row)))
        return bool(adapter.count(session, spec, adapter.by_key(spec, update)))


def _literals(spec: QueueSpec, row: Row) -> Callable[[str], ColumnElement[Any]]:
    def proposed(name: str) -> ColumnElement[Any]:
        value = row[name]
        if isinstance(value, ColumnElement):
            return value
        return literal(value, spec.table.c[name].type) if value is not None else null()

    return proposed
