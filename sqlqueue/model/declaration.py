"""From a class definition to columns, a spec and its indexes."""

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
from .columns import COLUMNS, check_values
from .indexes import attach_indexes


def _columns(cls: type[Any]) -> dict[str, ColumnMaker]:
    """role -> column: those of every queue, and those of its kinds."""
    columns = dict(COLUMNS)
    for kind in kinds_in(cls):
        columns |= kind.columns
    return columns


def _attributes(cls: type[Any]) -> dict[str, str]:
    """role -> name of the attribute, with the model's renames."""
    options = cls.__queue__
    if not isinstance(options, QueueOptions):
        raise ConfigurationError(f"{cls.__name__}.__queue__ must be a QueueOptions, not {options!r}", model=cls)
    roles = _columns(cls)
    unknown = sorted(options.columns.keys() - roles.keys())
    if unknown:
        raise ConfigurationError(
            f"{cls.__name__}: QueueOptions(columns=...) renames {', '.join(unknown)}; the queue's columns are"
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
    """Whether this class brings columns: not a mixin of ours, not an abstract base, not the child of a mapped queue."""
    if _is_mixin(cls) or cls.__dict__.get("__abstract__"):
        return False
    return not any("__queue_spec__" in base.__dict__ for base in cls.__mro__)


def _is_mixin(cls: type[Any]) -> bool:
    return "__queue_kind__" in cls.__dict__


def declare(cls: type[Any]) -> None:
    """Give the class the queue's columns; :class:`.ConfigurationError` where it has them taken."""
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
        setattr(cls, name, None)  # a mixin's own mixin declared it, by a name that this class has changed
    cls.__queue_declared__ = frozenset(attributes.values())


def _refuse_options(cls: type[Any], roles: Container[str]) -> None:
    """What the options say has to be about something, and what a mixin needs has to be said."""
    problem = next(filter(None, (kind.problem(cls.__queue__, roles) for kind in Kind.known)), None)
    if problem:
        raise ConfigurationError(f"{cls.__name__} cannot be a queue: {problem}", model=cls)


def place(cls: type[Any], name: str, arguments: dict[str, Any]) -> None:
    """Declare one column, in the way in which the class's kind of model knows its fields."""
    kind = arguments.pop("type_")
    if hasattr(cls, "__sqlmodel_relationships__"):
        column = mapped_column(kind, **arguments).column
        setattr(cls, name, sys.modules["sqlmodel"].Field(default=None, sa_column=column, exclude=True, repr=False))
        _annotate(cls, name, Any)
    elif issubclass(cls, MappedAsDataclass):
        setattr(cls, name, mapped_column(kind, **arguments, **_FIELD))
        _annotate(cls, name, Mapped[Any | None] if arguments.get("nullable") else Mapped[Any])
    else:
        setattr(cls, name, mapped_column(kind, **arguments))


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


# a queue's column is no positional argument of a dataclass, and says nothing unless it is given
_FIELD: dict[str, Any] = {"default_factory": lambda: None, "kw_only": True, "repr": False, "compare": False}


def _refuse_collisions(cls: type[Any], attributes: dict[str, str]) -> None:
    for role, name in attributes.items():
        owner = next((base for base in cls.__mro__ if _defines(base, name)), None)
        if owner is None:
            continue
        fix = dict(cls.__queue__.columns) | {role: f"queue_{role}"}
        raise ConfigurationError(
            f"{cls.__name__}: the queue needs a column {name!r}, but {owner.__name__}.{name} is the model's own."
            f" Give the queue's another name: __queue__ = QueueOptions(columns={fix!r})",
            model=cls,
        )


def _defines(base: type[Any], name: str) -> bool:
    if _is_mixin(base) or name in base.__dict__.get("__queue_declared__", ()):
        return False
    if name in base.__dict__ or name in inspect.get_annotations(base):
        return True
    return any(_column_name(value) == name for value in base.__dict__.values())


def _column_name(value: object) -> str | None:
    """The name in the table that a class attribute was given, if it was given one."""
    column = value.column if isinstance(value, MappedColumn) else value
    return column.name if isinstance(column, Column) else None


def make_spec(mapper: Mapper[Any], cls: type[Any]) -> None:
    """Once the class is mapped: its spec, and the indexes of its table."""
    inherited: QueueSpec | None = next(
        (b.__dict__["__queue_spec__"] for b in cls.__mro__[1:] if "__queue_spec__" in b.__dict__), None
    )
    if inherited is None and "__queue_declared__" not in cls.__dict__:
        return  # its base maps before the mixin hears of it: __init_subclass__ comes back here
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
        problem = "its columns, order, slots and stages are those of the class that it inherits from; give them there"
    elif mapper.inherits is not None and mapper.polymorphic_identity is None and len(mapper.tables) > 1:
        problem = "joined inheritance needs polymorphic_on and a polymorphic_identity to tell the rows apart"
    elif len(mapper.tables) > 1 and cls.__queue__.on_complete == "delete":
        problem = "on_complete='delete' is not supported with joined inheritance; keep the rows and prune them"
    elif mapper.inherits is None and set(mapper.primary_key) != set(mapper.local_table.primary_key):
        problem = "its primary key is not that of its table, by which tasks are told apart"
    if problem:
        raise ConfigurationError(f"{cls.__name__} cannot be a queue: {problem}", model=cls)


def _differs(options: QueueOptions, inherited: QueueOptions) -> bool:
    """Whether they name other columns, another order, other slots or other stages than the table has."""
    columns = options.columns and dict(options.columns) != dict(inherited.columns)
    order = options.order_by and options.order_by is not inherited.order_by
    return bool(columns or order or options.stages != inherited.stages or options.slots is not inherited.slots)


def check(mapper: Mapper[Any], connection: Connection, task: Any) -> None:
    """Refuse values of an instance that is about to be written."""
    check_values(task.__queue_spec__, instance_state(task).dict)


def check_key(mapper: Mapper[Any], connection: Connection, task: Any) -> None:
    """Refuse an instance without a key where the server makes none, before the server does so in its own words."""
    if task.__queue_spec__.unnumbered:
        adapter_for(connection.dialect).inserts.check_keys(task.__queue_spec__, [instance_state(task).dict])


def schedule(mapper: Mapper[Any], connection: Connection, task: Any) -> None:
    """A task with an ``available_at``, its own or from its schedule, and no ``status`` is a scheduled one."""
    spec: QueueSpec = task.__queue_spec__
    status, available_at = spec.attributes["status"], spec.attributes["available_at"]
    if getattr(task, available_at, None) is None and kinds_of(spec):
        first = first_moment(spec, instance_state(task).dict, lambda: connection.execute(select(utcnow())).scalar_one())
        if first is not None:
            setattr(task, available_at, first)
    moment = getattr(task, available_at, None)
    if isinstance(moment, datetime):
        aware(moment)
    if moment is not None and getattr(task, status, None) is None:
        setattr(task, status, Status.SCHEDULED.value)


def first_moment(spec: QueueSpec, values: Mapping[str, Any], now: Callable[[], datetime]) -> datetime | None:
    """When a task with these values, by names of attributes, is first due, if its kinds say so."""
    moments = (kind.moment(spec, values, now) for kind in kinds_of(spec))
    return next((moment for moment in moments if moment is not None), None)
