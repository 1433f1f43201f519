"""A live schema, and what a table is declared with.  It reads, and changes nothing."""

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
from ...sql.clock import utcdefault
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
    """An index as the server has it."""

    terms: tuple[Term, ...]
    predicate: str | None
    """The condition of a partial index, in the server's words."""
    unique: bool
    usable: bool
    """Whether queries may use it."""


class Schema:
    """A schema as SQLAlchemy reflects it."""

    lasting_keys: ClassVar[Mapping[str, Any]] = {}
    """The options of a table that gives out no key twice, where one may come back once its row is deleted."""

    partial_index: ClassVar[str | None] = None
    """The option of ``Index`` for a predicate; ``None`` where an index has none, or shares another dialect's option."""

    reviving: ClassVar[str | None] = None
    """The statement by which an index serves queries again that is switched off, or was never finished."""

    alters_defaults: ClassVar[bool] = True
    """Whether a column that is there can be given another default, other than by copying its table."""

    def lacks_storage(self, connection: Connection, table: Table) -> bool:
        """Whether ``table``, which is there, has other storage parameters than the tables of queues are to have."""
        return False

    @property
    def predicate_option(self) -> str | None:
        """The option of ``Index`` in which this dialect finds a predicate."""
        return self.partial_index

    def index_options(self, predicate: Criterion) -> dict[str, Any]:
        """Return the options of an ``Index`` that has this predicate where the engine allows it."""
        return {} if self.partial_index is None else {self.partial_index: predicate}

    def added_at(self, connection: Connection, column: Column[Any]) -> datetime | None:
        """Return the moment that rows have in ``column`` which were there before it; ``None`` if that is not kept."""
        return None

    @property
    def indexes_all(self) -> bool:
        """Whether the index of claims has the tasks of every status, since no index has a predicate."""
        return self.predicate_option is None

    def live_indexes(self, connection: Connection, table: Table) -> dict[str, LiveIndex]:
        """The indexes that ``table`` has now, by name."""
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

    def descending(
        self, connection: Connection, table: Table, reflected: Collection[ReflectedIndex]
    ) -> Collection[tuple[Any, str]]:
        """Index and column of each term that goes downward."""
        return {
            (index["name"], name)
            for index in reflected
            for name, order in index.get("column_sorting", {}).items()
            if "desc" in order
        }

    def unusable(self, connection: Connection, table: Table) -> Collection[str]:
        """The indexes of ``table`` that are there and do not serve queries."""
        return ()

    def revival(self, connection: Connection, index: Index) -> str | None:
        """:attr:`reviving`, of this index."""
        table: Any = index.table
        names = {"table": live_name(connection, table), "schema": live_qualifier(connection, table)}
        return self.reviving and self.reviving.format(index=plain(connection.dialect, str(index.name)), **names)

    def collations(self, connection: Connection, table: Table) -> Mapping[str, str | None]:
        """The collations of the columns of ``table``, by name, where keys have one of their own."""
        return {}

    def same_predicate(self, dialect: Dialect, index: Index, live: LiveIndex) -> bool:
        """Whether the server's index has the condition of ``index``, whatever words it keeps it in."""
        option = self.predicate_option
        wanted = index.dialect_kwargs.get(option) if option else None
        if wanted is None:
            return live.predicate is None
        ours = wanted.compile(dialect=dialect, compile_kwargs={"literal_binds": True, "include_table": False})
        return live.predicate is not None and _words(str(ours)) == _words(live.predicate)

    def same_default(self, dialect: Dialect, live: str) -> bool:
        """Whether ``live``, the default of a moment in the server's words, is the one that models declare."""
        return _words(live) == _words(str(utcdefault().compile(dialect=dialect)))

    def same_moments(self, dialect: Dialect, declared: TypeEngine[Any], live: TypeEngine[Any]) -> bool:
        """Whether ``live``, as it was reflected, keeps moments as ``declared`` does, as far as it tells."""
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
    """What a condition says, without what servers put in or leave out: casts, parentheses, quotes of names.

    ``((status)::text = ANY ((ARRAY['a', 'b'])::text[]))`` says the same as ``[status] IN ('b', 'a')``.
    """
    words: list[str] = []
    for literal, word in _WORD.findall(predicate):
        words += [literal] if literal else [word.lower()] if word else []
        if words[-3:] == ["=", "any", "array"]:
            words[-3:] = ["in"]
    groups = groupby(words, key=lambda word: word.startswith("'"))
    return [word for is_literal, group in groups for word in (sorted(group) if is_literal else group)]
