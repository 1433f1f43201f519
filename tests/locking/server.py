"""A model of a database server, limited to locks and versions; each engine's rules are in a separate module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

from sqlalchemy import Delete, Index, Select, Table, Update, insert, literal, select, update
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import ReleaseSavepointClause, RollbackToSavepointClause, SavepointClause
from sqlalchemy.types import NullType

from tests.locking.paths import Path, entry, in_order
from tests.locking.rows import Parameters, Row, columns_of, evaluator, rowid

# -- locks: their modes, their holders, and which conflict -------------------------------------------------------------


class Mode(IntEnum):
    """Lock modes, from the weakest to the strongest."""

    KEY_SHARE = 1
    """PostgreSQL, for foreign keys: the row may change, but not its key."""
    SHARE = 2
    UPDATE = 3
    """SQL Server's U lock: others may read, but no other transaction may take a U lock or write."""
    NO_KEY_UPDATE = 4
    """PostgreSQL: a write that does not change the key."""
    EXCLUSIVE = 5


_COMPATIBLE = {
    frozenset(pair)
    for pair in [
        (Mode.KEY_SHARE, Mode.KEY_SHARE),
        (Mode.KEY_SHARE, Mode.SHARE),
        (Mode.KEY_SHARE, Mode.NO_KEY_UPDATE),
        (Mode.SHARE, Mode.SHARE),
        (Mode.SHARE, Mode.UPDATE),
    ]
}
"""https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-ROWS
https://learn.microsoft.com/en-us/sql/relational-databases/sql-server-transaction-locking-and-row-versioning-guide"""

Resource = tuple[str, Hashable]
"""A row, such as `("task", 7)`, or an index entry, such as `("ix_task_claim", (7, ...))`, which begins with the row."""


class Locks:
    """The holders of locks.  The order of the waiting transactions is not modelled."""

    def __init__(self) -> None:
        self.held: dict[Resource, dict[Any, Mode]] = defaultdict(dict)

    def in_the_way(self, owner: object, resource: Resource, mode: Mode) -> list[Any]:
        holders = self.held[resource].items()
        return [other for other, its in holders if other is not owner and frozenset((its, mode)) not in _COMPATIBLE]

    def take(self, owner: object, resource: Resource, mode: Mode) -> None:
        self.held[resource][owner] = max(mode, self.held[resource].get(owner, mode))

    def has(self, owner: object, resource: Resource) -> bool:
        return owner in self.held[resource]

    def release(self, owner: object, resource: Resource) -> None:
        del self.held[resource][owner]

    def release_all(self, owner: object) -> None:
        for holders in self.held.values():
            holders.pop(owner, None)

    def of(self, owner: object) -> set[Resource]:
        return set(self.modes_of(owner))

    def modes_of(self, owner: object) -> dict[Resource, Mode]:
        return {resource: holders[owner] for resource, holders in self.held.items() if owner in holders}


# -- inserts: conflicts of rows by unique keys -------------------------------------------------------------------------


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


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Transaction:
    """The uncommitted changes of a connection; `None` stands for a deleted row."""

    name: str
    changes: dict[tuple[Table, int], Row | None] = field(default_factory=dict)
    savepoints: dict[str, tuple[dict[Any, Any], dict[Resource, Mode]]] = field(default_factory=dict)
    """The changes and locks at each savepoint."""


@dataclass(frozen=True)
class Answer:
    rows: Sequence[tuple[Any, ...]] = ()
    count: int = 0
    """The number of changed rows."""


_LOADED: dict[int, tuple[Any, dict[int, Row]]] = {}
"""Rows loaded before, by identity, since a scenario has the same rows each time; kept so that identities are not
reused."""
Versions = dict[Table, dict[int, Row]]
Wait = tuple[Resource, Mode]
Pause = Callable[[Transaction, Wait | None], None]
"""Lets other transactions continue: for any time, or until an awaited lock is available."""


