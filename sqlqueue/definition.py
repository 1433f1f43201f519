"""From a class definition to columns, a spec and its indexes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, String, text
from sqlalchemy.orm import Mapped, MappedAsDataclass, MappedColumn, Mapper, mapped_column

from .clock import aware, utcnow
from .dialects import error_type, json_type, timestamp_type
from .exc import ConfigurationError
from .options import QueueOptions
from .schema import attach_indexes
from .spec import QueueSpec
from .states import Status
from .tracing import LONGEST, present_trace

if TYPE_CHECKING:
    from .mixins import QueueMixin

_MIXINS = f"{__package__}.mixins"
LONGEST_NAME = 200
"""Of a claimer, in characters."""
LONGEST_TASK = 255
"""Of the name of a function, in characters."""

_COLUMNS: dict[str, Callable[[QueueOptions], dict[str, Any]]] = {
    "status": lambda _: {"type_": String(16), "server_default": Status.AVAILABLE.value, "nullable": False},
    "priority": lambda _: {"type_": Integer(), "server_default": text("0"), "nullable": False},
    "available_at": lambda _: _moment(nullable=False),
    "attempt": lambda _: {"type_": Integer(), "server_default": text("0"), "nullable": False},
    "max_attempts": lambda options: {
        "type_": Integer(),
        "server_default": text(str(options.max_attempts)),
        "nullable": False,
    },
    "claimed_by": lambda _: {"type_": String(LONGEST_NAME), "nullable": True},
    "claimed_at": lambda _: {"type_": timestamp_type(), "nullable": True},
    "finished_at": lambda _: {"type_": timestamp_type(), "nullable": True},
    "error": lambda _: {"type_": error_type(), "nullable": True},
    "created_at": lambda _: _moment(nullable=False),
    "trace_context": lambda _: {"type_": String(LONGEST), "insert_default": present_trace, "nullable": True},
    "topic": lambda _: {"type_": String(128), "server_default": "default", "nullable": False},
    "task": lambda _: {"type_": String(LONGEST_TASK), "nullable": False},
    "arguments": lambda _: {"type_": json_type(), "nullable": True},
}
_OPTIONAL = frozenset({"claimed_by", "claimed_at", "finished_at", "error", "trace_context", "arguments"})


def _moment(*, nullable: bool) -> dict[str, Any]:
    # The default of the column serves rows that other programs insert. It is the one spelling that every engine takes,
    # so that a migration can move between them; all that this library writes is utcnow(), exact everywhere.
    return {
        "type_": timestamp_type(),
        "insert_default": utcnow(),
        "server_default": text("(CURRENT_TIMESTAMP)"),
        "nullable": nullable,
    }


def _roles(cls: type[QueueMixin]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(role for base in cls.__mro__ for role in base.__dict__.get("__queue_roles__", ())))


def _attributes(cls: type[QueueMixin]) -> dict[str, str]:
    """role -> name of the attribute, with the model's renames."""
    options = cls.__queue__
    if not isinstance(options, QueueOptions):
        raise ConfigurationError(f"{cls.__name__}.__queue__ must be a QueueOptions, not {options!r}", model=cls)
    roles = _roles(cls)
    unknown = sorted(set(options.columns) - set(roles))
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
    if cls.__module__ == _MIXINS or cls.__dict__.get("__abstract__"):
        return False
    return not any("__queue_spec__" in base.__dict__ for base in cls.__mro__)


def declare(cls: type[QueueMixin]) -> None:
    """Give the class the queue's columns; :class:`.ConfigurationError` where it has them taken."""
    attributes = _attributes(cls)
    _refuse_collisions(cls, attributes)
    existing = None if _is_mapped(cls) else cls.__dict__.get("__table__")
    if existing is not None:
        _refuse_missing(cls, [name for name in attributes.values() if name not in existing.c])
        attributes = {}
    for role, name in attributes.items():
        place(cls, name, _COLUMNS[role](cls.__queue__), optional=role in _OPTIONAL)
    for name in _inherited_declarations(cls) - set(attributes.values()):
        setattr(cls, name, None)  # a mixin's own mixin declared it, by a name that this class has changed
    cls.__queue_declared__ = frozenset(attributes.values())  # type: ignore[attr-defined]


