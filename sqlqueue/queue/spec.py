"""The spec of a queue: its table, its columns by their roles, and what checks find in them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Self, TypeAlias

from sqlalchemy import Column, ColumnElement, Select, Table, UnaryExpression, and_, select, update
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import SQLCoreOperations
from sqlalchemy.util import LRUCache

from .._support.errors import ArgumentError, ConfigurationError
from .options import QueueOptions

# -- a cache of statements, which are slow to build -------------------------------------------------------------------

CACHE_SIZE = 100
"""Maximum entries of a cache, for callers whose keys never repeat."""


class StatementCache:
    """A cache of statements by the values they were built from.

    SQLAlchemy caches compiled statements, but needs a statement to look one up, and building it takes most of the time
    of a short operation.
    """

    def __init__(self, most: int = CACHE_SIZE) -> None:
        self._kept: LRUCache[Hashable, Any] = LRUCache(most)

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the cached value of ``key``, or the result of ``make``.  Thread-safe; ``make`` may be called twice."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make()
        return found


# -- the spec of a model's queue: the value made from the class definition that all operations read -------------------

Criterion: TypeAlias = ColumnElement[bool]
Where: TypeAlias = ColumnElement[bool] | SQLCoreOperations[bool]
"""A criterion as passed by callers: an expression or an attribute."""
Identity: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Ordering:
    """One term of a claim order."""

    column: ColumnElement[Any]
    descending: bool = False

    def over(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the same term for another column."""
        return column.desc() if self.descending else column

    @property
    def expression(self) -> ColumnElement[Any]:
        """The ORDER BY expression."""
        return self.over(self.column)


def _has(role: str) -> cached_property[bool]:
    """Return the property of a spec that says whether its queue has the column."""
    return cached_property(lambda spec: role in spec.columns)


def _lacks(role: str) -> cached_property[bool]:
    return cached_property(lambda spec: role not in spec.columns)


