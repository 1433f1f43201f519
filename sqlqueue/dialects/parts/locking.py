"""Builds the statements that lock rows.  Nothing here executes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Select, select

from ...queue.spec import Criterion, Identity, QueueSpec
from ...sql.selection import Pick
from .keys import Keys


class Locking(ABC):
    """Decides which rows a statement locks, and which it skips."""

    passes_over: ClassVar[bool] = False
    """Whether a statement that writes can skip locked rows, or never encounters any."""
    one_writer: ClassVar[bool] = False
    """Whether the engine allows one writer at a time, so that claims wait for each other."""
    orders_freely: ClassVar[bool] = True
    """Whether rows are locked after the sort, so that an order without an index is slow but locks nothing else."""
    counts: ClassVar[bool] = True
    """Whether the driver's row count tells whether an UPDATE or DELETE of one row has changed it.

    It then replaces RETURNING, whose result takes the client longer to read.
    """
    sweeps_by_key: ClassVar[bool] = False
    """Whether statements that change any number of rows must first read their keys, and then change them by key."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    @abstractmethod
    def picking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the SELECT that locks exactly the rows of ``pick`` that are not locked, and returns these columns.

        Most engines use :func:`skip_locked`.
        """

    def is_served(self, pick: Pick) -> bool:
        """Return whether :meth:`picking` locks only the rows of ``pick``; otherwise they are read before locking."""
        return pick.divided is None

    def locked_in_order(self, spec: QueueSpec, keys: Sequence[Identity]) -> int:
        """Return how many of ``keys``, starting with the first, a statement with a limit can name.

        It then locks them in this order, and no more of them than the limit.
        """
        return 0

    def looking(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the SELECT that reads these columns of the rows of ``pick``, locked or not, without locking.

        It reads no others ahead of them, in any part.
        """
        return pick.merged(lambda part, wanted: self.along(part, part.select(*wanted).limit(part.limit)), columns)

    def along(self, pick: Pick, reading: Select[Any]) -> Select[Any]:
        """Return ``reading``, which reads rows of an undivided ``pick`` in order, with a hint to use the pick's index.

        Without one, a planner may read and sort many rows to return the first.
        """
        return self.advising(pick.spec, pick.index, reading)

    def advising(self, spec: QueueSpec, index: str | None, reading: Select[Any]) -> Select[Any]:
        """Return ``reading`` with a hint to use this index, which need not exist, where a planner ignores limits."""
        return reading

    def finding(self, pick: Pick, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return the statement with which a claim finds the rows of ``pick``."""
        return self.picking(pick, *columns) if self.is_served(pick) else self.looking(pick, *columns)

    def named(self, spec: QueueSpec, *criteria: Criterion, waits: bool) -> Select[Any]:
        """Return the SELECT that locks rows selected by primary key; unless it ``waits``, it skips locked rows."""
        matching = select(*spec.primary_key).where(*criteria)
        locking: Select[Any] = self.keys.by_key(spec, matching.with_for_update(skip_locked=not waits))
        return locking

    def picking_named(self, spec: QueueSpec, named: Criterion, *columns: ColumnElement[Any]) -> Select[Any]:
        """Return :meth:`picking` for rows selected by primary key."""
        most = self.keys.most(spec)
        pick = Pick(spec=spec, state=(named,), where=(), order=(), limit=most, index=None, exact=True)
        return self.picking(pick, *columns)

    def passing_over(self, spec: QueueSpec, named: Criterion) -> Criterion:
        """Return ``named`` restricted to rows that are not locked, if the engine can express it in one statement."""
        return named

    def loading(self, spec: QueueSpec, count: int, *, latest: bool) -> Select[Any]:
        """Return the SELECT of ``count`` instances by key parameters.

        ``latest``: the rows were only locked, not written to, so the SELECT must read their latest versions.
        """
        return select(spec.entity).where(self.keys.keys_named(spec, count))

    def returns(self, spec: QueueSpec) -> bool:
        """Return whether UPDATE and DELETE of this queue's table support RETURNING."""
        return True


def skip_locked(pick: Pick, *columns: ColumnElement[Any], key_share: bool = False) -> Select[Any]:
    """Return :meth:`.Locking.picking` for engines with SKIP LOCKED that lock only the rows that they return."""
    return pick.select(*columns).limit(pick.limit).with_for_update(skip_locked=True, key_share=key_share)
