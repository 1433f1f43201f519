"""INSERT: conflicts with rows that have one of its keys, and waits for transactions that are changing such keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Index, Table, literal, update
from sqlalchemy.sql import visitors
from sqlalchemy.types import NullType

from tests.locking.rows import Row

if TYPE_CHECKING:
    from tests.locking.server import Server, Transaction


class DuplicateError(Exception):
    """A row has one of the keys, and the statement has no conflict clause."""


Met = tuple[Index | None, int]
"""The unique index of a conflict, or the primary key, and the number of the row."""


class Insert:
    """An INSERT of one row."""

    def __init__(self, server: Server, transaction: Transaction, statement: Any, values: Any) -> None:
        self.server = server
        self.transaction = transaction
        self.table: Table = statement.table
        self.clause = statement._post_values_clause
        """What happens to the row in conflict."""
        self.number, self.row = server.evaluator.inserted(server.both(), statement, values)

    def execute(self) -> None:
        while (met := self._met()) is not None:
            if self.clause is None:
                raise DuplicateError(f"{self.table.name} {met}")
            assignments = self._assignments()
            if not assignments or self._replaced(met, assignments):
                return
        server, parent_mode = self.server, self.server.child_locks_parent
        for key in self.table.foreign_keys if parent_mode else ():
            parent = self.row[key.parent.name]
            if parent is not None and parent_mode is not None:
                server.lock(self.transaction, (key.column.table.name, parent), parent_mode)
        server.store(self.transaction, self.table, self.number, None, self.row)

    def _met(self) -> Met | None:
        """Return the row with a key of this one, after waiting for transactions that are changing the key."""
        seen: list[Met] = []
        while fresh := [each for each in self._same() if each not in seen]:
            for index, number in fresh:
                self.server.meet(self.transaction, self.table, index, number, upserts=self.clause is not None)
                if self._has_mine(index, self.server.row(self.transaction, self.table, number)):
                    return index, number
            seen += fresh
        return None

    def _same(self) -> Iterator[Met]:
        """Return the rows with a key of this one, in committed or uncommitted versions."""
        for index in (None, *sorted((each for each in self.table.indexes if each.unique), key=str)):
            rows = [each for world in self.server.both() for each in world[self.table].items()]
            yield from ((index, n) for n in sorted({n for n, row in rows if self._has_mine(index, row)}))

    def _has_mine(self, index: Index | None, row: Row | None) -> bool:
        names = [column.name for column in (self.table.primary_key if index is None else index.columns)]
        mine = [self.row[name] for name in names]
        return row is not None and None not in mine and [row[name] for name in names] == mine

    def _assignments(self) -> Sequence[Any]:
        """Return the assignments of ON CONFLICT DO UPDATE or ON DUPLICATE KEY UPDATE, with the values of the proposed
        row."""
        given = getattr(self.clause, "update_values_to_set", None) or getattr(self.clause, "update", ())
        pairs = given.items() if isinstance(given, dict) else given

        def proposed(element: Any, **_: Any) -> Any:
            source = getattr(element, "table", None)
            if source is None or source is self.table or not hasattr(element, "name"):
                return None
            return literal(self.row[element.name], NullType())

        columns = ((self.table.c[getattr(column, "name", column)], value) for column, value in pairs)
        return [(column, visitors.replacement_traverse(value, {}, proposed)) for column, value in columns]

    def _replaced(self, met: Met, assignments: Sequence[Any]) -> bool:
        """Return whether the row, once locked, is still the conflicting one."""
        index, number = met
        server, table = self.server, self.table
        old = server.row(self.transaction, table, number)
        server.lock(self.transaction, (table.name, number), server.writes_with(table, old, old))
        if not self._has_mine(index, server.row(self.transaction, table, number)):
            return False
        server.put(self.transaction, table, number, update(table).ordered_values(*assignments), {})
        return True