@dataclass(frozen=True, kw_only=True, eq=False)
class QueueSpec:
    """The description of a queue: its table, columns by role, and options.  One for each mapped class."""

    entity: type[Any]
    mapper: Mapper[Any]
    table: Table
    attributes: dict[str, str]
    """Attributes of the model, by role."""
    columns: dict[str, Column[Any]]
    """Columns of the table, by role."""
    primary_key: tuple[Column[Any], ...]
    options: QueueOptions
    divided_by: tuple[str, ...]
    """Roles of columns that divide the queue, the narrowest first."""

    def __getitem__(self, role: str) -> Column[Any]:
        return self.columns[role]

    @cached_property
    def name(self) -> str:
        """The name of the queue in logs, metrics, spans, pages and commands: its table's, with the schema if it has
        one.  Errors in calls of the library name the model instead."""
        return self.table.fullname

    recurs = _has("schedule")
    """Whether tasks may have a next run after their last attempt (``RecurringMixin``)."""
    is_limited = _has("limit_key")
    """Whether a running task holds a slot, which the transaction that settles it must see (``LimitMixin``)."""
    has_stages = _has("stage")
    """Whether tasks go through stages (``StageMixin``)."""
    has_topics = _has("topic")
    """Whether the queue is divided by topic (``TopicMixin``)."""
    has_unique_keys = _has("unique_key")
    """Whether unfinished tasks have unique keys, besides their primary keys (``UniqueMixin``)."""
    keeps_results = _has("result")
    """Whether the queue stores the results of tasks (``ResultMixin``)."""
    has_progress = _has("progress")
    """Whether handlers report how far they are (``ProgressMixin``)."""
    expires = _has("expires_at")
    """Whether tasks may have a time until which they must be started (``ExpiryMixin``)."""
    has_latches = _has("reports_to")
    """Whether tasks can be members of batches, and wait for others (``FlowMixin``)."""
    has_steps = _has("steps")
    """Whether the rows keep which steps of their handlers have run (``StepMixin``)."""
    holds_tasks = _lacks("slot_key")
    """Whether the rows are tasks for operators to manage, instead of slots (``SlotMixin``)."""
    isolates_suspects = _lacks("message_key")
    """Whether workers run tasks that may have crashed a process separately from others.

    Relays publish messages in batches (``OutboxMixin``), including suspects.
    """

    @cached_property
    def made(self) -> StatementCache:
        """The cache of this queue's statements whose rows are given as parameters."""
        return StatementCache()

    @cached_property
    def bind_arguments(self) -> dict[str, Any]:
        """The bind arguments with which a session finds the engine.  Reads and locks also use the engine for writes."""
        return {"mapper": self.mapper, "clause": update(self.table)}

    @cached_property
    def selecting(self) -> Select[Any]:
        """The statement with which the ORM loads instances, for ``get_bind``."""
        return select(self.entity)

    @cached_property
    def partitions(self) -> tuple[Column[Any], ...]:
        """The columns that divide the queue.  A claim with an equality on some uses the index of the first of them."""
        named = (self.mapper.columns[name] for name in self.options.partitions)
        lanes = () if self.lane is None else (self.lane,)
        return tuple(dict.fromkeys((*(self.columns[role] for role in self.divided_by), *named, *lanes)))

    @cached_property
    def fair(self) -> Column[Any] | None:
        """The column whose values share the queue's claims, ``None`` if tasks are claimed in order."""
        return None if self.options.fair is None else self.mapper.columns[self.options.fair]

    @cached_property
    def sequence(self) -> Column[Any] | None:
        """The column whose values keep their tasks in order, ``None`` if tasks do not wait for each other."""
        if "message_key" in self.columns:
            return self["message_key"]
        return None if self.options.sequential is None else self.mapper.columns[self.options.sequential]

    @cached_property
    def lane(self) -> Column[Any] | None:
        """The column whose values are the keys by which tasks are claimed: they share the queue, or have limits."""
        return self.columns.get("limit_key", self.fair)

    @cached_property
    def keyed_by(self) -> Column[Any] | None:
        """The column with the keys of tasks: those that share the queue, have limits, or keep their order."""
        return self.sequence if self.lane is None else self.lane

    @cached_property
    def discarded_hold(self) -> bool:
        """Whether a discarded task holds those that follow it in its key; messages of an outbox do not."""
        return not self.options.continue_on_discarded and "message_key" not in self.columns

    @cached_property
    def divisions(self) -> tuple[tuple[Column[Any], ...], ...]:
        """The columns of each claim index between the status and the order; none of slots, which are found by key."""
        if not self.holds_tasks:
            return ()
        single = ((column,) for column in self.partitions)
        lanes = () if self.lane is None else (self.lane,)
        return ((), *single, *((column, lane) for lane in lanes for column in self.partitions if column is not lane))

    @cached_property
    def column_names(self) -> dict[str, str]:
        """Column names, by attribute of the model."""
        return {prop.key: getattr(prop.columns[0], "name", prop.key) for prop in self.mapper.column_attrs}

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The attributes of the primary key, in the order of ``primary_key``."""
        return tuple(self.mapper.get_property_by_column(column).key for column in self.primary_key)

    @cached_property
    def unnumbered(self) -> tuple[Column[Any], ...]:
        """The integer keys without a default, for which not all servers generate values."""
        keys = (table.autoincrement_column for table in self.mapper.tables if isinstance(table, Table))
        return tuple(key for key in keys if key is not None and key.default is None and key.server_default is None)

    @cached_property
    def ready_order(self) -> tuple[Ordering, ...]:
        """The claim order among available rows."""
        if not self.options.order_by:
            return (*(Ordering(self[role]) for role in ("priority", "available_at")), *self._key_order)
        terms = tuple(self._declared(term) for term in self.options.order_by)
        taken = {term.column for term in terms}
        return (*terms, *(term for term in self._key_order if term.column not in taken))

    @cached_property
    def due_order(self) -> tuple[Ordering, ...]:
        """The claim order among due rows."""
        return (Ordering(self["available_at"]), *self._key_order)

    @cached_property
    def sequence_order(self) -> tuple[Ordering, ...]:
        """The order in which unfinished tasks of a key start.  ``finished_at``, NULL in all, comes first, as in their
        index."""
        columns: Any = (self["finished_at"], self.sequence, *self.primary_key)
        return tuple(Ordering(column) for column in dict.fromkeys(columns))

    @cached_property
    def unkeyed_order(self) -> tuple[Ordering, ...]:
        """The order in which tasks without a key start.  ``finished_at`` and the key, NULL in all, come first, as in
        their index."""
        columns: Any = (self["finished_at"], self.sequence, self["available_at"], *self.primary_key)
        return tuple(Ordering(column) for column in columns)

    @property
    def _key_order(self) -> tuple[Ordering, ...]:
        return tuple(Ordering(column) for column in self.primary_key)

    def _declared(self, term: str | ColumnElement[Any]) -> Ordering:
        if isinstance(term, UnaryExpression) and isinstance(term.element, UnaryExpression):
            raise ConfigurationError(
                f"{self.entity.__name__}: order_by={term}: give asc() or desc() without further modifiers",
                model=self.entity,
            )
        descending = isinstance(term, UnaryExpression) and term.modifier is operators.desc_op
        name = term if isinstance(term, str) else str(getattr(getattr(term, "element", term), "element", term))
        column = self.mapper.columns.get(name)
        if column is None or column.table is not self.table:
            raise ConfigurationError(
                f"{self.entity.__name__}: order_by names {name!r}, which is not a column of {self.table.name};"
                " give attribute names, or sqlalchemy.desc('name')",
                model=self.entity,
            )
        return Ordering(column, descending)

    @property
    def inherited(self) -> Criterion | None:
        """The criterion for the rows of this class in a table shared with others; ``None`` if it selects all rows."""
        discriminator = self.mapper.polymorphic_on
        if discriminator is None or not self.shares_table:
            return None
        identities = [m.polymorphic_identity for m in self.mapper.self_and_descendants]
        return discriminator.in_(identities)

    @cached_property
    def shares_table(self) -> bool:
        """Whether the table also has rows of a class from which this one inherits."""
        parents = (parent for parent in self.mapper.iterate_to_root() if parent is not self.mapper)
        return self.mapper.polymorphic_on is not None and any(self.table in parent.tables for parent in parents)

    @cached_property
    def is_plain(self) -> bool:
        """Whether an instance can be built from a row of the table alone, as RETURNING returns it."""
        return self._has_one_table and all(relationship.lazy in _LAZY for relationship in self.mapper.relationships)

    @property
    def _has_one_table(self) -> bool:
        """Whether all attributes are columns of the table, and all its rows belong to this class."""
        mapper = self.mapper
        return (
            mapper.inherits is None
            and mapper.polymorphic_on is None
            and all(prop.columns[0].table is self.table for prop in mapper.column_attrs)
        )

    @cached_property
    def takes_rows(self) -> bool:
        """Whether an insert by the ORM writes only the values of the new row, and only into this table."""
        return self._has_one_table and self.mapper.version_id_col is None

    def index_name(self, kind: str, partition: Sequence[Column[Any]] = ()) -> str:
        """Return the name of an index: ``ix_<table>[_<partition>]_claim``, ``..._due`` and so on."""
        return index_name(self.table.name, kind, [column.name for column in partition])

    def key(self, identity: Identity) -> Criterion:
        """Return the criterion for the row with this primary key."""
        return and_(*(column == value for column, value in zip(self.primary_key, identity, strict=True)))

    def identity_of(self, task: object) -> Identity:
        """Return the primary key of an instance, in the order of ``primary_key``, without a query.

        Raises :class:`.ArgumentError` for an instance that was never stored.
        """
        identity = instance_state(task).key
        if identity is None:
            raise ArgumentError(f"{task!r} has no identity: it was never stored")
        return tuple(identity[1])


def index_name(table: str, kind: str, partition: Sequence[str] = ()) -> str:
    """Return the name of a queue's index, shortened with a hash if it is too long for some engine."""
    # hints and drivers read a percent sign as a parameter marker, and MySQL does not reflect backticks correctly
    name = "_".join(("ix", table, *partition, kind)).replace("%", "_").replace("`", "_")
    encoded = name.encode()
    if len(encoded) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha1(encoded, usedforsecurity=False).hexdigest()[:8]
    return f"{encoded[: _LONGEST_NAME - 20].decode(errors='ignore')}_{digest}_{kind}"


