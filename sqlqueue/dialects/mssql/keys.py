"""Selects rows by key within the limit of 2,100 parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import (
    BooleanClauseList,
    ColumnElement,
    Delete,
    Select,
    Table,
    UniqueConstraint,
    Update,
    and_,
    literal,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects import mssql
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.types import TypeEngine

from ...queue.spec import Criterion, Identity, QueueSpec
from ..parts.keys import MANY, ByKey, Keys, names_of

_PREPARER = mssql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
_WANTED = "sqlqueue_wanted"


class OneOf(BooleanClauseList):
    """The criterion of rows whose columns have the values of one of several rows, each given as equalities.

    Between parameters, which may be equal, an OR is no list of keys to seek: SQL Server would read, and lock, all rows
    with the first column of one of them (https://dba.stackexchange.com/questions/45107).  Of a table of values, it
    looks up each row: a semijoin becomes a join with its distinct rows
    (https://learn.microsoft.com/en-us/archive/blogs/craigfr/semi-join-transformation).
    """

    inherit_cache = True

    @classmethod
    def of(cls, rows: Sequence[ColumnElement[bool]]) -> ColumnElement[bool]:
        """Return the criterion for ``rows``, each a conjunction of equalities with the same columns."""
        return rows[0] if len(rows) == 1 else cls._construct_raw(operators.or_, rows)

    @property
    def _flattened_operator_clauses(self) -> tuple[ColumnElement[Any], ...]:
        return (self,)  # within an OR as well


@compiles(OneOf, "mssql")
def _compile_as_values(one_of: OneOf, compiler: Any, **kw: Any) -> str:
    first: Any = one_of.clauses[0]
    columns = [equality.left for equality in first.clauses]
    # a parameter in a table of values may have the database's collation, which must not conflict with the column's
    collations = [collation_of(column.type, compiler.dialect) for column in columns]
    suffixes = [f" COLLATE {collation}" if collation else "" for collation in collations]

    def values(row: Any) -> str:
        pairs = zip(row.clauses, suffixes, strict=True)
        return ", ".join(f"{compiler.process(equality.right, **kw)}{suffix}" for equality, suffix in pairs)

    rows = ", ".join(f"({values(row)})" for row in one_of.clauses)
    names = ", ".join(f"value_{n}" for n, _ in enumerate(columns, 1))
    terms = (f"{_WANTED}.value_{n} = {compiler.process(column, **kw)}" for n, column in enumerate(columns, 1))
    return f"EXISTS (SELECT 1 FROM (VALUES {rows}) AS {_WANTED} ({names}) WHERE {' AND '.join(terms)})"


def collation_of(kind: TypeEngine[Any], dialect: Dialect) -> str | None:
    """Return the collation that the model declares for columns of this type, if any."""
    stored: Any = kind.dialect_impl(dialect)
    return getattr(stored, "collation", None)


class SeekingUpdate(Update):
    """An UPDATE with its hints in a FROM clause, since index hints after the table are an error (1069)."""

    inherit_cache = True


class SeekingDelete(Delete):
    """A DELETE with its hints in a FROM clause."""

    inherit_cache = True


@compiles(SeekingUpdate, "mssql")
@compiles(SeekingDelete, "mssql")
def _compile_with_from(statement: Any, compiler: Any, **kw: Any) -> str:
    found: Select[Any] = select(literal_column("1")).select_from(statement.table).where(*statement._where_criteria)
    for hints in statement._hints.values():
        found = found.with_hint(statement.table, hints)
    bare = statement._clone()
    bare._where_criteria, bare._hints = (), {}
    visit = compiler.visit_update if statement.is_update else compiler.visit_delete
    text = visit(bare, **kw)
    compiler.stack.append({"correlate_froms": set(), "asfrom_froms": set(), "selectable": statement})
    rows = compiler.process(found, **kw).removeprefix("SELECT 1 ")
    compiler.stack.pop()
    return f"{text} {rows}"


class SQLServerKeys(Keys):
    """Compares several columns with a table of values, because the engine has no tuple comparison."""

    batch: ClassVar[int] = 400
    tuples: ClassVar[bool] = False
    pads: ClassVar[bool] = True
    names_rows: ClassVar[bool] = False

    def most(self, spec: QueueSpec) -> int:
        # at most 2,100 parameters; a statement may contain each key three times: all keys, keys with attempt and
        # token, and keys that are not locked
        return max(self.batch * 5 // (3 * len(spec.primary_key) + 2), 1)

    def key_in(self, spec: QueueSpec, keys: Sequence[Identity]) -> Criterion:
        if len(keys) > self.most(spec):
            types = [column.type for column in spec.primary_key]
            keys = [
                tuple(literal(part, kind, literal_execute=True) for part, kind in zip(key, types, strict=True))
                for key in keys
            ]
        elif len(spec.primary_key) == 1:
            return super().key_in(spec, keys)
        rows = [spec.key(key) for key in self.padded(spec, keys)]
        return OneOf.of(rows) if len(spec.primary_key) > 1 else or_(*rows)

    def keys_named(self, spec: QueueSpec, count: int) -> Criterion:
        if count == MANY:
            return super().keys_named(spec, count)
        return OneOf.of([spec.key(names_of(spec, number)) for number in range(count)])

    def rows_in(
        self, spec: QueueSpec, columns: Sequence[ColumnElement[Any]], rows: Sequence[Identity] | None = None
    ) -> Criterion:
        pairs = (zip(columns, row, strict=True) for row in self.padded(spec, rows or ()))
        found = [and_(*(column == value for column, value in each)) for each in pairs]
        # the keys are always given as well, and those of a single column are sought already
        are_composite = sum(getattr(column, "primary_key", False) for column in columns) > 1
        return OneOf.of(found) if are_composite else or_(*found)

    def by_key(self, spec: QueueSpec, statement: ByKey) -> ByKey:
        # a scan would wait for rows that others have locked
        if isinstance(statement, Select):
            return statement.with_hint(spec.table, f"WITH ({seek_by_key(spec.table)})")
        hinted = statement.with_hint(f"WITH (ROWLOCK, {seek_by_key(spec.table)})")
        hinted.__class__ = SeekingUpdate if isinstance(statement, Update) else SeekingDelete
        return hinted


def seek_by_key(table: Table) -> str:
    """Return the hints with which a statement seeks rows through the primary key.

    FORCESEEK alone allows every index whose conditions the statement implies, and would lock all of its ready entries
    instead of the named rows: https://learn.microsoft.com/en-us/sql/t-sql/queries/hints-transact-sql-table
    """
    index = index_of_key(table)
    return "FORCESEEK" if index is None else f"FORCESEEK, INDEX({index})"


def index_of_key(table: Table) -> str | None:
    """Return the index of the primary key, as a hint names it.

    1 is the clustered index, which the primary key is unless the model declares otherwise.  The index of another
    primary key has its name; without one, it cannot be named.
    """
    key = table.primary_key
    others = (*table.indexes, *(each for each in table.constraints if isinstance(each, UniqueConstraint)))
    if _clusters(key) is not False and not any(map(_clusters, others)):
        return "1"
    return _PREPARER.format_constraint(key) if key.name else None


def _clusters(index: Any) -> bool | None:
    """Return whether the model declares the index as clustered, if it does say so."""
    clusters: bool | None = index.dialect_options["mssql"]["clustered"]
    return clusters
