"""The access path of a statement: the parts of it that determine which rows and index entries are read, and in which
order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sqlalchemy import Column, Index, Select, Table, or_
from sqlalchemy.dialects import mssql
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BooleanClauseList

from tests.locking.rows import Parameters, Row, columns_of

_NAMED = re.compile(r"INDEX ?\((\w+)\)")  # SQL Server's hint, and MySQL's FORCE INDEX
_MSSQL = mssql.dialect()  # type: ignore[no-untyped-call]
_SOUGHT = re.compile(r"FORCESEEK|PRIMARY")


@dataclass(frozen=True)
class Path:
    """An access path, according to the hints and criteria of a statement."""

    table: Table
    index: Index | None
    """The index; `None` for the table itself, in the order of its primary key."""
    sought: bool
    """Whether it must look up the keys that it names. Otherwise a planner may scan a small table.
    https://learn.microsoft.com/en-us/archive/blogs/pamitt/queries-with-updlock-hints-on-small-tables-causing-blocking
    """
    named: bool
    """Whether the statement names the index, or the primary key."""
    terms: tuple[Any, ...]
    """The criteria, all of which must hold."""
    limit: int | None
    skips: bool
    """SKIP LOCKED, READPAST."""
    keeps: bool
    """UPDLOCK."""
    selected: frozenset[str]
    parameters: Parameters
    is_select: bool

    @classmethod
    def of(cls, statement: Any, parameters: Parameters) -> Path:
        table = _table(statement)
        hints = " ".join([*statement._hints.values(), *(str(prefix) for prefix, _ in statement._prefixes)])
        named = _NAMED.search(hints)
        indexes = [index for index in table.indexes if named and index.name == named[1]]
        locking = getattr(statement, "_for_update_arg", None)
        columns = statement.selected_columns if isinstance(statement, Select) else table.columns
        return cls(
            table=table,
            index=indexes[0] if indexes else None,
            sought=bool(indexes or _SOUGHT.search(hints)),
            named=named is not None,
            terms=tuple(_conjuncts(statement._where_criteria)),
            limit=getattr(statement, "_limit", None),
            skips="READPAST" in hints or (locking is not None and locking.skip_locked),
            keeps="UPDLOCK" in hints,
            selected=frozenset(column.name for column in columns_of_all(columns)),
            parameters=parameters,
            is_select=isinstance(statement, Select),
        )

    @cached_property
    def key(self) -> frozenset[str]:
        return frozenset(column.name for column in self.table.primary_key)

    @cached_property
    def held(self) -> frozenset[str]:
        """The columns in the index: its own and the primary key."""
        return (
            self.key | frozenset(column.name for column, _ in terms_of(self.index))
            if self.index is not None
            else frozenset()
        )

    @cached_property
    def is_covered(self) -> bool:
        """Whether the index covers the statement."""
        needed = self.selected | {column.name for term in self.terms for column in columns_of(term)}
        return self.index is not None and needed <= self.held

    @cached_property
    def is_constant(self) -> bool:
        """Whether MySQL and MariaDB read its single row first, and do not release its lock.
        https://dev.mysql.com/doc/refman/9.7/en/explain-output.html#jointype_const
        """
        equal = {term.left.name for term in self.terms if _is_equality(term)}
        return self.is_select and self.index is None and self.key <= equal

    @cached_property
    def ranges(self) -> tuple[Any, ...]:
        """The criteria that bound the range that is read."""
        if self.index is None:
            return tuple(term for term in self.terms if _is_on(term, self.key)) if self.sought else ()
        equal = {term.left.name: term for term in self.terms if _is_equality(term)}
        prefix: list[Any] = []
        for column, _ in terms_of(self.index):
            if column.name not in equal:
                break
            prefix.append(equal[column.name])
        return tuple(prefix)

    @property
    def alternatives(self) -> Sequence[Path]:
        """The paths among which SQL Server chooses: without INDEX, FORCESEEK allows any index that has all rows of the
        statement and whose first column is restricted."""
        if self.named or not self.sought:
            return [self]
        return [self, *(replace(self, index=each) for each in sorted(self.table.indexes, key=_name) if self._may(each))]

    def _may(self, index: Index) -> bool:
        predicate = index.dialect_options["mssql"]["where"]
        first, _ = next(terms_of(index))
        implied = {str(term).replace(f"{self.table.name}.", "") for term in self.terms}
        implied |= {f"{term.left.name} IS NOT NULL" for term in self.terms if _is_equality(term)}
        restricted = any(getattr(term, "left", None) is first for term in self.terms)
        return restricted and (predicate is None or str(predicate) in implied)

    @property
    def by_prefix(self) -> tuple[Any, ...]:
        """:attr:`ranges`, with the first columns alone of primary keys that OR combines."""
        return tuple(map(self._prefix, self.ranges))

    def _prefix(self, term: Any) -> Any:
        if not isinstance(term, BooleanClauseList) or term.operator is not operators.or_:
            return term
        if "VALUES" in str(term.compile(dialect=_MSSQL)):  # which a join looks up one by one
            return term
        keys = [[each for each in _conjuncts([key]) if _is_equality(each)] for key in term.clauses]
        first = next(iter(self.table.primary_key))
        return or_(*(each for key in keys for each in key if each.left is first)) if min(map(len, keys)) > 1 else term

    @cached_property
    def on_index(self) -> tuple[Any, ...]:
        """The criteria that can be evaluated on an index entry."""
        return tuple(term for term in self.terms if _is_on(term, self.held))


def terms_of(index: Index) -> Iterator[tuple[Column[Any], bool]]:
    """Return the columns of an index, and whether each is descending."""
    for expression in index.expressions:
        descends = getattr(expression, "modifier", None) is operators.desc_op
        yield (expression.element if descends else expression), descends  # type: ignore[attr-defined]


def entry(index: Index, number: int, row: Row) -> tuple[int, ...]:
    return (number, *(row[column.name] for column, _ in terms_of(index)))


def in_order(index: Index | None, table: Table, rows: Sequence[tuple[int, Row]]) -> list[tuple[int, Row]]:
    terms = [(column, False) for column in table.primary_key] if index is None else list(terms_of(index))
    for column, descends in reversed(terms):
        rows = sorted(rows, key=lambda each, name=column.name: _nulls_first(each[1][name]), reverse=descends)  # type: ignore[misc]
    return list(rows)


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return value is not None, value


def _name(index: Index) -> str:
    return str(index.name)


def columns_of_all(columns: Any) -> set[Column[Any]]:
    return {each for column in columns for each in columns_of(column)}


def _table(statement: Any) -> Table:
    if not isinstance(statement, Select):
        return statement.table
    # cheaper than get_final_froms(), which compiles the statement; subqueries in columns have a FROM of their own
    (table,) = statement.columns_clause_froms
    return table  # type: ignore[return-value]


def _conjuncts(terms: Sequence[Any]) -> Iterator[Any]:
    for term in terms:
        if isinstance(term, BooleanClauseList) and term.operator is operators.and_:
            yield from _conjuncts(term.clauses)
        else:
            yield term


def _is_on(term: Any, names: frozenset[str]) -> bool:
    """Return whether it refers only to columns with these names."""
    if any(isinstance(each, Select) for each in visitors.iterate(term)):
        return False
    return {column.name for column in columns_of(term)} <= names


def _is_equality(term: Any) -> bool:
    return (
        getattr(term, "operator", None) is operators.eq and isinstance(term.left, Column) and not columns_of(term.right)
    )
