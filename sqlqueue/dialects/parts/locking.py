"""The statements that lock rows.  Nothing here is executed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Select, select

from ...queue.spec import Criterion, QueueSpec
from ...sql.selection import Pick
from .keys import Keys


class Locking(ABC):
    """What a statement locks, and what it passes over."""

    passes_over: ClassVar[bool] = False
    """Whether a statement that writes passes over what others have locked, or meets no such thing."""
    one_writer: ClassVar[bool] = False
    """Whether the engine allows one writer at a time, so that all that claim wait for one another anyway."""
    orders_freely: ClassVar[bool] = True
    """Whether rows are locked after the sort, so that an order without an index is only slow."""
    sweeps_by_key: ClassVar[bool] = False
    """Whether a statement about any number of rows is to find them first, and then name them by primary key."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    @abstractmethod
    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the locking SELECT: these columns of exactly the rows that are free, and no lock on any other.

        SKIP LOCKED is :func:`skip_locked`.
        """

    def is_served(self, pick: Pick) -> bool:
        """Return whether :meth:`picking` locks the rows of ``pick`` and no others; if not, they are found first."""
        return True

    def looking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return these columns of the rows of ``pick``, whether they are free or not, without a lock."""
        return pick.select(*columns).limit(pick.limit)

    def named(self, spec: QueueSpec, *criteria: Criterion, waits: bool) -> Select[Any]:
        """Return the SELECT that locks rows which are named; unless it ``waits``, those that nobody else has locked."""
        matching = select(*spec.primary_key).where(*criteria)
        locking: Select[Any] = self.keys.by_key(spec, matching.with_for_update(skip_locked=not waits))
        return locking

    def picking_named(self, spec: QueueSpec, named: Criterion, *columns: ColumnElement[Any]) -> Select[Any]:
        """:meth:`picking` of rows that are named."""
        most = self.keys.most(spec)
        pick = Pick(spec=spec, state=(named,), where=(), order=(), limit=most, index=None, exact=True)
        return self.picking(pick, *columns)

    def passing_over(self, spec: QueueSpec, named: Criterion) -> Criterion:
        """Return ``named`` for those rows alone that nobody else has locked, if one statement can say so."""
        return named

    def loading(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        """Return the SELECT of so many instances, which its parameters name.  ``latest``: they were only locked."""
        return select(spec.entity).where(self.keys.keys_named(spec, count))

    def returns(self, spec: QueueSpec) -> bool:
        """Return whether UPDATE and DELETE of the table of this queue can return what they changed."""
        return True


def skip_locked(pick: Pick, *columns: ColumnElement[Any], key_share: bool = False) -> Select[Any]:
    """Return :meth:`.Locking.picking` for engines that lock no row but those that they return."""
    return pick.select(*columns).limit(pick.limit).with_for_update(skip_locked=True, key_share=key_share)
