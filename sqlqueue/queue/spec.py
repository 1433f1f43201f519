"""What a model's queue is: the one value that everything behind the class definition reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from sqlalchemy import Column, ColumnElement, Select, Table, UnaryExpression, and_, select, update
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import SQLCoreOperations

from .._support.exc import ArgumentError, ConfigurationError
from .._support.statement_cache import Memo
from .options import QueueOptions

QUEUE_ROLES = (
    "status",
    "priority",
    "available_at",
    "attempt",
    "max_attempts",
    "claimed_by",
    "claimed_at",
    "claim_token",
    "finished_at",
    "error",
    "created_at",
)
"""The columns of ``QueueMixin``, by the names they have unless the model renames them."""

Criterion: TypeAlias = ColumnElement[bool]
Where: TypeAlias = ColumnElement[bool] | SQLCoreOperations[bool]
"""What a caller gives as a criterion: an expression, or an attribute that is one."""
Identity: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Ordering:
    """One term of a claim order."""

    column: ColumnElement[Any]
    descending: bool = False

    def over(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return column.desc() if self.descending else column

    @property
    def expression(self) -> ColumnElement[Any]:
        return self.over(self.column)


@dataclass(frozen=True, kw_only=True, eq=False)
class QueueSpec:
    """A queue: its table, its columns by role, its options.  One for each mapped class."""

    entity: type[Any]
    mapper: Mapper[Any]
    table: Table
    attributes: dict[str, str]
    """role -> attribute of the model"""
    columns: dict[str, Column[Any]]
    """role -> column of the table"""
    primary_key: tuple[Column[Any], ...]
    options: QueueOptions
    divided_by: tuple[str, ...]
    """Roles of columns that divide the queue, the narrowest first."""

    def __getitem__(self, role: str) -> Column[Any]:
        return self.columns[role]

    @cached_property
    def made(self) -> Memo:
        """Statements about rows of this queue that are named by parameters."""
        return Memo()

    @cached_property
    def bind_arguments(self) -> dict[str, Any]:
        """By these a session finds its engine.  All goes where writes go, also what only reads, or locks."""
        return {"mapper": self.mapper, "clause": update(self.table)}

    @cached_property
    def selecting(self) -> Select[Any]:
        """What the ORM executes to load instances, as far as a session looks at it."""
        return select(self.entity)

    @cached_property
    def partitions(self) -> tuple[Column[Any], ...]:
        """Columns that divide the queue: a claim that fixes one gets an index that starts with it, the first's."""
        named = (self.mapper.columns[name] for name in self.options.partitions)
        return (*(self.columns[role] for role in self.divided_by), *named)

    @cached_property
    def column_names(self) -> dict[str, str]:
        """attribute of the model -> name of its column"""
        return {prop.key: getattr(prop.columns[0], "name", prop.key) for prop in self.mapper.column_attrs}

    @cached_property
    def key_parts(self) -> tuple[str, ...]:
        """The attributes of a primary key of several columns."""
        columns = self.primary_key if len(self.primary_key) > 1 else ()
        return tuple(self.mapper.get_property_by_column(column).key for column in columns)

    @cached_property
    def unnumbered(self) -> tuple[Column[Any], ...]:
        """Integer keys that are left to the server without a word of how it is to make them."""
        keys = (table.autoincrement_column for table in self.mapper.tables if isinstance(table, Table))
        return tuple(key for key in keys if key is not None and key.default is None and key.server_default is None)

    @cached_property
    def ready_order(self) -> tuple[Ordering, ...]:
        """The order among available rows."""
        if not self.options.order_by:
            return (*(Ordering(self[role]) for role in ("priority", "available_at")), *self._key_order)
        terms = tuple(self._declared(term) for term in self.options.order_by)
        taken = {term.column for term in terms}
        return (*terms, *(term for term in self._key_order if term.column not in taken))

    @cached_property
    def due_order(self) -> tuple[Ordering, ...]:
        """The order among due rows.  ``finished_at`` is NULL in all of them, and leads because their index does."""
        return (*(Ordering(self[role]) for role in ("finished_at", "available_at")), *self._key_order)

    @property
    def _key_order(self) -> tuple[Ordering, ...]:
        return tuple(Ordering(column) for column in self.primary_key)

    def _declared(self, term: str | ColumnElement[Any]) -> Ordering:
        if isinstance(term, UnaryExpression) and isinstance(term.element, UnaryExpression):
            raise ConfigurationError(
                f"{self.entity.__name__}: order_by={term}: ascending or descending, no other modifier",
                model=self.entity,
            )
        descending = isinstance(term, UnaryExpression) and term.modifier is operators.desc_op
        name = term if isinstance(term, str) else str(getattr(getattr(term, "element", term), "element", term))
        column = self.mapper.columns.get(name)
        if column is None or column.table is not self.table:
            raise ConfigurationError(
                f"{self.entity.__name__}: order_by names {name!r}, which is not a column of {self.table.name};"
                " give names of its attributes, or sqlalchemy.desc('name')",
                model=self.entity,
            )
        return Ordering(column, descending)

    @property
    def inherited(self) -> Criterion | None:
        """What tells the rows of this class from those of others in the same table."""
        if self.mapper.inherits is None or self.mapper.polymorphic_on is None or self._is_root:
            return None
        identities = [m.polymorphic_identity for m in self.mapper.self_and_descendants]
        return self.mapper.polymorphic_on.in_(identities)

    @property
    def _is_root(self) -> bool:
        parents = (parent for parent in self.mapper.iterate_to_root() if parent is not self.mapper)
        return not any(self.table in parent.tables for parent in parents)

    @cached_property
    def is_plain(self) -> bool:
        """Whether one row of the table, as RETURNING gives it, is all that makes an instance."""
        return self._has_one_table and all(relationship.lazy in _LAZY for relationship in self.mapper.relationships)

    @property
    def _has_one_table(self) -> bool:
        """Whether all attributes are columns of the table, and all of its rows are of this class."""
        mapper = self.mapper
        return (
            mapper.inherits is None
            and mapper.polymorphic_on is None
            and all(prop.columns[0].table is self.table for prop in mapper.column_attrs)
        )

    @cached_property
    def takes_rows(self) -> bool:
        """Whether the ORM would insert the values of a new row and nothing else, and all into this table."""
        return self._has_one_table and self.mapper.version_id_col is None

    def index_name(self, kind: str, partition: Sequence[Column[Any]] = ()) -> str:
        """``ix_<table>[_<partition>]_claim`` or ``..._due``."""
        return index_name(self.table.name, kind, [column.name for column in partition])

    def key(self, identity: Identity) -> Criterion:
        return and_(*(column == value for column, value in zip(self.primary_key, identity, strict=True)))

    def identity_of(self, task: object) -> Identity:
        """The primary key of an instance, in the order of ``primary_key``, without touching the database."""
        identity = instance_state(task).key
        if identity is None:
            raise ArgumentError(f"{task!r} has no identity: it was never stored")
        return tuple(identity[1])


