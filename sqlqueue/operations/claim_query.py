"""The parameters of claims: which tasks are wanted, in which order, and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.base import ExecutableOption

from .._support import checks
from .._support.checks import count, duration
from .._support.exc import ArgumentError
from ..dialects.base import Adapter
from ..model.columns import LONGEST_NAME
from ..queue.spec import QueueSpec, Where
from ..sql.selection import Pick, Step, named_picks, picks
from ..transaction.connection import default_claimer
from .session_criteria import scope_of

Lease: TypeAlias = timedelta | Literal["default"] | None
OrderTerm: TypeAlias = ColumnElement[Any] | InstrumentedAttribute[Any]
OrderBy: TypeAlias = OrderTerm | Sequence[OrderTerm]


class ClaimQuery:
    """Reusable claim parameters; caches the statements of repeated claims."""

    def __init__(
        self,
        spec: QueueSpec,
        where: Sequence[Where] = (),
        order_by: OrderBy = (),
        options: Sequence[ExecutableOption] = (),
    ) -> None:
        """Raise :class:`.ArgumentError` for invalid ``options`` or ``order_by``."""
        if not isinstance(options, Sequence):
            raise ArgumentError(f"options={options!r}: give a sequence of loader options")
        self.spec = spec
        self.where = where
        self.order = _order(spec, order_by)
        self.options = options
        self.steps: tuple[Step, ...] = picks(spec, where, self.order)

    def narrowed(self, where: Sequence[Where], *, named: bool = False) -> ClaimQuery:
        """Return a copy restricted to rows that satisfy ``where``; ``named``: ``where`` selects by primary key."""
        narrowed = ClaimQuery(self.spec, where, self.order, self.options)
        narrowed.steps = named_picks(self.spec, where) if named else narrowed.steps[: len(self.steps)]
        return narrowed

    @cached_property
    def ready(self) -> ClaimQuery:
        """A copy that claims available rows only, for a caller that has just found no due rows."""
        ready = copy(self)
        ready.steps = self.steps[:1]
        return ready


def scoped(session: Session, query: ClaimQuery) -> ClaimQuery:
    """Restrict ``query`` to the rows that the session's loader criteria allow."""
    scope = scope_of(session, query.spec, query.options)
    return query.narrowed([*query.where, *scope]) if scope else query


def _order(spec: QueueSpec, order_by: OrderBy) -> tuple[Any, ...]:
    order = tuple(order_by) if isinstance(order_by, Sequence) else (order_by,)
    if isinstance(order_by, str) or not all(
        hasattr(term, "__clause_element__") or isinstance(term, ColumnElement) for term in order
    ):
        raise ArgumentError(f"order_by={order_by!r}: give columns, as in {spec.entity.__name__}.priority.desc()")
    return order


def check_order(adapter: Adapter, pick: Pick, order: Sequence[Any]) -> None:
    """Raise :class:`.ArgumentError` for an order that no index has, on engines that lock the rows that they sort."""
    if order and pick.index is not None and not adapter.locking.orders_freely:
        name = adapter.product.name
        raise ArgumentError(
            f"{name} locks every row that it sorts, so it can claim only in the order of an index: declare the order in"
            f" {pick.spec.entity.__name__}.__queue__ = QueueOptions(order_by=...), which creates that index"
        )


def check_claim(limit: int, lease: Lease) -> None:
    """Raise :class:`.ArgumentError` for an invalid limit or lease."""
    count("limit", limit)
    if lease is not None and lease != "default":
        duration("lease", lease)


def claimer_name(claimed_by: str | None) -> str:
    """Return the name to store in ``claimed_by``, by default ``host:pid``."""
    return default_claimer() if claimed_by is None else checks.name("claimed_by", claimed_by, LONGEST_NAME)
