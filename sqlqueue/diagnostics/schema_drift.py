"""Differences between a live schema and what its queues need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Index, Table, UnaryExpression, inspect
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql import operators

from ..dialects import adapter_for
from ..dialects.parts.schema import LiveIndex, Term
from ..model.indexes import kind_indexes
from ..queue.spec import QueueSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Difference:
    """A part of a live schema that is not what the queue of ``spec`` needs."""

    code: ClassVar[str]
    """The code of the finding about it."""
    spec: QueueSpec

    @property
    def message(self) -> str:
        """A description for people."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MissingTable(Difference):
    """A difference: the table of ``spec`` does not exist."""

    code = "missing-table"

    @property
    def message(self) -> str:
        return f"there is no table {self.spec.table.fullname}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MissingColumn(Difference):
    """A difference: the table lacks ``column``, which the queue needs."""

    code = "missing-column"
    column: Column[Any]

    @property
    def message(self) -> str:
        return f"{self.spec.table.fullname} has no column {self.column.name}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MissingIndex(Difference):
    """A difference: ``index``, which the queue's statements use, does not exist."""

    code = "missing-index"
    index: Index

    @property
    def message(self) -> str:
        return f"{self.spec.table.fullname} has no index {self.index.name}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WrongIndex(Difference):
    """A difference: the live index with the name of ``index`` is not as declared; ``reason`` says how."""

    code = "wrong-index"
    index: Index
    live: LiveIndex
    reason: str

    @property
    def message(self) -> str:
        return f"the index {self.index.name} of {self.spec.table.fullname} {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WrongDefault(Difference):
    """A difference: the default of ``column``, which rows of other programs get, is not the one that the model
    declares."""

    code = "wrong-default"
    column: Column[Any]
    live: str
    """The default as the server reports it."""

    @property
    def message(self) -> str:
        is_now, is_meant = constant(self.live), constant(_declared(self.column))
        return (
            f"the default of {self.spec.table.fullname}.{self.column.name} is {is_now}, the model declares {is_meant}"
        )


def drift(connection: Connection, specs: Iterable[QueueSpec]) -> list[Difference]:
    """Return how the live schema differs from what ``specs`` need, table by table: columns first, then indexes.

    Reads only the catalog, in the transaction of ``connection``.  Anything else that a table has is ignored.
    Raises :class:`.UnsupportedDialectError` for an engine without an adapter.
    """
    tables = {spec.table: spec for spec in reversed(list(specs))}  # subclasses share their base's
    return [difference for spec in reversed(tables.values()) for difference in _of_table(connection, spec)]


def _of_table(connection: Connection, spec: QueueSpec) -> Iterator[Difference]:
    table = spec.table
    inspector = inspect(connection)
    schema = connection.schema_for_object(table)
    if not inspector.has_table(table.name, schema=schema):
        yield MissingTable(spec=spec)
        return
    defaults = {column["name"]: column["default"] for column in inspector.get_columns(table.name, schema=schema)}
    for column in spec.columns.values():
        if column.name not in defaults:
            yield MissingColumn(spec=spec, column=column)
        elif is_other_default(column, live := defaults[column.name]):
            yield WrongDefault(spec=spec, column=column, live=str(live))
    yield from _of_indexes(connection, spec)


def is_other_default(column: Column[Any], live: str | None) -> bool:
    """Return whether both defaults are constants and different."""
    declared, found = constant(_declared(column)), constant(live)
    return None not in (declared, found) and declared != found


def _declared(column: Column[Any]) -> str | None:
    default: Any = getattr(column.server_default, "arg", None)
    return f"'{default}'" if isinstance(default, str) else None if default is None else str(default)


def constant(default: str | None) -> str | None:
    """Return the value of a default that is a number or a string, without what the server adds to it; else ``None``.

    ``'available'::character varying`` and ``(('available'))`` are both ``available``.
    """
    found = _CONSTANT.match(default or "")
    return (found[1] or found[2]) if found else None


_CONSTANT = re.compile(r"^[\s(]*(?:N?'([^']*)'|(-?\d+))(?:::[\w ]+)?[\s)]*$")


def _of_indexes(connection: Connection, spec: QueueSpec) -> Iterator[Difference]:
    for index, found, reason in unlike_indexes(connection, spec.table, queue_indexes(spec)):
        if found is None:
            yield MissingIndex(spec=spec, index=index)
        else:
            yield WrongIndex(spec=spec, index=index, live=found, reason=reason)


def unlike_indexes(
    connection: Connection, table: Table, indexes: Iterable[Index]
) -> Iterator[tuple[Index, LiveIndex | None, str]]:
    """Yield the ``indexes`` that the live table lacks or has in another form, each with the live index, if any, and the
    difference in words."""
    adapter = adapter_for(connection.dialect)
    live = adapter.schema.live_indexes(connection, table)
    for index in indexes:
        found = live.get(str(index.name))
        if found is None:
            yield index, None, "is missing"
        elif not found.usable:
            yield index, found, "is not usable: it was never finished, or is disabled"
        elif found.terms != _terms(index):
            yield index, found, f"is on {_listed(found.terms)}, not on {_listed(_terms(index))}"
        elif index.unique and not found.unique:
            yield index, found, "is not unique"
        elif not adapter.schema.same_predicate(connection.dialect, index, found):
            having = f"has the condition {found.predicate}" if found.predicate else "has no condition"
            yield index, found, f"{having}, which is not what the model declares"


