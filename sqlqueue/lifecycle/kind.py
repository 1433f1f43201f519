"""Kinds of queues: what a mixin adds to a queue, told in one place and asked for by all that handles rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from sqlalchemy import Column, ColumnElement
from sqlalchemy.orm import Session

from .._support.claim import Claim
from ..dialects.base import Adapter
from ..queue.options import QueueOptions
from ..queue.spec import Criterion, Identity, QueueSpec, Where
from ..queue.status import Status
from ..sql.selection import Assignment, UniqueBy
from .fenced import Fenced
from .held import Held

ColumnMaker: TypeAlias = Callable[[QueueOptions], dict[str, Any]]
"""Gives the arguments of ``mapped_column``."""
Check: TypeAlias = Callable[[str, object, int | None], object]
"""Refuses a value that cannot be stored: given its name, the value and the length of the column."""
Proposed: TypeAlias = Callable[[str], ColumnElement[Any]]
"""What an insert gives for a column, by name, in the statement that meets an existing row."""


class Partition(NamedTuple):
    """A column that divides a queue, and how widely: the index of a claim starts with the narrowest that it fixes."""

    role: str
    width: int


class KindIndex(NamedTuple):
    """An index that the queue cannot be without."""

    name: str
    columns: Sequence[ColumnElement[Any]]
    predicate: Criterion
    unique: bool = False


class Take(Protocol):
    """Claims tasks by criteria, at most ``limit``.  ``named``: the criteria name rows by primary key."""

    def __call__(self, where: Sequence[Where], limit: int, *, named: bool = False) -> list[tuple[Any, Claim]]: ...


class ClaimTogether(Protocol):
    """Claims tasks in claim order, each with something else that it needs."""

    def claim(self, where: Sequence[Where], order: Sequence[Any], limit: int) -> list[Any]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """What one mixin adds to a queue.  A method that is not overridden adds nothing.

    Assignments of a kind are to its own columns: see :mod:`.transitions` for the order in which they are evaluated.
    """

    known: ClassVar[list[Kind]] = []
    """All of them: what a model's options ask for may be of a kind that it does not derive from."""

    columns: Mapping[str, ColumnMaker]
    """role -> column"""
    checks: Mapping[str, Check] = field(default_factory=dict)
    """role -> check of what is to be stored"""
    untouched: Collection[str] = ()
    """Roles of columns that settling never writes."""
    untold: Collection[str] = ()
    """Roles of columns that a declaration of tasks leaves to the queue."""
    partition: Partition | None = None
    placed_by: str | None = None
    """The role of the column that :meth:`placed` assigns where a row gets a new life."""
    recurs: bool = False
    """Whether tasks may have a next run after their last attempt."""
    keeps_results: bool = False
    holds_slots: bool = False
    """Whether a running task holds a row of another queue, which has to be visible to who settles it."""
    holds_tasks: bool = True
    """Whether its rows are tasks, which people look after, and are not claimed alongside others."""

    def __post_init__(self) -> None:
        self.known.append(self)

    # -- declaration ---------------------------------------------------------------------------------------------------

    def problem(self, options: QueueOptions, roles: Container[str]) -> str | None:
        """What is wrong with the options of a model with these ``roles``, which may be of another kind."""
        return None

    def indexes(self, spec: QueueSpec) -> Iterable[KindIndex]:
        """What the table needs besides the indexes of every queue."""
        return ()

    def mapped(self, spec: QueueSpec) -> None:
        """Called once the class that brings the columns is mapped, and has its indexes."""

    def unique_by(self, spec: QueueSpec) -> UniqueBy | None:
        """By what an insert may meet a row, besides the primary key; always the same object."""
        return None

    # -- inserts -------------------------------------------------------------------------------------------------------

    def normalize(self, spec: QueueSpec, row: dict[str, Any]) -> None:
        """Bring values of a row, by names of attributes, into the form in which they are stored."""

    def moment(self, spec: QueueSpec, values: Mapping[str, Any], now: Callable[[], datetime]) -> datetime | None:
        """When a row with these values, by names of attributes, is first due, if it says so."""
        return None

    # -- assignments ---------------------------------------------------------------------------------------------------

    def claimed(self, spec: QueueSpec) -> list[Assignment]:
        """What a claim writes."""
        return []

    def ended(self, spec: QueueSpec, final: Criterion | None) -> list[Assignment]:
        """What is written to tasks that become final: to all, or to those that satisfy ``final``."""
        return []

    def goes_on(self, spec: QueueSpec, status: Status, stage: str | None) -> Criterion | None:
        """What holds for tasks that go on to something else, to ``stage`` if given, where they would become final."""
        return None

    def moved(self, held: Held, lives: Criterion, stage: str | None, *, failed: bool) -> list[Assignment]:
        """What is written to tasks that go on: to those that satisfy ``lives``."""
        return []

    def begun_anew(self, held: Held, again: Criterion) -> list[Assignment]:
        """What is written to tasks that have failed, or are handed back, and have been enqueued ``again`` meanwhile."""
        return []

    def revived(self, spec: QueueSpec) -> list[Assignment]:
        """What gives a final task back what it has given up."""
        return []

    def redriven(self, spec: QueueSpec) -> list[Assignment]:
        """What a redrive writes besides."""
        return []

    def restarted(self, spec: QueueSpec, running: Criterion) -> list[Assignment]:
        """What a row is given that an insert meets, unless it is ``running``, or the insert itself gives it."""
        return []

    def placed(
        self, spec: QueueSpec, names: Container[str], proposed: Proposed, kept: Criterion | None
    ) -> list[Assignment]:
        """Where a row begins that an insert of columns ``names`` meets, but for those that are ``kept`` as they are."""
        return []

    def overwritten(self, spec: QueueSpec, values: dict[Column[Any], Any]) -> None:
        """Guard columns of existing rows that are about to be given ``values`` and may not have them now."""

    # -- criteria ------------------------------------------------------------------------------------------------------

    def earlier_attempts(self, spec: QueueSpec) -> Column[int] | None:
        """How many attempts of a task were made before its present stage or run."""
        return None

    def unplanned(self, spec: QueueSpec) -> Criterion | None:
        """What holds for tasks that are available by their status and not to be claimed yet."""
        return None

    # -- operations ----------------------------------------------------------------------------------------------------

    def skip(self, fenced: Fenced, tasks: Sequence[Any]) -> set[Identity]:
        """Put off tasks that have just been claimed and are not to be handled now; returns which."""
        return set()

    def claim_together(
        self, adapter: Adapter, session: Session, spec: QueueSpec, take: Take, lease: timedelta | None
    ) -> ClaimTogether | None:
        """What claims tasks, by ``take``, together with the slots that they hold."""
        return None

    def renew(self, fenced: Fenced, kept: Sequence[Assignment], *, spent: bool) -> tuple[set[Identity], Fenced]:
        """Schedule the next runs of claimed tasks, with ``kept`` written too; if ``spent``, of those without attempts.

        Returns which claims still hold their rows, and those of them of which something else is to become.
        """
        return set(), fenced

    def settled(self, adapter: Adapter, session: Session, spec: QueueSpec, claims: Sequence[Claim]) -> None:
        """Called once claims are settled."""

    def extend(self, fenced: Fenced, lease: timedelta) -> set[Identity]:
        """Extend what else the claims hold by leases; returns which have lost that."""
        return set()

    def end_running(
        self, adapter: Adapter, session: Session, spec: QueueSpec, chosen: Criterion, values: Sequence[Assignment]
    ) -> int:
        """Write ``values``, which end them, to running tasks that are ``chosen``; returns how many.

        Asked of kinds that hold slots.
        """
        return 0

    def announces(self, spec: QueueSpec, how: str) -> bool:
        """Whether tasks can be claimed, once others are settled in this way, that could not be claimed before."""
        return False

    def continues(self, spec: QueueSpec) -> bool:
        """Whether completion of a task is more than a change of its own row to a final one."""
        return False


