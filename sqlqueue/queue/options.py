"""What a model declares about its queue: states, options, and what the history keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement

from .._support.checks import at_once, count, duration, key
from .._support.errors import ArgumentError
from .retries import ExponentialBackoff, RetryPolicy
from .schedules import Missed

# -- the states of a task ---------------------------------------------------------------------------------------------


class Status(StrEnum):
    """The state of a task, stored as this short string.  ``available_at`` is the time from which, or until which, it
    applies."""

    AVAILABLE = "available"
    """May be claimed now."""
    SCHEDULED = "scheduled"
    """May be claimed from ``available_at`` on."""
    RETRYABLE = "retryable"
    """Failed; may be claimed again from ``available_at`` on."""
    WAITING = "waiting"
    """Waits for other tasks; may be claimed from ``available_at`` on if these have not ended before."""
    RUNNING = "running"
    """Claimed; the lease expires at ``available_at``, and then it may be claimed again."""
    COMPLETED = "completed"
    """Final: done."""
    CANCELLED = "cancelled"
    """Final: no longer wanted."""
    DISCARDED = "discarded"
    """Final: given up, a dead letter."""


DUE = (Status.SCHEDULED, Status.RETRYABLE, Status.RUNNING)
"""States that become claimable when ``available_at`` is reached."""

FINAL = (Status.COMPLETED, Status.CANCELLED, Status.DISCARDED)
"""The final states of a task."""


EXPIRED = "expired"
"""The error of tasks that are cancelled because they were not started in time (``ExpiryMixin``)."""


# -- the outcomes of attempts, and the options of the history that keeps them -----------------------------------------

LONGEST_TRACEBACK = 16_000
"""The maximum number of characters: MySQL's TEXT holds 65,535 bytes at most, and a character can take four."""


class AttemptOutcome(StrEnum):
    """How an attempt ended, stored as this short string."""

    COMPLETED = "completed"
    """The task was completed, or went on to its next stage or run."""
    FAILED = "failed"
    """It failed; the task was retried unless this was its last attempt."""
    DISCARDED = "discarded"
    """The task was given up, by :func:`.discard` or by its handler."""
    CANCELLED = "cancelled"
    """The task was cancelled, by :func:`.cancel` or by its handler."""
    RELEASED = "released"
    """The task was returned unfinished."""
    SNOOZED = "snoozed"
    """The task was postponed."""
    CRASHED = "crashed"
    """Its process died, or its lease expired without a settlement."""


