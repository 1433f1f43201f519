"""What a kind of queue adds to a task's life, and the reasons for which a task does not run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from sqlalchemy import Column, ColumnElement
from sqlalchemy.orm import Session

from .._support.errors import Claim
from .._support.texts import key_text
from ..dialects.base import Adapter
from ..queue.options import QueueOptions, Status
from ..queue.spec import Criterion, Identity, QueueSpec, Where
from ..sql.rows import Assignment, UniqueBy
from .fence import Fence, FencedClaims

# -- the reasons why a task is not running, as values -----------------------------------------------------------------


class Cause(StrEnum):
    """What keeps a task from being claimed, or the state in which it needs no claim."""

    MISSING = "missing"
    """There is no such row, as far as this transaction can see."""
    FINISHED = "finished"
    """It is completed, cancelled or discarded."""
    RUNNING = "running"
    """A claim holds it until its lease expires."""
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
    PAUSED = "paused"
    """Its queue or its topic is paused."""
    UNSERVED = "unserved"
    """No live worker serves its queue, or has registered its function; detected only if workers are registered."""
    SUSPECT = "suspect"
    """It may have crashed a worker process: a worker does not run it alongside other tasks, see ``max_crashes``."""
    LIMIT = "limit"
    """The maximum number of tasks with its ``limit_key`` are running."""
    KEY_ORDER = "key-order"
    """Other tasks with the same key come first."""
    UNCOMMITTED = "uncommitted"
    """Only the calling transaction sees the row, which it has inserted."""
    LOCKED = "locked"
    """A transaction that has not ended holds the lock of its row."""
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


class Take(Protocol):
    """Claims at most ``limit`` tasks by criteria.  ``named``: the criteria select rows by primary key."""

    def __call__(self, where: Sequence[Where], limit: int, *, named: bool = False) -> list[tuple[Any, Claim]]: ...

    @property
    def is_over(self) -> bool:
        """Whether to take no more, because the claim has met rows that cannot be read for long enough."""
        ...


class ClaimTogether(Protocol):
    """Claims tasks in claim order, each together with another row that it needs."""

    def claim(self, where: Sequence[Where], order: Sequence[Any], limit: int) -> list[Any]:
        """Claim up to ``limit`` tasks that satisfy ``where``; return them in claim order."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """What one mixin adds to a queue.  A method that is not overridden adds nothing.

    A kind assigns to its own columns only: see :mod:`.transitions` for the order in which assignments are evaluated.
    """

    known: ClassVar[list[Kind]] = []
    """All kinds: a model's options may need a kind that the model does not derive from."""

    columns: Mapping[str, ColumnMaker]
    """Maps column roles to the arguments of their columns."""
    checks: Mapping[str, Check] = field(default_factory=dict)
    """Maps column roles to checks of the values to be stored."""
    untouched: Collection[str] = ()
    """Roles of columns that settling never writes."""
    untold: Collection[str] = ()
    """Roles of columns that a declaration of tasks must not set, because the queue does."""
    partition: Partition | None = None
    """The kind's partition column, if it has one."""
    placed_by: str | None = None
    """The role of the column that :meth:`placed` assigns when a row is reactivated."""
    recurs: bool = False
    """Whether tasks may have a next run after their last attempt."""
    keeps_results: bool = False
    """Whether the queue stores the results of tasks."""
    holds_slots: bool = False
    """Whether a running task holds a row of another queue, which the transaction that settles it must see."""
    isolates_suspects: bool = True
    """Whether workers run tasks that may have crashed a process separately from others."""
    holds_tasks: bool = True
    """Whether its rows are tasks for operators to manage, instead of rows claimed together with tasks."""

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

    def unique_by(self, spec: QueueSpec) -> UniqueBy | None:
        """Return the unique key, besides the primary key, that an insert may conflict on."""
        return None

    # -- inserts -------------------------------------------------------------------------------------------------------

    def normalize(self, spec: QueueSpec, row: dict[str, Any]) -> None:
        """Convert values of a row, keyed by attribute name, to the form in which they are stored."""

    def moment(self, spec: QueueSpec, values: Mapping[str, Any], now: Callable[[], datetime]) -> datetime | None:
        """Return when a row with these values, keyed by attribute name, is first due; ``None`` if the values do not
        determine it."""
        return None

    # -- assignments ---------------------------------------------------------------------------------------------------

    def claimed(self, spec: QueueSpec) -> list[Assignment]:
        """Return the assignments of a claim."""
        return []

    def ended(self, spec: QueueSpec, final: Criterion | None) -> list[Assignment]:
        """Return the assignments to tasks that become final: to all, or to those that satisfy ``final``."""
        return []

    def goes_on(self, spec: QueueSpec, status: Status, stage: str | None) -> Criterion | None:
        """Return the criterion of tasks that continue, in ``stage`` if given, instead of becoming final."""
        return None

    def moved(self, fence: Fence, lives: Criterion, stage: str | None, *, failed: bool) -> list[Assignment]:
        """Return the assignments to tasks that continue, which satisfy ``lives``."""
        return []

    def rerun(self, fence: Fence, again: Criterion) -> list[Assignment]:
        """Return the assignments to tasks that failed or were released, and were enqueued ``again`` while they ran."""
        return []

    def revived(self, spec: QueueSpec) -> list[Assignment]:
        """Return the assignments that restore what a task lost when it became final."""
        return []

    def redriven(self, spec: QueueSpec) -> list[Assignment]:
        """Return the additional assignments of a retry by an operator."""
        return []

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        """Return the assignments to an existing row that an insert reactivates, unless it is ``running``.

        Columns that the insert itself sets are left out afterwards.
        """
        return []

    def placed(
        self, spec: QueueSpec, names: Container[str], proposed: Proposed, kept: Criterion | None
    ) -> list[Assignment]:
        """Return the assignments that set where a row starts when an insert of columns ``names`` reactivates it.

        Rows that satisfy ``kept`` stay where they are.
        """
        return []

    def overwritten(self, spec: QueueSpec, values: dict[Column[Any], Any]) -> None:
        """Guard ``values`` about to be written to existing rows that may not accept them in their current state."""

    # -- criteria ------------------------------------------------------------------------------------------------------

    def earlier_attempts(self, spec: QueueSpec) -> Column[int] | None:
        """Return the column with the number of attempts before the current stage or run."""
        return None

    def unplanned(self, spec: QueueSpec) -> Criterion | None:
        """Return the criterion of tasks whose status is ``available`` although they cannot be claimed yet."""
        return None

    # -- operations ----------------------------------------------------------------------------------------------------

    def skip(self, fenced: FencedClaims, tasks: Sequence[Any]) -> set[Identity]:
        """Postpone tasks that have just been claimed but must not run now; return their primary keys."""
        return set()

    def claim_together(
        self, adapter: Adapter, session: Session, spec: QueueSpec, take: Take, lease: timedelta | None
    ) -> ClaimTogether | None:
        """Return an object that claims tasks, with ``take``, together with their slots; ``None`` if they need no
        slots."""
        return None

    def renew(
        self, fenced: FencedClaims, kept: Sequence[Assignment], *, spent: bool
    ) -> tuple[set[Identity], FencedClaims]:
        """Schedule the next runs of claimed tasks, and also write ``kept``.

        If ``spent``, schedule only tasks without attempts left.  Return the primary keys of claims that still hold
        their rows, and the claims that remain to be settled.
        """
        return set(), fenced

    def settled(self, adapter: Adapter, session: Session, spec: QueueSpec, claims: Sequence[Claim]) -> None:
        """Clean up after claims have been settled."""

    def extend(self, fenced: FencedClaims, lease: timedelta) -> set[Identity]:
        """Extend the leases of other rows that the claims hold; return the primary keys of claims that lost theirs."""
        return set()

    def announces(self, spec: QueueSpec, how: str) -> bool:
        """Return whether settling tasks in this way can make other tasks claimable."""
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


