"""Turns a class with a mixin into columns, indexes and a spec."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Enum,
    FromClause,
    Index,
    Integer,
    MetaData,
    String,
    and_,
    event,
    text,
)
from sqlalchemy.orm import Mapped, MappedAsDataclass, MappedColumn, Mapper, mapped_column
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.sql.elements import SQLCoreOperations, conv

from .._support import checks
from .._support.checks import check_json
from .._support.errors import ArgumentError, ConfigurationError
from .._support.texts import LONGEST_GROUP
from ..dialects import adapter_for, error_type, index_options, text_type, timestamp_type
from ..lifecycle.kind import Check, ColumnMaker, Kind, KindIndex, kinds_in, kinds_of
from ..queue.options import QueueOptions, Status
from ..queue.schedules import parse
from ..queue.spec import Criterion, QueueSpec, spec_of
from ..sql import aware, is_available, is_due, present, state, utcdefault, utcinsertion

# -- the columns of every queue, by role, and the checks of their values ----------------------------------------------

LONGEST_NAME = 200
"""The maximum length of a claimer's name, in characters."""
LONGEST_KEY = 255
"""The maximum length of a unique key or a limit key, in characters."""
LONGEST_LATCH = 200
"""The maximum length of a latch's key, in characters."""


def counter() -> dict[str, Any]:
    """Return the arguments of a required integer column that starts at 0."""
    return {"type_": Integer(), "server_default": text("0"), "nullable": False}


def option(kind: Any, value: int | str) -> dict[str, Any]:
    """Return the arguments of a required column whose default is an option of the queue.

    Other programs that insert get the server default, as of the last migration.
    """
    default = text(str(value)) if isinstance(value, int) else value
    return {"type_": kind, "insert_default": value, "server_default": default, "nullable": False}


def optional(kind: Any) -> dict[str, Any]:
    """Return the arguments of a nullable column."""
    return {"type_": kind, "nullable": True}


def _moment(_: QueueOptions) -> dict[str, Any]:
    # the server default is for rows that other programs insert; this library always sets the time
    return {
        "type_": timestamp_type(),
        "insert_default": utcinsertion(),
        "server_default": utcdefault(),
        "nullable": False,
    }


COLUMNS: dict[str, ColumnMaker] = {
    "status": lambda _: {"type_": String(16), "server_default": Status.AVAILABLE.value, "nullable": False},
    "priority": lambda _: counter(),
    "available_at": _moment,
    "attempt": lambda _: counter(),
    "max_attempts": lambda options: option(Integer(), options.max_attempts),
    "claimed_by": lambda _: optional(text_type(LONGEST_NAME)),
    "claimed_at": lambda _: optional(timestamp_type()),
    "claim_token": lambda _: {"type_": BigInteger(), "server_default": text("0"), "nullable": False},
    "crashes": lambda _: counter(),
    "finished_at": lambda _: optional(timestamp_type()),
    "error": lambda _: optional(error_type()),
    "error_group": lambda _: optional(text_type(LONGEST_GROUP)),
    "created_at": _moment,
}
"""The columns of every queue, by the names they have unless the model renames them; kinds declare theirs in
:attr:`.Kind.columns`."""


_STATUSES = tuple(status.value for status in Status)


def check_stored_json(name: str, value: object, _: int | None) -> None:
    """Raise :class:`.ArgumentError` for a value that cannot be stored as JSON; a :data:`.Check`."""
    check_json(name, value)


def check_values(spec: QueueSpec, values: Mapping[str, Any]) -> None:
    """Raise :class:`.ArgumentError` for values, by attribute, that some engine cannot store or distinguish from others.

    SQL expressions are not checked.
    """
    for name, check, longest in _checks_of(spec):
        value = values.get(name)
        if value is not None and not isinstance(value, SQLCoreOperations):
            check(name, value, longest)
    for name in spec.key_names if len(spec.key_names) > 1 else ():
        if name in values and values[name] is None:
            raise ArgumentError(f"{name}=None: each part of the primary key of {spec.entity.__name__} is required")


