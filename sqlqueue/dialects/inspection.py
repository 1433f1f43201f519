"""What an engine tells of itself: types, indexes, plans, its version, its settings."""

from __future__ import annotations

import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, ClassVar

from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    Index,
    Select,
    Table,
    column,
    func,
    inspect,
    table,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.interfaces import ReflectedColumn, ReflectedIndex
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.expression import TableClause
from sqlalchemy.types import TypeEngine

from .._support.errors import UnsupportedDialectError
from ..queue.spec import Criterion, Finding, Identity, QueueSpec, Severity
from ..sql import utcdefault
from .connections import Connections
from .naming import Product, live_name, live_qualifier, plain

# -- column types that differ between engines, and the engine's clock -------------------------------------------------


class Types(ABC):
    """Column types and time functions."""

    timestamp: ClassVar[TypeEngine[Any] | None] = None
    """The type of times, if ``DateTime(timezone=True)`` loses microseconds or the zone; otherwise ``None``."""
    long_text: ClassVar[TypeEngine[Any] | None] = None
    """The type of long texts, if ``Text`` cannot store all of Unicode, or 65,535 bytes; otherwise ``None``."""
    serial: ClassVar[TypeEngine[Any] | None] = None
    """The type of generated keys, if the engine does not generate keys of the type ``BigInteger``; otherwise
    ``None``."""
    json: ClassVar[TypeEngine[Any] | None] = None
    """The type of JSON, if some versions of SQLAlchemy or the engine lack ``JSON``; otherwise ``None``."""

    def text(self, length: int) -> TypeEngine[Any] | None:
        """Return the type of texts of up to ``length`` characters, if ``Unicode`` cannot store all of Unicode."""
        return None

    def key(self, length: int) -> TypeEngine[Any] | None:
        """Return the type of keys of up to ``length`` characters, if ``String`` equates different keys."""
        return None

    @abstractmethod
    def now(self, seconds: ColumnElement[float] | None) -> ColumnElement[Any]:
        """Return the database's clock in UTC, ``seconds`` later if given."""

    def default(self) -> ColumnElement[Any]:
        """Return the database's clock in UTC as the default of a column, regardless of the session's time zone."""
        return self.now(None)

    @abstractmethod
    def microseconds(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        """Return the exact number of microseconds from ``earlier`` to ``later``, an integer; NULL if either is NULL or
        infinite."""

    def remainder(self, number: ColumnElement[int], divisor: ColumnElement[int]) -> ColumnElement[int]:
        """Return the remainder of the division of two positive integers."""
        return number % divisor

    def beginning(self, text: ColumnElement[str], length: int) -> ColumnElement[str]:
        """Return the first ``length`` characters of ``text``."""
        return func.substr(text, 1, length, type_=text.type)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """A query plan: how the engine would find the rows of a statement."""

    indexes: frozenset[str]
    """The names of the indexes that the plan uses."""
    sorted: int
    """The number of rows that the plan sorts: at least 1 if it sorts, 0 if it reads them in order."""


_NEEDS_LOCKS = "mode='lock', lease=None, and consume() of a queue with limits"
_CERTIFIED = (
    "its servers do not see each other's row locks, and reject one of two conflicting transactions only at its"
    " commit, so two workers could run the same task at once"
)
_USE_LEASES = "claim with a lease, and commit the claim before the work begins, as handlers of mode='lease' do"


class Inspection(ABC):
    """What an engine tells of its tables and servers.  Changes nothing."""

    def __init__(self, product: Product, connections: Connections) -> None:
        self.product = product
        self.connections = connections
        self._verified: weakref.WeakSet[Dialect] = weakref.WeakSet()
        self._clusters: weakref.WeakKeyDictionary[Dialect, str | None] = weakref.WeakKeyDictionary()

    # -- reads the live schema, and compares it with the declared one; by default, as SQLAlchemy reflects it

    lasting_keys: ClassVar[Mapping[str, Any]] = {}
    """The table options that prevent the reuse of deleted rows' generated keys, where the engine might."""

    partial_index: ClassVar[str | None] = None
    """The ``Index`` option for a predicate; ``None`` if indexes have none, or use another dialect's option."""

    reviving: ClassVar[str | None] = None
    """The statement that makes a disabled or incomplete index usable again."""

    exact_collations: ClassVar[tuple[str, ...]] = ("_bin", "_bin2")
    """The endings of collations that distinguish all texts that the adapter accepts as primary keys."""

    dropping_defaults: ClassVar[Mapping[str, Any]] = {}
    """The options of ``op.drop_column`` for a column with a default, where a default is an object that is dropped."""

    dates_old_rows: ClassVar[bool] = False
    """Whether a column added with the current time as its default has it in existing rows, which are not rewritten."""

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

    def type_of(self, live: Column[Any], wanted: Column[Any]) -> TypeEngine[Any]:
        """Return the type of the reflected column ``live``, if this is ``wanted`` by an earlier name."""
        return live.type

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

    # -- reads query plans

    def plan(self, connection: Connection, statement: Select[Any], *, forced: bool = False) -> QueryPlan | None:
        """Return the plan of ``statement`` at the table's current size, or ``None`` if the engine is not queried.

        ``forced``: return the plan with table scans and sorts disabled, or ``None`` if the engine cannot disable them.
        """
        return None

    # -- checks whether a server and an account can run a queue: version, state and privileges

    def verify(self, connection: Connection) -> None:
        """Raise :class:`.UnsupportedDialectError` if queues cannot run on this server.  Checks once per engine."""
        if connection.dialect not in self._verified:
            self.judge(connection.dialect.server_version_info or (), self.banner(connection))
            self._verified.add(connection.dialect)

    def banner(self, connection: Connection) -> str:
        """Return the server's description of itself, if its version number alone does not identify it."""
        return ""

    def judge(self, version: tuple[Any, ...], banner: str) -> None:
        """Raise :class:`.UnsupportedDialectError` if such a server cannot be used for queues."""
        numbers = tuple(part for part in version if isinstance(part, int))
        if numbers < self.product.minimum:
            needed = f"{self.product.name} {'.'.join(map(str, self.product.minimum))} or newer"
            self.refuse(".".join(map(str, version)), needed, self.product.needed)

    def refuse(self, version: str, needed: str, reason: str) -> None:
        """Raise :class:`.UnsupportedDialectError`."""
        raise UnsupportedDialectError(
            f"{self.product.name} {version} cannot be used for queues: it lacks {reason}. {needed} is needed.",
            dialect=self.product.dialect,
            version=version,
            needed=needed,
        )

    def check_locks(self, connection: Connection) -> None:
        """Raise :class:`.UnsupportedDialectError` on a cluster whose servers do not see each other's row locks.

        Checks once per engine.
        """
        cluster = self._known_cluster(connection)
        if cluster is not None:
            raise UnsupportedDialectError(
                f"{_NEEDS_LOCKS} cannot be used on {cluster}: {_CERTIFIED}. Instead, {_USE_LEASES}",
                dialect=self.product.dialect,
                needed="a claim with a lease",
            )

    def locks_elsewhere(self, connection: Connection) -> bool:
        """Return whether a row lock alone may not keep another transaction from writing, on a cluster or in a file."""
        return self._known_cluster(connection) is not None

    def _known_cluster(self, connection: Connection) -> str | None:
        if connection.dialect not in self._clusters:
            self._clusters[connection.dialect] = self.cluster(connection)
        return self._clusters[connection.dialect]

    def cluster(self, connection: Connection) -> str | None:
        """Return the cluster that this server is part of, if its other servers accept writes and do not see its row
        locks."""
        return None

    def absent(self, url: URL) -> str | None:
        """If connecting would create a database at ``url``, return why none exists; otherwise ``None``."""
        return None

    @abstractmethod
    def server_findings(self, connection: Connection) -> Iterator[Finding]:
        """Yield the problems of this server, or of sessions like this one, that affect all queues."""

    def table_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        """Yield the engine-specific problems of an existing table."""
        return iter(())

    def key_findings(self, connection: Connection, spec: QueueSpec) -> Iterator[Finding]:
        """Yield the reasons why statements that find tasks by primary key fail on an existing table."""
        return iter(())

    def unindexed_reference(self, connection: Connection) -> str | None:
        """Return what the deletion of a row does to a table that refers to it by a foreign key without an index;
        ``None`` if nothing, or if all foreign keys have indexes."""
        return "makes the server read all of it"

    def hides_rows(self, connection: Connection, spec: QueueSpec) -> bool:
        """Return whether the server shows this session only some rows of the queue's table."""
        return False

    def lock_owner(self, connection: Connection, spec: QueueSpec, identity: Identity) -> str | None:
        """Return the owner of the transaction that has locked a row; ``None`` if this account cannot read it."""
        return None

    def missing_privileges(
        self, connection: Connection, spec: QueueSpec, live: Sequence[ReflectedColumn]
    ) -> Sequence[str]:
        """Return the privileges that this account lacks: SELECT, INSERT, UPDATE, DELETE, or others by name.

        ``live`` are the table's existing columns.
        """
        return ()


# -- what the methods above use ---------------------------------------------------------------------------------------


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


def explain(connection: Connection, prefix: str, statement: ClauseElement) -> CursorResult[Any]:
    """Execute ``statement`` with ``prefix``, the engine's EXPLAIN, and return the result."""
    schemas = connection.get_execution_options().get("schema_translate_map")
    translated = {"schema_translate_map": schemas, "render_schema_translate": True} if schemas else {}
    text = str(statement.compile(connection, compile_kwargs={"literal_binds": True}, **translated))
    return connection.exec_driver_sql(f"{prefix} {text}")


def read_only(reason: str, fix: str) -> Finding:
    """Return a finding: the server or the session is read-only."""
    return Finding(severity=Severity.ERROR, code="read-only", message=f"nothing can be claimed here: {reason}", fix=fix)


def multi_primary(cluster: str) -> Finding:
    """Return the note about features that are rejected on ``cluster``, a cluster with several primaries."""
    message = f"this is {cluster}: {_CERTIFIED}. {_NEEDS_LOCKS} are rejected here"
    return Finding(severity=Severity.NOTE, code="multi-primary", message=message, fix=_USE_LEASES)


def bare(connection: Connection, target: Table, live: Sequence[ReflectedColumn]) -> TableClause:
    """Return ``target`` with its existing columns, and without defaults that an INSERT or UPDATE would add."""
    return table(target.name, *(column(each["name"]) for each in live), schema=connection.schema_for_object(target))


def catalog(schema: str | None, name: str, /, *untyped: str, **typed: Any) -> TableClause:
    """Return a table or view in which a server describes itself, with these columns; ``typed`` have types."""
    columns = (*map(column, untyped), *(column(each, kind) for each, kind in typed.items()))
    return table(name, *columns, schema=schema)
