"""Oracle: rows are locked, index entries are not, and plain SELECTs read the data that was committed when they began.

A cursor FOR UPDATE SKIP LOCKED finds its rows as of OPEN and locks each when it is fetched.  Whether it checks a row
again that has changed in between is not documented, so both variants are tested.
https://docs.oracle.com/en/database/oracle/oracle-database/23/sqlrf/SELECT.html
https://docs.oracle.com/en/database/oracle/oracle-database/23/cncpt/data-concurrency-and-consistency.html: a waiting
UPDATE restarts if the row that it waited for has changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from sqlalchemy import update
from sqlalchemy.dialects import oracle

from sqlqueue.dialects.oracle import ClaimBlock
from tests.locking.paths import Path
from tests.locking.rows import Parameters, Row, rowid
from tests.locking.server import Answer, Mode, Resource, Server, Transaction

_DIALECT = oracle.dialect(paramstyle="named")


class Oracle(Server):
    child_locks_parent = None
    judges_again: ClassVar[bool] = False

    def entries_changed(self, table: Any, number: int, old: Row | None, new: Row | None) -> Iterator[Resource]:
        """Lock changed entries: only those of unique keys are locked, so an equal key waits for the transaction that
        changes it."""
        for index in (None, *(each for each in table.indexes if each.unique)):
            names = [column.name for column in (table.primary_key if index is None else index.columns)]
            before, after = ([row and row[name] for name in names] for row in (old, new))
            if before != after:
                yield from self.of_key(table, index, number)

    def of_key(self, table: Any, index: Any, number: int) -> list[Resource]:
        return [(f"{table.name} {getattr(index, 'name', 'key')}", number)]

    def execute(self, transaction: Transaction, statement: Any, parameters: Any) -> Answer:
        if isinstance(statement, ClaimBlock):
            return self._run(transaction, statement, parameters or {})
        return super().execute(transaction, statement, parameters)

    def lock_rows(self, transaction: Transaction, path: Path) -> list[int]:
        seen = self.view(transaction)
        numbers = self.evaluator.numbers(seen, path.table, path.terms, path.parameters)
        locked = self._fetch(transaction, path, iter(numbers), seen[path.table])
        return [number for number in locked if path.skips or self._still(transaction, path, number)]

    def _still(self, transaction: Transaction, path: Path, number: int) -> bool:
        """Return whether the row still matches: an UPDATE or DELETE that had to wait uses the latest version."""
        return self.holds(transaction, path.table, number, path.terms, path.parameters)

    def _fetch(self, transaction: Transaction, path: Path, numbers: Iterator[int], seen: Any) -> Iterator[int]:
        """Fetch the next rows of a cursor, which are locked as they are fetched."""
        for number in numbers:
            if not self.lock(transaction, (path.table.name, number), Mode.EXCLUSIVE, skips=path.skips):
                continue
            is_as_seen = self.row(transaction, path.table, number) == seen[number]
            if is_as_seen or not (path.skips and self.judges_again) or self._still(transaction, path, number):
                yield number

    def _run(self, transaction: Transaction, block: ClaimBlock, parameters: Parameters) -> Answer:
        """Run the block: OPEN, FETCH as many rows as there is room for and write to them until there is no room,
        CLOSE."""
        path = Path.of(block.locking, parameters)
        seen = self.view(transaction)
        numbered = block.locking.with_only_columns(rowid(path.table))
        opened = iter([number for (number,) in self.evaluator.read(seen, numbered, parameters)])
        fetched = self._fetch(transaction, path, opened, seen.get(path.table, {}))
        taken: list[int] = []
        again = self.judged_again(block)
        while room := block.pick.limit - len(taken):
            picked = [number for _, number in zip(range(room), fetched, strict=False)]
            if not picked:
                break
            for number in picked:
                if self.holds(transaction, path.table, number, again, parameters):
                    self._write(transaction, block, path, number, parameters)
                    taken.append(number)
        return Answer([(number,) for number in taken], len(taken))

    def _write(
        self, transaction: Transaction, block: ClaimBlock, path: Path, number: int, parameters: Parameters
    ) -> None:
        if block.assignments:
            statement = update(path.table).ordered_values(*block.assignments)
            self.put(transaction, path.table, number, statement, parameters)

    def judged_again(self, block: ClaimBlock) -> Sequence[Any]:
        """Return the criteria that the block repeats once rows are fetched and thereby locked."""
        _, _, fetched = _text(block).partition("FETCH")
        return [term for term in (*block.pick.state, *block.pick.where) if _text(term) in fetched]


class OracleThatJudgesAgain(Oracle):
    judges_again = True


class OracleWithFewSlots(Oracle):
    """A block has room for two transactions: a third one waits for one of them before it locks a row, with SKIP LOCKED
    too, about which the manual says nothing.  Each table is one block here.  INITRANS in *CREATE TABLE*, and "enq: TX -
    allocate ITL entry" in *Database Reference*:
    https://docs.oracle.com/en/database/oracle/oracle-database/23/refrn/descriptions-of-wait-events.html
    """

    ROOM: ClassVar[int] = 2

    def lock(self, transaction: Transaction, resource: Resource, mode: Mode, *, skips: bool = False) -> bool:
        slots: list[Resource] = [(f"{resource[0]}, slots", number) for number in range(self.ROOM)]
        if not any(self.locks.has(transaction, each) for each in slots):
            free = [each for each in slots if not self.locks.in_the_way(transaction, each, Mode.EXCLUSIVE)]
            super().lock(transaction, (free or slots)[0], Mode.EXCLUSIVE)
        return super().lock(transaction, resource, mode, skips=skips)


def _text(element: Any) -> str:
    text = str(element.compile(dialect=_DIALECT))
    return re.sub(r":\w+", "?", re.sub(r"\s+", " ", text))