def place(cls: type[Any], name: str, arguments: dict[str, Any], *, optional: bool = False) -> None:
    """Declare one column, in the way in which the class's kind of model knows its fields."""
    kind = arguments.pop("type_")
    if hasattr(cls, "__sqlmodel_relationships__"):
        column = mapped_column(kind, **arguments).column
        setattr(cls, name, sys.modules["sqlmodel"].Field(default=None, sa_column=column, exclude=True, repr=False))
        _annotate(cls, name, Any)
    elif issubclass(cls, MappedAsDataclass):
        setattr(cls, name, mapped_column(kind, **arguments, **_FIELD))
        _annotate(cls, name, Mapped[Any | None] if optional else Mapped[Any])
    else:
        setattr(cls, name, mapped_column(kind, **arguments))


def _annotate(cls: type[Any], name: str, annotation: Any) -> None:
    cls.__annotations__ = {**inspect.get_annotations(cls), name: annotation}


def _inherited_declarations(cls: type[Any]) -> set[str]:
    return {name for base in cls.__mro__[1:] for name in base.__dict__.get("__queue_declared__", ())}


def _is_mapped(cls: type[Any]) -> bool:
    return "__mapper__" in cls.__dict__


def _refuse_missing(cls: type[QueueMixin], missing: list[str]) -> None:
    if missing:
        names = ", ".join(sorted(missing))
        raise ConfigurationError(
            f"{cls.__name__} cannot be a queue: its table has no column {names}; add what the mixin would declare",
            model=cls,
        )


# a queue's column is no positional argument of a dataclass, and says nothing unless it is given
_FIELD: dict[str, Any] = {"default_factory": lambda: None, "kw_only": True, "repr": False, "compare": False}


def _refuse_collisions(cls: type[QueueMixin], attributes: dict[str, str]) -> None:
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
    if base.__module__ == _MIXINS or name in base.__dict__.get("__queue_declared__", ()):
        return False
    if name in base.__dict__ or name in inspect.get_annotations(base):
        return True
    return any(_column_name(value) == name for value in base.__dict__.values())


def _column_name(value: object) -> str | None:
    """The name in the table that a class attribute was given, if it was given one."""
    column = value.column if isinstance(value, MappedColumn) else value
    return column.name if isinstance(column, Column) else None


def make_spec(mapper: Mapper[Any], cls: type[QueueMixin]) -> None:
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
    spec = QueueSpec(
        entity=cls,
        mapper=mapper,
        table=table,
        attributes=attributes,
        columns=columns,
        primary_key=tuple(table.primary_key),
        options=inherited.options if inherited and "__queue__" not in cls.__dict__ else cls.__queue__,
    )
    cls.__queue_spec__ = spec
    if inherited is None:
        attach_indexes(spec)


def _refuse_unsupported(
    mapper: Mapper[Any], cls: type[QueueMixin], missing: list[str], inherited: QueueSpec | None
) -> None:
    problem = None
    if mapper.concrete:
        problem = "concrete table inheritance is not supported: derive each class from QueueMixin without inheriting"
    elif missing:
        _refuse_missing(cls, missing)
    elif inherited is not None and _differs(cls.__queue__, inherited.options):
        problem = "its columns and its order are those of the class that it inherits from; give them there"
    elif mapper.inherits is not None and mapper.polymorphic_identity is None and len(mapper.tables) > 1:
        problem = "joined inheritance needs polymorphic_on and a polymorphic_identity to tell the rows apart"
    elif len(mapper.tables) > 1 and cls.__queue__.on_complete == "delete":
        problem = "on_complete='delete' is not supported with joined inheritance; keep the rows and prune them"
    elif mapper.inherits is None and set(mapper.primary_key) != set(mapper.local_table.primary_key):
        problem = "its primary key is not that of its table, by which tasks are told apart"
    if problem:
        raise ConfigurationError(f"{cls.__name__} cannot be a queue: {problem}", model=cls)


def _differs(options: QueueOptions, inherited: QueueOptions) -> bool:
    """Whether they name other columns, or another order, than the table has."""
    columns = options.columns and dict(options.columns) != dict(inherited.columns)
    return bool(columns or (options.order_by and options.order_by is not inherited.order_by))


def schedule(mapper: Mapper[Any], connection: object, task: QueueMixin) -> None:
    """A task with an ``available_at`` and no ``status`` is a scheduled one."""
    attributes = task.__queue_spec__.attributes
    moment = getattr(task, attributes["available_at"], None)
    if isinstance(moment, datetime):
        aware(moment)
    if moment is not None and getattr(task, attributes["status"], None) is None:
        setattr(task, attributes["status"], Status.SCHEDULED.value)
