"""Declaration of a model's queue: checks the class, adds its columns, and creates its spec and indexes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Container, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import Column, Connection, FromClause, select
from sqlalchemy.orm import Mapped, MappedAsDataclass, MappedColumn, Mapper, mapped_column
from sqlalchemy.orm.attributes import instance_state

from .._support.exc import ConfigurationError
from ..dialects import adapter_for
from ..lifecycle.kind import ColumnMaker, Kind, kinds_in, kinds_of
from ..queue.options import QueueOptions
from ..queue.spec import QueueSpec
from ..queue.status import Status
from ..sql.clock import aware, utcnow
from .columns import COLUMNS, check_status, check_values, is_given
from .indexes import attach_indexes


def _columns(cls: type[Any]) -> dict[str, ColumnMaker]:
    """Return the columns by role: those of every queue, and those of its kinds."""
    columns = dict(COLUMNS)
    for kind in kinds_in(cls):
        columns |= kind.columns
    return columns


def _attributes(cls: type[Any]) -> dict[str, str]:
    """Return the names of the attributes by role, with the model's renames."""
    options = cls.__queue__
    if not isinstance(options, QueueOptions):
        raise ConfigurationError(f"{cls.__name__}.__queue__ must be a QueueOptions, not {options!r}", model=cls)
    roles = _columns(cls)
    unknown = sorted(options.columns.keys() - roles.keys())
    if unknown:
        raise ConfigurationError(
            f"{cls.__name__}: QueueOptions(columns=...) renames {', '.join(unknown)}, but the queue's columns are"
            f" {', '.join(roles)}",
            model=cls,
        )
    attributes = {role: options.columns.get(role, role) for role in roles}
    twice = sorted({name for name in attributes.values() if list(attributes.values()).count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"{cls.__name__}: QueueOptions(columns=...) gives two columns the name {', '.join(twice)}", model=cls
        )
    return attributes


def declares_columns(cls: type[Any]) -> bool:
    """Return whether the class declares a queue's columns: mixins, abstract bases and subclasses of a queue do not."""
    if _is_mixin(cls) or cls.__dict__.get("__abstract__"):
        return False
    return not any("__queue_spec__" in base.__dict__ for base in cls.__mro__)


def _is_mixin(cls: type[Any]) -> bool:
    return "__queue_kind__" in cls.__dict__


def declare(cls: type[Any]) -> None:
    """Add the queue's columns to the class.  Raises :class:`.ConfigurationError` for name conflicts and invalid
    options."""
    attributes = _attributes(cls)
    _refuse_options(cls, attributes)
    _refuse_collisions(cls, attributes)
    existing = None if _is_mapped(cls) else cls.__dict__.get("__table__")
    if existing is not None:
        _refuse_missing(cls, [name for name in attributes.values() if name not in existing.c])
        attributes = {}
    columns = _columns(cls)
    for role, name in attributes.items():
        place(cls, name, columns[role](cls.__queue__))
    for name in _inherited_declarations(cls) - set(attributes.values()):
        setattr(cls, name, None)  # declared by a base class, under a name that this class overrides
    cls.__queue_declared__ = frozenset(attributes.values())


def _refuse_options(cls: type[Any], roles: Container[str]) -> None:
    """Raise :class:`.ConfigurationError` for options without their mixin, and for mixins without their options."""
    problem = next(filter(None, (kind.problem(cls.__queue__, roles) for kind in Kind.known)), None)
    if problem:
        raise ConfigurationError(f"{cls.__name__} cannot be a queue: {problem}", model=cls)


def place(cls: type[Any], name: str, arguments: dict[str, Any]) -> None:
    """Declare a column on a declarative, dataclass or SQLModel class, in the form that it needs."""
    kind = [arguments.pop("type_"), *arguments.pop("items", ())]
    if hasattr(cls, "__sqlmodel_relationships__"):
        column = mapped_column(*kind, **arguments).column
        setattr(cls, name, sys.modules["sqlmodel"].Field(default=None, sa_column=column, exclude=True, repr=False))
        _annotate(cls, name, Any)
    elif issubclass(cls, MappedAsDataclass):
        setattr(cls, name, mapped_column(*kind, **arguments, **_FIELD))
        _annotate(cls, name, Mapped[Any | None] if arguments.get("nullable") else Mapped[Any])
    else:
        setattr(cls, name, mapped_column(*kind, **arguments))


def _annotate(cls: type[Any], name: str, annotation: Any) -> None:
    cls.__annotations__ = {**inspect.get_annotations(cls), name: annotation}


def _inherited_declarations(cls: type[Any]) -> set[str]:
    return {name for base in cls.__mro__[1:] for name in base.__dict__.get("__queue_declared__", ())}


def _is_mapped(cls: type[Any]) -> bool:
    return "__mapper__" in cls.__dict__


def _refuse_missing(cls: type[Any], missing: list[str]) -> None:
    if missing:
        names = ", ".join(sorted(missing))
        raise ConfigurationError(
            f"{cls.__name__} cannot be a queue: its table has no column {names}; add what the mixin would declare",
            model=cls,
        )


# dataclasses accept the queue's columns only as keyword arguments, and omit those not given
_FIELD: dict[str, Any] = {"default_factory": lambda: None, "kw_only": True, "repr": False, "compare": False}


def _refuse_collisions(cls: type[Any], attributes: dict[str, str]) -> None:
    taken: dict[str, type[Any]] = {}
    for role, name in attributes.items():
        if (owner := next((base for base in cls.__mro__ if _defines(base, name)), None)) is not None:
            taken[role] = owner
    if not taken:
        return
    needed = " and ".join(repr(attributes[role]) for role in taken)
    own = " and ".join(f"{owner.__name__}.{attributes[role]}" for role, owner in taken.items())
    fix = dict(cls.__queue__.columns) | {role: f"queue_{role}" for role in taken}
    a_column, is_own, its_column = "a column", "is", "column"
    if len(taken) > 1:
        a_column, is_own, its_column = "columns", "are", "columns"
    raise ConfigurationError(
        f"{cls.__name__}: the queue needs {a_column} {needed}, but {own} {is_own} the model's own."
        f" Rename the queue's {its_column}: __queue__ = QueueOptions(columns={fix!r})",
        model=cls,
    )


def _defines(base: type[Any], name: str) -> bool:
    if _is_mixin(base) or name in base.__dict__.get("__queue_declared__", ()):
        return False
    if name in base.__dict__ or name in inspect.get_annotations(base):
        return True
    return any(_column_name(value) == name for value in base.__dict__.values())


def _column_name(value: object) -> str | None:
    """Return the explicit column name of a class attribute, if it has one."""
    column = value.column if isinstance(value, MappedColumn) else value
    return column.name if isinstance(column, Column) else None


def make_spec(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Create the spec of a mapped class, and the indexes of its table.

    Raises :class:`.ConfigurationError` for an unsupported mapping.
    """
    inherited: QueueSpec | None = next(
        (b.__dict__["__queue_spec__"] for b in cls.__mro__[1:] if "__queue_spec__" in b.__dict__), None
    )
    if inherited is None and "__queue_declared__" not in cls.__dict__:
        return  # a base class maps it before QueueMixin.__init_subclass__ runs, which calls this again
    attributes = inherited.attributes if inherited else _attributes(cls)
    columns = {role: mapper.columns[name] for role, name in attributes.items() if name in mapper.columns}
    missing = [name for role, name in attributes.items() if role not in columns]
    _refuse_unsupported(mapper, cls, missing, inherited)
    table = columns["status"].table
    _refuse_partitions(mapper, cls, table)
    spec = QueueSpec(
        entity=cls,
        mapper=mapper,
        table=table,
        attributes=attributes,
        columns=columns,
        primary_key=tuple(table.primary_key),
        options=inherited.options if inherited and "__queue__" not in cls.__dict__ else cls.__queue__,
        divided_by=_divisions(cls, columns),
    )
    cls.__queue_spec__ = spec
    if inherited is None:
        attach_indexes(spec)
    for kind in kinds_of(spec):
        kind.mapped(spec)


def _divisions(cls: type[Any], roles: Container[str]) -> tuple[str, ...]:
    parts = (kind.partition for kind in kinds_in(cls))
    found = sorted((part for part in parts if part is not None and part.role in roles), key=attrgetter("width"))
    return tuple(part.role for part in found)


def _refuse_partitions(mapper: Mapper[Any], cls: type[Any], table: FromClause) -> None:
    for name in cls.__queue__.partitions:
        column = mapper.columns.get(name)
        if column is None or column.table is not table:
            raise ConfigurationError(
                f"{cls.__name__}: partitions names {name!r}, which is not a column of {table}: name its attributes",
                model=cls,
            )


def _refuse_unsupported(mapper: Mapper[Any], cls: type[Any], missing: list[str], inherited: QueueSpec | None) -> None:
    if inherited is not None and "__queue__" in cls.__dict__:
        _refuse_options(cls, inherited.attributes)
    problem = None
    if mapper.concrete:
        problem = "concrete table inheritance is not supported: derive each class from QueueMixin without inheriting"
    elif missing:
        _refuse_missing(cls, missing)
    elif inherited is not None and _differs(cls.__queue__, inherited.options):
        problem = "it inherits its columns, order, slots and stages; set them on the base class"
    elif mapper.inherits is not None and mapper.polymorphic_identity is None and len(mapper.tables) > 1:
        problem = "joined inheritance needs polymorphic_on and a polymorphic_identity to tell the rows apart"
    elif len(mapper.tables) > 1 and cls.__queue__.on_complete == "delete":
        problem = "on_complete='delete' is not supported with joined inheritance; keep the rows and prune them"
    elif mapper.inherits is None and set(mapper.primary_key) != set(mapper.local_table.primary_key):
        problem = "its primary key differs from its table's, which identifies the tasks"
    if problem:
        raise ConfigurationError(f"{cls.__name__} cannot be a queue: {problem}", model=cls)


def _differs(options: QueueOptions, inherited: QueueOptions) -> bool:
    """Return whether ``options`` change columns, order, slots or stages, which the inherited table fixes."""
    columns = options.columns and dict(options.columns) != dict(inherited.columns)
    order = options.order_by and options.order_by is not inherited.order_by
    return bool(columns or order or options.stages != inherited.stages or options.slots is not inherited.slots)


def check(mapper: Mapper[Any], connection: Connection, task: Any) -> None:
    """Raise :class:`.ArgumentError` for values that cannot be stored; called before an insert or update."""
    spec, state = task.__queue_spec__, instance_state(task)
    check_values(spec, state.dict)
    if not state.persistent or spec.attributes["status"] in state.committed_state:  # another program may have stored it
        check_status(spec, state.dict)


def check_key(mapper: Mapper[Any], connection: Connection, task: Any) -> None:
    """Raise an error with the fix for a task without a key if the server generates none; called before an insert."""
    if task.__queue_spec__.unnumbered:
        adapter_for(connection.dialect).inserts.check_keys(task.__queue_spec__, [instance_state(task).dict])


def schedule(mapper: Mapper[Any], connection: Connection, task: Any) -> None:
    """Schedule a task that has an ``available_at``, given or from its schedule; called before an insert."""
    spec: QueueSpec = task.__queue_spec__
    status, available_at = spec.attributes["status"], spec.attributes["available_at"]
    if getattr(task, available_at, None) is None and kinds_of(spec):
        first = first_moment(spec, instance_state(task).dict, lambda: _now(task, spec))
        if first is not None:
            setattr(task, available_at, first)
    moment = getattr(task, available_at, None)
    if isinstance(moment, datetime):
        aware(moment)
    if is_given(moment) and getattr(task, status, None) is None:
        setattr(task, status, Status.SCHEDULED.value)


def _now(task: Any, spec: QueueSpec) -> datetime:
    session = instance_state(task).session
    assert session is not None  # it is being flushed
    now: datetime = session.execute(select(utcnow()), bind_arguments=spec.bind_arguments).scalar_one()
    return now


def first_moment(spec: QueueSpec, values: Mapping[str, Any], now: Callable[[], datetime]) -> datetime | None:
    """Return the time from which a task with these ``values``, by attribute, is first due, if a kind determines it."""
    moments = (kind.moment(spec, values, now) for kind in kinds_of(spec))
    return next((moment for moment in moments if moment is not None), None)
