"""Durable queues made of the application's own SQLAlchemy models, in the database it already has."""

from typing import TYPE_CHECKING

from .backoff import ConstantBackoff, ExponentialBackoff, LinearBackoff, RetryByError, RetryPolicy
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
from .mixins import (
    JobMixin,
    LimitMixin,
    QueueMixin,
    RecurringMixin,
    ResultMixin,
    SlotMixin,
    StageMixin,
    TopicMixin,
    TraceMixin,
    UniqueMixin,
)
from .oldalembic import watch as _watch
from .operations import (
    Bucket,
    DeclaredSchedules,
    Durations,
    ErrorGroup,
    Limit,
    Pruned,
    QueueOverview,
    QueueStats,
    cancel,
    claim,
    claim_in_turns,
    claim_many,
    claiming,
    complete,
    consume,
    consume_many,
    declare_schedules,
    discard,
    enqueue,
    errors,
    fail,
    find,
    heartbeat,
    hung,
    limits,
    overview,
    prune,
    release,
    reschedule,
    rescue,
    retry,
    set_limit,
    snooze,
    stats,
    stats_by,
    timeline,
    unschedule,
)
from .options import QueueOptions
from .pausing import Pause, PauseMixin, pause, paused, resume
from .schedules import Cron, Every
from .session import QueueSession
from .states import Status
from .worker import Cancel, Discard, Retry, Snooze, Worker, current_job

if TYPE_CHECKING:
    from .asyncio import AsyncQueueSession

__all__ = [
    "ArgumentError",
    "AsyncQueueSession",
    "Bucket",
    "Cancel",
    "Claim",
    "ClaimLostError",
    "ConfigurationError",
    "ConstantBackoff",
    "Cron",
    "DeclaredSchedules",
    "Discard",
    "DuplicateTaskError",
    "Durations",
    "ErrorGroup",
    "Every",
    "ExponentialBackoff",
    "Finding",
    "HandlerNotFoundError",
    "IllegalTransitionError",
    "JobMixin",
    "Limit",
    "LimitMixin",
    "LinearBackoff",
    "Pause",
    "PauseMixin",
    "Pruned",
    "QueueMixin",
    "QueueOptions",
    "QueueOverview",
    "QueueSession",
    "QueueStats",
    "RecurringMixin",
    "ResultMixin",
    "Retry",
    "RetryByError",
    "RetryPolicy",
    "SQLQueueError",
    "SQLQueueWarning",
    "SchemaMismatchError",
    "Severity",
    "SlotMixin",
    "Snooze",
    "StageMixin",
    "Status",
    "TopicMixin",
    "TraceMixin",
    "UniqueMixin",
    "UnsettledClaimError",
    "UnsupportedDialectError",
    "UnsupportedIsolationError",
    "Worker",
    "cancel",
    "check",
    "claim",
    "claim_in_turns",
    "claim_many",
    "claim_of",
    "claiming",
    "complete",
    "consume",
    "consume_many",
    "current_job",
    "declare_schedules",
    "discard",
    "enqueue",
    "errors",
    "fail",
    "find",
    "heartbeat",
    "hung",
    "limits",
    "overview",
    "pause",
    "paused",
    "prune",
    "release",
    "reschedule",
    "rescue",
    "resume",
    "retry",
    "set_limit",
    "snooze",
    "stats",
    "stats_by",
    "timeline",
    "unschedule",
    "utcnow",
    "verify_schema",
]


def __getattr__(name: str) -> object:
    """SQLAlchemy's asyncio extension needs greenlet, which is not installed for those who do without."""
    if name == "AsyncQueueSession":
        from .asyncio import AsyncQueueSession  # noqa: PLC0415

        return AsyncQueueSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_watch()