@cache
def recurs(spec: QueueSpec) -> bool:
    """Return whether tasks of the queue can have a next run."""
    return any(kind.recurs for kind in kinds_of(spec))


@cache
def keeps_results(spec: QueueSpec) -> bool:
    """Return whether the queue stores the results of its tasks."""
    return any(kind.keeps_results for kind in kinds_of(spec))


@cache
def holding_slots(spec: QueueSpec) -> Kind | None:
    """Return the kind whose running tasks hold slots, or ``None``."""
    return next((kind for kind in kinds_of(spec) if kind.holds_slots), None)


@cache
def isolates_suspects(spec: QueueSpec) -> bool:
    """Return whether workers isolate suspects of the queue, see :attr:`Kind.isolates_suspects`."""
    return all(kind.isolates_suspects for kind in kinds_of(spec))


def holds_tasks(spec: QueueSpec) -> bool:
    """Return whether the queue's rows are tasks, see :attr:`Kind.holds_tasks`."""
    return all(kind.holds_tasks for kind in kinds_of(spec))


@cache
def other_keys(spec: QueueSpec) -> tuple[UniqueBy, ...]:
    """Return the unique keys, besides the primary key, that an insert may conflict on."""
    ways = (kind.unique_by(spec) for kind in kinds_of(spec))
    return tuple(way for way in ways if way is not None)


def renewed(
    fenced: FencedClaims, kept: Sequence[Assignment], *, spent: bool = False
) -> tuple[set[Identity], FencedClaims]:
    """Call :meth:`.Kind.renew` of all kinds."""
    held = set[Identity]()
    for kind in kinds_of(fenced.spec):
        still, fenced = kind.renew(fenced, kept, spent=spent)
        held |= still
    return held, fenced