class Server:
    """Rows, locks and transactions at READ COMMITTED. Subclasses define how statements lock."""

    child_locks_parent: ClassVar[Mode | None] = Mode.SHARE
    """The lock that the foreign key of a new row takes on the row that it refers to."""

    def __init__(self, pause: Pause) -> None:
        self._pause = pause
        self.locks = Locks()
        self.committed: Versions = {}
        self.open: dict[str, Transaction] = {}
        self.evaluator = evaluator()
        self.choose: Callable[[Sequence[Any]], Any] = lambda options: options[-1]
        """Chooses among what the documentation allows."""
        self.watch: Callable[[Transaction, Resource, bool], None] = lambda *_: None
        """Called for each lock that is taken, and for each that is released before the end of its transaction."""

    # -- transactions -------------------------------------------------------------------------------------------------

    def transaction(self, name: str) -> Transaction:
        return self.open.setdefault(name, Transaction(name))

    def commit(self, name: str) -> None:
        transaction = self.transaction(name)
        for (table, number), row in transaction.changes.items():
            _put(self.committed, table, number, row)
        self.rollback(name)

    def rollback(self, name: str) -> None:
        self.locks.release_all(self.transaction(name))
        del self.open[name]

    def _save(self, transaction: Transaction, statement: SavepointClause | RollbackToSavepointClause) -> None:
        """Save the state of a savepoint; a rollback to it releases the later locks, but keeps the modes of earlier ones
        (on SQL Server, "except for escalated and converted locks"):
        https://www.postgresql.org/docs/current/explicit-locking.html,
        https://learn.microsoft.com/en-us/sql/t-sql/language-elements/rollback-transaction-transact-sql and *ROLLBACK*
        of Oracle's *SQL Language Reference*.  On InnoDB the library never rolls back to a savepoint.
        """
        if isinstance(statement, SavepointClause):
            transaction.savepoints[statement.ident] = dict(transaction.changes), self.locks.modes_of(transaction)
            return
        changes, modes = transaction.savepoints[statement.ident]
        transaction.changes = dict(changes)
        for resource in self.locks.of(transaction) - modes.keys():
            self.unlock(transaction, resource)

    def load(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Load the initial rows."""
        if id(rows) not in _LOADED:
            for given in rows:
                number, row = self.evaluator.inserted([self.committed], insert(table), given)
                _put(self.committed, table, number, row)
            _LOADED[id(rows)] = rows, self.committed[table]
        self.committed[table] = dict(_LOADED[id(rows)][1])

    def view(self, transaction: Transaction) -> Versions:
        """Return committed data and this transaction's changes, as seen by a plain SELECT."""
        return self._with([transaction])

    def latest(self) -> Versions:
        """Return the latest versions, committed or not."""
        return self._with(self.open.values())

    def both(self) -> tuple[Versions, Versions]:
        """Return the committed versions, and the versions after all transactions commit."""
        return self.committed, self.latest()

    def _with(self, transactions: Any) -> Versions:
        found = {table: dict(rows) for table, rows in self.committed.items()}
        for each in transactions:
            for (table, number), row in each.changes.items():
                _put(found, table, number, row)
        return found

    def row(self, transaction: Transaction, table: Table, number: int) -> Row | None:
        """Return the version of the row that its lock holder sees."""
        if (table, number) in transaction.changes:
            return transaction.changes[table, number]
        return self.committed.get(table, {}).get(number)

    # -- locks --------------------------------------------------------------------------------------------------------

    def lock(self, transaction: Transaction, resource: Resource, mode: Mode, *, skips: bool = False) -> bool:
        """Take a lock; return whether it was available, if the caller does not wait."""
        self._pause(transaction, None)
        if self.locks.in_the_way(transaction, resource, mode):
            if skips:
                return False
            self._pause(transaction, (resource, mode))
        self.locks.take(transaction, resource, mode)
        self.watch(transaction, resource, True)
        return True

    def held(self, transaction: Transaction) -> set[Resource]:
        """Return what no other transaction may write."""
        return self.locks.of(transaction)

    def unlock(self, transaction: Transaction, resource: Resource) -> None:
        self.locks.release(transaction, resource)
        self.watch(transaction, resource, False)

    # -- statements ---------------------------------------------------------------------------------------------------

    def execute(self, transaction: Transaction, statement: Any, parameters: Any) -> Answer:
        if isinstance(statement, ReleaseSavepointClause):
            return Answer()
        if isinstance(statement, (SavepointClause, RollbackToSavepointClause)):
            self._save(transaction, statement)
            return Answer()
        if getattr(statement, "is_insert", False):
            return self.insert(transaction, statement, parameters)
        one = parameters[0] if isinstance(parameters, (list, tuple)) and parameters else parameters or {}
        if isinstance(statement, (Update, Delete)):
            return self.write(transaction, statement, one)
        if isinstance(statement, Select) and self.is_locking(statement):
            path = self.path(statement, one)
            found = self.lock_rows(transaction, path)
            return Answer([self.selected(transaction, path.table, each, statement) for each in found])
        return self.read(transaction, statement, one)

    def path(self, statement: Any, parameters: Parameters) -> Path:
        return Path.of(statement, parameters)

    def is_locking(self, statement: Select[Any]) -> bool:
        return statement._for_update_arg is not None

    def read(self, transaction: Transaction, statement: Any, parameters: Parameters) -> Answer:
        """Execute a plain SELECT."""
        return Answer(self.evaluator.read(self.view(transaction), statement, parameters))

    def lock_rows(self, transaction: Transaction, path: Path) -> list[int]:
        """Lock and return, in order, the rows that a locking SELECT returns or an UPDATE changes."""
        raise NotImplementedError

    def write(self, transaction: Transaction, statement: Any, parameters: Parameters) -> Answer:
        table, rows = statement.table, []
        found = self.lock_rows(transaction, self.path(statement, parameters))
        for number in found:
            old = self.row(transaction, table, number)
            self.put(transaction, table, number, statement, parameters)
            if statement._returning:
                rows.append(self.shown(transaction, table, number, statement._returning, old))
        return Answer(rows, len(found))

    def put(self, transaction: Transaction, table: Table, number: int, statement: Any, parameters: Parameters) -> None:
        """Change a locked row and its index entries, as by an UPDATE or DELETE."""
        old = self.row(transaction, table, number)
        assert old is not None
        new = None if isinstance(statement, Delete) else self.evaluator.changed(table, old, statement, parameters)
        self.store(transaction, table, number, old, new)

    def store(self, transaction: Transaction, table: Table, number: int, old: Row | None, new: Row | None) -> None:
        self.lock(transaction, (table.name, number), self.writes_with(table, old, new))
        for resource in self.entries_changed(table, number, old, new):
            self.lock(transaction, resource, Mode.EXCLUSIVE)
        transaction.changes[table, number] = new

    def writes_with(self, table: Table, old: Row | None, new: Row | None) -> Mode:
        return Mode.EXCLUSIVE

    def entries_changed(self, table: Table, number: int, old: Row | None, new: Row | None) -> Iterator[Resource]:
        """Lock the index entries that a change to a row removes or adds, if the engine locks entries."""
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            versions = [row for row in (old, new) if row is not None and self.has_entry(index, row)]
            entries = [entry(index, number, row) for row in versions]
            if len(set(entries)) != 1 or len(entries) == 1:
                yield from ((str(index.name), each) for each in entries)

    def has_entry(self, index: Any, row: Row) -> bool:
        """Return whether the index contains all rows of its table, or at least this one."""
        return True

    def insert(self, transaction: Transaction, statement: Any, parameters: Any) -> Answer:
        given = parameters if isinstance(parameters, (list, tuple)) else [parameters or {}]
        before = dict(transaction.changes)
        try:
            for values in given:
                Insert(self, transaction, statement, values).execute()
        except DuplicateError:
            transaction.changes = before  # atomic; locks are kept
            raise
        return Answer(count=len(given))

    def meet(self, transaction: Transaction, table: Table, index: Any, number: int, *, upserts: bool) -> None:
        """Wait for transactions that may change whether this row has a key, such as an INSERT."""
        for resource in self.of_key(table, index, number):
            fresh = not self.locks.has(transaction, resource)
            self.lock(transaction, resource, Mode.SHARE)
            if fresh:
                self.unlock(transaction, resource)

    def of_key(self, table: Table, index: Any, number: int) -> list[Resource]:
        """Return the locks of transactions that set or remove the key of a row: index entries, if the engine locks
        any."""
        versions = [row for rows in self.both() if (row := rows[table].get(number)) is not None]
        if index is None:
            return [(table.name, number)]
        return list({(str(index.name), entry(index, number, row)): None for row in versions})

    # -- what is found ------------------------------------------------------------------------------------------------

    def entries(self, path: Path) -> list[tuple[int, Row]]:
        """Yield the entries to read, in order; both versions of a row that is being changed."""
        found: dict[Any, tuple[int, Row]] = {}
        changes = any(table is path.table for each in self.open.values() for table, _ in each.changes)
        for world in self.both() if changes else (self.committed,):
            shown = {**world, path.table: world.get(path.table, {})}
            for number in self.evaluator.numbers(shown, path.table, self.ranges(path), path.parameters):
                row = shown[path.table][number]
                if path.index is None:
                    found[number] = number, row
                elif self.has_entry(path.index, row):
                    found[entry(path.index, number, row)] = number, row
        return in_order(path.index, path.table, list(found.values()))

    def ranges(self, path: Path) -> Sequence[Any]:
        """Return the criteria that bound what a statement reads."""
        return path.ranges

    def holds(self, transaction: Transaction, table: Table, number: int, terms: Sequence[Any], parameters: Any) -> bool:
        """Return whether the criteria hold for a row, as the holder of its lock sees it."""
        row = self.row(transaction, table, number)
        if row is None:
            return False
        world = {**self.view(transaction), table: {number: row}} if _reads_others(terms) else {table: {number: row}}
        return bool(self.evaluator.numbers(world, table, terms, parameters))

    def shown(
        self, transaction: Transaction, table: Table, number: int, columns: Any, old: Row | None
    ) -> tuple[Any, ...]:
        """Return columns of a row, or of the ``old`` version of a deleted one."""
        row = self.row(transaction, table, number) or old
        assert row is not None
        return self.columns(table, number, row, columns)

    def selected(self, transaction: Transaction, table: Table, number: int, statement: Any) -> tuple[Any, ...]:
        """Return the columns that a SELECT returns of a locked row."""
        row = self.row(transaction, table, number)
        assert row is not None
        return self.evaluator.selected(table, number, row, statement)

    def columns(self, table: Table, number: int, row: Row, columns: Any) -> tuple[Any, ...]:
        return self.evaluator.selected(table, number, row, select(*columns).select_from(table))


def _reads_others(terms: Sequence[Any]) -> bool:
    return any(isinstance(each, Select) for term in terms for each in visitors.iterate(term))


def _put(versions: Versions, table: Table, number: int, row: Row | None) -> None:
    rows = versions.setdefault(table, {})
    if row is None:
        rows.pop(number, None)
    else:
        rows[number] = row


__all__ = ["Answer", "Pause", "Server", "Transaction", "Wait", "columns_of", "rowid"]