@cache
def kinds_of(spec: QueueSpec) -> tuple[Kind, ...]:
    """The kinds of a queue, in the order in which its model lists their mixins."""
    return tuple(kind for kind in kinds_in(spec.entity) if spec.columns.keys() >= kind.columns.keys())


def kinds_in(cls: type[Any]) -> tuple[Kind, ...]:
    found: Iterator[Kind | None] = (base.__dict__.get("__queue_kind__") for base in cls.__mro__)
    return tuple(dict.fromkeys(kind for kind in found if kind is not None))


def assigned(assignments: Iterable[Iterable[Assignment]]) -> list[Assignment]:
    return [assignment for some in assignments for assignment in some]


def recurs(spec: QueueSpec) -> bool:
    """Whether tasks of the queue may have a next run."""
    return any(kind.recurs for kind in kinds_of(spec))


def keeps_results(spec: QueueSpec) -> bool:
    return any(kind.keeps_results for kind in kinds_of(spec))


def holding_slots(spec: QueueSpec) -> Kind | None:
    """The kind by which a running task of the queue holds a slot, if there is one."""
    return next((kind for kind in kinds_of(spec) if kind.holds_slots), None)


def holds_tasks(spec: QueueSpec) -> bool:
    return all(kind.holds_tasks for kind in kinds_of(spec))


def other_keys(spec: QueueSpec) -> list[UniqueBy]:
    """By what an insert may meet a row of the queue, besides the primary key."""
    ways = (kind.unique_by(spec) for kind in kinds_of(spec))
    return [way for way in ways if way is not None]


def renewed(fenced: Fenced, kept: Sequence[Assignment], *, spent: bool = False) -> tuple[set[Identity], Fenced]:
    """:meth:`.Kind.renew` of all kinds."""
    held = set[Identity]()
    for kind in kinds_of(fenced.spec):
        still, fenced = kind.renew(fenced, kept, spent=spent)
        held |= still
    return held, fenced
