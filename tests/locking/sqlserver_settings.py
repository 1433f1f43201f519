"""Databases of SQL Server in which locks are on more than single rows, or are released earlier."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import Delete, Table, Update

from tests.locking.locks import Mode, Resource
from tests.locking.rows import Parameters, Row
from tests.locking.server import Answer, Transaction
from tests.locking.sqlserver import SQLServer
from tests.support.models import Base

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
