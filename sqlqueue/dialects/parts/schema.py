"""Reads the live schema, and compares it with the declared one.  Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Index, Table, inspect
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedIndex
from sqlalchemy.types import TypeEngine

from ...queue.spec import Criterion
from ...sql.rows import utcdefault
from ..naming import live_name, live_qualifier, plain


@dataclass(frozen=True, slots=True)
class Term:
    """A column of an index."""

    name: str
    descending: bool = False

    def __str__(self) -> str:
        return f"{self.name} DESC" if self.descending else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveIndex:
    """An index as it exists on the server."""

    terms: tuple[Term, ...]
    predicate: str | None
    """The condition of a partial index, as the server stores it."""
    unique: bool
    usable: bool
    """Whether queries can use it."""


class Schema:
    """The schema as SQLAlchemy reflects it."""

    lasting_keys: ClassVar[Mapping[str, Any]] = {}
    """The table options that prevent the reuse of deleted rows' generated keys, where the engine might."""

    partial_index: ClassVar[str | None] = None
    """The ``Index`` option for a predicate; ``None`` if indexes have none, or use another dialect's option."""

    reviving: ClassVar[str | None] = None
    """The statement that makes a disabled or incomplete index usable again."""

    exact_collations: ClassVar[tuple[str, ...]] = ("_bin", "_bin2")
    """The endings of collations that distinguish all texts that the adapter accepts as primary keys."""

    alters_defaults: ClassVar[bool] = True
    """Whether the default of an existing column can be changed without copying its table."""

    def lacks_storage(self, connection: Connection, table: Table) -> bool:
        """Return whether ``table``, which exists, lacks the storage parameters that queue tables should have."""
        return False

    @property
    def predicate_option(self) -> str | None:
        """The ``Index`` option from which this dialect reads the predicate."""
        return self.partial_index

    def index_options(self, predicate: Criterion) -> dict[str, Any]:
        """Return the ``Index`` options for this predicate; empty if the engine has no partial indexes."""
        return {} if self.partial_index is None else {self.partial_index: predicate}

    def added_at(self, connection: Connection, column: Column[Any]) -> datetime | None:
        """Return the time in ``column`` of rows that are older than the column; ``None`` if it is unknown."""
        return None

    @property
    def indexes_all(self) -> bool:
        """Whether the claim index contains tasks of all states, because the engine has no partial indexes."""
        return self.predicate_option is None

    def live_indexes(self, connection: Connection, table: Table) -> dict[str, LiveIndex]:
        """Return the existing indexes of ``table``, by name."""
        reflected = inspect(connection).get_indexes(table.name, schema=connection.schema_for_object(table))
        downward = self.descending(connection, table, reflected)
        unusable = self.unusable(connection, table)
        return {
            str(index["name"]): LiveIndex(
                terms=tuple(Term(name, (index["name"], name) in downward) for name in _names(index)),
                predicate=self._live_predicate(index),
                unique=bool(index["unique"]),
                usable=index["name"] not in unusable,
            )
            for index in reflected
        }

    def index_names(self, connection: Connection, table: Table) -> Collection[str]:
        """Return the names of all existing indexes of ``table``, also of those that are not reflected."""
        inspector, schema = inspect(connection), connection.schema_for_object(table)
        found = (*inspector.get_indexes(table.name, schema), *inspector.get_unique_constraints(table.name, schema))
        return {str(each["name"]) for each in found}

    def trigger_names(self, connection: Connection, table: Table) -> Collection[str] | None:
        """Return the names of all existing triggers of ``table``; ``None`` if this account cannot see them all."""
        return None

    def descending(
        self, connection: Connection, table: Table, reflected: Collection[ReflectedIndex]
    ) -> Collection[tuple[Any, str]]:
        """Return the index and column of each descending term."""
        return {
            (index["name"], name)
            for index in reflected
            for name, order in index.get("column_sorting", {}).items()
            if "desc" in order
        }

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        """Return the existing indexes of ``table`` that queries cannot use."""
        return ()

    def revival(self, connection: Connection, index: Index) -> str | None:
        """Return :attr:`reviving` for this index."""
        table: Any = index.table
        names = {"table": live_name(connection, table), "schema": live_qualifier(connection, table)}
        return self.reviving and self.reviving.format(index=plain(connection.dialect, str(index.name)), **names)

    def collations(self, connection: Connection, table: Table) -> Mapping[str, str | None]:
        """Return the collations of the columns of ``table``, by name, if the engine needs a special one for keys."""
        return {}

    def same_predicate(self, dialect: Dialect, index: Index, live: LiveIndex) -> bool:
        """Return whether the server's index has the condition of ``index``, however the server writes it."""
        option = self.predicate_option
        wanted = index.dialect_kwargs.get(option) if option else None
        if wanted is None:
            return live.predicate is None
        ours = wanted.compile(dialect=dialect, compile_kwargs={"literal_binds": True, "include_table": False})
        return live.predicate is not None and _words(str(ours)) == _words(live.predicate)

    def same_default(self, dialect: Dialect, live: str) -> bool:
        """Return whether ``live``, a time column's default as the server writes it, is the one that models declare."""
        return _words(live) == _words(str(utcdefault().compile(dialect=dialect)))

    def same_moments(self, dialect: Dialect, declared: TypeEngine[Any], live: TypeEngine[Any]) -> bool:
        """Return whether the reflected type ``live`` stores times as ``declared`` does, as far as reflection shows."""
        return live.compile(dialect) == declared.compile(dialect)

    def _live_predicate(self, index: ReflectedIndex) -> str | None:
        option = self.predicate_option
        found = index.get("dialect_options", {}).get(option) if option else None
        return None if found is None else str(found)


def _names(index: ReflectedIndex) -> Iterator[str]:
    expressions = index.get("expressions", ())
    for number, name in enumerate(index["column_names"]):
        yield expressions[number] if name is None else name


_CAST = r"::+\s*(?:character varying|double precision|\w+)(?:\(\d+\))?(?:\[\])?"
_WORD = re.compile(rf"('(?:[^']|'')*')|{_CAST}|(\w+|[<>=!]+)", re.IGNORECASE)


def _words(predicate: str) -> list[str]:
    """Return a condition's tokens, except those that servers add or omit: casts, parentheses, quotes around names.

    ``((status)::text = ANY ((ARRAY['a', 'b'])::text[]))`` is equivalent to ``[status] IN ('b', 'a')``.
    """
    words: list[str] = []
    for literal, word in _WORD.findall(predicate):
        words += [literal] if literal else [word.lower()] if word else []
        if words[-3:] == ["=", "any", "array"]:
            words[-3:] = ["in"]
    groups = groupby(words, key=lambda word: word.startswith("'"))
    return [word for is_literal, group in groups for word in (sorted(group) if is_literal else group)]
