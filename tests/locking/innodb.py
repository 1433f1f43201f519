"""MySQL and MariaDB: everything that is read is locked, first index entries and then rows, before sorting and counting.

https://dev.mysql.com/doc/refman/9.7/en/innodb-locks-set.html
https://dev.mysql.com/doc/refman/9.7/en/innodb-transaction-isolation-levels.html: at READ COMMITTED there are no gap
locks, and locks on rows that do not match are released.  https://mariadb.com/kb/en/innodb-lock-modes/
"""

from __future__ import annotations

from typing import Any, ClassVar

from tests.locking.paths import Path, entry
from tests.locking.server import Mode, Server, Transaction


class InnoDB(Server):
    lets_go_of_entries: ClassVar[bool] = True
    """Whether the lock on an index entry that does not match is released, like that of a row."""

    def meet(self, transaction: Transaction, table: Any, index: Any, number: int, *, upserts: bool) -> None:
        """Lock the entry of a conflicting key, which stays locked even after an error."""
        for resource in self.of_key(table, index, number):
            self.lock(transaction, resource, Mode.EXCLUSIVE if upserts else Mode.SHARE)

    def lock_rows(self, transaction: Transaction, path: Path) -> list[int]:
        found: list[int] = []
        for number, row in self.entries(path):
            if len(found) == path.limit:
                break
            if self._lock_matching(transaction, path, number, row):
                found.append(number)
        return found

    def _lock_matching(self, transaction: Transaction, path: Path, number: int, row: dict[str, object]) -> bool:
        of_row = (path.table.name, number)
        of_entry = None if path.index is None else (str(path.index.name), entry(path.index, number, row))
        wanted = [each for each in (of_entry, of_row) if each is not None]
        fresh = [each for each in wanted if not self.locks.has(transaction, each)]
        if of_entry is not None:
            if not self.lock(transaction, of_entry, Mode.EXCLUSIVE, skips=path.skips):
                return False
            # index condition pushdown: criteria on the entry are evaluated before its row is looked up
            shown = {path.table: {number: row}}
            if not self.evaluator.numbers(shown, path.table, path.on_index, path.parameters):
                if of_entry in fresh and self.lets_go_of_entries:
                    self.unlock(transaction, of_entry)
                return False
        # an entry stays locked even if others have locked its row
        if not self.lock(transaction, of_row, Mode.EXCLUSIVE, skips=path.skips):
            return False
        if self.holds(transaction, path.table, number, path.terms, path.parameters):
            return True
        for each in fresh if not path.is_constant else ():
            if each == of_row or self.lets_go_of_entries:
                self.unlock(transaction, each)
        return False


class MariaDB(InnoDB):
    lets_go_of_entries = False