def check_status(spec: QueueSpec, values: Mapping[str, Any]) -> None:
    """Raise :class:`.ArgumentError` for a status, by attribute, that is none: no operation would ever find the task."""
    name = spec.attributes["status"]
    value = values.get(name)
    if value is not None and not isinstance(value, SQLCoreOperations) and value not in _STATUSES:
        raise ArgumentError(
            f"{name}={value!r} is not a status: leave it out for a new task, or give one of {', '.join(_STATUSES)}"
        )


def is_given(moment: object) -> bool:
    """Return whether ``moment`` is a time that somebody chose for ``available_at``, instead of the column's default."""
    return moment is not None and not isinstance(moment, utcinsertion)


@cache
def _checks_of(spec: QueueSpec) -> tuple[tuple[str, Check, int | None], ...]:
    checked: dict[str, Check] = {"claimed_by": checks.text}
    for kind in kinds_of(spec):
        checked |= kind.checks
    return tuple(
        (spec.attributes[role], check, getattr(spec[role].type, "length", None)) for role, check in checked.items()
    )


# -- the indexes of a queue: named explicitly, and each a single object that serves all engines -----------------------


def attach_indexes(spec: QueueSpec) -> None:
    """Add the indexes that claims need to the table of ``spec``.

    Each begins with the columns compared for equality, followed by the claim order: if an engine that locks the rows
    it scans had to sort, it would lock rows that the claim does not return.  The status comes first, so that the keys
    of ready tasks, and due tasks, are found without reading others, where an index has all rows.
    """
    for partition in spec.divisions:
        ready = [term.expression for term in spec.ready_order if term.column not in partition]
        if all(term.column is not spec["available_at"] for term in spec.ready_order):
            ready.append(spec["available_at"])  # so that a claim skips rows with later times without reading the table
        _index(spec, spec.index_name("claim", partition), [spec["status"], *partition, *ready], is_available(spec))
        if partition[1:]:
            continue
        due = [term.expression for term in spec.due_order if term.column not in partition]
        _index(spec, spec.index_name("due", partition), [spec["status"], *partition, *due], is_due(spec))
    # with the key, so that a planner which expects many tasks of a group does not scan the table for the first ones
    failed = list(dict.fromkeys([spec["error_group"], *spec.primary_key]))
    if spec.holds_tasks:
        _index(spec, spec.index_name("errors"), failed, spec["error_group"].is_not(None))
    if spec.options.prunes:
        _index(spec, spec.index_name("finished"), [spec["finished_at"]], spec["finished_at"].is_not(None))
    for index in kind_indexes(spec):
        _index(spec, spec.index_name(index.name), list(index.columns), index.predicate, unique=index.unique)


def kind_indexes(spec: QueueSpec) -> list[KindIndex]:
    """Return the indexes that the queue's kinds add."""
    return [*_sequence_indexes(spec), *(index for kind in kinds_of(spec) for index in kind.indexes(spec))]


def _sequence_indexes(spec: QueueSpec) -> Iterator[KindIndex]:
    """Yield the indexes that find the first unfinished task of each key, tasks without a key that are due, and the
    discarded ones that hold their key."""
    if spec.sequence is None:
        return
    unfinished = spec["finished_at"].is_(None)
    yield KindIndex("order", [term.column for term in spec.sequence_order], unfinished)
    if spec.sequence.nullable:
        columns = [term.column for term in spec.unkeyed_order]
        yield KindIndex("unkeyed", columns, and_(unfinished, spec.sequence.is_(None)))
    if spec.discarded_hold:
        held = dict.fromkeys([spec["status"], spec.sequence, *spec.primary_key])
        yield KindIndex("held", list(held), spec["status"] == state(Status.DISCARDED))


def _index(
    spec: QueueSpec, name: str, columns: Sequence[ColumnElement[object]], predicate: Criterion, *, unique: bool = False
) -> None:
    if all(index.name != name for index in spec.table.indexes):
        Index(conv(name), *columns, unique=unique, **index_options(predicate))


# -- declaration of a model's queue: checks the class, adds its columns, and creates its spec and indexes -------------


