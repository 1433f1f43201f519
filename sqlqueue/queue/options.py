"""The options of a queue, which its model declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement

from .._support.checks import at_once, count, duration, key
from .._support.exc import ArgumentError
from .retries import ExponentialBackoff, RetryPolicy
from .schedules import Missed


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The options of a queue, read once when its class is defined: ``__queue__ = QueueOptions(...)``.

    - ``lease``: how long a claim holds its row, unless the call gives another lease; 5 minutes by default.
    - ``max_attempts``: the number of claims after which a failing task is discarded; 5 by default. It is stored in each
      row; rows that other programs insert get the default of the column, which a migration sets.
    - ``max_crashes``: the number of worker processes that a task may crash before it is discarded, at least 2; 3 by
      default. Crashes do not count as attempts. See :doc:`/how-to/retries`.
    - ``retry``: the delay after a failed attempt: any callable from the attempt's number to a ``timedelta``, such as
      :class:`.LinearBackoff`; or :class:`.RetryByError`. By default, :class:`.ExponentialBackoff`.
    - ``on_complete``: ``"keep"`` the completed row, the default, or ``"delete"`` it.
    - ``retention``: the age at which ``prune``, and thus each worker, deletes rows that the queue has finished, but no
      rows from before the table became a queue. Adds an index for this, which :func:`.timeline` uses too. ``None``, the
      default: ``prune`` must be given an age, and workers delete nothing.
    - ``discarded_retention``: the same for dead letters, if it differs; the ``retention`` by default.
    - ``notify``: whether a transaction that enqueues sends a notification, if the engine has them (PostgreSQL), so that
      workers of other processes need not wait for their next poll; true by default. Each transaction sends one per
      queue, at its commit.
    - ``order_by``: the claim order among ready rows, by default ``priority``, ``available_at``: attribute names, or
      ``sqlalchemy.desc("name")``. The primary key is always added. The claim index has the same order.
    - ``partitions``: attributes that divide the queue, such as the type of a message; none by default. Claims with an
      equality criterion on one have their own index, as claims by ``topic`` do.
    - ``stages``: the names of the stages of a :class:`.StageMixin`, in order.
    - ``missed``: how a :class:`.RecurringMixin` makes up for runs that were missed because no worker was running: by
      one run (``"once"``, the default), by all (``"all"``), or not at all (``"skip"``).
    - ``slots``: for a :class:`.LimitMixin`, the model of its slots.
    - ``limit``: for a :class:`.LimitMixin`, how many tasks with the same key may run at once: the initial limit of a
      new key, from 1, the default, to 10,000. Change it with :func:`.set_limit`.
    - ``columns``: new names for columns of the mixin whose names are taken, ``{"status": "queue_status"}``.

    Raises :class:`.ArgumentError` for values of the wrong type or range.
    """

    lease: timedelta = timedelta(minutes=5)
    max_attempts: int = 5
    max_crashes: int = 3
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
        if count("max_crashes", self.max_crashes) == 1:
            raise ArgumentError("max_crashes=1: give 2 or more, because another task may have caused the first crash")
        if not callable(self.retry):
            raise ArgumentError(
                f"retry={self.retry!r}: give a callable that takes the attempt's number and returns a timedelta"
            )
        if self.on_complete not in ("keep", "delete"):
            raise ArgumentError(f"on_complete={self.on_complete!r}: give 'keep' or 'delete'")
        for name in ("retention", "discarded_retention"):
            if getattr(self, name) is not None:
                duration(name, getattr(self, name), zero=True)
        if not isinstance(self.columns, Mapping):
            raise ArgumentError(f"columns={self.columns!r}: give a mapping, as in {{'status': 'queue_status'}}")
        for name in ("order_by", "partitions", "stages"):
            if not isinstance(getattr(self, name), tuple):
                raise ArgumentError(f"{name}={getattr(self, name)!r}: give a tuple of names")
        _check_names("partitions", self.partitions)
        _check_names("stages", self.stages)
        for stage in self.stages:
            key("stages", stage)
        if self.missed not in get_args(Missed):
            raise ArgumentError(f"missed={self.missed!r}: give one of {', '.join(get_args(Missed))}")
        at_once("limit", self.limit)

    @property
    def prunes(self) -> bool:
        """Whether ``prune`` may be called without an age."""
        return self.retention is not None or self.discarded_retention is not None


def _check_names(option: str, names: tuple[object, ...]) -> None:
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ArgumentError(f"{option}={names!r}: give names without duplicates")