def needed_indexes(spec: QueueSpec) -> list[Index]:
    """Return the indexes of the table's metadata that the queue cannot work without."""
    by_name = {str(index.name): index for index in spec.table.indexes}
    partitions = ((), *((column,) for column in spec.partitions))
    names = [spec.index_name(kind, partition) for partition in partitions for kind in ("claim", "due")]
    names += [spec.index_name(index.name) for index in kind_indexes(spec)]
    return [by_name[name] for name in names]


def queue_indexes(spec: QueueSpec) -> list[Index]:
    """Return all indexes that this library adds to the table."""
    return [*needed_indexes(spec), *helpful_indexes(spec)]


def helpful_indexes(spec: QueueSpec) -> list[Index]:
    """Return the indexes that claims do not need, but without which other operations are slow."""
    return [index for index in spec.table.indexes if index.name == spec.index_name("finished")]


def lost_indexes(connection: Connection, spec: QueueSpec) -> list[str]:
    """Return the names of the model's own indexes that do not exist, compared by name only."""
    preparer, ours = connection.dialect.identifier_preparer, {index.name for index in queue_indexes(spec)}
    live = {preparer.quote(name) for name in adapter_for(connection.dialect).schema.index_names(connection, spec.table)}
    # an index with a condition, from Index.ddl_if(), may be meant for another engine
    own = [index for index in spec.table.indexes if index.name not in ours and index._ddl_if is None]
    return sorted(str(index.name) for index in own if preparer.format_index(index) not in live)


def lost_triggers(connection: Connection, spec: QueueSpec) -> list[str]:
    """Return the names of the triggers that DDL listeners create on the table and that do not exist.

    Compared by name only, without regard to case.  Empty if this account cannot see triggers.
    """
    declared = list(_declared_triggers(connection, spec.table))
    live = adapter_for(connection.dialect).schema.trigger_names(connection, spec.table) if declared else None
    if live is None:
        return []
    known, longest = {name.casefold() for name in live}, connection.dialect.max_identifier_length
    # some servers shorten names
    shortened = {name: name.encode()[:longest].decode(errors="ignore") for name in declared}
    return [name for name in shortened if known.isdisjoint({name.casefold(), shortened[name].casefold()})]


def _declared_triggers(connection: Connection, table: Table) -> Iterator[str]:
    mine = {table.schema, connection.schema_for_object(table) or connection.dialect.default_schema_name}
    for target in (table, table.metadata):
        for listener in target.dispatch.after_create:
            if not isinstance(listener, ExecutableDDLElement):
                continue
            # as the listener itself decides when it is called
            if not listener._should_execute(target, connection):  # type: ignore[no-untyped-call]
                continue
            for found in _TRIGGER.finditer(str(listener.against(target).compile(dialect=connection.dialect))):
                (*owner, name), (*schema, of) = map(_parts, found.groups())
                # a listener may create triggers of other tables
                place = schema or owner
                if of.casefold() == table.name.casefold() and (place[-1] if place else target.schema) in mine:
                    yield name


def _parts(qualified: str) -> list[str]:
    return [_unquoted(part) for part in re.findall(_NAME, qualified)]


def _unquoted(name: str) -> str:
    return name[1:-1].replace(name[-1] * 2, name[-1]) if name[0] in '"`[' else name


_NAME = r'"(?:[^"]|"")+"|`(?:[^`]|``)+`|\[(?:[^\]]|\]\])+\]|[\w$#]+'
_QUALIFIED = rf"(?:{_NAME})(?:\s*\.\s*(?:{_NAME}))*"
# not temporary ones, which end with their connection
_TRIGGER = re.compile(
    r"\bCREATE\s+(?:(?:OR\s+(?:REPLACE|ALTER)|CONSTRAINT|(?:NON)?EDITIONABLE|DEFINER\s*=[^;]+?)\s+)*TRIGGER\s+"
    rf"(?:IF\s+NOT\s+EXISTS\s+)?({_QUALIFIED})\s.*?\bON\s+({_QUALIFIED})",
    re.IGNORECASE | re.DOTALL,
)


def _terms(index: Index) -> tuple[Term, ...]:
    return tuple(_term(expression) for expression in index.expressions)


def _term(expression: Any) -> Term:
    if isinstance(expression, UnaryExpression) and expression.modifier is operators.desc_op:
        return Term(_term(expression.element).name, descending=True)
    return Term(expression.name if isinstance(expression, Column) else str(expression))


def _listed(terms: tuple[Term, ...]) -> str:
    return f"({', '.join(map(str, terms))})"
