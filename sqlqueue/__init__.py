"""Durable queues made of the application's own SQLAlchemy models, in the database it already has."""

from typing import TYPE_CHECKING

from .backoff import ExponentialBackoff, RetryPolicy
from .claims import Claim, claim_of
from .clock import utcnow
from .exc import (
    ArgumentError,
    ClaimLostError,
    ConfigurationError,
    DuplicateTaskError,
    HandlerNotFoundError,
    IllegalTransitionError,
    SchemaMismatchError,
    SQLQueueError,
    SQLQueueWarning,
    UnsettledClaimError,
    UnsupportedDialectError,
    UnsupportedIsolationError,
)
from .findings import Finding, Severity
from .health import check, verify_schema
from .mixins import JobMixin, QueueMixin, TopicMixin, TraceMixin
from .operations import (
    ErrorGroup,
    QueueStats,
    cancel,
    claim,
    claim_many,
    claiming,
    complete,
    consume,
    consume_many,
    discard,
    enqueue,
    errors,
    fail,
    find,
    heartbeat,
    prune,
    release,
    rescue,
    retry,
    snooze,
    stats,
)
from .options import QueueOptions
from .pausing import Pause, PauseMixin, pause, paused, resume
from .session import QueueSession
from .states import Status
from .worker import Cancel, Discard, Retry, Snooze, Worker, current_job

if TYPE_CHECKING:
    from .asyncio import AsyncQueueSession

__all__ = [
    "ArgumentError",
    "AsyncQueueSession",
    "Cancel",
    "Claim",
    "ClaimLostError",
    "ConfigurationError",
    "Discard",
    "DuplicateTaskError",
    "ErrorGroup",
    "ExponentialBackoff",
    "Finding",
    "HandlerNotFoundError",
    "IllegalTransitionError",
    "JobMixin",
    "Pause",
    "PauseMixin",
    "QueueMixin",
    "QueueOptions",
    "QueueSession",
    "QueueStats",
    "Retry",
    "RetryPolicy",
    "SQLQueueError",
    "SQLQueueWarning",
    "SchemaMismatchError",
    "Severity",
    "Snooze",
    "Status",
    "TopicMixin",
    "TraceMixin",
    "UnsettledClaimError",
    "UnsupportedDialectError",
    "UnsupportedIsolationError",
    "Worker",
    "cancel",
    "check",
    "claim",
    "claim_many",
    "claim_of",
    "claiming",
    "complete",
    "consume",
    "consume_many",
    "current_job",
    "discard",
    "enqueue",
    "errors",
    "fail",
    "find",
    "heartbeat",
    "pause",
    "paused",
    "prune",
    "release",
    "rescue",
    "resume",
    "retry",
    "snooze",
    "stats",
    "utcnow",
    "verify_schema",
]


def __getattr__(name: str) -> object:
    """SQLAlchemy's asyncio extension needs greenlet, which is not installed for those who do without."""
    if name == "AsyncQueueSession":
        from .asyncio import AsyncQueueSession  # noqa: PLC0415

        return AsyncQueueSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