def _columns(cls: type[Any]) -> dict[str, ColumnMaker]:
    """Return the columns by role: those of every queue, and those of its kinds."""
    columns = dict(COLUMNS)
    for kind in kinds_in(cls):
        columns |= kind.columns
    return columns


def _refusal(cls: type[Any], problem: str) -> ConfigurationError:
    return ConfigurationError(f"{cls.__name__}: {problem}", model=cls)


def _attributes(cls: type[Any]) -> dict[str, str]:
    """Return the names of the attributes by role, with the model's renames."""
    options = cls.__queue__
    if not isinstance(options, QueueOptions):
        raise ConfigurationError(f"{cls.__name__}.__queue__ must be a QueueOptions, not {options!r}", model=cls)
    roles = _columns(cls)
    unknown = sorted(options.columns.keys() - roles.keys())
    if unknown:
        raise _refusal(
            cls,
            f"QueueOptions(columns=...) renames {', '.join(unknown)}, but the queue's columns are {', '.join(roles)}",
        )
    attributes = {role: options.columns.get(role, role) for role in roles}
    twice = sorted({name for name in attributes.values() if list(attributes.values()).count(name) > 1})
    if twice:
        raise _refusal(cls, f"QueueOptions(columns=...) gives two columns the name {', '.join(twice)}")
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
    existing = None if "__mapper__" in cls.__dict__ else cls.__dict__.get("__table__")
    if existing is not None:
        _refuse_missing(cls, [name for name in attributes.values() if name not in existing.c])
        attributes = {}
    columns = _columns(cls)
    for role, name in attributes.items():
        place(cls, name, columns[role](cls.__queue__))
    inherited = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__queue_declared__", ())}
    for name in inherited - set(attributes.values()):
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