FAILED = (AttemptOutcome.FAILED, AttemptOutcome.DISCARDED, AttemptOutcome.CRASHED)
"""The outcomes that count as failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """The options of a history: ``__history__ = HistoryOptions(...)``.

    - ``retention``: the age at which workers, and :func:`.prune_history`, delete attempts; 30 days by default. With
      ``None``, workers delete none.
    - ``traceback``: the maximum number of characters of a traceback to store, up to 16,000, the default; the middle of
      longer ones is left out. With 0, none is stored.

    Raises :class:`.ArgumentError` for values of the wrong type or range.
    """

    retention: timedelta | None = timedelta(days=30)
    traceback: int = LONGEST_TRACEBACK

    def __post_init__(self) -> None:
        if self.retention is not None:
            duration("retention", self.retention, zero=True)
        if self.traceback != 0 and count("traceback", self.traceback) > LONGEST_TRACEBACK:
            raise ArgumentError(f"traceback={self.traceback}: at most {LONGEST_TRACEBACK:,} characters are stored")


# -- the options of the latches, which all queues share ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LatchOptions:
    """The options of a model of latches: ``__latches__ = LatchOptions(...)``.

    ``retention``: how long after its end workers, and :func:`.prune_batches`, forget a batch; 30 days by default.  With
    ``None``, workers forget none.  Raises :class:`.ArgumentError` for values of the wrong type or range.
    """

    retention: timedelta | None = timedelta(days=30)

    def __post_init__(self) -> None:
        if self.retention is not None:
            duration("retention", self.retention, zero=True)


# -- how many tasks with the same key may start within a time ---------------------------------------------------------

MOST_STARTS = 1_000_000_000
LONGEST_PERIOD = timedelta(days=400)
MILLISECOND = timedelta(milliseconds=1)
_UNITS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}
"""Units of time, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many starts in any time of a length: ``Rate(100, per=timedelta(minutes=1))``.

    ``starts``: from 1 to 1,000,000,000.  ``per``: whole milliseconds, up to 400 days.  Raises :class:`.ArgumentError`
    for values of the wrong type or range.
    """

    starts: int
    per: timedelta = field(kw_only=True)

    def __post_init__(self) -> None:
        if count("starts", self.starts) > MOST_STARTS:
            raise ArgumentError(f"starts={self.starts}: give at most {MOST_STARTS:,}")
        if duration("per", self.per) > LONGEST_PERIOD or self.per % MILLISECOND:
            raise ArgumentError(f"per={self.per!r}: give whole milliseconds, and at most {LONGEST_PERIOD.days} days")

    def __str__(self) -> str:
        return f"{self.starts:,} per {self.period}"

    @property
    def period(self) -> str:
        """The time in words: ``1 min``, ``1 h 30 min``, ``500 ms``."""
        rest, parts = self.per // MILLISECOND, list[str]()
        for unit, size in _UNITS.items():
            number, rest = divmod(rest, size)
            parts += [f"{number} {unit}"] if number else []
        return " ".join(parts)


# -- the options of a queue, which its model declares -----------------------------------------------------------------

LIGHTEST, HEAVIEST = 0.1, 1_000
"""The range of weights: a claim visits the lightest key ten times for one task."""


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
    - ``fair``: the attribute whose values, such as tenants, share the queue: claims take the tasks of the values in
      turn, however many tasks a value has. Adds indexes as ``partitions`` does. See :doc:`/how-to/fair-share`.
    - ``weight``: the weights of the shares, from 0.1 to 1,000: a mapping of values of ``fair``, or a callable that
      takes one and does not wait; 1 by default, and for a value that the mapping does not have.
    - ``sequential``: the attribute whose values, such as accounts, keep their order: a task starts only when all tasks
      with the same value and a smaller primary key are final. ``None`` as a value means no order. Adds an index; see
      :doc:`/how-to/keep-order`.
    - ``continue_on_discarded``: whether the tasks after a discarded one may start; by default, they wait until it is
      retried, and completed or cancelled.
    - ``stages``: the names of the stages of a :class:`.StageMixin`, in order.
    - ``missed``: how a :class:`.RecurringMixin` makes up for runs that were missed because no worker was running: by
      one run (``"once"``, the default), by all (``"all"``), or not at all (``"skip"``).
    - ``slots``: for a :class:`.LimitMixin`, the model of its slots.
    - ``limit``: for a :class:`.LimitMixin`, how many tasks with the same key may run at once: the initial limit of a
      new key, from 1 to 10,000. Change it with :func:`.set_limit`. By default 1, or no limit if there is a ``rate``.
    - ``rate``: for a :class:`.LimitMixin`, how many tasks with the same key may start within a time: the initial
      :class:`.Rate` of a new key; ``None``, the default: any number. Change it with :func:`.set_rate`. See
      :doc:`/how-to/rates`.
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
    fair: str | None = None
    weight: Mapping[Any, float] | Callable[[Any], float] | None = None
    sequential: str | None = None
    continue_on_discarded: bool = False
    stages: tuple[str, ...] = ()
    missed: Missed = "once"
    slots: type[Any] | None = None
    limit: int | None = None
    rate: Rate | None = None
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
        _check_share(self.fair, self.weight)
        self._check_sequence()
        for stage in self.stages:
            key("stages", stage)
        if self.missed not in get_args(Missed):
            raise ArgumentError(f"missed={self.missed!r}: give one of {', '.join(get_args(Missed))}")
        if self.limit is not None:
            at_once("limit", self.limit)
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise ArgumentError(f"rate={self.rate!r}: give a Rate, as in Rate(100, per=timedelta(minutes=1))")

    def _check_sequence(self) -> None:
        if not isinstance(self.continue_on_discarded, bool):
            raise ArgumentError(f"continue_on_discarded={self.continue_on_discarded!r}: give True or False")
        if self.sequential is None:
            if self.continue_on_discarded:
                raise ArgumentError("continue_on_discarded= is for queues with sequential=, whose keys wait")
            return
        _check_name("sequential", self.sequential)
        if self.order_by:
            raise ArgumentError("order_by= and sequential= are two orders: choose one")
        if self.fair is not None:
            raise ArgumentError("fair= and sequential= do not go together: the keys of sequential= take turns anyway")
        if self.stages:
            raise ArgumentError("stages= and sequential= do not go together: a task of a later stage starts anew")

    def weight_of(self, value: Any) -> float:
        """Return the weight of a value of ``fair``.  Raises :class:`.ArgumentError` if it is none."""
        if self.weight is None:
            return 1.0
        if isinstance(self.weight, Mapping):
            return self.weight.get(value, 1.0)
        return weight(value, self.weight(value))

    @property
    def first_limit(self) -> int | None:
        """How many tasks with the same new key may run at once; ``None``: any number."""
        return 1 if self.limit is None and self.rate is None else self.limit

    @property
    def prunes(self) -> bool:
        """Whether ``prune`` may be called without an age."""
        return self.retention is not None or self.discarded_retention is not None


def _check_share(fair: str | None, weights: object) -> None:
    if fair is not None:
        _check_name("fair", fair)
    elif weights is not None:
        raise ArgumentError("weight= is for queues with fair=, whose values have the weights")
    if isinstance(weights, Mapping):
        for value, given in weights.items():
            weight(value, given)
    elif weights is not None and not callable(weights):
        raise ArgumentError(f"weight={weights!r}: give a mapping, or a callable that takes a value of fair=")


def weight(value: object, given: object) -> float:
    """Return the weight given for ``value`` if it is one."""
    if isinstance(given, int | float) and not isinstance(given, bool) and LIGHTEST <= given <= HEAVIEST:
        return float(given)
    raise ArgumentError(f"weight of {value!r}: {given!r} is not a number from {LIGHTEST} to {HEAVIEST:,}")


def _check_name(option: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{option}={name!r}: give the name of an attribute, as in {option}='tenant'")


def _check_names(option: str, names: tuple[object, ...]) -> None:
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ArgumentError(f"{option}={names!r}: give names without duplicates")
