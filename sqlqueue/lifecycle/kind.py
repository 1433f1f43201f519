"""What a kind of queue adds to a task's life, and the reasons for which a task does not run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from .._support.texts import key_text
from ..dialects.base import Adapter
from ..queue.options import AttemptOutcome, QueueOptions
from ..queue.spec import Criterion, Identity, QueueSpec
from ..sql import Assignment

# -- the reasons why a task is not running, as values -----------------------------------------------------------------


class Cause(StrEnum):
    """What keeps a task from being claimed, or the state in which it needs no claim."""

    MISSING = "missing"
    """There is no such row, as far as this transaction can see."""
    FINISHED = "finished"
    """It is completed, cancelled or discarded."""
    RUNNING = "running"
    """A claim holds it until its lease expires."""
    SILENT = "silent"
    """The worker that holds it has not reported for 35 seconds; detected only if workers are registered."""
    STALLED = "stalled"
    """The event loop of the worker that holds it stands still; detected only if workers are registered."""
    LEASE_EXPIRED = "lease-expired"
    """Its worker let the lease expire: the next claim takes the task over."""
    UNREADABLE = "unreadable"
    """One of the queue's own columns has a value that cannot be read."""
    UNKNOWN_STATUS = "unknown-status"
    """Its status is none of the states, so no claim finds it."""
    EXHAUSTED = "exhausted"
    """Its last attempt has ended without a result: ``rescue``, which every worker calls, discards it."""
    NOT_DUE = "not-due"
    """It cannot be claimed before a time in the future."""
    EXPIRED = "expired"
    """It was not started in time: the next claim that finds it cancels it."""
    WAITS = "waits"
    """It waits for other tasks to end."""
    PAUSED = "paused"
    """Its queue or its topic is paused."""
    UNSERVED = "unserved"
    """No live worker serves its queue, or has registered its function; detected only if workers are registered."""
    SUSPECT = "suspect"
    """It may have crashed a worker process: a worker does not run it alongside other tasks, see ``max_crashes``."""
    LIMIT = "limit"
    """The maximum number of tasks with its ``limit_key`` are running."""
    RATE = "rate"
    """The maximum number of tasks with its ``limit_key`` have started within the time of their rate."""
    KEY_ORDER = "key-order"
    """Other tasks with the same key come first."""
    KEY_HELD = "key-held"
    """An earlier task with the same key was discarded, and holds its key: see ``QueueOptions(sequential=...)``."""
    UNCOMMITTED = "uncommitted"
    """Only the calling transaction sees the row, which it has inserted."""
    LOCKED = "locked"
    """A transaction that has not ended holds the lock of its row."""
    SHARE = "share"
    """Tasks of other keys have their turns, as ``QueueOptions(fair=...)`` says; ``ahead`` counts those of its key."""
    ORDER = "order"
    """Other tasks come first."""
    READY = "ready"
    """Nothing prevents it from running: the next claim takes it."""


