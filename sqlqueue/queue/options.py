"""What a model says of its queue, in one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement

from .._support.checks import count, duration, key
from .._support.exc import ArgumentError
from .retries import ExponentialBackoff, RetryPolicy
from .schedules import Missed


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Read once, when the class is made: ``__queue__ = QueueOptions(...)``.

    ``lease``
        How long a claim holds its row unless the call says otherwise.
    ``max_attempts``
        After so many claims a failing or crashing task is discarded.  Each row has its own, which is this for all that
        is enqueued here.  Rows that other programs insert get the default of the column, which a migration sets.
    ``retry``
        The delay after a failed attempt: any callable from the attempt's number to a ``timedelta``, such as
        :class:`.LinearBackoff`; or :class:`.RetryByError`.
    ``on_complete``
        ``"keep"`` the completed row, or ``"delete"`` it.
    ``retention``
        What ``prune``, and so each worker, deletes by itself: rows that the queue finished longer ago than this, but
        none that were in the table before it became a queue.  An index finds them, also for :func:`.timeline`.
        ``None``: ``prune`` must be told, and workers delete nothing.
    ``discarded_retention``
        The same for dead letters, where they are to stay longer (or less long).  ``None``: as ``retention`` says.
    ``notify``
        Whether a transaction that enqueues sends a notification, where the engine has them (PostgreSQL), by which
        workers elsewhere need not wait until they next look.  One for each transaction and queue, at its commit.
    ``order_by``
        The order of the claim among ready rows, where it is not ``priority``, ``available_at``: names of attributes, or
        ``sqlalchemy.desc("name")``.  The primary key is always added.  The claim index follows it.
    ``partitions``
        Attributes by which claims are divided, such as the type of a message: a claim that fixes one by an equality
        has an index of its own, as one by ``topic`` has.
    ``stages``
        The names of the stages of a :class:`.StageMixin`, in the order in which a task goes through them.
    ``missed``
        What becomes of runs of a :class:`.RecurringMixin` whose time has passed while nobody could run them: all are
        made up for by ``"once"``, or each (``"all"``), or none (``"skip"``).
    ``slots``, ``limit``
        For a :class:`.LimitMixin`: the model of its slots, and how many tasks with the same key may run at once.
        ``limit`` is the initial limit of a new key; later use :func:`.set_limit`.
    ``columns``
        New names for columns of the mixin whose own are taken, ``{"status": "queue_status"}``.
    """

    lease: timedelta = timedelta(minutes=5)
    max_attempts: int = 5
    retry: RetryPolicy = field(default_factory=ExponentialBackoff)
    on_complete: Literal["keep", "delete"] = "keep"
    retention: timedelta | None = None
    discarded_retention: timedelta | None = None
    notify: bool = True
    order_by: tuple[str | ColumnElement[Any], ...] = ()
    partitions: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    missed: Missed = "once"
    slots: type[Any] | None = None
    limit: int = 1
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        duration("lease", self.lease)
        count("max_attempts", self.max_attempts)
        if not callable(self.retry):
            raise ArgumentError(f"retry={self.retry!r}: a callable from the attempt to a timedelta is needed")
        if self.on_complete not in ("keep", "delete"):
            raise ArgumentError(f"on_complete={self.on_complete!r}: 'keep' or 'delete'")
        for name in ("retention", "discarded_retention"):
            if getattr(self, name) is not None:
                duration(name, getattr(self, name), zero=True)
        if not isinstance(self.columns, Mapping):
            raise ArgumentError(f"columns={self.columns!r}: a mapping is needed, as in {{'status': 'queue_status'}}")
        for name in ("order_by", "partitions", "stages"):
            if not isinstance(getattr(self, name), tuple):
                raise ArgumentError(f"{name}={getattr(self, name)!r}: a tuple of names is needed")
        _check_names("partitions", self.partitions)
        _check_names("stages", self.stages)
        for stage in self.stages:
            key("stages", stage)
        if self.missed not in get_args(Missed):
            raise ArgumentError(f"missed={self.missed!r}: one of {', '.join(get_args(Missed))}")
        count("limit", self.limit)

    @property
    def prunes(self) -> bool:
        """Whether ``prune`` knows what to remove without being told."""
        return self.retention is not None or self.discarded_retention is not None


def _check_names(option: str, names: tuple[object, ...]) -> None:
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ArgumentError(f"{option}={names!r}: names are needed, each once")
