"""What a model says of its queue, in one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement

from .backoff import ExponentialBackoff, RetryPolicy
from .checks import count, duration
from .exc import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Read once, when the class is made: ``__queue__ = QueueOptions(...)``.

    ``lease``
        How long a claim holds its row unless the call says otherwise.
    ``max_attempts``
        After so many claims a failing or crashing task is discarded.  The default of the column; each row has its own.
    ``retry``
        The delay after a failed attempt: any callable from the attempt's number to a ``timedelta``.
    ``on_complete``
        ``"keep"`` the completed row, or ``"delete"`` it.
    ``retention``
        What ``prune`` removes when it is not told: final rows older than this.  ``None``: it must be told.
    ``notify``
        Whether a transaction that enqueues sends a notification, where the engine has them (PostgreSQL), by which
        workers elsewhere need not wait until they next look.  One for each transaction and queue, at its commit.
    ``order_by``
        The order of the claim among ready rows, where it is not ``priority``, ``available_at``: names of attributes, or
        ``sqlalchemy.desc("name")``.  The primary key is always added.  The claim index follows it.
    ``columns``
        New names for columns of the mixin whose own are taken, ``{"status": "queue_status"}``.
    """

    lease: timedelta = timedelta(minutes=5)
    max_attempts: int = 5
    retry: RetryPolicy = field(default_factory=ExponentialBackoff)
    on_complete: Literal["keep", "delete"] = "keep"
    retention: timedelta | None = None
    notify: bool = True
    order_by: tuple[str | ColumnElement[Any], ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        duration("lease", self.lease)
        count("max_attempts", self.max_attempts)
        if not callable(self.retry):
            raise ArgumentError(f"retry={self.retry!r}: a callable from the attempt to a timedelta is needed")
        if self.on_complete not in ("keep", "delete"):
            raise ArgumentError(f"on_complete={self.on_complete!r}: 'keep' or 'delete'")
        if self.retention is not None:
            duration("retention", self.retention, zero=True)
        if not isinstance(self.columns, Mapping):
            raise ArgumentError(f"columns={self.columns!r}: a mapping is needed, as in {{'status': 'queue_status'}}")
        if not isinstance(self.order_by, tuple):
            raise ArgumentError(f"order_by={self.order_by!r}: a tuple of attribute names is needed")
