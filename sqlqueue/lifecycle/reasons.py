"""The reasons why a task is not running, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement

from .._support.error_text import key_text
from ..queue.spec import Criterion, Identity, QueueSpec


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