class Holder(NamedTuple):
    """A running task that keeps another one waiting."""

    identity: Identity
    """Its primary key."""
    worker: str | None
    """The name stored in ``claimed_by``."""
    since: datetime | None
    """When it was claimed."""

    def __str__(self) -> str:
        return f"{key_text(self.identity)} on {self.worker}" if self.worker else key_text(self.identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason why a task is not running."""

    cause: Cause
    """The kind of reason."""
    text: str
    """The reason in a sentence, without the final period."""
    since: datetime | None = None
    """When it began, if that is known."""
    until: datetime | None = None
    """When it will end without intervention, if that is known."""
    by: str | None = None
    """The worker, person or transaction behind it."""
    holders: tuple[Holder, ...] = ()
    """The tasks that run instead, in the order of their claims; 20 at most."""
    ahead: int | None = None
    """How many tasks come first, counted up to 1,000."""
    estimate: timedelta | None = None
    """How long the tasks that come first will take, at the rate of the last minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTask:
    """The row of a task, as it was read."""

    spec: QueueSpec
    identity: Identity
    columns: Mapping[ColumnElement[Any], Any]
    """The values of the columns of the queue, of its primary key and of its order."""
    now: datetime
    """The time of the database."""
    scope: tuple[Criterion, ...] = ()
    """The session's own criteria, which tasks to be named satisfy as well."""

    @property
    def values(self) -> dict[str, Any]:
        """The values of the queue's columns, by role."""
        return {role: self.columns[column] for role, column in self.spec.columns.items()}


def moment_text(moment: datetime) -> str:
    """Return a time in UTC, to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


# -- kinds of queues: what a mixin adds to a queue, declared in one place and used by all code that handles rows ------

ColumnMaker: TypeAlias = Callable[[QueueOptions], dict[str, Any]]
"""Returns the arguments of ``mapped_column``."""
Check: TypeAlias = Callable[[str, object, int | None], object]
"""Rejects a value that cannot be stored; takes the name, the value and the length of the column."""
Proposed: TypeAlias = Callable[[str], ColumnElement[Any]]
"""Returns the value that an insert gives for a column, by name, to use when it conflicts with an existing row."""


class Partition(NamedTuple):
    """A column that divides a queue, and its relative width.

    The index of a claim starts with the narrowest partition column that the claim's criteria fix.
    """

    role: str
    width: int


class KindIndex(NamedTuple):
    """An index that the kind requires."""

    name: str
    columns: Sequence[ColumnElement[Any]]
    predicate: Criterion
    unique: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """What one mixin adds to a queue, as far as more than one mixin adds it.  A method that is not overridden adds
    nothing.

    A kind assigns to its own columns only: see :mod:`.transitions` for the order in which assignments are evaluated.
    What a single mixin adds, such as the slots of a limit, is asked for by name: ``if spec.is_limited``.
    """

    known: ClassVar[list[Kind]] = []
    """All kinds: a model's options may need a kind that the model does not derive from."""

    columns: Mapping[str, ColumnMaker]
    """Maps column roles to the arguments of their columns."""
    checks: Mapping[str, Check] = field(default_factory=dict)
    """Maps column roles to checks of the values to be stored."""
    untouched: Collection[str] = ()
    """Roles of columns that settling never writes."""
    written_by_queue: Collection[str] = ()
    """Roles of columns that a declaration of tasks must not set, because the queue does."""
    partition: Partition | None = None
    """The kind's partition column, if it has one."""

    def __post_init__(self) -> None:
        self.known.append(self)

    # -- declaration ---------------------------------------------------------------------------------------------------

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        """Return what is wrong with the options of a model with these column roles, or ``None``.

        Also called for models that are not of this kind.
        """
        return None

    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        """Return the indexes that the table needs besides those of every queue."""
        return ()

    def mapped(self, spec: QueueSpec) -> None:
        """Finish the setup; called when the class with the kind's columns is mapped and has its indexes."""

    # -- assignments ---------------------------------------------------------------------------------------------------

    def redriven(self, spec: QueueSpec) -> list[Assignment]:
        """Return the additional assignments of a retry by an operator."""
        return []

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        """Return the assignments to an existing row that an insert reactivates, unless it is ``running``.

        Columns that the insert itself sets are left out afterwards.
        """
        return []

    # -- operations ----------------------------------------------------------------------------------------------------

    def announces(self, spec: QueueSpec, outcome: AttemptOutcome) -> bool:
        """Return whether settling tasks with this outcome can make other tasks claimable."""
        return False

    def hindrances(self, adapter: Adapter, session: Session, seen: SeenTask) -> Iterable[Reason]:
        """Yield this kind's reasons why an otherwise claimable task cannot be claimed."""
        return ()

    def continues(self, spec: QueueSpec) -> bool:
        """Return whether completing a task does more than change its own row to a final state."""
        return False


@cache
def kinds_of(spec: QueueSpec) -> tuple[Kind, ...]:
    """Return the kinds of a queue, in the order in which its model lists their mixins."""
    return tuple(kind for kind in kinds_in(spec.entity) if spec.columns.keys() >= kind.columns.keys())


def kinds_in(cls: type[Any]) -> tuple[Kind, ...]:
    """Return the kinds of a class's mixins, in the order of its bases."""
    found: Iterator[Kind | None] = (base.__dict__.get("__queue_kind__") for base in cls.__mro__)
    return tuple(dict.fromkeys(kind for kind in found if kind is not None))


def assigned(assignments: Iterable[Iterable[Assignment]]) -> list[Assignment]:
    """Return the assignments of several kinds in one list."""
    return [assignment for some in assignments for assignment in some]
