"""Criteria on the state of a row: its status, its time, its attempts and the claim that holds it."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, func, literal_column, or_

from ..queue.spec import Criterion, QueueSpec
from ..queue.status import DUE, FINAL, Status
from .clock import utcnow


def state(status: Status) -> ColumnElement[str]:
    """Return ``status`` as a literal: with a bind parameter, planners would not use partial indexes."""
    return literal_column(f"'{status.value}'")


def is_available(spec: QueueSpec) -> Criterion:
    """Return whether the row's status is ``available``; its time may be in the future."""
    return spec["status"] == state(Status.AVAILABLE)


def present_status(spec: QueueSpec) -> ColumnElement[str]:
    """Return the status as an expression that optimizers do not match against the predicates of partial indexes.

    They might choose such an index and read all scheduled rows; or fail to see that an index named by a hint contains
    all the rows, which is SQL Server's error 8622.
    """
    return func.coalesce(spec["status"], literal_column("''"))


def has_come(spec: QueueSpec) -> Criterion:
    """Return whether the row's ``available_at`` has passed."""
    return spec["available_at"] <= utcnow()


def is_ready(spec: QueueSpec) -> Criterion:
    """Return whether the row is available now.

    Other programs may insert rows with a later ``available_at`` and leave the status to its default.
    """
    return and_(is_available(spec), has_come(spec))


def is_early(spec: QueueSpec) -> Criterion:
    """Return whether the row is available only from a later time on."""
    return and_(is_available(spec), spec["available_at"] > utcnow())


def is_due(spec: QueueSpec) -> Criterion:
    """Return whether the row has a status that comes due: retryable, scheduled or running.  Does not compare times."""
    return spec["status"].in_([state(status) for status in DUE])


def is_held(spec: QueueSpec) -> Criterion:
    """Return whether the row's status is ``running``; its lease may have ended."""
    return spec["status"] == state(Status.RUNNING)


def is_held_by_worker(spec: QueueSpec) -> Criterion:
    """Return whether a worker has claimed the row, with a lease."""
    return and_(present_status(spec) == state(Status.RUNNING), spec["claim_token"] < literal_column("0"))


def is_final(spec: QueueSpec) -> Criterion:
    """Return whether the row is completed, cancelled or discarded."""
    return spec["status"].in_([state(status) for status in FINAL])


def is_adopted(spec: QueueSpec) -> Criterion:
    """Return whether the row is final without having been finished: it is from before the table became a queue."""
    return and_(is_final(spec), spec["finished_at"].is_(None))


def has_attempts(spec: QueueSpec) -> Criterion:
    """Return whether the row may be claimed again: attempts are left, or it is held by a worker, whose crash does not
    count as an attempt."""
    return or_(spec["attempt"] < spec["max_attempts"], is_held_by_worker(spec))


def come_due(spec: QueueSpec) -> tuple[Criterion, ...]:
    """Return the conditions of rows that a claim takes once their time has come: waiting ones and expired leases."""
    return (
        spec["finished_at"].is_(None),
        has_come(spec),
        is_due(spec),
        has_attempts(spec),
    )


def is_hung(spec: QueueSpec) -> Criterion:
    """Return whether the lease of the row's claimer has ended without a settlement."""
    return and_(has_come(spec), is_held(spec))


def is_exhausted(spec: QueueSpec) -> Criterion:
    """Return whether the last lease has ended and no attempts are left; never true of rows claimed by workers."""
    return and_(is_held(spec), *used_up(spec))


def used_up(spec: QueueSpec) -> tuple[Criterion, ...]:
    """Return the conditions of :func:`is_exhausted`, except that the row is running."""
    return (
        spec["finished_at"].is_(None),
        has_come(spec),
        is_due(spec),
        spec["attempt"] >= spec["max_attempts"],
        spec["claim_token"] >= literal_column("0"),
    )
