"""PostgreSQL: a statement reads the data that was committed when it began, sorts it, and locks rows after the sort. A
row that has changed since is checked again in its latest version.
https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED
https://www.postgresql.org/docs/current/sql-select.html#SQL-FOR-UPDATE-SHARE
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import CTE, ColumnClause, Delete, Table, select
from sqlalchemy.sql import visitors
from sqlalchemy.sql.selectable import AliasedReturnsRows

from tests.locking.paths import Path
from tests.locking.rows import Parameters, Row, columns_of, rowid
from tests.locking.server import Answer, Mode, Resource, Server, Transaction, Versions


class PostgreSQL(Server):
    child_locks_parent = Mode.KEY_SHARE

    def lock_rows(self, transaction: Transaction, path: Path) -> list[int]:
        raise AssertionError("a SELECT is locked by what it sees, see below")

    def execute(self, transaction: Transaction, statement: Any, parameters: Any) -> Answer:
        locking = getattr(statement, "_for_update_arg", None)
        if locking is None:
            return super().execute(transaction, statement, parameters)
        found = self._lock_selected(transaction, statement, parameters or {})
        (table,) = statement.get_final_froms()
        return Answer([self.selected(transaction, table, each, statement) for each in found])

    def _lock_selected(self, transaction: Transaction, statement: Any, parameters: Parameters) -> list[int]:
        path, locking = Path.of(statement, parameters), statement._for_update_arg
        mode = Mode.NO_KEY_UPDATE if locking.key_share else Mode.EXCLUSIVE
        seen = self.view(transaction)
        numbered = statement.with_only_columns(rowid(path.table)).limit(None)
        found: list[int] = []
        for (number,) in self.evaluator.read(seen, numbered, parameters):
            if len(found) == path.limit:
                break
            if self._lock_seen(transaction, path, number, seen, mode, skips=locking.skip_locked):
                found.append(number)
        return found

    def _lock_seen(
        self, transaction: Transaction, path: Path, number: int, seen: Versions, mode: Mode, *, skips: bool
    ) -> bool:
        """Lock a row; return whether it was available and, if it has changed, still matches. If it does not match, it
        stays locked."""
        if not self.lock(transaction, (path.table.name, number), mode, skips=skips):
            return False
        if self.row(transaction, path.table, number) == seen[path.table][number]:
            return True
        return self.holds(transaction, path.table, number, path.terms, path.parameters)

    def write(self, transaction: Transaction, statement: Any, parameters: Parameters) -> Answer:
        table = statement.table
        seen = self.view(transaction)
        locked = [each for each in _expressions(statement) if each.element._for_update_arg is not None]
        for each in locked[:1]:
            numbers = self._lock_selected(transaction, each.element, parameters)
            seen = {**seen, table: {number: self._version(transaction, table, number) for number in numbers}}
        others = [column for column in statement._returning if table not in {each.table for each in columns_of(column)}]
        found = select(rowid(table), *others).select_from(table).where(*statement._where_criteria)
        rows: list[tuple[Any, ...]] = []
        changed = 0
        for number, *beside in self.evaluator.read(seen, found, parameters):
            old = seen[table][number]
            if self._write_seen(transaction, statement, number, seen, parameters, checks=not locked):
                changed += 1
                rows += self._returned(transaction, statement, number, dict(zip(others, beside, strict=True)), old)
        return Answer(rows, changed)

    def _version(self, transaction: Transaction, table: Table, number: int) -> Row:
        row = self.row(transaction, table, number)
        assert row is not None
        return row

    def _write_seen(
        self, transaction: Transaction, statement: Any, number: int, seen: Versions, parameters: Any, *, checks: bool
    ) -> bool:
        mode = Mode.EXCLUSIVE if isinstance(statement, Delete) else Mode.NO_KEY_UPDATE
        if checks and not self._lock_seen(transaction, Path.of(statement, parameters), number, seen, mode, skips=False):
            return False
        self.put(transaction, statement.table, number, statement, parameters)
        return True

    def _returned(
        self, transaction: Transaction, statement: Any, number: int, beside: dict[Any, Any], old: Row
    ) -> Iterator[tuple[Any, ...]]:
        own = [column for column in statement._returning if column not in beside]
        if statement._returning:
            found = self.shown(transaction, statement.table, number, own, old) if own else ()
            shown = dict(zip(own, found, strict=True))
            yield tuple({**shown, **beside}[column] for column in statement._returning)

    def writes_with(self, table: Table, old: Row | None, new: Row | None) -> Mode:
        keys = {column.name for key in (table.primary_key, *_unique(table)) for column in key.columns}
        if old is None or new is None or any(old[name] != new[name] for name in keys):
            return Mode.EXCLUSIVE
        return Mode.NO_KEY_UPDATE

    def entries_changed(self, table: Table, number: int, old: Row | None, new: Row | None) -> Iterator[Resource]:
        # index entries have no locks, but an insert of the same key waits for the transaction that wrote the row
        yield from self.of_key(table, None, number)

    def of_key(self, table: Table, index: Any, number: int) -> list[Resource]:
        return [(f"{table.name}, written", number)]


def _expressions(statement: Any) -> set[CTE]:
    """Return the common table expressions to which a statement's criteria refer."""
    sources = {each.table for each in visitors.iterate(statement) if isinstance(each, ColumnClause)}
    beneath = [_expressions(each.element) for each in sources if isinstance(each, AliasedReturnsRows)]
    return {each for each in sources if isinstance(each, CTE)}.union(*beneath)


def _unique(table: Table) -> Sequence[Any]:
    """Return the unique keys to which foreign keys may refer: no partial indexes."""
    whole = [index for index in table.indexes if index.dialect_options["postgresql"]["where"] is None]
    return [index for index in whole if index.unique]
