"""SQL Server: locks on index entries and, separately, on rows of the clustered index.

- *Table hints*: "lock hints ROWLOCK, UPDLOCK, AND XLOCK that acquire row-level locks may place locks on index keys
  rather than the actual data rows", as when a covering index serves the query.  UPDLOCK: "update locks are to be taken
  and held until the transaction completes", whether the row matches or not.  READPAST skips locked rows and keys, but
  an UPDATE "may block [..] when modifying secondary indexes".  FORCESEEK without INDEX: "through any relevant index".
  https://learn.microsoft.com/en-us/sql/t-sql/queries/hints-transact-sql-table
- Without UPDLOCK, an UPDATE checks its criteria "row by row in a scan by first taking an update (U) row lock. If the
  predicate is satisfied, an exclusive (X) row lock is taken [..] and held until the end of transaction": the U lock on
  a row that does not match is released: "If the row is not updated, the scan releases the row and the lock".
  https://learn.microsoft.com/en-us/archive/blogs/craigfr/read-committed-and-updates
  https://learn.microsoft.com/en-us/sql/relational-databases/performance/optimized-locking
- A plain SELECT takes S locks on what it reads, one after the other, unless READ_COMMITTED_SNAPSHOT is on: then it
  reads committed data.
  https://learn.microsoft.com/en-us/sql/relational-databases/sql-server-transaction-locking-and-row-versioning-guide
- An OR of keys of several columns, all parameters, may be read as a range of the first column: the parameters might be
  equal.  https://dba.stackexchange.com/questions/45107

What is kept and what is read in addition is a property of the plan.  :class:`SQLServer` does all that the
documentation allows, :class:`SQLServerAtBest` nothing of it; `sqlserver_settings` has options of the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import CTE, Delete, Select, Table, Update, update
from sqlalchemy.sql import visitors

from tests.locking.paths import Path, entry
from tests.locking.rows import Parameters, Row
from tests.locking.server import Answer, Mode, Resource, Server, Transaction
from tests.support.models import Base


class SQLServer(Server):
    row_versions: ClassVar[bool] = True
    """READ_COMMITTED_SNAPSHOT."""
    keeps_rejected: ClassVar[bool] = True
    """Whether UPDLOCK keeps the lock on an entry or a row that does not match, and on an entry whose row READPAST
    skips.  https://learn.microsoft.com/en-us/archive/blogs/craigfr/read-committed-and-bookmark-lookup describes when S
    locks are released; nothing does so for U locks."""
    uses_any_index: ClassVar[bool] = True
    """Whether a statement with FORCESEEK alone uses any index that has its rows."""
    reads_prefixes: ClassVar[bool] = True
    """Whether an OR of keys of several columns reads all rows with one of their first columns."""

    def path(self, statement: Any, parameters: Parameters) -> Path:
        path = super().path(statement, parameters)
        chosen: Path = self.choose(path.alternatives) if self.uses_any_index else path
        return chosen

    def ranges(self, path: Path) -> Sequence[Any]:
        return path.by_prefix if self.reads_prefixes and path.index is None else path.ranges

    def is_locking(self, statement: Select[Any]) -> bool:
        return any("UPDLOCK" in hint for hint in statement._hints.values())

    def has_entry(self, index: Any, row: Row) -> bool:
        return self.evaluator.is_within(index, row)

    def lock_rows(self, transaction: Transaction, path: Path) -> list[int]:
        found: list[int] = []
        for number, row in self.entries(path):
            if len(found) == path.limit:
                break
            lock = self._lock_row if path.index is None else self._lock_entry
            if lock(transaction, path, number, row):
                found.append(number)
        return found

    def _lock_entry(self, transaction: Transaction, path: Path, number: int, row: Row) -> bool:
        """Lock through an index: the entry, and the row if it is looked up."""
        assert path.index is not None
        resource: Resource = (str(path.index.name), entry(path.index, number, row))
        fresh = not self.has(transaction, resource)
        if not self.lock(transaction, resource, Mode.UPDATE, skips=path.skips):
            return False
        now = self.row(transaction, path.table, number)
        there = now is not None and self.has_entry(path.index, now) and entry(path.index, number, now) == resource[1]
        if not there or not self.holds(transaction, path.table, number, path.on_index, path.parameters):
            self._reject(transaction, path, resource, fresh=fresh)
            return False
        if path.is_covered:
            return True
        if self._lock_row(transaction, path, number, row):
            return True
        if not self.has(transaction, (path.table.name, number)):
            self._reject(transaction, path, resource, fresh=fresh)
        return False

    def _lock_row(self, transaction: Transaction, path: Path, number: int, _: Row) -> bool:
        """Lock in the clustered index, which has all columns for the criteria."""
        resource = (path.table.name, number)
        fresh = not self.has(transaction, resource)
        if not self.lock(transaction, resource, Mode.UPDATE, skips=path.skips):
            return False
        if self.holds(transaction, path.table, number, path.terms, path.parameters):
            return True
        # "after the lookup", says the article cited above, even S locks are kept
        self._reject(transaction, path, resource, fresh=fresh and not (path.keeps and path.index is not None))
        return False

    def _reject(self, transaction: Transaction, path: Path, resource: Resource, *, fresh: bool) -> None:
        if fresh and not (path.keeps and self.keeps_rejected):
            self.unlock(transaction, resource)

    def has(self, transaction: Transaction, resource: Resource) -> bool:
        return self.locks.has(transaction, resource)

    def read(self, transaction: Transaction, statement: Any, parameters: Parameters) -> Answer:
        if not self.row_versions and isinstance(statement, Select):
            for table in {each for each in visitors.iterate(statement) if isinstance(each, Table)}:
                self._wait_for_writers(transaction, table, statement, parameters)
        return super().read(transaction, statement, parameters)

    def _wait_for_writers(self, transaction: Transaction, table: Table, statement: Any, parameters: Parameters) -> None:
        """Wait for writers: take an S lock on each row that is read, one after the other."""
        numbers = [*self.latest().get(table, {})]
        if statement.get_final_froms() == [table]:
            numbers = [number for number, _ in self.entries(self.path(statement, parameters))]
        for number in numbers:
            resource = (table.name, number)
            fresh = not self.has(transaction, resource)
            self.lock(transaction, resource, Mode.SHARE)
            if fresh:
                self.unlock(transaction, resource)

    def write(self, transaction: Transaction, statement: Any, parameters: Parameters) -> Answer:
        if not isinstance(statement.table, CTE):
            return super().write(transaction, statement, parameters)
        picked: CTE = statement.table
        path = self.path(picked.element, parameters)
        rows = []
        for number in self.lock_rows(transaction, path):
            old = self.row(transaction, path.table, number)
            assert old is not None
            self.put(transaction, path.table, number, _on_table(statement, path.table), parameters)
            rows.append(self._output(transaction, path.table, number, old, statement))
        return Answer(rows, len(rows))

    def _output(self, transaction: Transaction, table: Table, number: int, old: Row, statement: Any) -> tuple[Any, ...]:
        new = self.row(transaction, table, number)
        assert new is not None
        versions = [old if column.table.name == "deleted" else new for column in statement._returning]
        asked = zip(statement._returning, versions, strict=True)
        return tuple(self.columns(table, number, row, [table.c[column.name]])[0] for column, row in asked)


class SQLServerAtBest(SQLServer):
    keeps_rejected = uses_any_index = reads_prefixes = False


class SQLServerWithoutRowVersions(SQLServer):
    row_versions = False


def _on_table(statement: Update, table: Table) -> Update:
    """Return the same UPDATE of the table itself instead of a common table expression."""

    def plain(element: Any, **_: Any) -> Any:
        is_picked = getattr(element, "table", None) is statement.table
        return table.c[element.name] if is_picked else None

    values = {
        column.name: visitors.replacement_traverse(value, {}, plain)
        for column, value in (statement._values or {}).items()  # type: ignore[attr-defined]
    }
    return update(table).values(values)


# -- databases in which locks are on more than single rows, or are released earlier ------------------------------------

_TABLES = {str(index.name): table.name for table in Base.metadata.tables.values() for index in table.indexes}


def _table_of(resource: Resource) -> str:
    return _TABLES.get(resource[0], resource[0])


class SQLServerWithPageLocks(SQLServer):
    """ALLOW_ROW_LOCKS = OFF: "access is via a page-level lock or a table-level lock", and READPAST does not skip these.
    Each index fits on a page here.
    https://learn.microsoft.com/en-us/sql/t-sql/statements/create-index-transact-sql
    """

    def lock(self, transaction: Transaction, resource: Resource, mode: Mode, *, skips: bool = False) -> bool:
        return super().lock(transaction, _page_of(resource), mode)

    def has(self, transaction: Transaction, resource: Resource) -> bool:
        return super().has(transaction, _page_of(resource))

    def unlock(self, transaction: Transaction, resource: Resource) -> None:
        super().unlock(transaction, _page_of(resource))


def _page_of(resource: Resource) -> Resource:
    return resource[0], "page"


class SQLServerThatEscalates(SQLServer):
    """Lock escalation: instead of many locks on the rows and entries of a table, a transaction gets an X lock on the
    table, unless others have locks in it.  "If UPDLOCK is combined with TABLOCK, or a table-level lock is taken for
    some other reason, an exclusive (X) lock is taken instead".  READPAST does not skip it.
    https://learn.microsoft.com/en-us/sql/relational-databases/sql-server-transaction-locking-and-row-versioning-guide
    """

    MANY: ClassVar[int] = 2
    """At least 5,000 of one statement on a server."""

    def _save(self, transaction: Transaction, statement: Any) -> None:
        escalated = [each for each in self.locks.of(transaction) if each[1] == "table"]
        super()._save(transaction, statement)
        for each in escalated:  # a rollback to a savepoint does not release it
            self.locks.take(transaction, each, Mode.EXCLUSIVE)

    def lock(self, transaction: Transaction, resource: Resource, mode: Mode, *, skips: bool = False) -> bool:
        table = _table_of(resource)
        whole: Resource = (table, "table")
        if self.locks.in_the_way(transaction, whole, Mode.SHARE):
            self._pause(transaction, (whole, Mode.SHARE))
        if not super().lock(transaction, resource, mode, skips=skips):
            return False
        mine = {each for each in self.locks.of(transaction) if _table_of(each) == table}
        others = (each for other in self.open.values() if other is not transaction for each in self.locks.of(other))
        if len(mine) > self.MANY and table not in map(_table_of, others):
            self.locks.take(transaction, whole, Mode.EXCLUSIVE)
        return True


class SQLServerWithOptimizedLocking(SQLServer):
    """Optimized locking, as always in Azure SQL Database: "each page and row lock is released as soon as each row is
    updated. The only lock held until end of transaction is the X lock on the TID resource", except those of UPDLOCK.
    Others "acquire an S lock on the TID".  An UPDATE or DELETE without lock hints, and without OUTPUT, finds its rows
    in committed data, waits for those that match only, and evaluates its criteria again.
    https://learn.microsoft.com/en-us/sql/relational-databases/performance/optimized-locking
    """

    skips_transactions: ClassVar[bool] = True
    """Whether READPAST skips a row that is protected by the lock on a transaction alone.  Undocumented, so both
    variants are tested."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._written: dict[Resource, Transaction] = {}

    def lock(self, transaction: Transaction, resource: Resource, mode: Mode, *, skips: bool = False) -> bool:
        while True:
            fresh = not self.has(transaction, resource)
            if not super().lock(transaction, resource, mode, skips=skips):
                return False
            writer = self._written.get(resource, transaction)
            if writer is transaction:
                return True
            if fresh:
                self.unlock(transaction, resource)
            if skips and self.skips_transactions:
                return False
            self._pause(transaction, (_of(writer), Mode.SHARE))

    def store(self, transaction: Transaction, table: Table, number: int, old: Row | None, new: Row | None) -> None:
        before = self.locks.modes_of(transaction)
        super().store(transaction, table, number, old, new)
        self.locks.take(transaction, _of(transaction), Mode.EXCLUSIVE)
        for resource in [(table.name, number), *self.entries_changed(table, number, old, new)]:
            self._written[resource] = transaction
            self.locks.release(transaction, resource)
            if resource in before:
                self.locks.take(transaction, resource, before[resource])

    def _save(self, transaction: Transaction, statement: Any) -> None:
        super()._save(transaction, statement)
        if transaction in self._written.values():  # a rollback to a savepoint ends no transaction
            self.locks.take(transaction, _of(transaction), Mode.EXCLUSIVE)

    def held(self, transaction: Transaction) -> set[Resource]:
        return super().held(transaction) | {each for each, writer in self._written.items() if writer is transaction}

    def rollback(self, name: str) -> None:
        mine = self.transaction(name)
        self._written = {each: writer for each, writer in self._written.items() if writer is not mine}
        super().rollback(name)

    def write(self, transaction: Transaction, statement: Any, parameters: Parameters) -> Answer:
        if isinstance(statement, (Update, Delete)) and isinstance(statement.table, Table):
            path = self.path(statement, parameters)
            if not statement._returning and not path.keeps:
                return self._write_qualified(transaction, statement, parameters)
        return super().write(transaction, statement, parameters)

    def _write_qualified(self, transaction: Transaction, statement: Any, parameters: Parameters) -> Answer:
        """Lock after qualification."""
        table, seen, terms = statement.table, self.view(transaction), self.path(statement, parameters).terms
        changed = 0
        for number in self.evaluator.numbers({**seen, table: seen.get(table, {})}, table, terms, parameters):
            resource = (table.name, number)
            fresh = not self.has(transaction, resource)
            self.lock(transaction, resource, Mode.UPDATE)
            if self.holds(transaction, table, number, terms, parameters):
                self.put(transaction, table, number, statement, parameters)
                changed += 1
            elif fresh:
                self.unlock(transaction, resource)
        return Answer(count=changed)


def _of(transaction: Transaction) -> Resource:
    return "transaction", transaction.name


class SQLServerThatWaitsForTransactions(SQLServerWithOptimizedLocking):
    skips_transactions = False