_LONGEST_NAME = 60
"""Maximum bytes of index names, within the limit of the strictest engine (PostgreSQL: 63)."""

_LAZY = frozenset({"select", True, "raise", "raise_on_sql", "noload", "write_only", "dynamic"})


def spec_of(entity: object) -> QueueSpec:
    """Return the spec of a queue model.  Raises :class:`.ArgumentError` for anything else."""
    spec = entity.__dict__.get("__queue_spec__") if isinstance(entity, type) else None
    if isinstance(spec, QueueSpec):
        return spec
    name = entity.__name__ if isinstance(entity, type) else repr(entity)
    raise ArgumentError(f"{name} is not a queue model: give a mapped class that derives from sqlqueue.QueueMixin")


def conjuncts(criteria: Iterable[Criterion]) -> Sequence[Criterion]:
    """Return the terms of ``criteria`` with nested ANDs flattened."""
    terms: list[Criterion] = []
    for criterion in criteria:
        if getattr(criterion, "operator", None) is operators.and_:
            terms.extend(conjuncts(criterion.get_children()))  # type: ignore[arg-type]
        else:
            terms.append(criterion)
    return terms


# -- the findings of a check of a live database -----------------------------------------------------------------------

MIGRATE = "migrate: alembic revision --autogenerate, alembic upgrade head"
"""The fix of a schema that is not as declared."""


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """The queue cannot work, or would work incorrectly."""
    WARNING = "warning"
    """The queue works, but something may fail or be slow."""
    NOTE = "note"
    """Nothing is wrong; for information only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem or a piece of information, and what to do about it."""

    severity: Severity
    """The severity."""
    code: str
    """The kind of finding, for programs: ``"missing-index"``.  Does not change between versions."""
    message: str
    """The text of the problem."""
    fix: str
    """The action that fixes it."""
    model: type[Any] | None = None
    """The queue's model; ``None`` if the finding is about the server or the connection."""
    table: str | None = None
    """The table's name, with its schema if it has one."""

    @classmethod
    def of(cls, spec: QueueSpec | None, severity: Severity, code: str, message: str, fix: str) -> Self:
        """Return a finding about one queue, or with ``None`` about the server or the connection."""
        model, table = (None, None) if spec is None else (spec.entity, spec.table.fullname)
        return cls(severity=severity, code=code, message=message, fix=fix, model=model, table=table)