def _refuse_missing(cls: type[Any], missing: list[str]) -> None:
    if missing:
        names = ", ".join(sorted(missing))
        problem = f"its table has no column {names}; add what the mixin would declare"
        raise ConfigurationError(f"{cls.__name__} cannot be a queue: {problem}", model=cls)


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
    raise _refusal(
        cls,
        f"the queue needs {a_column} {needed}, but {own} {is_own} the model's own. Rename the queue's {its_column}:"
        f" __queue__ = QueueOptions(columns={fix!r})",
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
    keys = {option: name for option in ("fair", "sequential") if (name := getattr(cls.__queue__, option)) is not None}
    for option, names in (("partitions", cls.__queue__.partitions), *((each, (name,)) for each, name in keys.items())):
        for name in names:
            column = mapper.columns.get(name)
            if column is None or column.table is not table:
                raise _refusal(cls, f"{option} names {name!r}, which is not a column of {table}: name its attributes")
    changing = {name for role, name in _attributes(cls).items() if role in COLUMNS.keys() - {"priority", "created_at"}}
    for option, name in keys.items():
        if name in changing:
            raise _refusal(cls, f"{option} names {name!r}, which claims write to: name a column of the model's own")
        kind = mapper.columns[name].type
        if not kind.hashable or (isinstance(kind, Enum) and kind.native_enum):
            problem = f"whose type {kind!r} does not have one order on every engine: use a number, a string or a UUID"
            raise _refusal(cls, f"{option} names {name!r}, {problem}")
    if "sequential" in keys:
        numbers = [column for column in table.primary_key if column is not mapper.columns[keys["sequential"]]]
        if len(numbers) != 1 or not isinstance(numbers[0].type, Integer):
            raise _refusal(
                cls,
                "sequential= orders tasks by their primary key, which must ascend: let it be one integer that the"
                " server generates, besides the column that sequential= names",
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
        problem = "it inherits its columns, order, keys, slots and stages; set them on the base class"
    elif _has_keys(cls.__queue__) and not {"message_key", "slot_key"}.isdisjoint(_attributes(cls)):
        option = "sequential" if cls.__queue__.fair is None else "fair"
        problem = f"{option}= is not for OutboxMixin and SlotMixin, whose claims have rules of their own"
    elif cls.__queue__.sequential is not None and "limit_key" in _attributes(cls):
        problem = "sequential= is not for LimitMixin, whose claims have rules of their own"
    elif cls.__queue__.fair not in (None, key := _attributes(cls).get("limit_key", cls.__queue__.fair)):
        problem = f"a queue has one key: with LimitMixin, give fair={key!r}"
    elif mapper.inherits is not None and mapper.polymorphic_identity is None and len(mapper.tables) > 1:
        problem = "joined inheritance needs polymorphic_on and a polymorphic_identity to tell the rows apart"
    elif len(mapper.tables) > 1 and cls.__queue__.on_complete == "delete":
        problem = "on_complete='delete' is not supported with joined inheritance; keep the rows and prune them"
    elif mapper.inherits is None and set(mapper.primary_key) != set(mapper.local_table.primary_key):
        problem = "its primary key differs from its table's, which identifies the tasks"
    if problem:
        raise ConfigurationError(f"{cls.__name__} cannot be a queue: {problem}", model=cls)


def _differs(options: QueueOptions, inherited: QueueOptions) -> bool:
    """Return whether ``options`` change columns, order, keys, slots or stages, which the table fixes."""
    columns = options.columns and dict(options.columns) != dict(inherited.columns)
    order = options.order_by and options.order_by is not inherited.order_by
    kept = all(
        getattr(options, name) == getattr(inherited, name)
        for name in ("stages", "slots", "fair", "sequential", "continue_on_discarded")
    )
    return bool(columns or order or not kept)


def _has_keys(options: QueueOptions) -> bool:
    return options.fair is not None or options.sequential is not None


def check(mapper: Mapper[Any], connection: Connection, task: Any) -> None:
    """Raise :class:`.ArgumentError` for values that cannot be stored; called before an insert or update."""
    spec, state = task.__queue_spec__, instance_state(task)
    check_values(spec, state.dict)
    if not state.persistent or spec.attributes["status"] in state.committed_state:  # another program may have stored it
        check_status(spec, state.dict)


def check_key(mapper: Mapper[Any], connection: Connection, task: Any) -> None:
    """Raise an error with the fix for a task without a key if the server generates none; called before an insert."""
    if task.__queue_spec__.unnumbered:
        adapter_for(connection.dialect).rows.check_keys(task.__queue_spec__, [instance_state(task).dict])


def schedule(mapper: Mapper[Any], connection: Connection, task: Any) -> None:
    """Schedule a task that has an ``available_at``, given or from its schedule; called before an insert."""
    spec: QueueSpec = task.__queue_spec__
    values = instance_state(task).dict  # of a row that was rolled back, expired attributes cannot be loaded
    status, available_at = spec.attributes["status"], spec.attributes["available_at"]
    if values.get(available_at) is None and spec.recurs:
        first = first_moment(spec, values, lambda: _now(task, spec))
        if first is not None:
            setattr(task, available_at, first)
    moment = values.get(available_at)
    if isinstance(moment, datetime):
        aware(moment)
    if is_given(moment) and values.get(status) is None:
        setattr(task, status, Status.SCHEDULED.value)


def _now(task: Any, spec: QueueSpec) -> datetime:
    session = instance_state(task).session
    assert session is not None  # it is being flushed
    return present(session, spec)


def first_moment(spec: QueueSpec, values: Mapping[str, Any], now: Callable[[], datetime]) -> datetime | None:
    """Return the time from which a task with these ``values``, by attribute, is first due, if it has a schedule."""
    schedule = values.get(spec.attributes["schedule"]) if spec.recurs else None
    return None if schedule is None else parse(schedule).after(now())


# -- the mixin that turns a model into a queue; the mixins of all kinds derive from it --------------------------------


class QueueMixin:
    """A mixin that turns a model into a queue, whose rows are the tasks.

    Each class that maps a table gets the columns below and three indexes; ``__queue__`` takes :class:`.QueueOptions`.
    The class definition raises :class:`.ConfigurationError` for a model that cannot be a queue.
    """

    __queue__: ClassVar[QueueOptions] = QueueOptions()
    """The model's options."""
    __queue_kind__: ClassVar[Kind | None] = None
    """What a mixin adds to the queue; defined only in the namespaces of this package's mixins."""
    __queue_spec__: ClassVar[QueueSpec]

    if TYPE_CHECKING:
        status: Mapped[str]
        """The task's :class:`.Status`."""
        priority: Mapped[int]
        """The priority; smaller numbers come first."""
        available_at: Mapped[datetime]
        """The time from which the row may be claimed (again); for final rows, the time when they became final."""
        attempt: Mapped[int]
        """How many times the row has been claimed.  Never decreases."""
        max_attempts: Mapped[int]
        """The value of ``attempt`` at which the row is no longer claimed."""
        claimed_by: Mapped[str | None]
        """The name of the last claimer."""
        claimed_at: Mapped[datetime | None]
        """The time of the last claim."""
        claim_token: Mapped[int]
        """The random number of the last claim with a lease, by which settling recognizes the claim; negative if a
        worker made it."""
        crashes: Mapped[int]
        """How many worker processes have crashed while running the task; reset to 0 when an attempt ends."""
        finished_at: Mapped[datetime | None]
        """The time when the row became final; ``None`` in final rows from before the table became a queue."""
        error: Mapped[str | None]
        """The text of the last failure."""
        error_group: Mapped[str | None]
        """The fingerprint of ``error``, the same for texts that differ only in numbers, addresses, quoted text and the
        like, see :class:`.ErrorGroup`; ``None`` if another program has stored the error."""
        created_at: Mapped[datetime]
        """The time of the insert."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if declares_columns(cls):
            declare(cls)
        super().__init_subclass__(**kwargs)
        mapper = cls.__dict__.get("__mapper__")
        if mapper is not None and "__queue_spec__" not in cls.__dict__:
            make_spec(mapper, cls)


Target: TypeAlias = Any
"""A declarative base or any object with a ``metadata``, a ``MetaData``, or a single queue model."""


def queues(metadata: MetaData) -> list[QueueSpec]:
    """Return the queues whose tables are in ``metadata``, sorted by table; subclasses follow their base class."""
    found = (cls.__dict__.get("__queue_spec__") for cls in subclasses(QueueMixin))
    specs = [spec for spec in found if spec is not None and spec.table.metadata is metadata]
    return sorted(specs, key=lambda spec: spec.table.key)


def specs_of(target: Target) -> list[QueueSpec]:
    """Return the queues of ``target``, one for each table.  Raises :class:`.ArgumentError` if there is none."""
    if isinstance(target, type) and "__mapper__" in target.__dict__:
        return [spec_of(target)]
    metadata = target if isinstance(target, MetaData) else getattr(target, "metadata", None)
    if not isinstance(metadata, MetaData):
        kind = type(target).__name__
        raise ArgumentError(f"this object ({kind}) is not a queue model, a declarative base or a MetaData")
    by_table: dict[Any, QueueSpec] = {}
    for spec in queues(metadata):  # subclasses come after the class whose table they share
        by_table.setdefault(spec.table, spec)
    if not by_table:
        raise ArgumentError(
            f"there is no queue in {getattr(target, '__name__', target)}: derive a model from sqlqueue.QueueMixin, and"
            " import its module before this call"
        )
    return list(by_table.values())


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    """Return all direct and indirect subclasses, each once, bases first."""
    level = cls.__subclasses__()
    seen: dict[type[Any], None] = {}
    while level:
        seen.update(dict.fromkeys(level))
        level = [each for base in level for each in base.__subclasses__() if each not in seen]
    return iter(seen)


event.listen(QueueMixin, "after_mapper_constructed", make_spec, propagate=True)
event.listen(QueueMixin, "before_insert", check, propagate=True)
event.listen(QueueMixin, "before_insert", check_key, propagate=True)
event.listen(QueueMixin, "before_insert", schedule, propagate=True)
event.listen(QueueMixin, "before_update", check, propagate=True)


T = TypeVar("T", bound=QueueMixin)