def index_name(table: str, kind: str, partition: Sequence[str] = ()) -> str:
    # hints and drivers take a percent sign for the mark of a parameter, and a backtick is not read back from MySQL
    name = "_".join(("ix", table, *partition, kind)).replace("%", "_").replace("`", "_")
    encoded = name.encode()
    if len(encoded) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha1(encoded, usedforsecurity=False).hexdigest()[:8]
    return f"{encoded[: _LONGEST_NAME - 20].decode(errors='ignore')}_{digest}_{kind}"


_LONGEST_NAME = 60
"""Names of indexes stay, in bytes, within what the strictest engine allows (PostgreSQL: 63)."""

_LAZY = frozenset({"select", True, "raise", "raise_on_sql", "noload", "write_only", "dynamic"})


def spec_of(entity: object) -> QueueSpec:
    """The queue of a model; :class:`.ArgumentError` if it is none."""
    spec = entity.__dict__.get("__queue_spec__") if isinstance(entity, type) else None
    if isinstance(spec, QueueSpec):
        return spec
    name = entity.__name__ if isinstance(entity, type) else repr(entity)
    raise ArgumentError(f"{name} is not a queue model: a mapped class is needed that derives from sqlqueue.QueueMixin")


def conjuncts(criteria: Iterable[Criterion]) -> Sequence[Criterion]:
    """The terms of ``criteria``, all of which must hold."""
    terms: list[Criterion] = []
    for criterion in criteria:
        if getattr(criterion, "operator", None) is operators.and_:
            terms.extend(conjuncts(criterion.get_children()))  # type: ignore[arg-type]
        else:
            terms.append(criterion)
    return terms
